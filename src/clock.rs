//! Time and randomness. All of an endpoint's goes through here.

use crate::status::{Error, Result, Status};

/// Nanoseconds of CLOCK_MONOTONIC.
pub struct Clock;

impl Clock {
    #[inline]
    pub fn now(&self) -> u64 {
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: fills in `t`; this clock always exists.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    }
}

/// Unpredictable numbers, from the system: keys and incarnations are guarded by
/// nothing else.
pub struct Random;

impl Random {
    /// Never 0.
    pub fn u64(&self) -> Result<u64> {
        loop {
            let mut bytes = [0u8; 8];
            getrandom::fill(&mut bytes)
                .map_err(|e| Error::new(Status::System, format!("no random numbers from the system: {e}")))?;
            let number = u64::from_le_bytes(bytes);
            if number != 0 {
                return Ok(number);
            }
        }
    }
}
