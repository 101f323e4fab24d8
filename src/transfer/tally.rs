//! Statistics of an endpoint's operations: counted where operations begin and end, in several
//! parts, so that threads seldom share a cache line; summed by readers.

use super::completion::{KIND_ATOMIC, KIND_COUNTER, KIND_FENCE, KIND_READ, KIND_SEND, KIND_WRITE};
use crate::status::Status;
use crate::sync::atomic::{fence, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use crate::sync::{part, PARTS};
use crossbeam_utils::CachePadded;

/// Completions are counted at the index that is their negated status.
pub const STATUSES: usize = 96;
/// Exceeds every kind of completion.
const KINDS: usize = 16;
/// Bucket i counts transfers that took 2^i to 2^(i + 1) ns, or that moved more than 2^i and at most
/// 2^(i + 1) bytes; the last also larger ones.
pub const BUCKETS: usize = 40;

pub struct Ended {
    pub kind: i32,
    pub status: Status,
    pub bytes: u64,
    pub took_ns: u64,
}

struct Shard {
    /// Accepted operations, by kind.
    submitted: [AtomicU64; KINDS],
    /// Accepted operations that have released their resources; at most their completion is missing.
    over: AtomicU64,
    /// Bytes of successful operations, by kind.
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
    /// Accepted operations without a completion so far.
    pub fn active(&self) -> u64 {
        let Sum { writes, reads, sends, atomics, expects, fences, .. } = self;
        (writes + reads + sends + atomics + expects + fences).saturating_sub(self.completions.iter().sum())
    }
}

pub struct Tally(Box<[CachePadded<Shard>]>);

fn bucket(value: u64) -> usize {
    (value.max(1).ilog2() as usize).min(BUCKETS - 1)
}

fn kind_of(kind: i32) -> usize {
    usize::try_from(kind).map_or(0, |kind| kind % KINDS)
}

fn zeros<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

impl Shard {
    fn new() -> Shard {
        Shard {
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
        Tally((0..PARTS).map(|_| CachePadded::new(Shard::new())).collect())
    }

    #[inline]
    pub fn begun(&self, kind: i32) {
        self.0[part()].submitted[kind_of(kind)].fetch_add(1, Relaxed);
    }

    /// Counts an accepted operation that has released its resources.
    #[inline]
    pub fn over(&self) {
        self.0[part()].over.fetch_add(1, Release);
    }

    /// Accepted operations that still hold resources.
    pub fn active(&self) -> u64 {
        // Read first: every operation counted here is then also counted in `submitted`.
        let over: u64 = self.0.iter().map(|part| part.over.load(Acquire)).sum();
        let begun = |part: &CachePadded<Shard>| {
            part.submitted.iter().map(|counter| counter.load(Acquire)).sum::<u64>()
        };
        self.0.iter().map(begun).sum::<u64>().wrapping_sub(over)
    }

    /// Undoes `begun`, on the same thread.
    pub fn taken_back(&self, kind: i32) {
        self.0[part()].submitted[kind_of(kind)].fetch_sub(1, Release);
    }

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

    /// Counts a notification that the peer has received.
    pub fn notified(&self) {
        self.0[part()].notified.fetch_add(1, Relaxed);
    }

    pub fn message(&self, bytes: u64) {
        let part = &self.0[part()];
        part.messages.fetch_add(1, Relaxed);
        part.message_bytes.fetch_add(bytes, Relaxed);
    }

    pub fn notification(&self) {
        self.0[part()].notifications.fetch_add(1, Relaxed);
    }

    fn completions(&self) -> [u64; STATUSES] {
        std::array::from_fn(|i| self.0.iter().map(|part| part.ended[i].load(Relaxed)).sum())
    }

    pub fn sum(&self) -> Sum {
        // Read first: every operation counted here is then also counted in `submitted`.
        let completions = self.completions();
        fence(Acquire);
        let sum =
            |field: &dyn Fn(&Shard) -> &AtomicU64| self.0.iter().map(|part| field(part).load(Relaxed)).sum();
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
    fn latencies_are_bucketed_by_powers_of_two() {
        assert_eq!([0, 1, 2, 3, 4, 1023, 1024].map(bucket), [0, 0, 1, 1, 2, 9, 10]);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn sum_adds_all_parts() {
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
