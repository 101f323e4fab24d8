//! Opens the endpoints of dialed connections on a thread, where libfabric waits for the network in that
//! call: before 1.21, fi_endpoint resolves the peer's address, for up to 2 s, and a peer that is gone
//! does not answer. Nothing else is done there: what an endpoint is bound to belongs to the worker.

use crate::fabric::ofi::discover::Source;
use crate::fabric::ofi::signals::Blocked;
use crate::failing::step;
use crate::logging::seldom::warn_seldom;
use libfabric_sys::*;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Versions from this one resolve addresses in the background.
pub const RESOLVES: u32 = FI_VERSION(1, 21);

/// Without a thread, the caller waits.
pub fn warn_of_waiting() {
    warn_seldom!(
        "verbs of a libfabric before 1.21 waits for the network when it connects, and this endpoint has manual \
         progress: calls take up to 2 s while a peer's address does not answer (use worker threads, or libfabric \
         1.21 or newer)"
    );
}

/// An endpoint to be opened, and then its result.
pub struct Opening {
    pub number: u32,
    pub to: Box<[u8]>,
    /// Owned by this value.
    pub info: *mut fi_info,
    pub domain: *mut fid_domain,
    /// False once the connection has ended.
    pub wanted: Arc<AtomicBool>,
    pub ep: *mut fid_ep,
    pub rc: i32,
}

// SAFETY: the info and the endpoint belong to the value; the domain outlives the thread, and opening an
// endpoint only counts a reference of it, atomically.
unsafe impl Send for Opening {}

pub struct Dialer {
    /// `None`: it is closing.
    asks: Option<Sender<Opening>>,
    opened: Receiver<Opening>,
    thread: Option<JoinHandle<()>>,
}

impl Dialer {
    pub fn start() -> std::io::Result<Dialer> {
        if step("a thread") {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        let (asks, asked) = channel::<Opening>();
        let (done, opened) = channel();
        let _blocked = Blocked::all();
        let run = move || {
            for mut one in asked {
                one.open();
                if done.send(one).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("weft-dialer".into()).spawn(run)?;
        Ok(Dialer { asks: Some(asks), opened, thread: Some(thread) })
    }

    /// Gives it back if its thread has ended.
    pub fn ask(&self, one: Opening) -> Option<Opening> {
        match &self.asks {
            Some(asks) => asks.send(one).err().map(|refused| refused.0),
            None => Some(one),
        }
    }

    pub fn next(&self) -> Option<Opening> {
        self.opened.try_recv().ok()
    }

    /// From here on it takes nothing; whether its thread has ended.
    pub fn has_ended(&mut self) -> bool {
        self.asks = None;
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the thread, once its call has returned. `next` then gives what is left.
    pub fn close(&mut self) {
        self.asks = None;
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

impl Opening {
    pub fn open(&mut self) {
        self.rc = -libc::ECANCELED;
        if self.wanted.load(Ordering::Acquire) {
            // SAFETY: the info is this value's, and the domain is open.
            self.rc = unsafe { fi_endpoint(self.domain, self.info, &mut self.ep, ptr::null_mut()) };
        }
    }
}

/// A copy of an info for an endpoint towards this address; null if there is no memory.
///
/// # Safety
/// The info must be valid.
pub unsafe fn towards(source: Source, info: *mut fi_info, to: &[u8]) -> *mut fi_info {
    // SAFETY: `info` is the source's, and the C library allocated the copy's address, as it frees it.
    unsafe {
        let info = source.dupinfo(info);
        if !info.is_null() {
            libc::free((*info).dest_addr);
            (*info).dest_addr = libc::calloc(1, to.len());
            if !(*info).dest_addr.is_null() {
                ptr::copy_nonoverlapping(to.as_ptr(), (*info).dest_addr.cast(), to.len());
                (*info).dest_addrlen = length_of(to);
            }
        }
        info
    }
}

/// The length of a padded socket address; that of a simulated address does not matter.
fn length_of(padded: &[u8]) -> usize {
    let family = padded.first_chunk::<2>().map_or(0, |family| u16::from_ne_bytes(*family));
    match i32::from(family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => 48, // The length of an InfiniBand address.
    }
}
