//! Rate limit for lines that peers can cause repeatedly: one per second and kind.

use std::sync::atomic::{AtomicU64, Ordering};

const PAUSE_NS: u64 = 1_000_000_000;

/// Rate limit of one kind of line.
pub struct Seldom {
    last_ns: AtomicU64,
    omitted: AtomicU64,
}

impl Seldom {
    pub const fn new() -> Seldom {
        Seldom { last_ns: AtomicU64::new(0), omitted: AtomicU64::new(0) }
    }

    /// `Some` if a line is due, with a suffix that reports the omitted ones.
    pub fn due(&self, now: u64) -> Option<String> {
        let last = self.last_ns.load(Ordering::Relaxed);
        let due = last == 0 || now.saturating_sub(last) >= PAUSE_NS;
        let first =
            due && self.last_ns.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !first {
            self.omitted.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(match self.omitted.swap(0, Ordering::Relaxed) {
            0 => String::new(),
            omitted => format!(" (and {omitted} more)"),
        })
    }
}

/// Like `log::warn`, at most once a second for each place in the source.
macro_rules! warn_seldom {
    ($($text:tt)*) => {{
        static KIND: $crate::logging::seldom::Seldom = $crate::logging::seldom::Seldom::new();
        if let Some(omitted) = KIND.due($crate::clock::Clock::System.now()) {
            log::warn!("{}{omitted}", format_args!($($text)*));
        }
    }};
}
pub(crate) use warn_seldom;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_are_limited_to_one_per_second() {
        let kind = Seldom::new();
        assert_eq!(kind.due(5).as_deref(), Some(""));
        assert!((6..10_000).all(|now| kind.due(now).is_none()));
        assert_eq!(kind.due(5 + PAUSE_NS).as_deref(), Some(" (and 9994 more)"));
        assert!(kind.due(6 + PAUSE_NS).is_none());
    }
}
