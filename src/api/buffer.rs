//! The bytes of registered memory.

use crate::memory;
use crate::status::Status;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// Bytes that a memory owns, or does not.
pub(super) enum Buffer {
    /// The parts of a vector: no reference to its bytes exists while NICs may change them.
    Owned {
        base: *mut u8,
        len: usize,
        capacity: usize,
    },
    /// Of `Endpoint::alloc`.
    Allocated(u64),
    Foreign,
}

// SAFETY: addresses; what is done with them is up to `Registered`.
unsafe impl Send for Buffer {}
// SAFETY: the addresses are only read through `&Buffer`.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub fn own(bytes: Vec<u8>) -> Buffer {
        let mut bytes = ManuallyDrop::new(bytes);
        Buffer::Owned { base: bytes.as_mut_ptr(), len: bytes.len(), capacity: bytes.capacity() }
    }

    /// # Safety
    /// Nothing may use the bytes any longer.
    pub unsafe fn free(self) -> Option<Vec<u8>> {
        match self {
            // SAFETY: the parts of a vector that was forgotten, once.
            Buffer::Owned { base, len, capacity } => {
                Some(unsafe { Vec::from_raw_parts(base, len, capacity) })
            }
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
    pub unsafe fn into_buffers(self) -> Vec<Vec<u8>> {
        // SAFETY: it is deregistered or its endpoint is shut down, so neither a NIC nor a peer uses the bytes.
        self.buffers.into_iter().filter_map(|buffer| unsafe { buffer.free() }).collect()
    }
}

/// Memory of `Endpoint::alloc`: freed, or kept where that is impossible.
fn free_allocated(address: u64) {
    let freed = memory::alloc::free(address);
    debug_assert!(freed.is_ok() || freed.is_err_and(|error| error.status == Status::Busy));
}
