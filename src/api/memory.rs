//! Memory of this process: owned, so that nothing frees it under a NIC.

use super::buffer::{Buffer, OwnedBuffer, Registered};
use super::endpoint::Endpoint;
use super::parked::{Parked, Shared};
use super::words::Words;
use crate::device::{Claim, FILE};
use crate::memory::{self, place, Range};
use crate::status::{Error, Result, Status};
use std::fmt;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

/// The access that peers have to a memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Access {
    /// Write to it and read from it.
    #[default]
    Remote,
    /// Only write to it.
    RemoteWrite,
    /// Only read from it.
    RemoteRead,
    /// None: only this process uses it, in its own transfers; it has no descriptor.
    Local,
    /// Both, under grants alone ([`Memory::grant`]). Without this grants protect nothing: the descriptor reaches all.
    Granted,
    /// Only write, under grants alone.
    GrantedWrite,
    /// Only read, under grants alone.
    GrantedRead,
}

impl Access {
    fn to_internal(self) -> memory::Access {
        use Access::*;
        memory::Access {
            remote_write: matches!(self, Remote | RemoteWrite | Granted | GrantedWrite),
            remote_read: matches!(self, Remote | RemoteRead | Granted | GrantedRead),
            granted_only: matches!(self, Granted | GrantedWrite | GrantedRead),
            ..memory::Access::ALL
        }
    }
}

/// The kind of borrowed memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum MemoryKind {
    /// Found out from the pointers, if the program has loaded CUDA.
    #[default]
    Any,
    /// Memory that the CPU reads and writes: ordinary, pinned by CUDA, or managed by it.
    Host,
    /// Memory of a CUDA device.
    Cuda,
}

/// How to register memory.
///
/// ```
/// # let world = libweft::testing::world()?;
/// use libweft::{Access, MemoryArgs, Status};
/// let local = world.a.register_with(vec![vec![0; 4096]], &MemoryArgs::new().access(Access::Local))?;
/// assert_eq!(local.export().unwrap_err().status, Status::Invalid); // It has no descriptor.
/// # Ok::<(), libweft::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct MemoryArgs {
    access: Access,
    rails: u64,
}

impl MemoryArgs {
    /// All defaults: peers may write and read, over all rails.
    pub fn new() -> MemoryArgs {
        MemoryArgs::default()
    }

    /// The access that peers have to it.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// The rails that carry transfers of the memory: bit i is rail i of
    /// [`Endpoint::rail_info`](crate::Endpoint::rail_info) (that of `host` is one, too). Default: all; of a GPU's
    /// memory, those nearest to it. Where no lane joins the rails of two memories, the first transfer has one made, or
    /// ends with [`NoRails`](crate::Status::NoRails) or [`Unreachable`](crate::Status::Unreachable).
    pub fn rails(mut self, rails: u64) -> Self {
        self.rails = rails;
        self
    }
}

/// Memory of this process, registered with the rails, so that transfers can use it and peers can reach it: one handle
/// for one or many ranges, which count as if one lay behind the other.
///
/// It owns its bytes, and NICs and peers may change them at any time: so there is no reference to them. Safe access
/// copies, [`read_at`](Memory::read_at) and [`write_at`](Memory::write_at); [`as_ptr`](Memory::as_ptr) is for
/// `unsafe`.
///
/// Dropping it never blocks and never frees what is in use. The bytes are kept, and stay within reach of peers, until
/// the next [`register`](Endpoint::register), [`alloc`](Endpoint::alloc) or [`reclaim`](Endpoint::reclaim) finds it
/// idle, or until the endpoint is shut down. [`deregister`](Memory::deregister) takes it from peers at once.
///
/// ```
/// # let world = libweft::testing::world()?;
/// let layers = vec![vec![0; 4096], vec![0; 8192]];
/// let kv = world.a.register_with(layers, &Default::default())?;
/// assert_eq!((kv.range_count(), kv.len()), (2, 12288));
/// kv.write_at(5000, b"in the second range")?;
/// let mut back = [0; 19];
/// kv.read_at(5000, &mut back)?;
/// assert_eq!(&back, b"in the second range");
/// # Ok::<(), libweft::Error>(())
/// ```
pub struct Memory {
    pub(super) shared: Arc<Shared>,
    /// `None` only while it is dropped or deregistered.
    registered: Option<Registered>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(registered) = self.registered.take() {
            self.shared.park(Parked::Memory(registered));
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("ranges", &self.range_count()).field("len", &self.len()).finish()
    }
}

impl Memory {
    pub(super) fn internal(&self) -> Result<&Arc<memory::Memory>> {
        self.registered
            .as_ref()
            .map(|registered| &registered.memory)
            .ok_or_else(|| Error::handle("the memory was deregistered"))
    }

    fn ranges(&self) -> &[Range] {
        self.registered.as_ref().map_or(&[], |registered| registered.memory.ranges())
    }

    /// Bytes of all ranges.
    #[allow(clippy::len_without_is_empty)] // It is never empty: each range has a byte.
    pub fn len(&self) -> u64 {
        self.ranges().iter().map(|range| range.len).sum()
    }

    /// How many ranges it has.
    pub fn range_count(&self) -> usize {
        self.ranges().len()
    }

    /// Bytes of a range; `None`: there is no such range.
    pub fn range_len(&self, range: usize) -> Option<u64> {
        self.ranges().get(range).map(|range| range.len)
    }

    /// The first byte of a range; `None`: there is no such range, or it is a file's.
    ///
    /// The bytes are valid until the memory is dropped or deregistered. NICs and peers may change them at any time
    /// while transfers of them run: make no reference to them then.
    pub fn as_ptr(&self, range: usize) -> Option<*mut u8> {
        let is_file = self.registered.as_ref().is_some_and(|one| one.memory.device() == Some(FILE));
        self.ranges().get(range).filter(|_| !is_file).map(|range| range.base as *mut u8)
    }

    /// The descriptor that a peer passes to [`Endpoint::import`]; it may travel by any means. It is a key: treat it
    /// as a secret. Its size grows with ranges x rails.
    ///
    /// # Errors
    /// [`Invalid`](crate::Status::Invalid) ([`Access::Local`]).
    pub fn export(&self) -> Result<Vec<u8>> {
        self.shared.call(|_| Ok(self.internal()?.descriptor()?.to_vec()))
    }

    /// Takes the memory back from NICs and peers, and returns the bytes that it owned, by range: nothing changes them any
    /// longer. Later transfers of peers to it end with [`MemoryGone`](crate::Status::MemoryGone).
    ///
    /// Blocks for a round trip to the slowest importer; one that does not answer within 2 seconds is disconnected
    /// (PEER_DOWN with [`PeerLost`](crate::Status::PeerLost)). With manual progress keep polling until the peers have
    /// deregistered, too.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// let memory = world.a.register(vec![7; 4096])?;
    /// let bytes = memory.deregister().map_err(|(_, error)| error)?;
    /// assert_eq!(bytes, [vec![7; 4096]]);
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// The memory comes back with [`Busy`](crate::Status::Busy) (own transfers or grants use it: poll, revoke, try
    /// again), [`Fabric`](crate::Status::Fabric) (a NIC keeps a part of it) or [`TimedOut`](crate::Status::TimedOut) (a
    /// provider does not return). After the last two NICs may still use it: call again, or shut down (which
    /// waits for a disk, too); dropping it keeps
    /// its bytes.
    pub fn deregister(mut self) -> std::result::Result<Vec<OwnedBuffer>, (Memory, Error)> {
        let deregistered = match self.shared.is_over() {
            true => Ok(()),
            false => self.shared.call(|ep| ep.deregister(self.internal()?)),
        };
        match (deregistered, self.registered.take()) {
            // SAFETY: it is deregistered, or its endpoint is shut down.
            (Ok(()), Some(registered)) => Ok(unsafe { registered.into_buffers() }),
            (Ok(()), None) => Ok(Vec::new()),
            (Err(error), registered) => {
                self.registered = registered;
                Err((self, error))
            }
        }
    }

    /// The range of bytes that the CPU can reach, and their offset in it.
    fn bytes_at(&self, offset: u64, len: usize) -> Result<(Words, usize)> {
        let memory = self.internal()?;
        if memory.place().is_some() {
            return Err(Error::new(
                Status::Unsupported,
                "the memory is on a device: the CPU does not reach it",
            ));
        }
        let (range, offset) = place(|range| memory.range_len(range), offset);
        let range_found = memory.ranges().get(range as usize);
        match range_found
            .filter(|range_found| offset.checked_add(len as u64).is_some_and(|end| end <= range_found.len))
        {
            // SAFETY: a registered range is readable until it is deregistered, which needs `self` by value; and `write_at` has
            // checked that it is writable. Memories that share bytes are of `register_foreign`, whose contract this is.
            Some(range_found) => Ok((
                unsafe { Words::new(range_found.base as *mut u8, range_found.len as usize) },
                offset as usize,
            )),
            None => Err(Error::new(
                Status::Range,
                format!("{len} bytes at offset {offset} of range {range} end outside of it"),
            )),
        }
    }

    /// Copies bytes out, from an offset that counts all ranges through; they must be in one range. What peers write
    /// meanwhile is seen in part; aligned words of 8 bytes are read whole.
    ///
    /// # Errors
    /// [`Range`](crate::Status::Range); [`Unsupported`](crate::Status::Unsupported) (memory of a device).
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let (words, at) = self.bytes_at(offset, into.len())?;
        fence(Ordering::SeqCst);
        words.read(at, into);
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Copies bytes in; otherwise as [`read_at`](Memory::read_at). Bytes of a write that is under way must not change.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let memory = &world.local;
    /// use libweft::Status;
    /// assert_eq!(memory.write_at(memory.len(), b"beyond the end").unwrap_err().status, Status::Range);
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as `read_at`; [`Invalid`](crate::Status::Invalid) (this process may not write to the memory).
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        if !self.internal()?.is_writable() {
            return Err(Error::invalid("this process may not write to the memory"));
        }
        let (words, at) = self.bytes_at(offset, from.len())?;
        words.write(at, from);
        fence(Ordering::SeqCst);
        Ok(())
    }
}

impl Endpoint {
    /// Registers bytes, which the memory owns from here on: a `Vec<u8>` or a `Box<[u8]>`.
    ///
    /// Blocks while the NICs register the pages, up to seconds for many gigabytes.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// let memory = world.a.register(vec![0; 1 << 20])?;
    /// let descriptor = memory.export()?; // To be sent to peers.
    /// # let _ = descriptor;
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Invalid`](crate::Status::Invalid) (no bytes), [`Limit`](crate::Status::Limit),
    /// [`Fabric`](crate::Status::Fabric), [`NoMemory`](crate::Status::NoMemory) (the NIC or the limit of locked
    /// memory is exhausted), [`TimedOut`](crate::Status::TimedOut) (a provider does not return, or does not give back
    /// what it had registered: a NIC may still use the bytes, which are kept for good).
    pub fn register(&self, bytes: impl Into<Vec<u8>>) -> Result<Memory> {
        self.register_with(vec![bytes.into()], &MemoryArgs::new())
    }

    /// Registers many ranges as one memory (layer 5 of a KV cache is range 5), 1 to 65,536; otherwise as
    /// [`register`](Endpoint::register).
    ///
    /// # Errors
    /// The same as `register`.
    pub fn register_with(&self, ranges: Vec<Vec<u8>>, args: &MemoryArgs) -> Result<Memory> {
        self.register_plain(ranges, args)
    }

    /// The same with vectors or boxed slices of any plain type ([`bytemuck::Pod`]: integers, floats, structs of them with
    /// `#[repr(C)]`: the crate's page has an example).
    /// Transfers count in bytes.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// use libweft::{Access, MemoryArgs};
    /// let args = MemoryArgs::new().access(Access::Local);
    /// let weights = world.a.register_plain([vec![0.5f32; 1024], vec![1.5; 16]], &args)?;
    /// assert_eq!(weights.len(), 1040 * 4);
    /// let mut back = weights.deregister().map_err(|(_, error)| error)?;
    /// assert_eq!(back.remove(0).into_vec::<f32>().expect("they are floats"), [0.5; 1024]);
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as `register`.
    pub fn register_plain(
        &self,
        ranges: impl IntoIterator<Item = impl Into<OwnedBuffer>>,
        args: &MemoryArgs,
    ) -> Result<Memory> {
        let buffers: Vec<Buffer> = ranges.into_iter().map(|elements| Buffer::own(elements.into())).collect();
        let ranges: Vec<(u64, u64)> = buffers.iter().map(Buffer::range).collect();
        self.register_ranges(&ranges, buffers, args, Claim::Host)
    }

    /// Allocates zeroed memory that is ready for transfers, and registers it: on huge pages if the system has them,
    /// and such that writes from it to peers on this host are about 1.5 times as fast. `len`: 1 to 2^47, rounded up to
    /// whole pages. `numa_node`: 0 to 63 (another if that has no room); `None`: that of most of the endpoint's rails. A
    /// peer on this host that is written to may read all of it. Blocks while the system provides the pages.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// use libweft::MemoryArgs;
    /// let memory = world.a.alloc(1 << 16, None, &MemoryArgs::new())?;
    /// memory.write_at(0, b"as any other")?;
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`register`](Endpoint::register); [`System`](crate::Status::System).
    pub fn alloc(&self, len: u64, numa_node: Option<u32>, args: &MemoryArgs) -> Result<Memory> {
        let address = self.shared().call(|ep| ep.allocate(len, numa_node.map(i64::from)))?;
        self.register_ranges(&[(address, len)], vec![Buffer::Allocated(address)], args, Claim::Host)
    }

    /// Registers memory that something else owns: mapped files, memory of another allocator, memory of a GPU.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// use libweft::{MemoryArgs, MemoryKind};
    /// let layer = Box::leak(vec![0u8; 4096].into_boxed_slice()); // Stays where it is.
    /// let ranges = [(layer.as_mut_ptr(), layer.len() as u64)];
    /// // SAFETY: it is never freed.
    /// let memory = unsafe { world.a.register_foreign(&ranges, MemoryKind::Host, &MemoryArgs::new())? };
    /// assert_eq!(memory.len(), 4096);
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Safety
    /// The ranges must stay mapped, and be readable, and writable where peers may write or a read goes to, until
    /// [`Memory::deregister`] has returned `Ok` or the endpoint is shut down; dropping the memory is not enough. No
    /// Rust reference to bytes may be used while peers, transfers or [`write_at`](Memory::write_at) may change them. A range
    /// that shares bytes with another one must begin and end at multiples of 8, as the other must, while the
    /// shared bytes are accessed through both at once.
    ///
    /// # Errors
    /// The same as [`register`](Endpoint::register); [`Invalid`](crate::Status::Invalid) (also memory that is not mapped,
    /// or not of that kind), [`Unsupported`](crate::Status::Unsupported) (no CUDA driver, memory of another context),
    /// [`NoMemory`](crate::Status::NoMemory) (also a mapped file that has no such
    /// pages, or no room for them).
    pub unsafe fn register_foreign(
        &self,
        ranges: &[(*mut u8, u64)],
        kind: MemoryKind,
        args: &MemoryArgs,
    ) -> Result<Memory> {
        let ranges: Vec<(u64, u64)> = ranges.iter().map(|(base, len)| (*base as u64, *len)).collect();
        let claim = match kind {
            MemoryKind::Any => Claim::Unsaid,
            MemoryKind::Host => Claim::Host,
            MemoryKind::Cuda => Claim::Device,
        };
        self.register_ranges(&ranges, vec![Buffer::Foreign], args, claim)
    }

    /// Registers ranges of a file or block device: offsets, and lengths of 1 to 2^47 bytes. They may lie past the end, where
    /// writes make the file longer and reads fail. The file is opened again for it, so yours may be closed. Peers write to
    /// it and read from it as from any memory; [`read_at`](Memory::read_at) does not reach it.
    ///
    /// # Errors
    /// [`Invalid`](crate::Status::Invalid) (open with O_APPEND, or not in the direction of the access; a pipe, a folder, a
    /// writable block device in use), [`Limit`](crate::Status::Limit), [`NoMemory`](crate::Status::NoMemory) (no address space for the ranges),
    /// [`System`](crate::Status::System).
    pub fn register_file(&self, file: impl AsFd, ranges: &[(u64, u64)], args: &MemoryArgs) -> Result<Memory> {
        self.register_ranges(ranges, Vec::new(), args, Claim::File(file.as_fd().as_raw_fd()))
    }

    fn register_ranges(
        &self,
        ranges: &[(u64, u64)],
        buffers: Vec<Buffer>,
        args: &MemoryArgs,
        claim: Claim,
    ) -> Result<Memory> {
        let shared = self.shared();
        let _ = shared.reclaim();
        let register = || {
            let checked =
                memory::ranges(ranges.len(), ranges.iter().copied(), matches!(claim, Claim::File(_)))?;
            shared.call(|ep| ep.register(checked, args.access.to_internal(), args.rails, claim))
        };
        match register() {
            Ok(memory) => {
                let registered = Some(Registered { memory, buffers });
                Ok(Memory { shared: shared.clone(), registered })
            }
            Err(error) => {
                // A worker that does not return may still register: then the bytes are kept for good.
                if !matches!(error.status, Status::TimedOut | Status::Internal) {
                    // SAFETY: nothing was registered, or it was deregistered.
                    buffers.into_iter().for_each(|buffer| drop(unsafe { buffer.free() }));
                }
                Err(error)
            }
        }
    }
}
