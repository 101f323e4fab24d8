//! Buffers of a rail, registered if the NIC requires it.

use crate::fabric::{Access, Buffer, HostRange, Nic, Registration};
use crate::failing::step;
use crate::status::{Error, Result};
use memmap2::{MmapMut, MmapRaw};
use std::ffi::c_void;
use std::ptr;

/// A mapped buffer with a stable address, registered if needed.
pub struct Frame {
    memory: MmapRaw,
    registration: Option<Registration>,
}

impl Frame {
    pub fn new(nic: &mut dyn Nic, len: usize, remote: bool) -> Result<Frame> {
        let mapped = MmapMut::map_anon(len).ok().filter(|_| !step("a mapping"));
        let mapped = mapped.ok_or_else(|| Error::system("mapping buffers of a NIC"))?;
        let memory = MmapRaw::from(mapped);
        let range = HostRange { base: memory.as_mut_ptr() as u64, len: len as u64 };
        let access = Access { remote_write: remote, remote_read: false, ..Access::ALL };
        let needed = remote || nic.limits().local_registration;
        let registration = if needed { Some(nic.register(range, access)?) } else { None };
        Ok(Frame { memory, registration })
    }

    /// The NIC has registered everything again.
    pub fn refresh(&mut self, nic: &mut dyn Nic) {
        self.registration = self.registration.map(|registration| nic.refreshed(registration));
    }

    pub fn address(&self) -> *mut c_void {
        self.memory.as_mut_ptr().cast()
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

    pub fn refresh(&mut self, nic: &mut dyn Nic) {
        self.memory.refresh(nic);
    }

    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Whether all buffers are taken.
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
            follows: false,
        }
    }

    /// The bytes of a buffer that the NIC has returned.
    pub fn bytes(&self, buffer: u32) -> &[u8] {
        let buffer = self.buffer(buffer);
        // SAFETY: the buffer is inside the mapping, and the NIC does not write to a buffer that it
        // has returned.
        unsafe { std::slice::from_raw_parts(buffer.address.cast(), buffer.len) }
    }

    /// The bytes of a buffer that was taken and is not posted.
    pub fn bytes_mut(&mut self, buffer: u32) -> &mut [u8] {
        let buffer = self.buffer(buffer);
        // SAFETY: the buffer is inside the pool, is not posted, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(buffer.address.cast(), buffer.len) }
    }
}
