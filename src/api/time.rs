//! Durations as the library counts them.

use crate::calls::LIVENESS_OFF;
use std::time::Duration;

/// Nanoseconds as the library counts them; what is longer is refused there.
pub(super) fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A time that 0 would turn into the default: a zero duration is the shortest one.
pub(super) fn ns_not_0(time: Duration) -> u64 {
    // `LIVENESS_OFF` is no time.
    ns(time).clamp(1, LIVENESS_OFF - 1)
}
