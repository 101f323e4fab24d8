//! Memory of GPUs.

use super::config;
use super::endpoint::weft_endpoint;
use super::guard::{guard, output, with_endpoint};
use super::handle;
use super::memory::{weft_memory, WEFT_MEMORY_CUDA, WEFT_MEMORY_HOST};
use super::op::weft_watch;
use super::status::weft_status;
use crate::status::{Error, Status};
use crate::transfer::watch::Watch;
use std::sync::Arc;

/// NICs reach the memory by themselves: the host's, or a GPU's over rails whose provider says
/// so (FI_HMEM: efa, verbs and shm, in a libfabric that was built with CUDA), if the program has loaded CUDA
/// before the endpoint is opened. (This was tried with simulated NICs, and with shm between GPUs.)
pub const WEFT_WAY_DIRECT: u32 = 1;
/// Its bytes go through host buffers of Weft's, which it gathers them into and
/// scatters them from, pages of a bundle by one launch; copies and the wire go on at
/// the same time. 16 MiB of pinned memory for each lane with such transfers.
pub const WEFT_WAY_STAGED: u32 = 2;
/// Between this and peers' memory on this host that is on a GPU, too, and that other
/// processes can open, a GPU copies, all pages of a run by one launch, where the two GPUs
/// reach each other: the target's GPU what is written, the initiator's what is read. (All
/// else is staged.)
pub const WEFT_WAY_SHARED: u32 = 4;
/// Beside `WEFT_WAY_DIRECT`: NICs know the memory by a DMA-BUF that CUDA made of it, which is tried
/// first with efa and verbs, from libfabric 1.20 on. Without this bit it is known by its address, and the
/// provider finds out the rest. (Tried with simulated NICs alone.)
pub const WEFT_WAY_DMABUF: u32 = 8;

/// What a memory is. Filled by `weft_memory_info`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_memory_properties {
    /// `sizeof(weft_memory_properties)`.
    pub size: u32,
    /// `WEFT_MEMORY_HOST` or `WEFT_MEMORY_CUDA`.
    pub kind: u32,
    /// The CUDA device, as CUDA counts those that this process sees; -1: host memory.
    pub device: i32,
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
        let endpoint = owned.endpoint()?;
        let memory = &owned.object;
        let mut filled: weft_memory_properties = config::zeroed();
        let when = |is, way| if is { way } else { 0 };
        (filled.kind, filled.ways) = match memory.place() {
            None => (WEFT_MEMORY_HOST, WEFT_WAY_DIRECT),
            Some(_) => {
                let direct = when(memory.is_direct(), WEFT_WAY_DIRECT);
                let dmabuf = when(memory.is_exported(), WEFT_WAY_DMABUF);
                let staged = when(endpoint.stages(memory), WEFT_WAY_STAGED);
                let shared = when(memory.is_shared(), WEFT_WAY_SHARED);
                (WEFT_MEMORY_CUDA, direct | dmabuf | staged | shared)
            }
        };
        filled.device = memory.device().and_then(|device| device.try_into().ok()).unwrap_or(-1);
        filled.bytes = memory.ranges().iter().map(|range| range.len).sum();
        filled.rails = memory.known();
        filled.ranges = memory.ranges().len() as u64;
        config::fill(properties, filled)
    })
}

/// Makes a word of 8 bytes, 0, that orders transfers with the streams of GPUs, without
/// a CPU that waits for either.
///
/// A transfer that names it as `start_watch` starts when the word has reached
/// `start_value`: written by a stream (cuStreamWriteValue64 at `word`), by a kernel's
/// store followed by __threadfence_system, or by the program. All that the stream did
/// before is then moved. "Reached" is (int64_t)(*word - value) >= 0, as
/// CU_STREAM_WAIT_VALUE_GEQ has it. While transfers wait, a worker looks without rest.
///
/// A transfer that names it as `done_watch` sets it to `done_value` when it has ended, and so
/// does a wait for counters (`weft_counter_expect`: what peers have written here is there);
/// a stream waits for that with cuStreamWaitValue64, and what follows in the stream
/// sees the bytes that were moved. It is set also when the transfer fails, so that no
/// stream hangs: the completion says which. The first transfer between two memories
/// has CUDA make streams and the like, which CUDA may put off while a stream of the same
/// device waits: let one transfer end before the first that a stream waits for.
///
/// `watch`: receives the handle; the caller owns it and gives it back with
/// `weft_watch_destroy`. `word`: receives where the word is, for the CPU and for all GPUs
/// if this process uses CUDA (load it first), else for the CPU. Any thread; blocks for
/// as long as CUDA takes. Errors: `WEFT_ERR_INVALID`, `WEFT_ERR_NO_MEMORY`,
/// `WEFT_ERR_SYSTEM`, `WEFT_ERR_LIMIT`, `WEFT_ERR_HANDLE`. Since 0.1.
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
        with_endpoint(endpoint, |ep| {
            let made = Arc::new(Watch::new()?);
            word.store(made.address() as *mut u64);
            out.store(handle::insert_watch(ep, || Ok(made))?);
            Ok(())
        })
    })
}

/// Gives a watch back. `watch`: NULL is fine; the handle and the word are invalid after
/// `WEFT_OK`. No stream may wait for it any more. Any thread; does not block. Errors:
/// `WEFT_ERR_BUSY` (transfers that are not over name it), `WEFT_ERR_HANDLE`. Since 0.1.
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
        let owned = handle::watch(watch)?;
        owned.endpoint()?;
        if Arc::strong_count(&owned.object) > 1 {
            return Err(Error::new(
                Status::Busy,
                "transfers that are not over name the watch: poll, then try again",
            ));
        }
        handle::remove_watch(watch)
    })
}
