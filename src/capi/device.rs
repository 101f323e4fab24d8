//! Memory of GPUs.

use super::config;
use super::guard::guard;
use super::handle;
use super::memory::{weft_memory, WEFT_MEMORY_CUDA, WEFT_MEMORY_HOST};
use super::status::weft_status;

/// NICs reach the memory by themselves.
pub const WEFT_WAY_DIRECT: u32 = 1;
/// Its bytes go through host buffers of Weft's, which it gathers them into and
/// scatters them from, pages of a bundle by one launch; copies and the wire go on at
/// the same time. 4 MiB of pinned memory for each lane with such transfers.
pub const WEFT_WAY_STAGED: u32 = 2;
/// Peers on this host whose memory is on a GPU, too, get writes by a copy from GPU to
/// GPU, all pages of a run by one launch, where the two GPUs reach each other. (All
/// else is staged.)
pub const WEFT_WAY_SHARED: u32 = 4;

/// What a memory is. Filled by `weft_memory_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_memory_properties {
    /// `sizeof(weft_memory_properties)`.
    pub size: u32,
    /// `WEFT_MEMORY_HOST` or `WEFT_MEMORY_CUDA`.
    pub kind: u32,
    /// The CUDA device, as CUDA counts those that this process sees, plus 1; 0: the host.
    pub device: u32,
    /// How its bytes move: `WEFT_WAY_*`.
    pub ways: u32,
    /// Of all ranges.
    pub bytes: u64,
    /// The rails that know it, as in `weft_memory_args`.
    pub rails: u64,
    pub ranges: u64,
}

/// Fills in what a memory is, and how its bytes move. `properties->size` must be
/// set. Any thread; does not block. Errors: `WEFT_ERR_INVALID`, `WEFT_ERR_HANDLE`.
/// Since 0.1.
///
/// # Safety
/// `properties` must be NULL or valid for `properties->size` bytes.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_memory_info(
    memory: *const weft_memory,
    properties: *mut weft_memory_properties,
) -> weft_status {
    guard(|| {
        let owned = handle::memory(memory)?;
        owned.endpoint()?;
        let memory = &owned.object;
        let mut filled: weft_memory_properties = config::zeroed();
        (filled.kind, filled.ways) = match memory.place() {
            None => (WEFT_MEMORY_HOST, WEFT_WAY_DIRECT),
            Some(_) if memory.is_shared() => (WEFT_MEMORY_CUDA, WEFT_WAY_STAGED | WEFT_WAY_SHARED),
            Some(_) => (WEFT_MEMORY_CUDA, WEFT_WAY_STAGED),
        };
        filled.device = memory.device().map_or(0, |device| device + 1);
        filled.bytes = memory.ranges().iter().map(|range| range.len).sum();
        filled.rails = memory.known();
        filled.ranges = memory.ranges().len() as u64;
        config::fill(properties, filled)
    })
}
