//! Providers replace the process's signal handlers while they load and open.
//! What was there before is put back. What other threads install meanwhile stays: a handler is a
//! provider's if it lies in a library that was loaded for us.

use parking_lot::Mutex;
use std::ffi::{c_int, c_void, CStr};
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::AsRawFd;

const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;

type Disposition = Option<libc::sigaction>;

fn read(signal: i32) -> Disposition {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only reads the disposition into `action`.
    let rc = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: sigaction filled it in.
    (rc == 0).then(|| unsafe { action.assume_init() })
}

/// The addresses of a part of a library.
type Part = Range<usize>;

/// Where libraries are loaded; of libfabric and its providers whether they are, whoever loaded them.
fn loaded() -> Vec<(Part, bool)> {
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, parts: *mut c_void) -> c_int {
        // SAFETY: the loader passes what it knows of a library, and us what we passed it.
        let (info, parts) = unsafe { (&*info, &mut *parts.cast::<Vec<(Part, bool)>>()) };
        let (mut name, mut headers) = (&b""[..], &[][..]);
        if !info.dlpi_name.is_null() {
            // SAFETY: the pointer is a NUL-terminated string.
            name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
        }
        if !info.dlpi_phdr.is_null() {
            // SAFETY: this many headers.
            headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        }
        let file = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name);
        let known = file.starts_with(b"libfabric") || file.ends_with(b"-fi.so");
        for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
            let start = (info.dlpi_addr + header.p_vaddr) as usize;
            parts.push((start..start + header.p_memsz as usize, known));
        }
        0
    }
    let mut parts = Vec::new();
    // SAFETY: calls `add` with the vector, which nothing else has.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut parts).cast()) };
    parts
}

pub fn is_libfabric_loaded() -> bool {
    loaded().iter().any(|part| part.1)
}

/// This process's environment as a file, locked: of all copies of Weft in the process, one has it.
/// (Only processes that may trace this one can open it, too.) `None` where there is no /proc.
struct Turn(File);

impl Turn {
    fn take() -> Option<Turn> {
        let turn = Turn(File::open("/proc/self/environ").ok()?);
        turn.flock(libc::LOCK_EX).then_some(turn)
    }

    fn flock(&self, operation: c_int) -> bool {
        loop {
            // SAFETY: an open descriptor.
            if unsafe { libc::flock(self.0.as_raw_fd(), operation) } == 0 {
                return true;
            }
            if Error::last_os_error().kind() != ErrorKind::Interrupted {
                return false;
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // A child that was forked meanwhile has the descriptor, too: closing ours would not be enough.
        self.flock(libc::LOCK_UN);
    }
}

/// Runs `body`, then puts every disposition back that the libraries changed which it has loaded, or
/// an earlier one. Signals that arrive for this thread meanwhile wait.
pub fn preserved<T>(body: impl FnOnce() -> T) -> T {
    // One at a time, so that what one body installs is not saved as the state before another.
    static OURS: Mutex<Vec<Part>> = Mutex::new(Vec::new());
    let mut ours = OURS.lock();
    let _turn = Turn::take();
    let _blocked = Blocked::all();
    let before: Vec<Disposition> = SIGNALS.map(read).collect();
    let others = loaded();
    let result = body();
    let now = loaded();
    let new = now.into_iter().filter(|part| part.1 || !others.contains(part)).map(|part| part.0);
    for part in new {
        if !ours.contains(&part) {
            ours.push(part);
        }
    }
    for (signal, before) in SIGNALS.zip(before) {
        let (Some(before), Some(now)) = (before, read(signal)) else { continue };
        let changed = (before.sa_sigaction, before.sa_flags) != (now.sa_sigaction, now.sa_flags);
        if changed && ours.iter().any(|part| part.contains(&now.sa_sigaction)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn of_the_program(_: c_int) {}

    fn install(handler: usize) {
        // SAFETY: nobody raises the signal.
        unsafe { libc::signal(libc::SIGUSR2, handler) };
    }

    fn installed() -> usize {
        read(libc::SIGUSR2).map_or(0, |now| now.sa_sigaction)
    }

    #[test]
    fn a_handler_of_the_program_stays_and_one_of_a_provider_does_not() {
        let ours = of_the_program as extern "C" fn(c_int) as usize;
        install(libc::SIG_IGN);
        preserved(|| install(ours));
        assert_eq!(installed(), ours);
        let mut theirs = 0;
        preserved(|| {
            // SAFETY: loads a library, and looks for a function of it.
            unsafe {
                let library = libc::dlopen(c"libfabric.so.1".as_ptr(), libc::RTLD_NOW);
                if !library.is_null() {
                    theirs = libc::dlsym(library, c"fi_freeinfo".as_ptr()) as usize;
                    install(theirs);
                }
            }
        });
        assert_eq!(installed(), ours);
        preserved(|| install(libc::SIG_IGN));
        assert_eq!(installed(), libc::SIG_IGN);
        if theirs != 0 {
            preserved(|| install(theirs));
            assert_eq!(installed(), libc::SIG_IGN, "it was loaded before");
        }
        install(libc::SIG_DFL);
    }
}
