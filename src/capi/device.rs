//! Memory of GPUs.

use super::args::{self, Sized32};
use super::endpoint::weft_endpoint;
use super::guard::{guard, output, with_endpoint_unpinned};
use super::handle;
use super::memory::{weft_memory, WEFT_MEMORY_CUDA, WEFT_MEMORY_FILE, WEFT_MEMORY_HOST};
use super::op::weft_watch;
use super::status::weft_status;
use crate::device::FILE;
use crate::status::{Error, Status};
use crate::transfer::watch::Watch;
use std::sync::Arc;

/// NICs reach the memory by themselves: the host's, or a GPU's over rails whose
/// provider can (FI_HMEM), if CUDA was loaded before the endpoint was opened.
pub const WEFT_WAY_DIRECT: u32 = 1;
/// Its bytes go through host buffers of Weft: at most 12 MiB of pinned memory
/// for each NIC of tcp, 8 MiB for each connection of host, and 12 MiB for each
/// worker where NICs do not reach the memory.
pub const WEFT_WAY_STAGED: u32 = 2;
/// To and from GPU memory of peers on this host, a GPU copies, where the two
/// reach each other and other processes can open the memory.
pub const WEFT_WAY_SHARED: u32 = 4;
/// Beside `WEFT_WAY_DIRECT`: NICs know the memory by a DMA-BUF.
pub const WEFT_WAY_DMABUF: u32 = 8;
/// It is a file's: its bytes go through host buffers of Weft.
pub const WEFT_WAY_FILE: u32 = 16;
/// Beside `WEFT_WAY_FILE`: and through the page cache, since O_DIRECT was
/// refused.
pub const WEFT_WAY_CACHED: u32 = 32;

/// Filled by `weft_memory_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_memory_properties {
    pub size: u32,
    /// `WEFT_MEMORY_HOST`, `WEFT_MEMORY_CUDA` or `WEFT_MEMORY_FILE`.
    pub kind: u32,
    /// CUDA's number of the device, as this process
    /// sees it; -1: no memory of a GPU.
    pub device: i32,
    /// How its bytes move: `WEFT_WAY_*`.
    pub ways: u32,
    pub bytes: u64,
    /// The rails that know it, as in `weft_memory_args`.
    pub rails: u64,
    pub ranges: u64,
}

// SAFETY: the struct has only integers, for which zero is valid.
unsafe impl Sized32 for weft_memory_properties {}

/// Fills in what a memory is, and how its bytes move.
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
        let owned = handle::get(memory)?;
        owned.endpoint()?;
        let memory = &owned.object;
        let mut filled: weft_memory_properties = args::zeroed();
        let when = |is, way| if is { way } else { 0 };
        (filled.kind, filled.ways) = match memory.place() {
            None => (WEFT_MEMORY_HOST, WEFT_WAY_DIRECT),
            Some(place) if place.device == FILE => {
                (WEFT_MEMORY_FILE, WEFT_WAY_FILE | when(place.is_cached(), WEFT_WAY_CACHED))
            }
            Some(_) => {
                let direct = when(memory.is_direct(), WEFT_WAY_DIRECT);
                let dmabuf = when(memory.is_exported(), WEFT_WAY_DMABUF);
                let staged = when(memory.is_staged(), WEFT_WAY_STAGED);
                let shared = when(memory.is_shared(), WEFT_WAY_SHARED);
                (WEFT_MEMORY_CUDA, direct | dmabuf | staged | shared)
            }
        };
        filled.device = memory
            .device()
            .filter(|device| *device != FILE)
            .and_then(|device| device.try_into().ok())
            .unwrap_or(-1);
        filled.bytes = memory.ranges().iter().map(|range| range.len).sum();
        filled.rails = memory.known();
        filled.ranges = memory.ranges().len() as u64;
        args::fill(properties, filled)
    })
}

/// Makes a word of 8 bytes, 0, that orders transfers with the streams of GPUs
/// without a CPU that waits for either.
///
/// A transfer with this `start_watch` starts once (int64_t)(*word -
/// start_value) >= 0, and moves what was done before: a stream
/// (cuStreamWriteValue64), a kernel (store, __threadfence_system) or the
/// program writes it. An operation with this `done_watch` sets the word when it
/// has ended, also when it failed; a stream that waits for it
/// (cuStreamWaitValue64) then sees the bytes. Between two memories, let one
/// transfer end before the first that a stream waits for (docs/gpu.md).
///
/// `watch`: receives the handle. `word`: receives its address, for the CPU, and
/// for all GPUs if CUDA is loaded. Blocks as long as CUDA takes. Errors:
/// `WEFT_ERR_NO_MEMORY`, `WEFT_ERR_SYSTEM`, `WEFT_ERR_LIMIT`.
///
/// # Safety
/// `watch` and `word` must be valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_watch_create(
    endpoint: *mut weft_endpoint,
    watch: *mut *mut weft_watch,
    word: *mut *mut u64,
) -> weft_status {
    guard(|| {
        let (out, word) = (output(watch, "watch")?, output(word, "word")?);
        with_endpoint_unpinned(endpoint, |ep| {
            let made = Arc::new(Watch::new()?);
            let address = made.address() as *mut u64;
            out.store(handle::insert_owned(ep, || Ok(made))?);
            word.store(address);
            Ok(())
        })
    })
}

/// Destroys a watch; its word is invalid afterwards, and no stream may still
/// wait for it. Errors: `WEFT_ERR_BUSY` (transfers name it).
///
/// # Safety
/// `watch` must be NULL or a handle from `weft_watch_create`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_watch_destroy(watch: *mut weft_watch) -> weft_status {
    guard(|| {
        if watch.is_null() {
            return Ok(());
        }
        let owned = handle::get(watch)?;
        owned.endpoint()?;
        if Arc::strong_count(&owned.object) > 1 {
            return Err(Error::new(
                Status::Busy,
                "transfers that are not over name the watch: poll, then try again",
            ));
        }
        handle::remove(watch)
    })
}
