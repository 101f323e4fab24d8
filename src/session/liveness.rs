//! Decides whether a silent peer is still alive.
//!
//! A live endpoint sends something at least once a second, with or without traffic, unless its
//! program drives it manually and does not poll. So silence is measured; any frame from the peer,
//! and anything delivered to it, ends the silence. After a third of the allowed time the peer is
//! probed; after all of it, the peer is lost. Only time in which this side was able to receive
//! counts.

/// A check adds at most this fraction of the allowed time: this process may have slept, or been
/// stopped.
pub const LOOKS: u64 = 8;
/// How often a silent peer is probed within the allowed time.
const ASKS: u64 = 6;

#[derive(Default, Debug)]
pub struct Silence {
    received_ns: u64,
    looked_ns: u64,
    silent_ns: u64,
    asked: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Alive,
    Ask,
    Lost,
}

impl Silence {
    /// Judges the silence at `now`; `received_ns` is when something was last received, and
    /// `allowed` is not 0.
    pub fn look(&mut self, received_ns: u64, now: u64, allowed: u64) -> Verdict {
        let since = if self.looked_ns == 0 { 0 } else { now.saturating_sub(self.looked_ns) };
        self.looked_ns = now;
        let counts = since.min(allowed / LOOKS);
        if received_ns > self.received_ns {
            self.silent_ns = now.saturating_sub(received_ns).min(counts);
            (self.received_ns, self.asked) = (received_ns, 0);
            return Verdict::Alive;
        }
        self.silent_ns += counts;
        let asks = self.silent_ns.saturating_mul(ASKS) / allowed;
        if self.silent_ns >= allowed {
            Verdict::Lost
        } else if asks >= ASKS / 3 && asks > self.asked {
            self.asked = asks;
            Verdict::Ask
        } else {
            Verdict::Alive
        }
    }

    /// When to check again.
    pub fn next_ns(&self, allowed: u64) -> u64 {
        let asks = (self.asked + 1).clamp(ASKS / 3, ASKS);
        let left = (asks * allowed).div_ceil(ASKS).saturating_sub(self.silent_ns);
        self.looked_ns + left.min(allowed / LOOKS).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: u64 = 6000;

    #[test]
    fn silent_peer_is_probed_four_times_and_lost() {
        let mut silence = Silence::default();
        silence.look(1, 1, ALLOWED);
        let said: Vec<(u64, Verdict)> = (1..=60)
            .map(|i| (i, silence.look(1, 1 + i * 100, ALLOWED)))
            .filter(|(_, verdict)| *verdict != Verdict::Alive)
            .collect();
        let ask = |at| (at, Verdict::Ask);
        assert_eq!(said, [ask(20), ask(30), ask(40), ask(50), (60, Verdict::Lost)]);
    }

    #[test]
    fn received_frame_restarts_liveness() {
        let mut silence = Silence::default();
        silence.look(1, 1, ALLOWED);
        for i in 1..1000u64 {
            let verdict = silence.look(1 + i / 55 * 5500, 1 + i * 100, ALLOWED);
            assert_ne!(verdict, Verdict::Lost, "{i}");
        }
    }

    #[test]
    fn time_without_polling_does_not_count_for_liveness() {
        let mut silence = Silence::default();
        silence.look(1, 1, ALLOWED);
        assert_eq!(silence.look(1, 1_000_000, ALLOWED), Verdict::Alive);
        assert_eq!(silence.look(999_999, 1_000_001, ALLOWED), Verdict::Alive);
    }
}
