//! The bytes of registered memory.

use crate::memory;
use crate::status::Status;
use bytemuck::Pod;
use std::alloc::{dealloc, Layout};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// The elements of a vector or a boxed slice, as bytes: what
/// [`Endpoint::register_plain`](crate::Endpoint::register_plain) takes, and
/// [`Memory::deregister`](crate::Memory::deregister) gives back.
///
/// ```
/// use libweft::OwnedBuffer;
/// let buffer = OwnedBuffer::from(vec![1.0f32, 2.0]);
/// assert_eq!(buffer.len(), 8);
/// let buffer = buffer.into_vec::<f64>().expect_err("their alignment is another");
/// assert_eq!(buffer.into_vec::<f32>().expect("it was one"), [1.0, 2.0]);
/// ```
pub struct OwnedBuffer {
    base: NonNull<u8>,
    /// In bytes.
    len: usize,
    /// Of the allocation; of size 0 without one.
    layout: Layout,
}

// SAFETY: it owns plain data.
unsafe impl Send for OwnedBuffer {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for OwnedBuffer {}

impl<T: Pod> From<Vec<T>> for OwnedBuffer {
    fn from(elements: Vec<T>) -> OwnedBuffer {
        let mut elements = ManuallyDrop::new(elements);
        let size = size_of::<T>() * elements.capacity();
        let base = NonNull::new(elements.as_mut_ptr().cast()).unwrap_or(NonNull::dangling());
        // SAFETY: a vector's allocation has such a layout.
        let layout = unsafe { Layout::from_size_align_unchecked(size, align_of::<T>()) };
        OwnedBuffer { base, len: size_of::<T>() * elements.len(), layout }
    }
}

impl<T: Pod> From<Box<[T]>> for OwnedBuffer {
    fn from(elements: Box<[T]>) -> OwnedBuffer {
        elements.into_vec().into()
    }
}

impl OwnedBuffer {
    /// The elements, without a copy: of the type that they were, or of one of the same alignment whose size divides
    /// both the length and the capacity; otherwise the buffer comes back.
    pub fn into_vec<T: Pod>(self) -> Result<Vec<T>, OwnedBuffer> {
        let size = size_of::<T>();
        let fits = |bytes: usize| size != 0 && bytes % size == 0;
        if align_of::<T>() != self.layout.align() || !fits(self.len) || !fits(self.layout.size()) {
            return Err(self);
        }
        let buffer = ManuallyDrop::new(self);
        let (len, capacity) = (buffer.len / size, buffer.layout.size() / size);
        // SAFETY: the allocation is a vector's, its layout is that of `capacity` elements, and any bytes are a `T`.
        Ok(unsafe { Vec::from_raw_parts(buffer.base.as_ptr().cast(), len, capacity) })
    }
}

impl Drop for OwnedBuffer {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: a vector allocated it with this layout.
            unsafe { dealloc(self.base.as_ptr(), self.layout) }
        }
    }
}

impl Deref for OwnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes are initialized, and owned.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for OwnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes are initialized, and owned.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for OwnedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for OwnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedBuffer").field("len", &self.len).finish_non_exhaustive()
    }
}

impl<B: AsRef<[u8]>> PartialEq<B> for OwnedBuffer {
    fn eq(&self, other: &B) -> bool {
        **self == *other.as_ref()
    }
}

/// Bytes that a memory owns, or does not.
pub(super) enum Buffer {
    /// No reference to its bytes exists while NICs may change them.
    Owned(ManuallyDrop<OwnedBuffer>),
    /// Of `Endpoint::alloc`.
    Allocated(u64),
    Foreign,
}

impl Buffer {
    pub fn own(bytes: OwnedBuffer) -> Buffer {
        Buffer::Owned(ManuallyDrop::new(bytes))
    }

    /// The address and length of what it owns.
    pub fn range(&self) -> (u64, u64) {
        match self {
            Buffer::Owned(buffer) => (buffer.base.as_ptr() as u64, buffer.len as u64),
            _ => (0, 0),
        }
    }

    /// # Safety
    /// Nothing may use the bytes any longer.
    pub unsafe fn free(self) -> Option<OwnedBuffer> {
        match self {
            Buffer::Owned(buffer) => Some(ManuallyDrop::into_inner(buffer)),
            Buffer::Allocated(address) => {
                free_allocated(address);
                None
            }
            Buffer::Foreign => None,
        }
    }
}

/// A registered memory with the bytes that it owns.
pub(super) struct Registered {
    pub memory: Arc<memory::Memory>,
    pub buffers: Vec<Buffer>,
}

impl Registered {
    /// # Safety
    /// It must be deregistered, or its endpoint shut down.
    pub unsafe fn into_buffers(self) -> Vec<OwnedBuffer> {
        // SAFETY: it is deregistered or its endpoint is shut down, so neither a NIC nor a peer uses the bytes.
        self.buffers.into_iter().filter_map(|buffer| unsafe { buffer.free() }).collect()
    }
}

/// Memory of `Endpoint::alloc`: freed, or kept where that is impossible.
fn free_allocated(address: u64) {
    let freed = memory::alloc::free(address);
    debug_assert!(freed.is_ok() || freed.is_err_and(|error| error.status == Status::Busy));
}
