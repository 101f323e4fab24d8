//! The interface between a rail and its NIC. `ofi` implements it with libfabric, or with the
//! simulated NICs of `sim` beneath it; `host` implements it between processes of one host, `tcp`
//! over sockets.
//!
//! One thread at a time uses a `Nic` (the worker that drives its rail); nothing here locks. Memory
//! that an operation names must stay valid until the operation is reaped or the NIC is closed:
//! `Rail` ensures that, and it is why posting is unsafe.

mod cause;
pub mod choice;
pub mod copying;
pub mod found;
pub mod grants;
pub mod host;
#[cfg(test)]
mod hosts_tests;
#[cfg(test)]
mod key_tests;
#[cfg(test)]
mod lying_tests;
#[cfg(test)]
mod machine_tests;
pub mod ofi;
mod own;
pub mod registry;
pub mod segments;
pub mod select;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod staged;
pub mod tcp;

use crate::descriptor::Descriptor;
use crate::device::Device;
use crate::ids::{GrantToken, PeerId};
pub use crate::range::Range as HostRange;
use crate::status::{Error, Result, Status};
pub use crate::topology::link::State as LinkState;
pub use crate::wire::Immediate;
pub use cause::{Cause, ANOTHER, FAULT, GONE, ON_DISK, REFUSED};
use std::ffi::c_void;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// Why a side does not take the other's handshake.
pub const SECRETS_DIFFER: &str = "the two sides do not have the same secret";

/// libfabric's text for an error number.
pub fn error_text(errno: i32) -> String {
    ofi::discover::error_text(errno)
}

/// What an error of connecting means for somebody who looks for the cause.
pub fn meaning(errno: i32) -> String {
    let why = match errno {
        libc::ECONNREFUSED => {
            "nothing listens there, or a firewall there rejects it: is the address out of date?"
        }
        ANOTHER => "another endpoint of Weft has this address now: it is out of date",
        libc::EKEYREJECTED => SECRETS_DIFFER,
        libc::EPROTO => "what answers there is not an endpoint of Weft, or one of another version",
        libc::ECONNRESET | libc::EPIPE => {
            "it closed the connection before it had answered: another program, or its endpoint has just ended"
        }
        libc::EADDRNOTAVAIL => {
            "no local port or address is free: see net.ipv4.ip_local_port_range, and connections in TIME_WAIT"
        }
        libc::ENETUNREACH | libc::EHOSTUNREACH => {
            "no route leads there, its host is down, or a firewall there rejects it"
        }
        libc::EMFILE | libc::ENFILE => "this process has no descriptors left: raise RLIMIT_NOFILE",
        libc::ETIMEDOUT => "no answer: a firewall drops it, or the host is down",
        _ => return error_text(errno),
    };
    format!("{} ({why})", error_text(errno))
}

/// A connection that was rejected: where it came from, if that is known, and why.
pub struct Rejected {
    pub from: Option<SocketAddr>,
    pub why: &'static str,
}

impl Rejected {
    pub const NO_NIC: &str = "it names no NIC here";
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from {
            Some(from) => write!(f, "a handshake from {from}: {}", self.why),
            None => f.write_str(self.why),
        }
    }
}

/// What the system counts of a connection.
#[derive(Clone, Copy, Default)]
pub struct Seen {
    /// Bytes that the other side has acknowledged, and bytes that have arrived.
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Segments that were sent again.
    pub retransmits: u64,
    /// 0: not measured yet.
    pub round_trip_ns: u64,
}

impl Seen {
    /// The sums of two, and the first round trip that is known.
    pub fn and(self, other: Seen) -> Seen {
        Seen {
            bytes_sent: self.bytes_sent + other.bytes_sent,
            bytes_received: self.bytes_received + other.bytes_received,
            retransmits: self.retransmits + other.retransmits,
            round_trip_ns: if self.round_trip_ns > 0 { self.round_trip_ns } else { other.round_trip_ns },
        }
    }
}

/// A connection's socket, about which any thread may ask the system.
pub struct Socket {
    pub descriptor: Descriptor,
    /// This side has connected.
    pub dialed: bool,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Asks the system what it has counted of a socket.
pub fn seen(socket: &Socket) -> Seen {
    tcp::seen(socket)
}

/// The addresses of a socket's own end and the other one, if it is connected.
pub fn ends(socket: &Socket) -> Option<(SocketAddr, SocketAddr)> {
    tcp::ends(socket)
}

/// A peer's NIC, as the local NIC knows it.
pub type Route = u64;

/// The number that the receiving NIC gives the connection of a message; 0 if it has none.
pub type Connection = u32;

/// How the completion of a write implies that the bytes are visible at the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// Every write requests delivery.
    Each,
    /// The NIC's ordinary completion is the target's acknowledgement.
    Native,
}

/// How what was posted over a lane can be taken back, at this end of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resets {
    Never,
    /// Removing a route closes it in both directions: nothing posted to it earlier, here or by the
    /// peer, moves bytes here afterwards.
    Lane,
    /// Only the NIC's endpoint as a whole can be closed (`Nic::close_endpoint`), with the lanes to all peers.
    Rail,
}

/// How an endpoint drives its NICs.
#[derive(Clone, Copy)]
pub struct Progress {
    /// A thread may sleep until an event arrives.
    pub waits: bool,
    /// Threads may be started.
    pub threads: bool,
}

/// Capabilities of a NIC; fixed once it is open.
#[derive(Clone, Debug)]
pub struct Limits {
    pub delivery: Delivery,
    /// The most outstanding operations, and the most posted receives.
    pub tx_depth: usize,
    pub rx_depth: usize,
    /// The most segments of one write or read.
    pub vector: usize,
    /// A failed write also fails everything posted to the same peer after it: none of that arrives.
    pub failures_reset: bool,
    /// A failed route may work again later: the fabric reconnects.
    pub reconnects: bool,
    pub resets: Resets,
    /// The most bytes of one message.
    pub message_max: usize,
    /// Remote addresses are virtual addresses; otherwise they are offsets into the region.
    pub virtual_addresses: bool,
    /// The NIC's own worker serves the peers' requests: a request may name a grant by its key, and
    /// requests for device memory wait for copies. No call into the NIC waits for other threads, so
    /// the host program's threads may call it, too.
    pub grants: bool,
    /// What peers may reach can be taken from one that does not answer: by grants, keys or connections.
    pub revokes: bool,
    /// Local buffers must be registered, too.
    pub local_registration: bool,
    /// The most bytes of one write with an immediate; 0 if the NIC has no such writes.
    pub immediate_max: u64,
    /// Writes with immediates that the NIC can hold until the worker reaps them, if that is
    /// limited.
    pub arrival_room: Option<u32>,
    /// Bytes to keep in flight towards one peer, and on the whole NIC.
    pub lane_window: u64,
    pub rail_window: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    pub remote_write: bool,
    pub remote_read: bool,
    /// This process may write to the memory: reads and messages may be placed there.
    pub local_write: bool,
    /// Peers reach the memory only under grants, where the NIC checks grants.
    pub granted_only: bool,
    /// Its pages may become unreachable, as those of a file that is truncated: only the kernel copies
    /// them.
    pub may_fault: bool,
}

impl Access {
    pub const ALL: Access = Access {
        remote_write: true,
        remote_read: true,
        local_write: true,
        granted_only: false,
        may_fault: false,
    };
}

/// The descriptor that our own NICs give to local memory that may fault; no device has it.
pub const MAY_FAULT: u64 = u64::MAX;

/// How a NIC moves device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Through host memory: the NIC's worker asks the device to copy.
    Staged,
    /// The same, or directly between devices: other processes open the memory.
    Shared,
    /// Registered by address: the provider detects the device.
    Address,
    /// Registered by a DMA-BUF that the device's driver made.
    Dmabuf,
}

/// A registered range. `handle` belongs to the NIC.
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    pub handle: *mut c_void,
    /// The descriptor that local posts from the range carry.
    pub descriptor: *mut c_void,
    /// The key by which peers name the range.
    pub key: u64,
    /// Set for device memory.
    pub way: Option<Way>,
}

// SAFETY: the pointers are plain tokens; only the owning worker returns them to the NIC.
unsafe impl Send for Registration {}
// SAFETY: reading them needs no synchronisation.
unsafe impl Sync for Registration {}

/// Space for a provider's own state of an operation. It belongs to the NIC from posting to reaping;
/// the address comes back when the operation is done.
#[repr(C, align(64))]
pub struct Scratch(pub [*mut c_void; 8]);

/// The distance of two scratches: each begins a slot of this size in one array.
pub const SLOT: usize = 128;

/// A run of bytes that an operation moves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment {
    pub local: u64,
    pub remote: u64,
    pub len: u64,
}

/// Writes or reads of segments between one local and one remote registration.
#[derive(Clone, Copy)]
pub struct Rma<'a> {
    pub read: bool,
    /// The segments of each operation: at least one, at most `Limits::vector`.
    pub segments: &'a [Segment],
    pub descriptor: *mut c_void,
    pub key: u64,
    /// The immediate of a write of one segment: the target reaps it when the bytes are there
    /// (`Reaped::immediate`).
    pub immediate: Option<Immediate>,
    /// Another post follows immediately: the doorbell may wait for it.
    pub more: bool,
}

/// Bytes of a message, inside a registered buffer where the NIC needs that.
#[derive(Clone, Copy)]
pub struct Buffer {
    pub address: *mut c_void,
    pub len: usize,
    pub descriptor: *mut c_void,
    /// Like a message, the write may not overtake earlier writes.
    pub follows: bool,
}

/// The result of a post.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Posted {
    Yes,
    /// The peer's queue, or the NIC's, is full: reap, then try again.
    Again,
    /// An error number of libfabric.
    Failed(i32),
}

/// A finished operation, or a peer's write that arrived here.
#[derive(Clone, Copy)]
pub struct Reaped {
    /// NULL when the provider did not name the failed operation. For an arrival: the receive that
    /// it used, or NULL.
    pub scratch: *mut Scratch,
    /// Bytes received, and the connection that they came over.
    pub len: u32,
    pub connection: Connection,
    /// 0, or an error number of libfabric.
    pub errno: i32,
    pub provider_errno: i32,
    /// The immediate of an arrival, which never has an error.
    pub immediate: Option<Immediate>,
}

impl Reaped {
    pub fn new(scratch: *mut Scratch, errno: i32) -> Reaped {
        let (len, connection, immediate) = (0, 0, None);
        Reaped { scratch, len, connection, errno, provider_errno: errno, immediate }
    }

    pub fn arrival(immediate: Immediate) -> Reaped {
        Reaped { immediate: Some(immediate), ..Reaped::new(std::ptr::null_mut(), 0) }
    }
}

/// How far a device that was removed is back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Return {
    /// There is none of its name.
    Absent,
    /// Some of what was registered is registered again.
    Partly,
    /// All of it is.
    Ready,
}

pub trait Nic {
    fn limits(&self) -> &Limits;
    /// The address that peers insert.
    fn address(&self) -> &[u8];
    /// Another IP address at which the NIC listens, at the same port. Peers insert its 16 bytes (of
    /// IPv6) behind the address.
    fn other_ip(&self) -> Option<IpAddr> {
        None
    }
    /// Makes a route to an address, which belongs to `peer` if that is known.
    fn insert(&mut self, address: &[u8], peer: Option<PeerId>) -> Result<Route>;
    fn remove(&mut self, route: Route);
    /// Like `remove`, but immediate where removal closes the route (`Resets::Lane`).
    fn reset(&mut self, route: Route) {
        self.remove(route);
    }
    /// The next frame to a route is a handshake: if the route's connection has ended, that frame
    /// makes a new one. (Frames of a session are sent only over the connection of their handshake.)
    fn redial(&mut self, route: Route) {
        let _ = route;
    }
    /// Assigns a connection (`Reaped::connection`) to a peer that has authenticated over it.
    fn assign_connection(&mut self, connection: Connection, peer: PeerId) {
        let _ = (connection, peer);
    }
    /// A peer has ended. From now on, a NIC that knows which requests belong to the peer serves
    /// none of them. `at_once`: the peer's messages are not delivered either, and operations in
    /// flight to it fail.
    fn end_peer(&mut self, peer: PeerId, at_once: bool) {
        let _ = (peer, at_once);
    }
    /// The names of the interfaces by which a route's packets leave and arrive, where those are not
    /// this NIC: the system's routes, and what other hosts know, may pass over it.
    fn elsewhere(&mut self, route: Route) -> [Option<String>; 2] {
        let _ = route;
        [None, None]
    }
    /// The NIC's link, as the kernel reports it.
    fn link(&mut self) -> LinkState {
        LinkState::Up
    }
    /// The error with which a route's connection has ended, if that is known.
    fn has_ended(&mut self, route: Route) -> Option<i32> {
        let _ = route;
        None
    }
    /// Whether a peer's NIC is known to be gone.
    fn is_gone(&mut self, route: Route) -> bool {
        let _ = route;
        false
    }

    /// The sockets over which a route's bytes move, if they are sockets, the route's own first.
    fn sockets_of(&mut self, route: Route) -> Vec<Arc<Socket>> {
        let _ = route;
        Vec::new()
    }
    /// A post to the route follows at once: a peer that sleeps wakes up meanwhile.
    fn rouse(&mut self, route: Route) {
        let _ = route;
    }

    /// What a route without an answer waits for, as far as it is known.
    fn waits_for(&mut self, _route: Route) -> &'static str {
        "no answer"
    }
    /// A route that answers the sender behind a connection, which claims this address.
    fn insert_caller(&mut self, address: &[u8], connection: Connection) -> Result<Route> {
        let _ = connection;
        self.insert(address, None)
    }
    /// The network of the NIC, if its addresses have changed since the last call: it comes back to peers by
    /// itself, and `address` is what new ones insert.
    fn take_moved(&mut self) -> Option<String> {
        None
    }
    /// Periodic: finishes work that was not possible at once.
    fn tend(&mut self) {}
    /// The connections that were rejected since the last call.
    fn take_rejected(&mut self) -> Vec<Rejected> {
        Vec::new()
    }
    fn register(&mut self, range: HostRange, access: Access) -> Result<Registration>;
    /// `Status::Again`: peers cannot reach it any longer, and a device still copies for one.
    fn deregister(&mut self, registration: Registration) -> Result<()>;
    /// Sets the endpoint's grants.
    fn use_grants(&mut self, grants: Arc<grants::Grants>) {
        let _ = grants;
    }
    /// A grant was revoked: the NIC writes and reads nothing under it from now on, including
    /// requests in flight, but those that a device copies for (`Copying`).
    fn revoke(&mut self, grant: GrantToken) {
        let _ = grant;
    }
    /// Registers device memory, which other processes may be able to open. `None`: the NIC does not
    /// move device memory.
    fn register_device(
        &mut self,
        range: HostRange,
        access: Access,
        device: Device,
        shareable: bool,
    ) -> Result<Option<Registration>> {
        let _ = (range, access, device, shareable);
        Ok(None)
    }
    /// Device memory of a route's peer was imported; `remotes`: the addresses and keys of its
    /// ranges. A NIC may open it now, before the first transfer.
    fn reach(&mut self, route: Route, remotes: &[(u64, u64)]) {
        let _ = (route, remotes);
    }
    /// Posts one operation per scratch, each with the same number of segments. Returns how many
    /// were posted, and the result of the next. `rma.more` applies to the last one: every other one
    /// is followed by another.
    ///
    /// # Safety
    /// The segments' local bytes and the scratches stay valid until the operations are reaped or
    /// the NIC closed.
    unsafe fn rma(&mut self, rma: &Rma<'_>, route: Route, scratches: &[*mut Scratch]) -> (usize, Posted);
    /// The same for memory on disks, which may take long: nothing else waits for it. `knows`: the target's is on one.
    ///
    /// # Safety
    /// The same contract as `rma`.
    unsafe fn rma_slow(
        &mut self,
        rma: &Rma<'_>,
        route: Route,
        scratches: &[*mut Scratch],
        knows: bool,
    ) -> (usize, Posted) {
        let _ = knows;
        // SAFETY: the contract is the same.
        unsafe { self.rma(rma, route, scratches) }
    }
    /// The operations' callers are gone: a NIC that itself touches their local memory stops doing
    /// so. The operations are reaped as usual.
    fn disown(&mut self, scratches: &[*mut Scratch]) {
        let _ = scratches;
    }
    /// Whether devices still copy for requests of a peer that have no answer, since their connection has ended.
    fn touches(&mut self, peer: PeerId) -> bool {
        let _ = peer;
        false
    }
    /// # Safety
    /// The same contract as `rma`, for `buffer`.
    unsafe fn send(&mut self, buffer: Buffer, route: Route, scratch: *mut Scratch) -> Posted;
    /// # Safety
    /// The same contract as `send`.
    unsafe fn receive(&mut self, buffer: Buffer, scratch: *mut Scratch) -> Posted;
    /// Drives the provider, and appends finished operations to `reaped`. True if it found work, for
    /// peers or for this endpoint.
    fn reap(&mut self, reaped: &mut Vec<Reaped>) -> bool;

    /// A descriptor that becomes readable when `reap` would find work, and whether waiting on it is
    /// safe now. `None`: only `reap` finds out.
    fn wait_fd(&mut self) -> Option<(RawFd, bool)>;
    /// The descriptor has become readable.
    fn woken(&mut self) {}

    /// Closes the endpoint, but not its registrations: all operations end without completions, and nothing that was
    /// posted before, here or by peers, moves bytes here afterwards. Routes are void. (`Resets::Rail`, or the device was
    /// removed: then all of it is closed, and that succeeds.)
    fn close_endpoint(&mut self) -> Result<()> {
        Err(Error::new(Status::Unsupported, "its endpoint closes only with the NIC"))
    }
    /// Opens the endpoint again, at another address (`take_moved`), if it is closed: true.
    fn open_endpoint(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// After the endpoint of a removed device was closed: opens the device that has its name now, and makes the
    /// registrations again, some at a time. `open_endpoint` comes last.
    fn come_back(&mut self) -> Result<Return> {
        Ok(Return::Absent)
    }
    /// A registration as it is now: once a removed device is back, with another descriptor and key.
    fn refreshed(&mut self, registration: Registration) -> Registration {
        registration
    }

    /// Ends all operations without completions; registrations that still exist are closed here.
    fn close(&mut self) -> Result<()>;
}
