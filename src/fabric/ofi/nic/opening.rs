//! How a NIC is opened: its queue, and an endpoint with an address vector, or connections.

use super::OfiNic;
use crate::fabric::ofi::connections::{has_connections, Connections};
use crate::fabric::ofi::efa::{self, Protocol};
use crate::fabric::ofi::events::shut;
use crate::fabric::own::epoll::Epoll;
use crate::status::{Error, Result, Status};
use libfabric_sys::*;
use std::mem::zeroed;
use std::ptr;

/// Entries of a completion queue that the provider enlarges itself.
const QUEUE: usize = 8192;
/// The size of a queue that can overrun, since arrivals of peers' writes are unsolicited. No NIC
/// has a larger one; it suffices for the first credits of a thousand lanes.
const QUEUE_FIXED: usize = 32768;

impl OfiNic {
    pub(super) fn bring_up_device(&mut self) -> Result<()> {
        let source = self.source;
        let info = self.entry.info();
        // SAFETY: objects are made in libfabric's order, from an info of our own, which is valid as long as the entry;
        // every out-pointer is a field of this NIC.
        unsafe {
            let (tx, rx) = ((*info).tx_attr, (*info).rx_attr);
            (*tx).op_flags = 0;
            (*rx).op_flags = 0;
            let rc = source.fabric((*info).fabric_attr, &mut self.fabric);
            source.check("opening the fabric", rc)?;
            let opened = fi_domain(self.fabric, info, &mut self.domain, ptr::null_mut());
            source.check("opening the domain", opened)
        }
    }

    /// Opens what of the NIC can be opened anew: its queue, and an endpoint with an address vector, or connections.
    pub(super) fn bring_up_endpoint(&mut self) -> Result<()> {
        let (source, progress, entry) = (self.source, self.progress, self.entry.clone());
        let (info, null) = (entry.info(), ptr::null_mut());
        // SAFETY: as in `bring_up_device`; the domain is open.
        unsafe {
            let mut cq_attr: fi_cq_attr = zeroed();
            cq_attr.format = fi_cq_format::FI_CQ_FORMAT_DATA;
            source
                .check(
                    "opening the completion queue",
                    self.open_queue(&mut cq_attr, progress.waits, has_connections(info)),
                )
                .map_err(|error| self.explained(error))?;
            if self.waits_on(&cq_attr) {
                let asked = fi_control(&raw mut (*self.cq).fid, FI_GETWAIT, (&raw mut self.wait_fd).cast());
                source.check("asking for the completion queue's descriptor", asked)?;
            }
            if has_connections(info) {
                let anew = self.away.as_ref().is_some_and(|away| away.anew);
                let (connections, address) =
                    Connections::open(&entry, self.fabric, self.domain, self.cq, progress, anew)?;
                (self.connections, self.address) = (Some(connections), address);
                return self.wait_on_both();
            }
            let mut av_attr: fi_av_attr = zeroed();
            av_attr.type_ = fi_av_type::FI_AV_TABLE;
            let opened = fi_av_open(self.domain, &mut av_attr, &mut self.av, null);
            source.check("opening the address vector", opened)?;
            source.check("opening the endpoint", fi_endpoint(self.domain, info, &mut self.ep, null))?;
            let bound = fi_ep_bind(self.ep, &raw mut (*self.cq).fid, FI_TRANSMIT | FI_RECV);
            source.check("binding the completion queue", bound)?;
            source.check("binding the address vector", fi_ep_bind(self.ep, &raw mut (*self.av).fid, 0))?;
            if efa::has_protocol(&entry) {
                self.protocol = Some(Protocol::open(source, self.fabric, self.ep)?);
            }
            source.check("enabling the endpoint", fi_enable(self.ep))?;
            let emulated = efa::has_protocol(&entry) && efa::emulates_writes(self.ep);
            if emulated {
                efa::refuse_emulated(libfabric_sys::variable(efa::ACCEPTED).as_deref())?;
            }
            self.limits.revokes = !emulated;
            efa::describe(&entry, emulated);
            let mut len = 256;
            let mut name = vec![0u8; len];
            let named = fi_getname(&raw mut (*self.ep).fid, name.as_mut_ptr().cast(), &mut len);
            source.check("asking for the endpoint's address", named)?;
            name.truncate(len);
            self.address = name;
        }
        Ok(())
    }

    pub(super) fn close_registrations(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        for mr in self.mrs.open() {
            outcome = outcome.and(shut(self.source, "registration", mr));
        }
        outcome
    }

    pub(super) fn close_connections(&mut self) -> Result<()> {
        if let Some(connections) = &mut self.connections {
            connections.close()?;
        }
        (self.connections, self.both) = (None, None);
        Ok(())
    }

    /// Closes the endpoint, and what only it uses.
    pub(super) fn shut_endpoint(&mut self) -> Result<()> {
        self.close_connections()?;
        shut(self.source, "endpoint", &mut self.ep)?;
        self.wait_fd = -1;
        if let Some(protocol) = &mut self.protocol {
            protocol.close(self.source)?;
        }
        self.protocol = None;
        shut(self.source, "completion queue", &mut self.cq)?;
        shut(self.source, "address vector", &mut self.av)
    }

    /// Opens the endpoint, which is closed, at another address.
    pub(super) fn bring_up_anew(&mut self) -> Result<()> {
        self.shut_endpoint()?;
        let before = std::mem::take(&mut self.address);
        let opened = self.bring_up_endpoint().and_then(|()| match self.address == before {
            true => Err(Error::new(Status::Fabric, "its endpoint has the same address as before")),
            false => Ok(()),
        });
        (self.moved, self.closed) = (opened.is_ok(), opened.is_err());
        if opened.is_err() {
            self.address = before;
            self.shut_endpoint()?;
        } else if let Some(link) = self.away.take().and_then(|away| away.link) {
            self.link = link;
        }
        opened
    }

    /// Lets events of connections wake a sleeper, too.
    fn wait_on_both(&mut self) -> Result<()> {
        let events = self.connections.as_ref().and_then(|connections| connections.wait_fd().0);
        let Some(events) = events.filter(|_| self.wait_fd >= 0) else { return Ok(()) };
        let epoll = Epoll::new()?;
        for fd in [self.wait_fd, events] {
            epoll.add(fd, libc::EPOLLIN, 0)?;
        }
        self.both = Some(epoll);
        Ok(())
    }

    /// An error from opening the completion queue, with advice.
    fn explained(&self, error: Error) -> Error {
        let least = self.own_entries();
        let message = format!(
            "{}: Weft needs one of {least} entries at least; \"ibv_devinfo -v\" shows how many a verbs NIC has \
             (max_cqe), and \"ulimit -l\" how much memory may be locked for it",
            error.message
        );
        Error { message: message.into(), ..error }
    }

    /// Entries that our own operations may use.
    fn own_entries(&self) -> usize {
        2 * (self.limits.tx_depth + self.limits.rx_depth)
    }

    /// Opens the completion queue, as large as the provider allows, and with a descriptor if that
    /// exists and is wanted.
    ///
    /// # Safety
    /// The domain must be open.
    unsafe fn open_queue(&mut self, attr: &mut fi_cq_attr, waits: bool, connected: bool) -> i32 {
        let fixed = self.limits.arrival_room.is_some() && !connected;
        let mut size = match fixed {
            true => QUEUE_FIXED,
            // Over connections, the queue holds only what was posted here, receives included.
            false if connected => self.own_entries(),
            false => QUEUE + self.own_entries(),
        };
        loop {
            let mut opened = -FI_ENOSYS;
            for wait_obj in [fi_wait_obj::FI_WAIT_FD, fi_wait_obj::FI_WAIT_NONE] {
                if opened != 0 && (waits || wait_obj == fi_wait_obj::FI_WAIT_NONE) {
                    (attr.size, attr.wait_obj) = (size, wait_obj);
                    // SAFETY: the domain is open, and the attributes are valid for the call.
                    opened = unsafe { fi_cq_open(self.domain, attr, &mut self.cq, ptr::null_mut()) };
                }
            }
            if opened == 0 && fixed {
                // The provider reports the size that it chose.
                let room = attr.size.saturating_sub(self.own_entries());
                self.limits.arrival_room = Some(room.try_into().unwrap_or(u32::MAX));
            }
            size /= 2;
            if opened == 0 || size < self.own_entries() {
                return opened;
            }
        }
    }

    fn waits_on(&self, attr: &fi_cq_attr) -> bool {
        attr.wait_obj == fi_wait_obj::FI_WAIT_FD
    }
}
