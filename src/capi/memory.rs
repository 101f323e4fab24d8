//! Memory of this process, and memory of peers.

use super::args::{read_or_default, zero_reserved, Sized32};
use super::endpoint::weft_endpoint;
use super::guard::{array, bytes, copy_out, guard, output, with_endpoint_unpinned};
use super::handle::{self, Handle, Owned};
use super::peer::weft_peer;
use super::status::weft_status;
use crate::device::Claim;
use crate::memory::{self, Access, Memory, Range, RemoteMemory};
use crate::status::{Error, Result, Status};
use std::ffi::c_void;

/// Ranges of this process's memory, registered with the rails.
pub struct weft_memory {
    _opaque: [u8; 0],
}

impl Handle for weft_memory {
    type Object = Owned<Memory>;
}

/// Memory of a peer.
pub struct weft_remote_memory {
    _opaque: [u8; 0],
}

impl Handle for weft_remote_memory {
    type Object = Owned<RemoteMemory>;
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_memory_range {
    pub address: *mut c_void,
    /// Bytes, 1 to 2^47.
    pub len: u64,
}

pub const WEFT_ACCESS_REMOTE_WRITE: u32 = 1;
pub const WEFT_ACCESS_REMOTE_READ: u32 = 2;
/// Only this process uses it, in its own transfers; it has no descriptor.
/// Excludes the others.
pub const WEFT_ACCESS_LOCAL: u32 = 4;

/// Peers reach it under grants alone (`weft_grant_create`): add REMOTE_WRITE or
/// REMOTE_READ; neither: both. Without this grants protect nothing: the
/// descriptor reaches all.
pub const WEFT_ACCESS_GRANTED: u32 = 8;

/// Found out from the pointers, if the program has loaded CUDA.
pub const WEFT_MEMORY_ANY: u32 = 0;
/// Memory that the CPU reads and writes: ordinary, pinned by CUDA, or managed
/// by it (the CPU does the copying).
pub const WEFT_MEMORY_HOST: u32 = 1;
/// Memory of a CUDA device: cudaMalloc, cudaMallocAsync, the virtual memory
/// API, or managed.
pub const WEFT_MEMORY_CUDA: u32 = 2;
/// Bytes of a file or block device, `fd`: a range's `address` is its first
/// byte's offset (NULL: 0). See docs/files.md.
pub const WEFT_MEMORY_FILE: u32 = 3;

/// How to register. Start from `WEFT_MEMORY_ARGS_INIT`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct weft_memory_args {
    pub size: u32,
    /// `WEFT_ACCESS_*`. 0: remote write and remote read.
    pub access: u32,
    /// The rails that carry transfers of the memory: bit i is rail i of
    /// `weft_rail_info` (that of `host` is one, too). 0: all; of a GPU's
    /// memory, those nearest to it. Where no lane joins the rails of two
    /// memories, the first transfer has one made, or ends with
    /// `WEFT_ERR_NO_RAILS` or `WEFT_ERR_UNREACHABLE`.
    pub rails: u64,
    /// `WEFT_MEMORY_*`. All ranges are of one kind, and on one device.
    pub kind: u32,
    pub reserved: u32,
    /// With `WEFT_MEMORY_FILE`, else 0: the file or block device. Weft opens it
    /// again; yours may be closed afterwards.
    pub fd: i32,
    pub reserved2: u32,
}

// SAFETY: the struct has only integers, for which zero is valid.
unsafe impl Sized32 for weft_memory_args {
    const FIRST: usize = 24;
}

/// The NUMA node of most of the endpoint's rails, if known, else the system's
/// choice.
pub const WEFT_NUMA_ANY: i32 = -1;

/// Allocates zeroed memory that is ready for transfers: on huge pages if the
/// system has them, and such that writes from it to peers on this host are
/// about 1.5 times as fast.
///
/// `len`: 1 to 2^47, rounded up to whole pages. `numa_node`: 0 to 63 (another
/// if that has no room), or `WEFT_NUMA_ANY`. `address`: receives the first
/// byte. The caller owns the memory, registers it like any other, and gives it
/// back with `weft_memory_free`; it outlives the endpoint. A peer on this host
/// that is written to may read all of it. Blocks while the system provides the
/// pages.
///
/// Errors: `WEFT_ERR_NO_MEMORY`, `WEFT_ERR_LIMIT`, `WEFT_ERR_SYSTEM`.
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
        let node = (numa_node != WEFT_NUMA_ANY).then_some(numa_node.into());
        with_endpoint_unpinned(endpoint, |ep| {
            out.store(ep.allocate(len, node)? as *mut c_void);
            Ok(())
        })
    })
}

/// Frees memory of `weft_memory_alloc`. `endpoint`: any endpoint of this
/// process. `address`: as it was received; NULL is fine.
///
/// Errors: `WEFT_ERR_BUSY` (some of it is registered by an endpoint that is not
/// shut down), `WEFT_ERR_INVALID` (no such address, or freed already).
///
/// # Safety
/// Nobody may use the memory any longer.
#[no_mangle]
#[must_use]
pub unsafe extern "C" fn weft_memory_free(endpoint: *mut weft_endpoint, address: *mut c_void) -> weft_status {
    guard(|| {
        with_endpoint_unpinned(endpoint, |_| match address.is_null() {
            true => Ok(()),
            false => crate::memory::alloc::free(address as u64),
        })
    })
}

/// Registers memory, so that transfers can use it and peers can reach it.
///
/// `ranges`, `count`: 1 to 65,536 ranges, which keep their order. They must be
/// readable, and writable where peers may write or a `weft_read` goes to, and
/// stay mapped so until `weft_memory_deregister` has returned `WEFT_OK`: else
/// this process can crash. Of mapped files: docs/details.md. GPU memory:
/// docs/gpu.md. Files: docs/files.md. `args`: NULL for defaults. `memory`:
/// receives the handle.
///
/// Blocks while the NICs register the pages, up to seconds for many gigabytes.
/// Errors: `WEFT_ERR_INVALID` (also memory that is not mapped, or not of that
/// `kind`), `WEFT_ERR_UNSUPPORTED` (no CUDA driver, memory of another
/// context), `WEFT_ERR_LIMIT`,
/// `WEFT_ERR_SYSTEM` (no thread for files), `WEFT_ERR_FABRIC`,
/// `WEFT_ERR_NO_MEMORY` (the NIC or the limit of locked memory is exhausted, or
/// a mapped file has no such pages, or no room for them), `WEFT_ERR_TIMED_OUT`
/// (a provider does not return, or does not give back what it had registered: a
/// NIC may still use the memory, so keep it).
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
        let (access, rails, claim) = access(args)?;
        let ranges = self::ranges(ranges, count, matches!(claim, Claim::File(_)))?;
        with_endpoint_unpinned(endpoint, |ep| {
            out.store(handle::insert_owned(ep, || ep.register(ranges, access, rails, claim))?);
            Ok(())
        })
    })
}

/// Writes the descriptor that a peer passes to `weft_remote_memory_import`. It
/// is a key: treat it as a secret. Its size grows with ranges x rails.
///
/// `buffer`, `capacity`, `len`: as in `weft_endpoint_address`. Errors:
/// `WEFT_ERR_TOO_SMALL`, `WEFT_ERR_INVALID` (`WEFT_ACCESS_LOCAL`).
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
        let memory = handle::get(memory)?;
        memory.endpoint()?;
        copy_out(&memory.object.descriptor()?, buffer, capacity, &len)
    })
}

/// Takes memory back from NICs and peers. After `WEFT_OK` nothing changes it
/// any longer, and it can be freed; later transfers of peers to it end with
/// `WEFT_ERR_MEMORY_GONE`.
///
/// Blocks for a round trip to the slowest importer; one that does not answer
/// within 2 seconds is disconnected (PEER_DOWN with `WEFT_ERR_PEER_LOST`). With
/// manual progress keep polling until the peers have deregistered, too. Waits up
/// to 10 ms for what ended early and is being put away.
///
/// Errors: `WEFT_ERR_BUSY` (own transfers or grants use it: poll, revoke, try
/// again; over host also what ended early at a process that is stopped, until
/// it goes on or is down), `WEFT_ERR_FABRIC` (a NIC keeps a part of it), `WEFT_ERR_TIMED_OUT`
/// (a provider does not return). After the last two NICs may still use it: do
/// not free it; call again, or shut down (which waits for a disk, too).
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
            let owned = handle::get(memory)?;
            (owned.endpoint()?, owned.object.clone())
        };
        endpoint.deregister(&object)?;
        handle::remove(memory)
    })
}

/// Makes a peer's memory usable as the remote side of transfers.
///
/// `peer`: its owner; it may still be connecting. `descriptor`: from its
/// `weft_memory_export`. Transfers may be submitted at once: the owner is asked
/// in the background whether the memory still exists, and they end with
/// `WEFT_ERR_MEMORY_GONE` if it does not.
///
/// Errors: `WEFT_ERR_FORMAT`, `WEFT_ERR_PEER_GONE` (of another incarnation than
/// the peer, as after a restart), `WEFT_ERR_MEMORY_GONE`.
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
        with_endpoint_unpinned(endpoint, |ep| {
            out.store(handle::insert_owned(ep, || ep.import(peer, &descriptor))?);
            Ok(())
        })
    })
}

/// Gives a remote memory back; waits as `weft_memory_deregister` does for what
/// ended early. Errors: `WEFT_ERR_BUSY` (transfers, atomics or prepared
/// geometries use it).
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
        let owned = handle::get(remote)?;
        owned.endpoint()?.release(&owned.object)?;
        handle::remove(remote)
    })
}

const REMOTE: u32 = WEFT_ACCESS_REMOTE_READ | WEFT_ACCESS_REMOTE_WRITE;

/// # Safety
/// `args` must be valid as the header asks.
unsafe fn access(args: *const weft_memory_args) -> Result<(Access, u64, Claim)> {
    // SAFETY: `args` is NULL or a struct with its size.
    let args = unsafe { read_or_default(args)? };
    let unknown = args.access & !(WEFT_ACCESS_LOCAL | REMOTE | WEFT_ACCESS_GRANTED);
    if unknown != 0 {
        return Err(Error::new(
            Status::Unsupported,
            format!("access has bits {unknown:#x}, which are not known to this version of Weft"),
        ));
    }
    let remote = args.access & (REMOTE | WEFT_ACCESS_GRANTED);
    if args.access & WEFT_ACCESS_LOCAL != 0 && remote != 0 {
        return Err(Error::invalid("WEFT_ACCESS_LOCAL excludes remote access"));
    }
    let any = args.access & !WEFT_ACCESS_GRANTED == 0;
    let access = Access {
        remote_write: any || args.access & WEFT_ACCESS_REMOTE_WRITE != 0,
        remote_read: any || args.access & WEFT_ACCESS_REMOTE_READ != 0,
        granted_only: args.access & WEFT_ACCESS_GRANTED != 0,
        ..Access::ALL
    };
    zero_reserved(args.reserved | args.reserved2)?;
    if args.kind != WEFT_MEMORY_FILE && args.fd != 0 {
        return Err(Error::invalid(format!("fd is {}, which is only of kind WEFT_MEMORY_FILE", args.fd)));
    }
    let claim = match args.kind {
        WEFT_MEMORY_FILE => Claim::File(args.fd),
        WEFT_MEMORY_ANY => Claim::Unsaid,
        WEFT_MEMORY_HOST => Claim::Host,
        WEFT_MEMORY_CUDA => Claim::Device,
        other => {
            return Err(Error::new(
                Status::Unsupported,
                format!("kind is {other}, which is not known to this version of Weft"),
            ));
        }
    };
    Ok((access, args.rails, claim))
}

/// # Safety
/// `ranges` must be NULL or valid for `count` elements.
unsafe fn ranges(ranges: *const weft_memory_range, count: usize, in_file: bool) -> Result<Vec<Range>> {
    // SAFETY: there are `count` ranges, which are only read; what they name is checked.
    let theirs = unsafe { array(ranges, count, "ranges")? };
    memory::ranges(count, theirs.iter().map(|range| (range.address as u64, range.len)), in_file)
}
