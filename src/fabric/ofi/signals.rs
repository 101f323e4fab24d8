//! Providers replace the process's signal handlers while they load and open.
//! What was there before is put back.

use parking_lot::Mutex;
use std::mem::MaybeUninit;

const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;

type Disposition = Option<libc::sigaction>;

fn read(signal: i32) -> Disposition {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only reads the disposition into `action`.
    let rc = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: sigaction filled it in.
    (rc == 0).then(|| unsafe { action.assume_init() })
}

/// Runs `body`, then puts every disposition back that it changed. Signals that
/// arrive for this thread meanwhile wait.
pub fn preserved<T>(body: impl FnOnce() -> T) -> T {
    // One at a time: what another one's body installed is not what was there before.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    let _blocked = Blocked::all();
    let before: Vec<Disposition> = SIGNALS.map(read).collect();
    let result = body();
    for (signal, before) in SIGNALS.zip(before) {
        let (Some(before), Some(now)) = (before, read(signal)) else { continue };
        if (before.sa_sigaction, before.sa_flags) != (now.sa_sigaction, now.sa_flags) {
            // SAFETY: a disposition that was in force before.
            unsafe { libc::sigaction(signal, &before, std::ptr::null_mut()) };
        }
    }
    result
}

/// All signals blocked in this thread, and in the threads it starts meanwhile.
pub struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    pub fn all() -> Blocked {
        // SAFETY: a sigset_t is plain data, filled in before use.
        unsafe {
            let mut all = std::mem::zeroed();
            let mut before = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            Blocked { before }
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the mask that was in force before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}
