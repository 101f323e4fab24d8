//! The bytes to keep in flight: what the link carries in two round trips, plus a short queue. Two,
//! because the bytes behind a lost packet are acknowledged only a round trip later.
//!
//! Too few leave the link idle; too many delay later transfers by a queue. Rate and round trip are
//! measured continuously, by one timed post at a time.

/// The queue beyond the round trips, as time at the link's rate. A transfer behind others waits
/// about this long.
const QUEUE_NS: u64 = 500_000;
/// The queue while the latency class is active, and the least bytes then. The rate is a mean:
/// samples inflated by a pause of this process would make the queue long.
const BRIEF_QUEUE_NS: u64 = 100_000;
const BRIEF_LEAST: u64 = 32 << 10;
/// The time over which the mean rate is taken.
const MEAN_NS: u64 = 10_000_000;
/// Between samples: more frequent samples do not improve the estimate.
const PAUSE_NS: u64 = 10_000;
/// A best rate is remembered for one to two of these periods, or of this many round trips if
/// longer: a link that loses packets stalls for several round trips.
const MEMORY_NS: u64 = 100_000_000;
const MEMORY_ROUND_TRIPS: u64 = 100;

pub struct Window {
    bytes: u64,
    brief: u64,
    least: u64,
    most: u64,
    /// Bytes per second: the best of the current period, and of the previous one.
    rates: [u64; 2],
    period_began_ns: u64,
    /// Recent bytes, and the time they took.
    recent: (u64, u64),
    /// The shortest round trip ever seen.
    round_trip_ns: u64,
    delivered: u64,
    sample: Option<Sample>,
    /// The earliest next sample.
    next_ns: u64,
}

/// Bytes delivered in `ns` at the rate of `bytes` in `took_ns`.
#[inline]
fn carried(bytes: u64, ns: u64, took_ns: u64) -> u64 {
    match bytes.checked_mul(ns) {
        // The usual case, and several times as fast.
        Some(product) => product / took_ns,
        None => carried_wide(bytes, ns, took_ns),
    }
}

#[cold]
fn carried_wide(bytes: u64, ns: u64, took_ns: u64) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(ns) / u128::from(took_ns)).unwrap_or(u64::MAX)
}

/// A post whose delivery is timed.
struct Sample {
    posted_ns: u64,
    /// Bytes delivered at that time, and the time of the last delivery: later deliveries are timed
    /// from there, not only from the post.
    delivered: u64,
    since_ns: u64,
}

impl Window {
    pub fn new(least: u64, most: u64) -> Window {
        Window {
            bytes: most,
            brief: most,
            least: least.min(most),
            most,
            rates: [0; 2],
            period_began_ns: 0,
            recent: (0, 0),
            round_trip_ns: u64::MAX,
            delivered: 0,
            sample: None,
            next_ns: 0,
        }
    }

    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The window of the bulk class while the latency class is active.
    #[inline]
    pub fn brief(&self) -> u64 {
        self.brief
    }

    /// The recent mean rate; 0 before the first measurement.
    pub fn bytes_per_s(&self) -> u64 {
        let (bytes, took) = self.recent;
        if took == 0 {
            return 0;
        }
        carried(bytes, 1_000_000_000, took)
    }

    pub fn round_trip_ns(&self) -> Option<u64> {
        Some(self.round_trip_ns).filter(|ns| *ns != u64::MAX)
    }

    /// Whether a post made now should be a sample: then call `measure` when it is delivered.
    /// `since_ns`: the time of the last delivery; now, if nothing is in flight.
    #[inline]
    pub fn begin(&mut self, now: u64, since_ns: u64) -> bool {
        if self.sample.is_some() || now < self.next_ns {
            return false;
        }
        self.sample = Some(Sample { posted_ns: now, delivered: self.delivered, since_ns });
        true
    }

    #[inline]
    pub fn deliver(&mut self, bytes: u64) {
        self.delivered += bytes;
    }

    /// Ends the sample: its post was delivered.
    pub fn measure(&mut self, now: u64) {
        let Some(sample) = self.sample.take() else { return };
        self.next_ns = now + PAUSE_NS;
        let since = |begun| now.saturating_sub(begun).max(1000);
        self.round_trip_ns = self.round_trip_ns.min(since(sample.posted_ns));
        let (bytes, took) = (self.delivered - sample.delivered, since(sample.since_ns));
        let rate = carried(bytes, 1_000_000_000, took);
        let memory_ns = MEMORY_NS.max(self.round_trip_ns.saturating_mul(MEMORY_ROUND_TRIPS));
        if now.saturating_sub(self.period_began_ns) > memory_ns {
            self.rates[1] = self.rates[0];
            self.rates[0] = 0;
            self.period_began_ns = now;
        }
        self.rates[0] = self.rates[0].max(rate);
        let best = self.rates[0].max(self.rates[1]);
        self.recent = (self.recent.0 + bytes, self.recent.1 + took);
        let mean = carried(self.recent.0, 1_000_000_000, self.recent.1);
        if self.recent.1 > MEAN_NS {
            self.recent = (self.recent.0 / 2, self.recent.1 / 2);
        }
        let carries = |rate, round_trips, queue_ns| {
            let ns = self.round_trip_ns.saturating_mul(round_trips).saturating_add(queue_ns);
            carried(rate, ns, 1_000_000_000)
        };
        self.bytes = carries(best, 2, QUEUE_NS).clamp(self.least, self.most);
        self.brief = carries(mean, 1, BRIEF_QUEUE_NS).max(BRIEF_LEAST).min(self.bytes);
    }

    /// Drops the sample: its post failed, or was not made.
    pub fn forget(&mut self) {
        self.sample = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a link of `rate` bytes per second and `delay` ns, kept full by `window`.
    fn run(window: &mut Window, rate: u64, delay: u64, rounds: usize, now: &mut u64) {
        for _ in 0..rounds {
            *now += PAUSE_NS;
            assert!(window.begin(*now, *now));
            // A full window takes its time on the link, or a round trip if that is longer.
            let bytes = window.bytes();
            *now += (bytes * 1_000_000_000 / rate).max(delay);
            window.deliver(bytes);
            window.measure(*now);
        }
    }

    #[test]
    fn carried_bytes_are_exact_at_every_magnitude() {
        assert_eq!(carried(3 << 30, 1_000_000_000, 500_000_000), 6 << 30);
        assert_eq!(carried(1 << 40, 1_000_000_000, 2_000_000_000), 1 << 39);
        assert_eq!(carried(u64::MAX, 1_000_000_000, 1), u64::MAX);
    }

    #[test]
    fn window_rate_converges_to_the_link_rate() {
        const MOST: u64 = 16 << 20;
        let mut window = Window::new(128 << 10, MOST);
        let mut now = 1;
        // The first post of a lane is short.
        window.begin(now, now);
        window.deliver(8);
        now += 100_000;
        window.measure(now);
        run(&mut window, 125_000_000, 100_000, 50, &mut now);
        assert!(window.bytes() <= 128 << 10, "a slow line has a short queue: {}", window.bytes());
        run(&mut window, 12_500_000_000, 100_000, 200, &mut now);
        let carries = 12_500_000_000 / 10_000;
        assert!((carries..MOST).contains(&window.bytes()), "a fast one is kept full: {}", window.bytes());
        run(&mut window, 125_000_000, 100_000, 400, &mut now);
        assert!(window.bytes() <= 128 << 10, "and it is forgotten when it slows down: {}", window.bytes());
    }

    /// Every 20th window takes as long as TCP's retransmission timeout.
    #[test]
    fn rate_of_a_lossy_link_is_remembered() {
        const RATE: u64 = 10_000_000;
        const ROUND_TRIP: u64 = 10_000_000;
        let mut window = Window::new(32 << 10, 4 << 20);
        let (mut now, mut starved) = (1, 0);
        for _ in 0..50 {
            run(&mut window, RATE, ROUND_TRIP, 20, &mut now);
            now += PAUSE_NS;
            assert!(window.begin(now, now));
            now += 250_000_000;
            window.deliver(32 << 10);
            window.measure(now);
            starved += u32::from(window.bytes() < RATE * 3 / 2 / 100);
        }
        assert_eq!(starved, 0, "windows of less than one and a half round trips");
    }

    #[test]
    fn rate_excludes_bytes_in_flight_before_a_sample() {
        let mut window = Window::new(1, u64::MAX);
        // 100 kB are posted at 0 without an acknowledgement; a little more follows at 0.9 ms, and
        // all is acknowledged at 1 ms.
        assert!(window.begin(900_000, 0));
        window.deliver(101_000);
        window.measure(1_000_000);
        assert!(window.bytes() < 101_000 * 800 / 1000, "{}", window.bytes());
    }

    #[test]
    fn rate_takes_one_sample_at_a_time() {
        let mut window = Window::new(1, 1000);
        assert!(window.begin(5, 5) && !window.begin(6, 6));
        window.forget();
        assert!(window.begin(7, 7));
        window.measure(8);
        assert!(!window.begin(8 + PAUSE_NS - 1, 0) && window.begin(8 + PAUSE_NS, 0));
    }
}
