//! A NIC whose device was removed, and may come back: it is closed as far as the provider can, and opened again over the
//! device that has the name then. Registrations keep their names: they are made and ended meanwhile as always, and
//! those that are left are registered again.

use super::OfiNic;
use crate::fabric::ofi::connections::Connections;
#[cfg(any(test, feature = "sim"))]
use crate::fabric::ofi::discover::Source;
use crate::fabric::ofi::events::leave;
#[cfg(any(test, feature = "sim"))]
use crate::fabric::sim;
use crate::fabric::{LinkState, Return};
use crate::status::Result;
use crate::topology::link::Link;

/// How often the device is opened although there is none: a provider lets go of one that was removed when it lists those
/// that there are (librdmacm), and the kernel may wait for that.
const LETS_GO: u32 = 3;
/// How many registrations are made again at a time, and how long that may take.
const MOST: usize = 64;
const STEP_NS: u64 = 1_000_000;

#[derive(Default)]
pub(super) struct Away {
    tries: u32,
    /// It is opened anew since librdmacm has forgotten it.
    pub anew: bool,
    /// All before this place are registered again.
    at: u32,
    /// Of the device that was found.
    pub link: Option<Link>,
}

impl OfiNic {
    /// The device is gone, and nothing of it moves: what does not close is left.
    pub(super) fn leave_device(&mut self) {
        let source = self.source;
        let Away { tries, anew, .. } = self.away.take().unwrap_or_default();
        let anew = self.connections.as_ref().map_or(anew, Connections::is_forgotten);
        self.away = Some(Away { tries, anew, ..Away::default() });
        self.closed = true;
        if let Some(connections) = &mut self.connections {
            if !connections.leave() {
                return; // The rest follows when the device is looked for.
            }
        }
        (self.connections, self.both, self.wait_fd) = (None, None, -1);
        leave(source, "endpoint", &mut self.ep);
        self.mrs.open().for_each(|mr| leave(source, "registration", mr));
        if let Some(mut protocol) = self.protocol.take() {
            protocol.leave(source);
        }
        leave(source, "completion queue", &mut self.cq);
        leave(source, "address vector", &mut self.av);
        leave(source, "domain", &mut self.domain);
        leave(source, "fabric", &mut self.fabric);
    }

    /// The link of the device whose domain is open.
    pub(super) fn device_link(&self) -> LinkState {
        #[cfg(any(test, feature = "sim"))]
        if matches!(self.source, Source::Sim) {
            // SAFETY: the domain is open, and the simulation made it.
            return unsafe { sim::link(self.domain) };
        }
        self.away.as_ref().and_then(|away| away.link.as_ref()).unwrap_or(&self.link).state()
    }

    /// The link of the device that has the name now.
    fn find_again(&self) -> Option<Link> {
        #[cfg(any(test, feature = "sim"))]
        if matches!(self.source, Source::Sim) {
            // SAFETY: the entry's info lives as long as the entry, and the simulation made it.
            return unsafe { sim::is_there(self.entry.info()) }.then(|| self.link.clone());
        }
        self.link.again()
    }

    /// Opens the device, or registers some of what was registered.
    pub(super) fn return_some(&mut self) -> Result<Return> {
        if self.connections.is_some() {
            self.leave_device();
            if self.connections.is_some() {
                return Ok(Return::Absent); // A call into the provider has not returned.
            }
        }
        if self.domain.is_null() {
            let link = self.find_again();
            let Some(away) = self.away.as_mut() else { return Ok(Return::Absent) };
            if link.is_none() && away.tries >= LETS_GO {
                return Ok(Return::Absent);
            }
            away.tries += 1;
            let absent = link.is_none();
            away.link = link;
            let opened = self.bring_up_device();
            if absent {
                self.leave_device();
                return Ok(Return::Absent);
            }
            opened?;
        }
        let began = self.entry.clock.now();
        for _ in 0..MOST {
            let at = self.away.as_ref().map_or(0, |away| away.at);
            let Some((at, wanted)) = self.mrs.next_closed(at) else { return Ok(Return::Ready) };
            let (mr, _) = self.register_wanted(&wanted)?;
            self.mrs.open_at(at, mr);
            if let Some(away) = &mut self.away {
                away.at = at + 1;
            }
            if self.entry.clock.now().saturating_sub(began) > STEP_NS {
                break;
            }
        }
        Ok(Return::Partly)
    }
}
