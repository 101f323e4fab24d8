//! Steps that can fail for want of something: memory, descriptors, places, random numbers, what a
//! NIC has. Where tests simulate, each can be made to fail once, one after the other
//! (ffi-tests/simulated). In the library that ships none is made to fail, and nothing is left of
//! this.

#[cfg(any(test, feature = "sim"))]
pub use on::*;

/// Whether this step is to fail.
#[cfg(not(any(test, feature = "sim")))]
#[inline(always)]
pub const fn step(_what: &'static str) -> bool {
    false
}

/// Counts the registrations of callers' memory that a NIC has.
#[cfg(not(any(test, feature = "sim")))]
#[derive(Default)]
pub struct Registered;

#[cfg(not(any(test, feature = "sim")))]
impl Registered {
    #[inline(always)]
    pub fn add(&mut self, _more: i64) {}
}

#[cfg(any(test, feature = "sim"))]
mod on {
    use parking_lot::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

    static COUNTING: AtomicBool = AtomicBool::new(false);
    /// The step since counting began that fails.
    static FAILS: AtomicU64 = AtomicU64::new(0);
    /// Their names.
    static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    static REGISTRATIONS: AtomicI64 = AtomicI64::new(0);

    /// Whether this step is to fail. Any thread's steps count.
    #[inline]
    pub fn step(what: &'static str) -> bool {
        COUNTING.load(Ordering::Relaxed) && is_it(what)
    }

    #[cold]
    fn is_it(what: &'static str) -> bool {
        let mut names = NAMES.lock();
        names.push(what);
        names.len() as u64 == FAILS.load(Ordering::Relaxed)
    }

    /// The registrations of callers' memory that a NIC has; none any longer when this is dropped.
    #[derive(Default)]
    pub struct Registered(i64);

    impl Registered {
        pub fn add(&mut self, more: i64) {
            self.0 += more;
            REGISTRATIONS.fetch_add(more, Ordering::Relaxed);
        }
    }

    impl Drop for Registered {
        fn drop(&mut self) {
            REGISTRATIONS.fetch_sub(self.0, Ordering::Relaxed);
        }
    }

    /// Registrations of callers' memory that NICs have.
    pub fn registrations() -> i64 {
        REGISTRATIONS.load(Ordering::Relaxed)
    }

    /// Counts steps from here on, of which this one fails; 0: none.
    pub fn begin(fails: u64) {
        FAILS.store(fails, Ordering::Relaxed);
        NAMES.lock().clear();
        COUNTING.store(true, Ordering::SeqCst);
    }

    /// Ends counting: what the steps were.
    pub fn end() -> Vec<&'static str> {
        COUNTING.store(false, Ordering::SeqCst);
        std::mem::take(&mut *NAMES.lock())
    }
}
