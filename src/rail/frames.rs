//! Buffers of a rail, registered where the NIC needs that.

use crate::fabric::{Access, Buffer, HostRange, Nic, Registration};
use crate::status::{Error, Result, Status};
use std::ffi::c_void;
use std::ptr;

/// One buffer. Its memory stays in place.
pub struct Frame {
    bytes: Pages,
    registration: Option<Registration>,
}

/// Zeroed memory of the system: what is not used costs nothing. (An allocator may give
/// what was used before, and clear all of it.)
struct Pages {
    base: *mut c_void,
    len: usize,
}

// SAFETY: memory that is nobody else's.
unsafe impl Send for Pages {}

impl Pages {
    fn new(len: usize) -> Result<Pages> {
        let len = len.max(1);
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, wherever there is room.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, rights, kind, -1, 0) };
        if base == libc::MAP_FAILED {
            let why = std::io::Error::last_os_error();
            return Err(Error::new(Status::NoMemory, format!("{len} bytes for a rail's buffers: {why}")));
        }
        Ok(Pages { base, len })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: a mapping of ours, which nobody uses any more.
        unsafe { libc::munmap(self.base, self.len) };
    }
}

impl Frame {
    pub fn new(nic: &mut dyn Nic, len: usize, remote: bool) -> Result<Frame> {
        let bytes = Pages::new(len)?;
        let range = HostRange { base: bytes.base as u64, len: len as u64 };
        let access = Access { remote_write: remote, remote_read: false };
        let needed = remote || nic.limits().local_registration;
        let registration = if needed { Some(nic.register(range, access)?) } else { None };
        Ok(Frame { bytes, registration })
    }

    pub fn take_registration(&mut self) -> Option<Registration> {
        self.registration.take()
    }

    pub fn address(&self) -> *mut c_void {
        self.bytes.base
    }

    pub fn key(&self) -> u64 {
        self.registration.map_or(0, |r| r.key)
    }

    pub fn descriptor(&self) -> *mut c_void {
        self.registration.map_or(ptr::null_mut(), |r| r.descriptor)
    }
}

/// A set of buffers of one size.
pub struct Frames {
    memory: Frame,
    size: usize,
    free: Vec<u32>,
}

impl Frames {
    pub fn new(nic: &mut dyn Nic, count: usize, size: usize) -> Result<Frames> {
        let memory = Frame::new(nic, count * size, false)?;
        Ok(Frames { memory, size, free: (0..count as u32).rev().collect() })
    }

    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// All are taken.
    pub fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    pub fn put(&mut self, buffer: u32) {
        self.free.push(buffer);
    }

    pub fn buffer(&self, buffer: u32) -> Buffer {
        let offset = buffer as usize * self.size;
        Buffer {
            address: (self.memory.address() as usize + offset) as *mut c_void,
            len: self.size,
            descriptor: self.memory.descriptor(),
        }
    }

    /// A buffer that the NIC has given back.
    pub fn bytes(&self, buffer: u32) -> &[u8] {
        let buffer = self.buffer(buffer);
        // SAFETY: inside the memory; the NIC does not write to it while we hold it.
        unsafe { std::slice::from_raw_parts(buffer.address.cast(), buffer.len) }
    }

    /// A buffer that was taken and is not posted.
    pub fn bytes_mut(&mut self, buffer: u32) -> &mut [u8] {
        let buffer = self.buffer(buffer);
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(buffer.address.cast(), buffer.len) }
    }
}
