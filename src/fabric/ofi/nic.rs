//! One NIC through libfabric: a domain, a completion queue, and an endpoint with an address vector,
//! or connections.

mod opening;
mod registering;
mod returning;

use super::connections::{has_connections, posted, Connections};
use super::discover::{ListedNic, Source};
use super::efa::{self, Protocol};
use super::events::shut;
use super::limits::{limits, takes_dmabufs};
use super::registrations::{described, Registrations, Wanted};
use super::{settings, signals};
use crate::clock::Random;
use crate::device::{Device, FILE};
use crate::fabric::own::epoll::Epoll;
#[cfg(any(test, feature = "sim"))]
use crate::fabric::sim;
use crate::fabric::{
    Access, Buffer, Connection, Delivery, HostRange, Immediate, Limits, LinkState, Nic, Posted, Progress,
    Reaped, Registration, Rejected, Return, Rma, Route, Scratch, REFUSED,
};
use crate::ids::PeerId;
use crate::pass;
use crate::status::{Error, Result, Status};
use crate::topology::link::Link;
use crate::topology::read::Root;
use libfabric_sys::*;
use returning::Away;
use std::ffi::c_void;
use std::mem::{size_of, zeroed, MaybeUninit};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::Arc;

pub struct OfiNic {
    entry: Arc<ListedNic>,
    progress: Progress,
    source: Source,
    fabric: *mut fid_fabric,
    domain: *mut fid_domain,
    ep: *mut fid_ep,
    cq: *mut fid_cq,
    av: *mut fid_av,
    /// What the fabric `efa` needs beside an endpoint.
    protocol: Option<Protocol>,
    is_refusal: fn(i32, i32) -> bool,
    /// Used instead of an endpoint and its addresses.
    connections: Option<Connections>,
    /// Registrations, which close before the domain.
    mrs: Registrations,
    limits: Limits,
    mr_mode: i32,
    /// The NIC reaches device memory (FI_HMEM), and takes DMA-BUFs of it.
    hmem: bool,
    takes_dmabufs: bool,
    /// A peer's write with an immediate uses up a receive here.
    arrivals_take_receives: bool,
    address: Vec<u8>,
    /// The endpoint is closed, though what it used may be left, and nothing is posted or reaped.
    closed: bool,
    /// The endpoint was opened anew, and its address not asked for since.
    moved: bool,
    /// Its device was removed.
    away: Option<Away>,
    random: Random,
    link: Link,
    /// -1 if the provider has no descriptor.
    wait_fd: i32,
    /// One descriptor for the queue and the connections' events, if both exist.
    both: Option<Epoll>,
}

// SAFETY: all objects belong to this NIC, which one thread uses at a time.
unsafe impl Send for OfiNic {}

impl OfiNic {
    pub fn open(entry: Arc<ListedNic>, progress: Progress) -> Result<OfiNic> {
        settings::check(&entry)?;
        // SAFETY: the entry's info is valid.
        let (limits, mr_mode) = unsafe { limits(&entry) };
        let mut nic = OfiNic {
            source: entry.source(),
            fabric: ptr::null_mut(),
            domain: ptr::null_mut(),
            ep: ptr::null_mut(),
            cq: ptr::null_mut(),
            av: ptr::null_mut(),
            protocol: None,
            is_refusal: efa::is_refusal(&entry),
            connections: None,
            mrs: Registrations::default(),
            limits,
            mr_mode,
            // SAFETY: the entry's info lives as long as the entry.
            hmem: unsafe { (*entry.info()).caps } & FI_HMEM != 0,
            takes_dmabufs: takes_dmabufs(&entry),
            // SAFETY: the entry's info lives as long as the entry.
            arrivals_take_receives: unsafe {
                (*entry.info()).mode & FI_RX_CQ_DATA != 0 || has_connections(entry.info())
            },
            address: Vec::new(),
            closed: false,
            moved: false,
            away: None,
            random: entry.random.clone(),
            link: Link::find(Root::from_environment(), entry.kernel_name()),
            wait_fd: -1,
            both: None,
            entry,
            progress,
        };
        // Dropping a half-open NIC closes its open parts.
        signals::preserved(|| nic.bring_up_device().and_then(|()| nic.bring_up_endpoint()))?;
        Ok(nic)
    }
}

#[inline]
fn flags(rma: &Rma<'_>, delivered: bool, more: bool) -> u64 {
    let when = |on, flag| if on { flag } else { 0 };
    let of_write = when(delivered, FI_DELIVERY_COMPLETE) | when(rma.immediate.is_some(), FI_REMOTE_CQ_DATA);
    FI_COMPLETION | when(more, FI_MORE) | when(!rma.read, of_write)
}

impl Nic for OfiNic {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn address(&self) -> &[u8] {
        &self.address
    }

    fn insert(&mut self, address: &[u8], peer: Option<PeerId>) -> Result<Route> {
        if self.closed {
            return Err(Error::new(Status::Fabric, "its NIC's endpoint is closed"));
        }
        if let Some(connections) = &mut self.connections {
            return connections.insert(address, peer);
        }
        let mut route: fi_addr_t = 0;
        // A provider reads as many bytes as its address format has, whatever the peer sent.
        let mut padded = [0u8; 512];
        let len = address.len().min(padded.len());
        padded[..len].copy_from_slice(&address[..len]);
        if let Some(known) = self.protocol.as_mut().and_then(|protocol| protocol.known(&address[..len])) {
            return Ok(known);
        }
        // SAFETY: the buffer holds one address, and is longer than any of libfabric's formats.
        let rc = unsafe { fi_av_insert(self.av, padded.as_ptr().cast(), 1, &mut route, 0, ptr::null_mut()) };
        if rc == 1 {
            if let Some(protocol) = &mut self.protocol {
                protocol.inserted(&address[..len], route);
            }
            return Ok(route);
        }
        Err(self.source.error("inserting a peer's address", if rc < 0 { rc } else { FI_EINVAL }))
    }

    fn remove(&mut self, route: Route) {
        if self.closed {
            return; // With the endpoint.
        }
        if let Some(connections) = &mut self.connections {
            return connections.remove(route);
        }
        let removed = match &mut self.protocol {
            Some(protocol) => protocol.idle(route),
            None => Some(route),
        };
        let Some(mut route) = removed else { return };
        // SAFETY: `insert` returned the route.
        let rc = unsafe { fi_av_remove(self.av, &mut route, 1, 0) };
        if rc != 0 {
            log::debug!("removing a peer's address: libfabric error {}", -rc);
        }
    }

    fn reset(&mut self, route: Route) {
        match &mut self.connections {
            Some(connections) => connections.reset(route),
            None => self.remove(route),
        }
    }

    fn redial(&mut self, route: Route) {
        match &mut self.connections {
            _ if self.closed => {}
            Some(connections) => connections.redial(route),
            #[cfg(any(test, feature = "sim"))]
            // SAFETY: the object is open, and the simulation made it.
            None if matches!(self.source, Source::Sim) => unsafe { sim::redial(self.av, route) },
            None => {}
        }
    }

    fn assign_connection(&mut self, _connection: Connection, peer: PeerId) {
        if let Some(connections) = &mut self.connections {
            connections.assign(peer);
        }
    }

    fn end_peer(&mut self, peer: PeerId, at_once: bool) {
        if let Some(connections) = self.connections.as_mut().filter(|_| at_once) {
            connections.end_peer(peer);
        }
    }

    fn insert_caller(&mut self, address: &[u8], _connection: Connection) -> Result<Route> {
        match &mut self.connections {
            Some(connections) => connections.insert_caller(address),
            None => {
                // The answer uses a new connection, as the request did.
                let route = self.insert(address, None)?;
                self.redial(route);
                Ok(route)
            }
        }
    }

    fn is_gone(&mut self, route: Route) -> bool {
        if self.closed {
            return false;
        }
        if let Some(connections) = &mut self.connections {
            return connections.is_gone(route);
        }
        #[cfg(any(test, feature = "sim"))]
        if matches!(self.source, Source::Sim) {
            // SAFETY: the object is open, and the simulation made it.
            return unsafe { sim::is_gone(self.av, route) };
        }
        false // libfabric does not report it.
    }

    fn link(&mut self) -> LinkState {
        let forgotten = self.connections.as_ref().is_some_and(Connections::is_forgotten);
        match self.away {
            None if !forgotten => self.device_link(),
            _ => LinkState::Removed,
        }
    }

    fn take_moved(&mut self) -> Option<String> {
        std::mem::take(&mut self.moved).then(|| self.entry.network.clone())
    }

    fn take_rejected(&mut self) -> Vec<Rejected> {
        let rejected = self.connections.as_mut().map_or(0, Connections::take_rejected);
        (0..rejected).map(|_| Rejected { from: None, why: Rejected::NO_NIC }).collect()
    }

    fn tend(&mut self) {
        if let Some(connections) = &mut self.connections {
            connections.tend();
        }
        if let Some(protocol) = &mut self.protocol {
            protocol.tend();
        }
    }

    fn register(&mut self, range: HostRange, access: Access) -> Result<Registration> {
        self.keep(Wanted { range, access, device: None })
    }

    fn register_device(
        &mut self,
        range: HostRange,
        access: Access,
        device: Device,
        _shareable: bool,
    ) -> Result<Option<Registration>> {
        if !self.hmem || device == FILE {
            return Ok(None);
        }
        let registered = self.keep(Wanted { range, access, device: Some(device) });
        Ok(registered.inspect_err(|error| log::info!("memory of device {device} is not moved: {error}")).ok())
    }

    fn deregister(&mut self, registration: Registration) -> Result<()> {
        let mr = self.mrs.get(registration.handle)?;
        pass::call(|| shut(self.source, "registration", mr))?;
        self.mrs.forget(registration.handle);
        Ok(())
    }

    #[inline]
    unsafe fn rma(&mut self, rma: &Rma<'_>, route: Route, scratches: &[*mut Scratch]) -> (usize, Posted) {
        if rma.segments.len() != scratches.len() {
            return (0, Posted::Failed(FI_EINVAL));
        }
        let (ep, number) = match &mut self.connections {
            None if self.closed => return (0, Posted::Failed(libc::ENOTCONN)),
            None => (self.ep, 0),
            Some(connections) => {
                scratches
                    .first()
                    .into_iter()
                    .chain(scratches.last())
                    .for_each(|scratch| connections.knows(*scratch));
                match connections.at(route) {
                    Ok(at) => at,
                    Err(posted) => return (0, posted),
                }
            }
        };
        let mut local = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let mut remote = fi_rma_iov { addr: 0, len: 0, key: rma.key };
        let (local, remote, mut descriptor) = (&raw mut local, &raw mut remote, rma.descriptor);
        let mut message = fi_msg_rma {
            msg_iov: local,
            desc: &mut descriptor,
            iov_count: 1,
            addr: route,
            rma_iov: remote,
            rma_iov_count: 1,
            context: ptr::null_mut(),
            data: rma.immediate.map_or(0, |immediate| immediate.get().into()),
        };
        let last = scratches.len().wrapping_sub(1);
        let delivered = self.limits.delivery == Delivery::Each;
        let (each, ending) = (flags(rma, delivered, true), flags(rma, delivered, rma.more));
        for (i, (segment, scratch)) in rma.segments.iter().zip(scratches).enumerate() {
            message.context = scratch.cast();
            let flags = if i == last { ending } else { each };
            // SAFETY: the arrays live through the call, and nothing else reads them; the memory that the
            // message points to is registered until the operation is reaped.
            let rc = unsafe {
                if number != 0 {
                    Connections::mark(*scratch, number);
                }
                ((*local).iov_base, (*local).iov_len) = (segment.local as *mut c_void, segment.len as usize);
                ((*remote).addr, (*remote).len) = (segment.remote, segment.len as usize);
                match rma.read {
                    true => fi_readmsg(ep, &message, flags),
                    false => fi_writemsg(ep, &message, flags),
                }
            };
            if rc != 0 {
                return (i, posted(rc));
            }
        }
        (scratches.len(), Posted::Yes)
    }

    unsafe fn send(&mut self, buffer: Buffer, route: Route, scratch: *mut Scratch) -> Posted {
        if let Some(connections) = &mut self.connections {
            // SAFETY: buffer and scratch are valid until the send is reaped: the contract of `Nic::send`.
            return unsafe { connections.send(buffer, route, scratch) };
        }
        if self.closed {
            return Posted::Failed(libc::ENOTCONN);
        }
        // SAFETY: the endpoint is open, and buffer and scratch are valid until the send is reaped.
        posted(unsafe {
            fi_send(self.ep, buffer.address, buffer.len, buffer.descriptor, route, scratch.cast())
        })
    }

    unsafe fn receive(&mut self, buffer: Buffer, scratch: *mut Scratch) -> Posted {
        if let Some(connections) = &mut self.connections {
            // SAFETY: buffer and scratch are valid until the receive is reaped: the contract of `Nic::receive`.
            return unsafe { connections.receive(buffer, scratch) };
        }
        if self.closed {
            return Posted::Again;
        }
        // SAFETY: the endpoint is open, and buffer and scratch are valid until the receive is reaped.
        posted(unsafe {
            fi_recv(self.ep, buffer.address, buffer.len, buffer.descriptor, FI_ADDR_UNSPEC, scratch.cast())
        })
    }

    #[inline]
    fn reap(&mut self, reaped: &mut Vec<Reaped>) -> bool {
        const MOST: usize = 32;
        if self.closed {
            return !reaped.is_empty(); // Its endpoint is to be opened anew.
        }
        let mut entries: [MaybeUninit<fi_cq_data_entry>; MOST] = [const { MaybeUninit::uninit() }; MOST];
        // SAFETY: the array has space for `MOST` entries of the queue's format.
        let rc = unsafe { fi_cq_read(self.cq, entries.as_mut_ptr().cast(), MOST) };
        let shared = self.connections.is_some();
        if rc > 0 {
            reaped.extend(entries.iter().take(rc as usize).map(|entry| {
                // SAFETY: libfabric filled in the first `rc` entries.
                let entry = unsafe { entry.assume_init_ref() };
                if is_arrival(entry.flags, shared) {
                    return self.arrival(entry);
                }
                Reaped { len: entry.len as u32, ..Reaped::new(entry.op_context.cast(), 0) }
            }));
        } else if rc == -(FI_EAVAIL as isize) {
            self.reap_error(reaped);
        }
        if let Some(connections) = &mut self.connections {
            connections.pass(reaped, rc == -(FI_EAGAIN as isize));
        }
        !reaped.is_empty()
    }

    fn wait_fd(&mut self) -> Option<(RawFd, bool)> {
        if self.wait_fd < 0 {
            return None;
        }
        let mut fids: [*mut fid; 1] = [self.cq.cast()];
        // SAFETY: the array has one open queue.
        let ready = unsafe { fi_trywait(self.fabric, fids.as_mut_ptr(), 1) } == 0;
        let rests = self.connections.as_ref().is_none_or(|connections| connections.wait_fd().1);
        Some((self.both.as_ref().map_or(self.wait_fd, AsRawFd::as_raw_fd), ready && rests))
    }

    fn woken(&mut self) {
        if let Some(connections) = self.connections.as_mut().filter(|_| !self.closed) {
            connections.look();
        }
    }

    fn close_endpoint(&mut self) -> Result<()> {
        signals::preserved(|| {
            if self.link() == LinkState::Removed {
                self.leave_device();
                return Ok(());
            }
            shut(self.source, "endpoint", &mut self.ep)?;
            self.closed = true;
            // Nothing moves any longer; what is left is closed before the endpoint opens again.
            if let Err(error) = self.shut_endpoint() {
                log::warn!("{}", error.message);
            }
            Ok(())
        })
    }

    fn open_endpoint(&mut self) -> Result<bool> {
        let opens = self.closed && self.away.as_ref().is_none_or(|away| away.link.is_some());
        Ok(opens && signals::preserved(|| self.bring_up_anew()).map(|()| true)?)
    }

    fn come_back(&mut self) -> Result<Return> {
        signals::preserved(|| self.return_some().inspect_err(|_| self.leave_device()))
    }

    fn refreshed(&mut self, registration: Registration) -> Registration {
        self.mrs.get(registration.handle).map_or(registration, |mr| described(*mr, registration))
    }

    fn close(&mut self) -> Result<()> {
        signals::preserved(|| {
            self.close_connections()?;
            // Registrations outlive the endpoint that uses them, and nothing else.
            shut(self.source, "endpoint", &mut self.ep)?;
            self.close_registrations()?;
            self.shut_endpoint()?;
            self.closed = true;
            shut(self.source, "domain", &mut self.domain)?;
            shut(self.source, "fabric", &mut self.fabric)
        })
    }
}

impl OfiNic {
    /// A peer's write with an immediate arrived.
    #[cold]
    fn arrival(&self, entry: &fi_cq_data_entry) -> Reaped {
        // The context is meaningless if the arrival used no receive.
        let scratch = if self.arrivals_take_receives { entry.op_context.cast() } else { ptr::null_mut() };
        // A value that no endpoint sends is replaced by 1, which names no counter either.
        let sent = u32::try_from(entry.data).ok().and_then(Immediate::new);
        Reaped { scratch, ..Reaped::arrival(sent.unwrap_or(Immediate::MIN)) }
    }

    #[cold]
    fn reap_error(&mut self, reaped: &mut Vec<Reaped>) {
        // SAFETY: the struct has only integers and pointers; it offers no buffer for provider data.
        let mut entry: fi_cq_err_entry = unsafe { zeroed() };
        // SAFETY: the array has one entry.
        if unsafe { fi_cq_readerr(self.cq, &mut entry, 0) } < 1 {
            return;
        }
        let (scratch, provider_errno) = (entry.op_context.cast(), entry.prov_errno);
        let errno = match entry.err {
            0 => FI_EOTHER,
            errno if (self.is_refusal)(errno, provider_errno) => REFUSED,
            errno => errno,
        };
        if let Some(connections) = &mut self.connections {
            connections.failed(scratch, errno);
        }
        reaped.push(Reaped { len: entry.len as u32, provider_errno, ..Reaped::new(scratch, errno) });
    }
}

impl Drop for OfiNic {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            log::warn!("{}", error.message);
        }
    }
}

// The provider's part of an op slot must be as large as libfabric requires.
const _: () = assert!(size_of::<Scratch>() >= size_of::<fi_context2>());

/// Whether a completion belongs to a peer's write with an immediate. A message with an immediate,
/// which Weft never sends, is a receive like any other: its buffer is given back. `shared`:
/// connections share receives, and verbs reports a write with an immediate as a receive.
#[inline]
fn is_arrival(flags: u64, shared: bool) -> bool {
    flags & FI_REMOTE_CQ_DATA != 0
        && (shared || flags & FI_RECV == 0 || flags & (FI_RMA | FI_REMOTE_WRITE) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_with_an_immediate_is_not_an_arrival() {
        for shared in [false, true] {
            assert!(is_arrival(FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA, shared));
            assert!(is_arrival(FI_RMA | FI_REMOTE_WRITE | FI_RECV | FI_REMOTE_CQ_DATA, shared));
            assert_eq!(is_arrival(FI_MSG | FI_RECV | FI_REMOTE_CQ_DATA, shared), shared);
            assert!(!is_arrival(FI_MSG | FI_RECV, shared) && !is_arrival(FI_RMA | FI_WRITE, shared));
        }
    }
}
