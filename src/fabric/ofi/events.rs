//! A NIC's listener, and the event queue of its connections.

use super::discover::Source;
use crate::status::Result;
use libfabric_sys::*;
use std::ffi::c_int;
use std::mem::zeroed;
use std::os::fd::RawFd;
use std::ptr;

/// Bytes of private data that are read from a request: as many as verbs carries.
const DATA: usize = 56;

/// An event followed by its private data.
#[repr(C)]
struct WithData {
    entry: fi_eq_cm_entry,
    data: [u8; DATA],
}

pub enum Event {
    /// Another NIC wants to connect: an info that the reader frees, and the private data.
    Request(*mut fi_info, Vec<u8>),
    Connected(*mut fid_ep),
    /// The other side closed a connection, or connecting failed: an error number.
    Ended(*mut fid_ep, c_int),
}

pub struct Events {
    source: Source,
    eq: *mut fid_eq,
    pep: *mut fid_pep,
    /// -1 if the provider has no descriptor.
    fd: RawFd,
}

impl Events {
    pub fn new(source: Source) -> Events {
        Events { source, eq: ptr::null_mut(), pep: ptr::null_mut(), fd: -1 }
    }

    /// Listens; returns the listener's address.
    ///
    /// # Safety
    /// The fabric must be open, and the info must belong to it.
    pub unsafe fn open(
        &mut self,
        fabric: *mut fid_fabric,
        info: *mut fi_info,
        waits: bool,
    ) -> Result<Vec<u8>> {
        let source = self.source;
        // SAFETY: objects are made in libfabric's order; every out-pointer is ours.
        unsafe {
            let mut opened = -FI_ENOSYS;
            for wait_obj in [fi_wait_obj::FI_WAIT_FD, fi_wait_obj::FI_WAIT_NONE] {
                if opened != 0 && (waits || wait_obj == fi_wait_obj::FI_WAIT_NONE) {
                    let mut attr = fi_eq_attr { wait_obj, ..Default::default() };
                    opened = fi_eq_open(fabric, &mut attr, &mut self.eq, ptr::null_mut());
                    if opened == 0 && wait_obj == fi_wait_obj::FI_WAIT_FD {
                        let asked = fi_control(self.eq.cast(), FI_GETWAIT, (&raw mut self.fd).cast());
                        source.check("asking for the event queue's descriptor", asked)?;
                    }
                }
            }
            source.check("opening the event queue", opened)?;
            let made = fi_passive_ep(fabric, info, &mut self.pep, ptr::null_mut());
            source.check("opening a listener", made)?;
            source.check("binding the listener", fi_pep_bind(self.pep, self.eq.cast(), 0))?;
            source.check("listening", fi_listen(self.pep))?;
            let mut len = 256;
            let mut name = vec![0u8; len];
            let named = fi_getname(self.pep.cast(), name.as_mut_ptr().cast(), &mut len);
            source.check("asking for the listener's address", named)?;
            name.truncate(len);
            Ok(name)
        }
    }

    pub fn queue(&self) -> *mut fid {
        self.eq.cast()
    }

    pub fn has_descriptor(&self) -> bool {
        self.fd >= 0
    }

    pub fn descriptor(&self) -> Option<RawFd> {
        self.has_descriptor().then_some(self.fd)
    }

    /// The next event.
    pub fn next(&mut self) -> Option<Event> {
        loop {
            let mut kind = 0;
            // SAFETY: the struct has only integers and pointers, for which zero is valid.
            let mut event: WithData = unsafe { zeroed() };
            // SAFETY: the queue is open, and the entry has space for this much data.
            let rc =
                unsafe { fi_eq_read(self.eq, &mut kind, (&raw mut event).cast(), size_of::<WithData>(), 0) };
            if rc == -(FI_EAVAIL as isize) {
                return self.error();
            }
            if rc < size_of::<fi_eq_cm_entry>() as isize {
                return None;
            }
            let len = (rc as usize - size_of::<fi_eq_cm_entry>()).min(DATA);
            match kind {
                FI_CONNREQ => return Some(Event::Request(event.entry.info, event.data[..len].to_vec())),
                FI_CONNECTED => return Some(Event::Connected(event.entry.fid.cast())),
                FI_SHUTDOWN => return Some(Event::Ended(event.entry.fid.cast(), libc::ECONNRESET)),
                _ => {}
            }
        }
    }

    #[cold]
    fn error(&mut self) -> Option<Event> {
        let mut entry = fi_eq_err_entry::default();
        // SAFETY: the queue is open, there is one entry, and no buffer for the provider's data.
        let rc = unsafe { fi_eq_readerr(self.eq, &mut entry, 0) };
        let errno = if entry.err == 0 { FI_EOTHER } else { entry.err };
        (rc > 0).then_some(Event::Ended(entry.fid.cast(), errno))
    }

    /// # Safety
    /// The info must belong to a request that this listener received.
    pub unsafe fn reject(&mut self, info: *mut fi_info) {
        // SAFETY: the request's info is valid until it is freed, and its handle was not used.
        let rc = unsafe { fi_reject(self.pep, (*info).handle, ptr::null(), 0) };
        if rc != 0 {
            log::debug!("a connection is not rejected: {}", self.source.strerror(-rc));
        }
    }

    pub fn close_listener(&mut self) -> Result<()> {
        shut(self.source, "listener", &mut self.pep)
    }

    /// The device is gone: what does not close is left.
    pub fn leave(&mut self) {
        leave(self.source, "listener", &mut self.pep);
        leave(self.source, "event queue", &mut self.eq);
    }

    /// Call after closing everything that is bound to the queue.
    pub fn close(&mut self) -> Result<()> {
        shut(self.source, "event queue", &mut self.eq)
    }
}

/// Closes an object of a device that is gone, if there is one; if that fails, nobody closes it.
pub(super) fn leave<T>(source: Source, what: &str, object: &mut *mut T) {
    if let Err(error) = shut(source, what, object) {
        log::debug!("it is left to the provider: {error}");
        *object = ptr::null_mut();
    }
}

/// Closes an object, if there is one; it is still there if that fails.
pub(super) fn shut<T>(source: Source, what: &str, object: &mut *mut T) -> Result<()> {
    if !object.is_null() {
        // SAFETY: libfabric's objects begin with their `fid`; this one is open, and nothing uses it.
        let rc = unsafe { fi_close(object.cast()) };
        source.check(&format!("closing the {what}"), rc)?;
    }
    *object = ptr::null_mut();
    Ok(())
}
