//! The seam: what a rail needs of a NIC. `ofi` implements it with libfabric, or
//! with the simulated NICs of `sim` beneath it; `host` by itself, between
//! processes of one host.
//!
//! A `Nic` belongs to one thread at a time (the worker that drives its rail);
//! nothing here locks. Memory that an operation names must stay valid until the
//! operation is reaped or the NIC is closed: that is what `Rail` keeps account
//! of, and why posting is unsafe.

pub mod choice;
pub mod grants;
pub mod host;
#[cfg(test)]
mod key_tests;
#[cfg(test)]
mod machine_tests;
pub mod ofi;
pub mod registry;
pub mod segments;
pub mod select;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod tcp;

use crate::device::Device;
use crate::ids::{GrantToken, PeerId};
pub use crate::range::Range as HostRange;
use crate::status::Result;
pub use crate::wire::Immediate;
use std::ffi::c_void;
use std::os::fd::RawFd;
use std::sync::Arc;

/// libfabric's text for an error number.
pub fn error_text(errno: i32) -> String {
    ofi::discover::error_text(errno)
}

/// Whether an error number means that the other side has closed the connection.
pub fn is_closed(errno: i32) -> bool {
    use libc::*;
    matches!(errno, ECONNRESET | ECONNABORTED | ECONNREFUSED | EPIPE | ENOTCONN | ESHUTDOWN | ECANCELED | EIO)
}

/// An error number for "the memory is not there, or a device could not copy it": it is an
/// operation's affair, and not its lane's.
pub const GONE: i32 = libc::ESTALE;

/// An error number for "the target's NIC refused the key": on NICs without connections it is an
/// operation's affair, too.
pub const REFUSED: i32 = libc::EREMOTEIO;

/// A peer's NIC, as the local NIC knows it.
pub type Route = u64;

/// The connection that a message came over, as the receiving NIC numbers them; 0 where it does not.
pub type Connection = u32;

/// The connection of a route, for a NIC that `dials`.
pub fn connection_of(route: Route) -> Connection {
    u32::try_from(route).map_or(0, |route| route.wrapping_add(1))
}

/// How a write's completion comes to mean "visible at the target".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// Every write asks for it.
    Each,
    /// The NIC's ordinary completion is the target's acknowledgement.
    Native,
}

/// Capabilities of a NIC; fixed once it is open.
#[derive(Clone, Debug)]
pub struct Limits {
    pub delivery: Delivery,
    /// Operations that may be outstanding, and receives that may be posted.
    pub tx_depth: usize,
    pub rx_depth: usize,
    /// Segments that one write or read may have.
    pub vector: usize,
    /// A write that fails takes what was posted to the same peer after it along:
    /// none of that arrives.
    pub failures_reset: bool,
    /// A route that failed may work later: the fabric connects anew.
    pub reconnects: bool,
    /// Removing a route closes it both ways: nothing that was posted to it before, here
    /// or by the peer, moves bytes here afterwards.
    pub resets: bool,
    /// Bytes of one message.
    pub message_max: usize,
    /// Remote addresses are virtual addresses, else offsets into the region.
    pub virtual_addresses: bool,
    /// No call into the NIC waits for others, so threads of the host program may make them, too.
    pub prompt: bool,
    /// The NIC's own worker does what peers ask for: a request for host memory may name a grant by
    /// its key, and bytes of devices wait for copies.
    pub grants: bool,
    /// Local buffers must be registered, too.
    pub local_registration: bool,
    /// Bytes of one write that carries an immediate; 0 where none can.
    pub immediate_max: u64,
    /// Peers' writes with immediates that the NIC has room for until the worker reaps them, where
    /// there is a bound.
    pub arrival_room: Option<u32>,
    /// Bytes to keep in flight towards one peer, and on the whole NIC.
    pub lane_window: u64,
    pub rail_window: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    pub remote_write: bool,
    pub remote_read: bool,
    /// This process may write to it: reads and messages may land there.
    pub local_write: bool,
    /// Peers reach it under grants alone, where the NIC checks these.
    pub granted_only: bool,
}

impl Access {
    pub const ALL: Access =
        Access { remote_write: true, remote_read: true, local_write: true, granted_only: false };
}

/// How a NIC moves a device's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Through host memory: the NIC's worker has the device copy.
    Staged,
    /// The same, or between devices: other processes open it.
    Shared,
    /// Registered by address: the provider finds out the rest.
    Address,
    /// Registered by a DMA-BUF that the device's driver made.
    Dmabuf,
}

/// A range that a NIC knows. `handle` is the NIC's own.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    pub handle: *mut c_void,
    /// The descriptor that local posts pass along with an address inside the range.
    pub descriptor: *mut c_void,
    /// The key by which peers name the range.
    pub key: u64,
    /// Set for device memory.
    pub way: Option<Way>,
}

// SAFETY: plain tokens; only the owning worker gives them back to the NIC.
unsafe impl Send for Registration {}
// SAFETY: reading them needs no synchronisation.
unsafe impl Sync for Registration {}

/// Where a provider keeps its own state of an operation. It belongs to the NIC
/// from posting to reaping; the address comes back when the operation is done.
#[repr(C, align(64))]
pub struct Scratch(pub [*mut c_void; 8]);

/// A run of bytes that an operation moves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment {
    pub local: u64,
    pub remote: u64,
    pub len: u64,
}

/// Writes or reads: of segments between one local and one remote registration.
#[derive(Clone, Copy)]
pub struct Rma<'a> {
    pub read: bool,
    /// Each operation's: at least one, at most `Limits::vector`.
    pub segments: &'a [Segment],
    pub descriptor: *mut c_void,
    pub key: u64,
    /// For a write of one segment: the target reaps the immediate when the bytes are there
    /// (`Reaped::immediate`).
    pub immediate: Option<Immediate>,
    /// Another post follows at once: the doorbell may wait for it.
    pub more: bool,
}

/// Bytes of a message, inside a registered buffer where the NIC needs that.
#[derive(Clone, Copy)]
pub struct Buffer {
    pub address: *mut c_void,
    pub len: usize,
    pub descriptor: *mut c_void,
    /// Like a message, it may not overtake writes.
    pub follows: bool,
}

/// The result of a post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Posted {
    Yes,
    /// No room towards this peer, or at all: reap, then try again.
    Again,
    /// An error number of libfabric.
    Failed(i32),
}

/// A finished operation, or a peer's write that arrived here.
#[derive(Clone, Copy)]
pub struct Reaped {
    /// NULL when the provider did not name the failed operation. For an arrival: the receive that
    /// it took, or NULL.
    pub scratch: *mut Scratch,
    /// Bytes received, and what they came by.
    pub len: u32,
    pub connection: Connection,
    /// 0, or an error number of libfabric.
    pub errno: i32,
    pub provider_errno: i32,
    /// An arrival's; only ever without an error.
    pub immediate: Option<Immediate>,
}

impl Reaped {
    pub fn of(scratch: *mut Scratch, errno: i32) -> Reaped {
        let (len, connection, immediate) = (0, 0, None);
        Reaped { scratch, len, connection, errno, provider_errno: errno, immediate }
    }

    pub fn arrival(immediate: Immediate) -> Reaped {
        Reaped { immediate: Some(immediate), ..Reaped::of(std::ptr::null_mut(), 0) }
    }
}

pub trait Nic {
    fn limits(&self) -> &Limits;
    /// The address that peers insert.
    fn address(&self) -> &[u8];
    /// A route to an address; `peer`: whose it is.
    fn insert(&mut self, address: &[u8], peer: Option<PeerId>) -> Result<Route>;
    fn remove(&mut self, route: Route);
    /// Like `remove`, but at once, where that closes the route (`Limits::resets`).
    fn reset(&mut self, route: Route, connected: bool) {
        let _ = connected;
        self.remove(route);
    }
    /// The next frame to a route is a handshake: where its connection has ended, it makes a new
    /// one. (Frames of a session are sent only over the connection of their handshake.)
    fn redial(&mut self, route: Route) {
        let _ = route;
    }
    /// Assigns a connection (`Reaped::connection`) to a peer that has authenticated over it.
    fn assign_connection(&mut self, connection: Connection, peer: PeerId) {
        let _ = (connection, peer);
    }
    /// A peer has ended. A NIC that knows what is of which peer writes and reads nothing here for
    /// that one from now on. `at_once`: its messages are not delivered either, and what is under
    /// way to it fails.
    fn end_peer(&mut self, peer: PeerId, at_once: bool) {
        let _ = (peer, at_once);
    }
    /// Whether a peer's NIC is known to be gone.
    fn is_gone(&mut self, route: Route) -> bool {
        let _ = route;
        false
    }
    /// Whether sending to a route without a connection makes one, and a message's `connection` is
    /// `connection_of` its sender's route, if that was inserted.
    fn dials(&self) -> bool {
        false
    }
    /// A route for an answer to the sender behind a connection, which gives this address.
    fn insert_caller(&mut self, address: &[u8], connection: Connection) -> Result<Route> {
        let _ = connection;
        self.insert(address, None)
    }
    /// Like `remove`, for a route that was only sent to over an existing connection.
    fn forget(&mut self, route: Route) {
        self.remove(route);
    }
    /// From time to time: what could not be done at once.
    fn tend(&mut self) {}
    /// How many connections were rejected since it was asked last: they named no NIC here, or proved
    /// no secret to encrypt by.
    fn take_rejected(&mut self) -> u64 {
        0
    }
    fn register(&mut self, range: HostRange, access: Access) -> Result<Registration>;
    fn deregister(&mut self, registration: Registration) -> Result<()>;
    /// The grants of the endpoint.
    fn use_grants(&mut self, grants: Arc<grants::Grants>) {
        let _ = grants;
    }
    /// A grant is no more: nothing is written or read under it from now on, what is under way
    /// included.
    fn revoke(&mut self, grant: GrantToken) {
        let _ = grant;
    }
    /// Memory of a device, which other processes can open or not. `None`: the NIC moves none.
    fn register_device(
        &mut self,
        range: HostRange,
        access: Access,
        device: (Device, bool),
    ) -> Result<Option<Registration>> {
        let _ = (range, access, device);
        Ok(None)
    }
    /// Posts one operation per scratch, with equally many segments each. Returns how many were
    /// posted, and the result of the next. `rma.more` applies to the last: each other one is
    /// followed by another.
    ///
    /// # Safety
    /// The segments' local bytes and the scratches stay valid until the operations are reaped or
    /// the NIC closed.
    unsafe fn rma(&mut self, rma: &Rma<'_>, route: Route, scratches: &[*mut Scratch]) -> (usize, Posted);
    /// The operations' callers have gone: if the NIC itself touches their local memory, it stops.
    /// The operations are reaped as usual.
    fn disown(&mut self, scratches: &[*mut Scratch]) {
        let _ = scratches;
    }
    /// # Safety
    /// As `rma`, for `buffer`.
    unsafe fn send(&mut self, buffer: Buffer, route: Route, scratch: *mut Scratch) -> Posted;
    /// # Safety
    /// As `send`.
    unsafe fn receive(&mut self, buffer: Buffer, scratch: *mut Scratch) -> Posted;
    /// Drives the provider, and appends finished operations to `reaped`. True: there was something
    /// to do, for peers or for us.
    fn reap(&mut self, reaped: &mut Vec<Reaped>) -> bool;

    /// A descriptor that becomes readable when `reap` has something to do, and
    /// whether it may be waited on now. `None`: only reaping tells.
    fn wait_fd(&mut self) -> Option<(RawFd, bool)>;
    /// That descriptor has become readable.
    fn woken(&mut self) {}

    /// Ends all operations without completions; registrations must be gone or
    /// are given back here.
    fn close(&mut self) -> Result<()>;
}
