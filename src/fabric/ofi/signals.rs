//! Providers replace the process's signal handlers while they load and open. The earlier handlers
//! are restored. Handlers that other threads install meanwhile stay: a handler is a provider's if
//! it lies in a library that Weft caused to be loaded.

use crate::descriptor;
use parking_lot::Mutex;
use std::ffi::{c_int, c_void, CStr};
use std::fs::{File, OpenOptions};
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
type AddressRange = Range<usize>;

/// The address ranges of loaded libraries, and whether each is libfabric or one of its providers,
/// regardless of what loaded it.
fn loaded() -> Vec<(AddressRange, bool)> {
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, parts: *mut c_void) -> c_int {
        // SAFETY: the loader passes its record of a library, and the pointer that it got from us.
        let (info, parts) = unsafe { (&*info, &mut *parts.cast::<Vec<(AddressRange, bool)>>()) };
        let (mut name, mut headers) = (&b""[..], &[][..]);
        if !info.dlpi_name.is_null() {
            // SAFETY: the pointer is a NUL-terminated string.
            name = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
        }
        if !info.dlpi_phdr.is_null() {
            // SAFETY: the library has this many headers.
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
    // SAFETY: `add` gets the vector, to which nothing else refers.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut parts).cast()) };
    parts
}

pub fn is_libfabric_loaded() -> bool {
    loaded().iter().any(|part| part.1)
}

/// A lock on this process's environment, held on a file: of all copies of Weft in the process, one
/// has it. (Only processes that may trace this one can open the file, too.) `None` without /proc.
struct Turn(File);

impl Turn {
    fn take() -> Option<Turn> {
        let turn = Turn(descriptor::open(OpenOptions::new().read(true), "/proc/self/environ").ok()?);
        turn.flock(libc::LOCK_EX).then_some(turn)
    }

    fn flock(&self, operation: c_int) -> bool {
        loop {
            // SAFETY: the descriptor is open.
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
        // A child that was forked meanwhile shares the lock: closing our descriptor does not
        // release it.
        self.flock(libc::LOCK_UN);
    }
}

/// Runs `body`, then restores every disposition that libraries changed which this call or an
/// earlier one loaded. Signals for this thread wait meanwhile.
pub fn preserved<T>(body: impl FnOnce() -> T) -> T {
    if cfg!(miri) {
        return body(); // It loads no libraries.
    }
    // One body at a time, so that a handler which one body installs is not saved as the state
    // before another.
    static OURS: Mutex<Vec<AddressRange>> = Mutex::new(Vec::new());
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
            // SAFETY: the disposition was in force before.
            unsafe { libc::sigaction(signal, &before, std::ptr::null_mut()) };
        }
    }
    result
}

/// Blocks all signals in this thread, and in the threads that it starts meanwhile.
pub struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    pub fn all() -> Blocked {
        // SAFETY: a sigset_t is plain data, filled in before its use.
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
        // SAFETY: the mask was in force before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn of_the_program(_: c_int) {}

    fn install(handler: usize) {
        // SAFETY: nothing raises the signal.
        unsafe { libc::signal(libc::SIGUSR2, handler) };
    }

    fn installed() -> usize {
        read(libc::SIGUSR2).map_or(0, |now| now.sa_sigaction)
    }

    #[test]
    fn program_signal_handler_stays_and_provider_handler_is_removed() {
        let ours = of_the_program as extern "C" fn(c_int) as usize;
        install(libc::SIG_IGN);
        preserved(|| install(ours));
        assert_eq!(installed(), ours);
        let mut theirs = 0;
        preserved(|| {
            // SAFETY: the calls load a library, and look up one of its functions.
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
