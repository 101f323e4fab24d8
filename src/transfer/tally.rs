//! Statistics of an endpoint's operations: counted where operations begin and end, in several
//! parts, so that threads seldom share a cache line; summed by readers.

use super::completion::{KIND_ATOMIC, KIND_COUNTER, KIND_FENCE, KIND_READ, KIND_SEND, KIND_WRITE};
use crate::status::Status;
use crate::sync::atomic::{fence, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use crate::sync::{part, PARTS};
use crossbeam_utils::CachePadded;

/// Completions are counted by their status, whose negative is the place.
pub const STATUSES: usize = 96;
/// More than there are kinds of completions.
const KINDS: usize = 16;
/// Transfers that took 2^i to 2^(i + 1) ns are in place i, longer ones in the last; in those of sizes, such that moved
/// more than 2^i bytes and at most twice as many.
pub const BUCKETS: usize = 40;

/// How an operation ended.
pub struct Ended {
    pub kind: i32,
    pub status: Status,
    pub bytes: u64,
    pub took_ns: u64,
}

struct Part {
    /// Operations that were accepted, by their kind.
    submitted: [AtomicU64; KINDS],
    /// Of the active ones, those that lack at most their completion.
    over: AtomicU64,
    /// Bytes of those that succeeded, by their kind.
    bytes: [AtomicU64; KINDS],
    notified: AtomicU64,
    took_ns: AtomicU64,
    took: [AtomicU64; BUCKETS],
    sizes: [AtomicU64; BUCKETS],
    ended: [AtomicU64; STATUSES],
    sent: AtomicU64,
    /// Messages and notifications from peers.
    messages: AtomicU64,
    message_bytes: AtomicU64,
    notifications: AtomicU64,
}

/// All parts together.
pub struct Sum {
    pub writes: u64,
    pub reads: u64,
    pub sends: u64,
    pub atomics: u64,
    pub expects: u64,
    pub fences: u64,
    pub bytes_written: u64,
    pub bytes_read: u64,
    pub bytes_sent: u64,
    pub messages_sent: u64,
    pub notifications_sent: u64,
    pub messages_received: u64,
    pub bytes_received: u64,
    pub notifications_received: u64,
    pub completions: [u64; STATUSES],
    pub latency: [u64; BUCKETS],
    pub latency_sum_ns: u64,
    pub sizes: [u64; BUCKETS],
}

impl Sum {
    /// Operations that have not ended, as their completions count.
    pub fn active(&self) -> u64 {
        let Sum { writes, reads, sends, atomics, expects, fences, .. } = self;
        (writes + reads + sends + atomics + expects + fences).saturating_sub(self.completions.iter().sum())
    }
}

pub struct Tally(Box<[CachePadded<Part>]>);

fn bucket(value: u64) -> usize {
    (value.max(1).ilog2() as usize).min(BUCKETS - 1)
}

fn kind_of(kind: i32) -> usize {
    usize::try_from(kind).map_or(0, |kind| kind % KINDS)
}

fn zeros<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

impl Part {
    fn new() -> Part {
        Part {
            submitted: zeros(),
            over: AtomicU64::new(0),
            bytes: zeros(),
            notified: AtomicU64::new(0),
            took_ns: AtomicU64::new(0),
            took: zeros(),
            sizes: zeros(),
            ended: zeros(),
            sent: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            message_bytes: AtomicU64::new(0),
            notifications: AtomicU64::new(0),
        }
    }
}

impl Tally {
    pub fn new() -> Tally {
        Tally((0..PARTS).map(|_| CachePadded::new(Part::new())).collect())
    }

    /// An operation was accepted.
    #[inline]
    pub fn begun(&self, kind: i32) {
        self.0[part()].submitted[kind_of(kind)].fetch_add(1, Relaxed);
    }

    /// An operation that was accepted uses nothing any longer.
    #[inline]
    pub fn over(&self) {
        self.0[part()].over.fetch_add(1, Release);
    }

    /// Operations that were accepted and are not over.
    pub fn active(&self) -> u64 {
        // First: what is over counts among what began.
        let over: u64 = self.0.iter().map(|part| part.over.load(Acquire)).sum();
        let begun = |part: &CachePadded<Part>| part.submitted.iter().map(|of| of.load(Acquire)).sum::<u64>();
        self.0.iter().map(begun).sum::<u64>().wrapping_sub(over)
    }

    /// Undoes `begun`, on the same thread.
    pub fn taken_back(&self, kind: i32) {
        self.0[part()].submitted[kind_of(kind)].fetch_sub(1, Release);
    }

    /// An operation ended.
    pub fn ended(&self, ended: &Ended) {
        let part = &self.0[part()];
        let place = (ended.status as i32).unsigned_abs() as usize;
        part.ended[place.min(STATUSES - 1)].fetch_add(1, Release);
        if ended.status != Status::Ok {
            return;
        }
        part.bytes[kind_of(ended.kind)].fetch_add(ended.bytes, Relaxed);
        if ended.kind == KIND_SEND {
            part.sent.fetch_add(1, Relaxed);
        }
        if !matches!(ended.kind, KIND_WRITE | KIND_READ) {
            return;
        }
        part.took[bucket(ended.took_ns)].fetch_add(1, Relaxed);
        part.took_ns.fetch_add(ended.took_ns, Relaxed);
        part.sizes[bucket(ended.bytes.saturating_sub(1))].fetch_add(1, Relaxed);
    }

    /// A notification of ours has arrived.
    pub fn notified(&self) {
        self.0[part()].notified.fetch_add(1, Relaxed);
    }

    /// A peer's message was published.
    pub fn message(&self, bytes: u64) {
        let part = &self.0[part()];
        part.messages.fetch_add(1, Relaxed);
        part.message_bytes.fetch_add(bytes, Relaxed);
    }

    /// A peer's notification was published.
    pub fn notification(&self) {
        self.0[part()].notifications.fetch_add(1, Relaxed);
    }

    fn completions(&self) -> [u64; STATUSES] {
        std::array::from_fn(|i| self.0.iter().map(|part| part.ended[i].load(Relaxed)).sum())
    }

    pub fn sum(&self) -> Sum {
        // First: what has ended counts among what began.
        let completions = self.completions();
        fence(Acquire);
        let sum = |of: &dyn Fn(&Part) -> &AtomicU64| self.0.iter().map(|part| of(part).load(Relaxed)).sum();
        let submitted = |kind: i32| sum(&|part| &part.submitted[kind_of(kind)]);
        let bytes = |kind: i32| sum(&|part| &part.bytes[kind_of(kind)]);
        Sum {
            writes: submitted(KIND_WRITE),
            reads: submitted(KIND_READ),
            sends: submitted(KIND_SEND),
            atomics: submitted(KIND_ATOMIC),
            expects: submitted(KIND_COUNTER),
            fences: submitted(KIND_FENCE),
            bytes_written: bytes(KIND_WRITE),
            bytes_read: bytes(KIND_READ),
            bytes_sent: bytes(KIND_SEND),
            messages_sent: sum(&|part| &part.sent),
            notifications_sent: sum(&|part| &part.notified),
            messages_received: sum(&|part| &part.messages),
            bytes_received: sum(&|part| &part.message_bytes),
            notifications_received: sum(&|part| &part.notifications),
            completions,
            latency: std::array::from_fn(|i| sum(&|part| &part.took[i])),
            latency_sum_ns: sum(&|part| &part.took_ns),
            sizes: std::array::from_fn(|i| sum(&|part| &part.sizes[i])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_between_powers_of_two() {
        assert_eq!([0, 1, 2, 3, 4, 1023, 1024].map(bucket), [0, 0, 1, 1, 2, 9, 10]);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn parts_add_up() {
        let tally = Tally::new();
        let count = || {
            tally.begun(KIND_READ);
            let bytes = 5;
            tally.ended(&Ended { kind: KIND_READ, status: Status::Ok, bytes, took_ns: 8 });
        };
        std::thread::scope(|scope| {
            (0..3 * PARTS).for_each(|_| {
                scope.spawn(count);
            });
        });
        let (sum, all) = (tally.sum(), 3 * PARTS as u64);
        assert_eq!((sum.reads, sum.bytes_read, sum.completions[0]), (all, 5 * all, all));
        assert_eq!((sum.latency[3], sum.latency_sum_ns, sum.writes), (all, 8 * all, 0));
        assert_eq!(sum.sizes[2], all, "5 is more than 4, and at most 8");
    }
}
