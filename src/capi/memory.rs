//! Memory of this process, and memory of peers.

use super::endpoint::weft_endpoint;
use super::guard::{bytes, guard, guarded, output, with_endpoint};
use super::peer::weft_peer;
use super::status::weft_status;
use super::{config, handle};
use std::ffi::c_void;
use std::sync::Arc;

/// One or many ranges of this process's memory, registered with the rails.
/// Opaque; made by `weft_memory_register`.
pub struct weft_memory {
    _opaque: [u8; 0],
}

/// Memory of a peer, known by its descriptor. Opaque; made by
/// `weft_remote_memory_import`.
pub struct weft_remote_memory {
    _opaque: [u8; 0],
}

/// A range of memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_memory_range {
    /// First byte.
    pub address: *mut c_void,
    /// Bytes, 1 to 2^47.
    pub len: u64,
}

/// Peers may write to this memory.
pub const WEFT_ACCESS_REMOTE_WRITE: u32 = 1;
/// Peers may read from this memory.
pub const WEFT_ACCESS_REMOTE_READ: u32 = 2;
/// Only this process uses it, as source or destination of its own transfers;
/// it has no descriptor. Not to be added to the others.
pub const WEFT_ACCESS_LOCAL: u32 = 4;

/// Peers reach it under grants alone (`weft_grant_create`), with the access that is added to
/// this, or both. Not of a device's memory.
pub const WEFT_ACCESS_GRANTED: u32 = 8;

/// Whatever it is: found out from the pointers, if the program has loaded CUDA.
pub const WEFT_MEMORY_ANY: u32 = 0;
/// Memory that the CPU reads and writes: ordinary, pinned by CUDA, or managed by it
/// (then the CPU does the copying, and pages come and go as it touches them).
pub const WEFT_MEMORY_HOST: u32 = 1;
/// Memory of a CUDA device: of cudaMalloc, cudaMallocAsync, the virtual memory API,
/// or managed.
pub const WEFT_MEMORY_CUDA: u32 = 2;

/// How to register. Start from `WEFT_MEMORY_ARGS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_memory_args {
    /// `sizeof(weft_memory_args)`.
    pub size: u32,
    /// `WEFT_ACCESS_*`. 0: remote write and remote read.
    pub access: u32,
    /// The rails that should know the memory: bit i stands for rail i of
    /// `weft_rail_info` on this endpoint; take them by `fabric`, `name` and
    /// `numa_node`, for `host` is a rail, too, and memory that peers on this host
    /// should reach over it needs its bit. Only these rails carry transfers of the
    /// memory, so that it can keep to those near it. The descriptor says which they
    /// are: an importer need not know, and its own memory's rails are another
    /// matter. 0: all; of a GPU's memory, of each fabric those nearest to the GPU, where
    /// the machine shows what is near (`weft_memory_info` says which). Where no lane joins a rail that knows
    /// the local memory with one that knows the remote, the first transfer (of a
    /// byte or more) has lanes made, and waits for them, over tcp some tens of
    /// milliseconds; its completion says `WEFT_ERR_NO_RAILS`
    /// if the fabric that serves the peer has no such rails, and
    /// `WEFT_ERR_UNREACHABLE` if they do not reach each other.
    pub rails: u64,
    /// What it is: `WEFT_MEMORY_*`. All ranges are of one kind, and on one device.
    pub kind: u32,
    /// 0.
    pub reserved: u32,
}

/// As `numa_node` of `weft_memory_alloc`: wherever suits the endpoint's rails.
pub const WEFT_NUMA_ANY: i32 = -1;

/// Allocates memory that is ready for transfers: all there, zeroed, on huge
/// pages where the system has them, and such that processes of this host can
/// read it straight from where it is. Any memory can be registered; from this,
/// writes to peers on this host go about 1.5 times as fast.
///
/// `endpoint`: an open one. `len`: bytes, 1 to 2^47; it is rounded up to whole
/// pages (2 MiB from there on). `numa_node`: the NUMA node that the memory should
/// be on, 0 to 63; if that node has no room, the memory lies on another.
/// `WEFT_NUMA_ANY`: the node of most of the endpoint's rails, if that is known, else
/// where the system puts it. `address`: receives the first byte. The caller owns the memory, registers it or parts of it like
/// any other, and gives it back with `weft_memory_free`, for which any open
/// endpoint of the process will do; it outlives the endpoint.
///
/// A peer on this host that is written to from here may read all of the
/// allocation, whatever part is registered; it can never write to it. A forked
/// child shares the memory with its parent.
///
/// Any thread. Blocks while the system provides the pages. Errors:
/// `WEFT_ERR_NO_MEMORY`, `WEFT_ERR_LIMIT`, `WEFT_ERR_INVALID`,
/// `WEFT_ERR_SYSTEM`, `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`. Since 0.1.
///
/// # Safety
/// `address` must be valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_memory_alloc(
    endpoint: *mut weft_endpoint,
    len: u64,
    numa_node: i32,
    address: *mut *mut c_void,
) -> weft_status {
    guard(|| {
        let out = output(address, "address")?;
        let node = config::numa_node(numa_node)?;
        with_endpoint(endpoint, |ep| {
            out.store(ep.allocate(len, node)? as *mut c_void);
            Ok(())
        })
    })
}

/// Gives memory back that `weft_memory_alloc` made.
///
/// `endpoint`: an endpoint of this process that is not closed, whichever made
/// it. `address`: as it was received; NULL is fine. Any thread; does not block.
/// Errors: `WEFT_ERR_BUSY` (registered, wholly or in part, by an endpoint that
/// is not shut down: the memory stays), `WEFT_ERR_INVALID` (no such address, or
/// freed already), `WEFT_ERR_HANDLE`. Since 0.1.
///
/// # Safety
/// Nobody may use the memory any more.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_memory_free(endpoint: *mut weft_endpoint, address: *mut c_void) -> weft_status {
    guard(|| {
        with_endpoint(endpoint, |_| match address.is_null() {
            true => Ok(()),
            false => crate::memory::alloc::free(address as u64),
        })
    })
}

/// Registers memory, so that transfers can use it and peers can reach it.
///
/// `ranges`, `count`: 1 to 65,536 ranges that stay allocated until
/// `weft_memory_deregister` has returned `WEFT_OK`; the array itself is not
/// needed after the call. They keep their order: layer 5 of a KV cache is range
/// 5. `args`: NULL for defaults. `memory`: receives the handle; the caller owns
/// it and gives it back with `weft_memory_deregister`.
///
/// All of it must be readable; writable, too, where peers may write. Read-only
/// memory (weights mapped from a file) is registered with
/// `WEFT_ACCESS_REMOTE_READ` or `WEFT_ACCESS_LOCAL`, and cannot be the
/// destination of a `weft_read`. Its protection must not be lowered until it is
/// deregistered. Memory that is unmapped before it is deregistered can crash this
/// process, also when a peer writes to it: that is not checked.
///
/// Memory of a GPU is registered in the same way, and moves by the same calls; see
/// `weft_memory_info`. It needs no context that is current in the calling thread. It
/// must be of the device's primary context (as all memory of the CUDA runtime is),
/// or of none. Freed before it is deregistered, it ends transfers with
/// `WEFT_ERR_MEMORY_GONE`, as far as CUDA knows that it was freed; over libfabric's
/// shm it can crash this process, as unmapped memory does.
///
/// Any thread. Blocks while the NICs learn the memory's pages, which takes up
/// to seconds for many gigabytes: register before traffic. Errors:
/// `WEFT_ERR_INVALID` (also memory that is not there, or that this process may
/// not use so, or not where `kind` and `device` say), `WEFT_ERR_UNSUPPORTED`
/// (no CUDA driver, memory of another context, or rails of libfabric's shm alone
/// if that was built without CUDA), `WEFT_ERR_LIMIT`, `WEFT_ERR_FABRIC`,
/// `WEFT_ERR_NO_MEMORY` (the NIC or the limit of locked memory is exhausted),
/// `WEFT_ERR_CLOSED`, `WEFT_ERR_HANDLE`. Since 0.1.
///
/// # Safety
/// `ranges` must be valid for `count` elements, and the memory they name must
/// be allocated.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_memory_register(
    endpoint: *mut weft_endpoint,
    ranges: *const weft_memory_range,
    count: usize,
    args: *const weft_memory_args,
    memory: *mut *mut weft_memory,
) -> weft_status {
    guard(|| {
        let out = output(memory, "memory")?;
        let (access, rails, claim) = config::memory(args)?;
        let ranges = config::ranges(ranges, count)?;
        // It blocks, and no epoch is pinned meanwhile.
        let ep = Arc::clone(&*handle::endpoint(endpoint)?);
        guarded(&ep, || {
            out.store(handle::insert_memory(&ep, || ep.register(ranges, access, rails, claim))?);
            Ok(())
        })
    })
}

/// Writes the descriptor that a peer passes to `weft_remote_memory_import`: a
/// blob that may travel by any means, a `weft_send` for example. Its size grows
/// with ranges x rails (8 bytes each, and 16 for each range). Whoever has it
/// can reach the memory: treat it as a key.
///
/// `buffer`, `capacity`, `len`: as in `weft_endpoint_address`; NULL and 0 ask for
/// the length only (`WEFT_OK`).
/// Any thread; does not block. Errors: `WEFT_ERR_TOO_SMALL`,
/// `WEFT_ERR_INVALID` (registered with `WEFT_ACCESS_LOCAL`),
/// `WEFT_ERR_HANDLE`. Since 0.1.
///
/// # Safety
/// `buffer` must be valid for `capacity` bytes, `len` valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_memory_export(
    memory: *const weft_memory,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> weft_status {
    guard(|| {
        let len = output(len, "len")?;
        let memory = handle::memory(memory)?;
        memory.endpoint()?;
        super::guard::copy_out(memory.object.descriptor()?, buffer, capacity, &len)
    })
}

/// Takes memory back from the NICs. Peers that imported it are told, and their
/// later transfers to it end with `WEFT_ERR_MEMORY_GONE`; the call waits until
/// each has answered that it uses it no more, or has ended. When it has
/// returned `WEFT_OK`, no late write lands and the memory can be freed.
///
/// `memory`: NULL is fine; the handle is invalid after `WEFT_OK`.
/// Any thread. Blocks for a round trip to the slowest importer; one that does
/// not answer within 2 seconds is disconnected (`WEFT_COMPLETION_PEER_DOWN`
/// with `WEFT_ERR_PEER_LOST`). With manual progress it drives the rails itself;
/// keep polling until the peers have deregistered, too. Other operations go on
/// meanwhile, however many ranges there are.
///
/// Errors: `WEFT_ERR_BUSY` (own transfers use it, or another thread deregisters
/// it: poll and try again), `WEFT_ERR_FABRIC` (a NIC keeps a part of it),
/// `WEFT_ERR_TIMED_OUT` (a provider does not return), `WEFT_ERR_HANDLE`. The
/// handle stays valid with the first three. After the second and third nothing can use
/// the memory any more, and NICs may still know it: do not free it. The next call goes
/// on with what is left; `weft_endpoint_shutdown` takes it back, too. Since 0.1.
///
/// # Safety
/// `memory` must be NULL or a handle from `weft_memory_register`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_memory_deregister(memory: *mut weft_memory) -> weft_status {
    guard(|| {
        if memory.is_null() {
            return Ok(());
        }
        let (endpoint, object) = {
            let owned = handle::memory(memory)?;
            (owned.endpoint()?, owned.object.clone())
        };
        endpoint.deregister(&object)?;
        handle::remove_memory(memory)
    })
}

/// Makes a peer's memory usable as the remote side of transfers.
///
/// `peer`: whose memory it is; it may still be connecting.
/// `descriptor`, `descriptor_len`: from the peer's `weft_memory_export`; not
/// needed after the call. `remote`: receives the handle; the caller owns it and
/// gives it back with `weft_remote_memory_release`.
///
/// The owner is asked in the background whether the memory still exists;
/// transfers may be submitted at once and wait for the answer, ending with
/// `WEFT_ERR_MEMORY_GONE` if it does not.
///
/// Any thread; does not block. Errors: `WEFT_ERR_FORMAT`; `WEFT_ERR_PEER_GONE`
/// (the descriptor is of another incarnation than the peer, which was
/// restarted for example); `WEFT_ERR_MEMORY_GONE` (known to be deregistered);
/// `WEFT_ERR_HANDLE`, `WEFT_ERR_CLOSED`. Since 0.1.
///
/// # Safety
/// `descriptor` must be valid for `descriptor_len` bytes, `remote` valid.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_remote_memory_import(
    endpoint: *mut weft_endpoint,
    peer: weft_peer,
    descriptor: *const c_void,
    descriptor_len: usize,
    remote: *mut *mut weft_remote_memory,
) -> weft_status {
    guard(|| {
        let out = output(remote, "remote")?;
        let descriptor = bytes(descriptor, descriptor_len, "descriptor")?.copied("the descriptor")?;
        with_endpoint(endpoint, |ep| {
            out.store(handle::insert_remote(ep, || ep.import(peer, &descriptor))?);
            Ok(())
        })
    })
}

/// Gives a remote memory back. `remote`: NULL is fine; the handle is invalid
/// after `WEFT_OK`. Any thread; does not block. Errors: `WEFT_ERR_BUSY`
/// (transfers, atomics or prepared geometries use it: the handle stays valid),
/// `WEFT_ERR_HANDLE`. Since 0.1.
///
/// # Safety
/// `remote` must be NULL or a handle from `weft_remote_memory_import`.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_remote_memory_release(remote: *mut weft_remote_memory) -> weft_status {
    guard(|| {
        if remote.is_null() {
            return Ok(());
        }
        let owned = handle::remote(remote)?;
        owned.endpoint()?.release(&owned.object)?;
        handle::remove_remote(remote)
    })
}
