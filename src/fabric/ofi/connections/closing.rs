//! How connections are closed. What cannot be closed yet is kept, and tried again.

use super::{Connections, Dialer, Opening};
use crate::fabric::ofi::events::{leave, shut};
use crate::logging::seldom::warn_seldom;
use crate::status::Result;
use libfabric_sys::fid_ep;
use std::sync::atomic::Ordering;

impl Connections {
    /// Closes all connections; their posts come back through the completion queue, if that is read.
    /// What could not be closed is closed by the next call.
    pub fn close(&mut self) -> Result<()> {
        self.routes.clear();
        self.pending = 0;
        let all = std::mem::take(&mut self.all);
        all.iter().for_each(|one| one.wanted.store(false, Ordering::Release));
        if let Some(mut dialer) = self.dialer.take() {
            dialer.close();
            while let Some(one) = dialer.next() {
                self.discard(one);
            }
        }
        self.unclosed.extend(all.iter().map(|one| one.ep).filter(|ep| !ep.is_null()));
        self.close_again()?;
        self.events.close_listener()?;
        // After the endpoints that use them.
        shut(self.source, "receives that connections share", &mut self.srx)?;
        self.finished.clear();
        self.events.close()
    }

    /// The device is gone: what does not close is left. False: not before the dialer's call has returned.
    pub fn leave(&mut self) -> bool {
        self.routes.clear();
        self.pending = 0;
        for mut one in self.all.drain(..) {
            one.wanted.store(false, Ordering::Release);
            leave(self.source, "connection", &mut one.ep);
        }
        self.unclosed.drain(..).for_each(|mut ep| leave(self.source, "connection", &mut ep));
        if self.dialer.as_mut().is_some_and(|dialer| !dialer.has_ended()) {
            return false;
        }
        while let Some(one) = self.dialer.as_ref().and_then(Dialer::next) {
            self.discard(one);
        }
        self.unclosed.drain(..).for_each(|mut ep| leave(self.source, "connection", &mut ep));
        self.dialer = None;
        leave(self.source, "receives that connections share", &mut self.srx);
        self.finished.clear();
        self.events.leave();
        true
    }

    pub(super) fn discard(&mut self, one: Opening) {
        // SAFETY: the info belongs to the value.
        unsafe { self.source.freeinfo(one.info) };
        self.part_with(one.ep);
    }

    /// Closes an endpoint that nothing refers to; it may be null.
    pub(super) fn part_with(&mut self, ep: *mut fid_ep) {
        if !ep.is_null() {
            self.unclosed.push(ep);
            if let Err(error) = self.close_again() {
                warn_seldom!("a connection could not be closed yet: {error}");
            }
        }
    }

    pub(super) fn close_again(&mut self) -> Result<()> {
        while let Some(ep) = self.unclosed.last_mut() {
            shut(self.source, "connection", ep)?;
            self.unclosed.pop();
        }
        Ok(())
    }
}
