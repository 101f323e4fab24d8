//! What is particular to libfabric's efa: addresses that stay, errors that belong to no operation, what a refused key
//! looks like, and devices without RDMA writes.

use super::discover::{ListedNic, Source};
use super::events::{leave, shut};
use crate::status::{Error, Result, Status};
use libfabric_sys::*;
use std::collections::{HashMap, VecDeque};
use std::ffi::{c_void, OsStr};
use std::mem::{size_of, zeroed};
use std::ptr;
use std::sync::Once;

/// The most addresses without a user that stay. One that is removed nevertheless cannot be used again until its endpoint
/// is opened anew.
const IDLE_MAX: usize = 512;
/// The variable that accepts emulated writes.
pub const ACCEPTED: &str = "WEFT_EFA_EMULATED";
/// Errors that are read at once.
const READ_MAX: usize = 64;
/// From this version on, a registration has the access that was requested.
const EXACT_ACCESS: u32 = 2 << 16 | 5;
/// The device's status for a key that is not registered, or a range that is not inside its memory.
const BAD_ADDRESS: i32 = 7;

/// The protocol of the fabric `efa` (`efa-direct` has none).
pub struct Protocol {
    eq: *mut fid_eq,
    addresses: Addresses,
    errors: u64,
}

impl Protocol {
    /// Binds an event queue to the endpoint: without one, libfabric ends the process (`abort`) for an error that belongs
    /// to no operation, such as a peer's wrong key.
    ///
    /// # Safety
    /// The fabric and the endpoint must be open; the endpoint is closed before the protocol.
    pub unsafe fn open(source: Source, fabric: *mut fid_fabric, ep: *mut fid_ep) -> Result<Protocol> {
        let mut protocol = Protocol { eq: ptr::null_mut(), addresses: Addresses::default(), errors: 0 };
        let mut attr = fi_eq_attr { wait_obj: fi_wait_obj::FI_WAIT_NONE, ..Default::default() };
        // SAFETY: fabric and endpoint are open, as this function's contract says; the queue goes into our own field, which
        // stays null if opening it fails.
        let bound = unsafe {
            let opened = fi_eq_open(fabric, &mut attr, &mut protocol.eq, ptr::null_mut());
            source.check("opening the event queue", opened)?;
            source.check("binding the event queue", fi_ep_bind(ep, protocol.eq.cast(), 0))
        };
        match bound {
            Ok(()) => Ok(protocol),
            // The fabric closes only without it.
            Err(error) => protocol.close(source).and(Err(error)),
        }
    }

    /// Reads the errors that belong to no operation. What caused one, a peer's message, was dropped.
    pub fn tend(&mut self) {
        for _ in 0..READ_MAX {
            // SAFETY: the struct has only integers and pointers; it offers no buffer for provider data.
            let mut entry: fi_eq_err_entry = unsafe { zeroed() };
            // SAFETY: the queue is open, and the entry is one.
            if unsafe { fi_eq_readerr(self.eq, &mut entry, 0) } <= 0 {
                return;
            }
            self.errors += 1;
            let level = if self.errors == 1 { log::Level::Warn } else { log::Level::Debug };
            log::log!(
                level,
                "efa reports an error of no operation: {} (provider errno {}): a peer's message was dropped; further ones are \
                 logged at debug level",
                crate::fabric::error_text(entry.err),
                entry.prov_errno
            );
        }
    }

    /// The route of an address that is inserted already.
    pub fn known(&mut self, address: &[u8]) -> Option<fi_addr_t> {
        self.addresses.take(address)
    }

    pub fn inserted(&mut self, address: &[u8], route: fi_addr_t) {
        self.addresses.add(address, route);
    }

    /// Keeps a route that is no longer used; instead, one that is to be removed, if too many are kept.
    pub fn idle(&mut self, route: fi_addr_t) -> Option<fi_addr_t> {
        self.addresses.idle(route)
    }

    pub fn leave(&mut self, source: Source) {
        leave(source, "event queue", &mut self.eq);
    }

    /// The endpoint was closed; may be called again if it fails.
    pub fn close(&mut self, source: Source) -> Result<()> {
        shut(source, "event queue", &mut self.eq)
    }
}

/// Addresses stay inserted: libfabric numbers the messages of each peer, and starts again for an address that was removed
/// and inserted, while the peer goes on, and takes what comes for repeated.
#[derive(Default)]
struct Addresses {
    routes: HashMap<Box<[u8]>, fi_addr_t>,
    /// Since when a route is idle; not in it: in use.
    idle_since: HashMap<fi_addr_t, u64>,
    /// By age; entries of routes that have been used since are out of date.
    idle: VecDeque<(fi_addr_t, u64)>,
    count: u64,
}

impl Addresses {
    fn take(&mut self, address: &[u8]) -> Option<fi_addr_t> {
        let route = *self.routes.get(address)?;
        self.idle_since.remove(&route);
        Some(route)
    }

    fn add(&mut self, address: &[u8], route: fi_addr_t) {
        self.routes.insert(address.into(), route);
    }

    fn idle(&mut self, route: fi_addr_t) -> Option<fi_addr_t> {
        if !self.routes.values().any(|known| *known == route) {
            return None; // It is removed already.
        }
        self.count += 1;
        self.idle_since.insert(route, self.count);
        self.idle.push_back((route, self.count));
        while self.idle.len() > IDLE_MAX {
            let (oldest, since) = self.idle.pop_front()?;
            if self.idle_since.get(&oldest) == Some(&since) {
                self.idle_since.remove(&oldest);
                self.routes.retain(|_, route| *route != oldest);
                return Some(oldest);
            }
        }
        None
    }
}

fn is_efa(entry: &ListedNic) -> bool {
    entry.provider.starts_with("efa") || entry.provider.starts_with("sim:like=efa")
}

/// Whether the protocol of `efa` is above the device.
pub fn has_protocol(entry: &ListedNic) -> bool {
    is_efa(entry) && !entry.delivers
}

/// Whether an error means that the target's NIC refused the key.
pub fn is_refusal(entry: &ListedNic) -> fn(i32, i32) -> bool {
    match is_efa(entry) {
        true => |errno, provider| errno == FI_EINVAL && provider == BAD_ADDRESS,
        false => |errno, _| errno == FI_EREMOTEIO,
    }
}

/// Whether the target's CPU places what is written to it, since the device has no RDMA writes: what a silent peer has
/// begun to write may then land whenever it goes on.
///
/// # Safety
/// The endpoint must be open.
pub unsafe fn emulates_writes(ep: *mut fid_ep) -> bool {
    let (mut emulated, mut len) = (1u8, size_of::<u8>());
    let value: *mut c_void = (&raw mut emulated).cast();
    // SAFETY: the value has room for a C bool. Versions without the option (1.17) always emulate.
    let rc = unsafe { fi_getopt(ep.cast(), FI_OPT_ENDPOINT, FI_OPT_EFA_EMULATED_WRITE, value, &mut len) };
    rc != 0 || emulated != 0
}

/// Refuses a NIC whose writes are emulated, unless the user accepts what that takes away: libfabric ends neither
/// what a silent peer has begun to write nor what a lost one has sent.
pub fn refuse_emulated(accepted: Option<&OsStr>) -> Result<()> {
    if accepted.is_some_and(|value| value == "1") {
        return Ok(());
    }
    Err(Error::new(
        Status::Unsupported,
        format!(
            "libfabric emulates the writes of this device, and bytes of a peer that was lost may land late: use a device \
             with RDMA writes and libfabric 1.18 or later, or the fabric tcp; {ACCEPTED}=1 accepts it"
        ),
    ))
}

/// Says what was opened, and what it takes away.
pub fn describe(entry: &ListedNic, emulated: bool) {
    if !is_efa(entry) {
        return;
    }
    let kind = if entry.delivers { "efa-direct" } else { "efa" };
    log::debug!(
        "{} is opened as {kind}{}",
        entry.domain,
        if emulated { ", with emulated writes" } else { "" }
    );
    static EMULATED: Once = Once::new();
    static ACCESS: Once = Once::new();
    if emulated {
        EMULATED.call_once(|| {
            log::warn!(
                "efa: this device or libfabric has no RDMA writes, and libfabric emulates them: grants are not supported, and \
                 bytes of a peer that was lost may land late"
            )
        });
    }
    if entry.source().version() < EXACT_ACCESS {
        ACCESS.call_once(|| {
            log::info!(
                "efa: libfabric before 2.5 registers all memory for remote reads and writes, whatever access was requested; \
                 read-only pages cannot be registered"
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_addresses_stay_up_to_a_limit() {
        let mut addresses = Addresses::default();
        let address = |i: u64| i.to_le_bytes();
        for i in 0..IDLE_MAX as u64 {
            addresses.add(&address(i), i);
            assert_eq!(addresses.idle(i), None);
        }
        assert_eq!(addresses.take(&address(0)), Some(0)); // Used again: no longer the oldest.
        assert_eq!(addresses.take(&address(IDLE_MAX as u64)), None);
        addresses.add(&address(1000), 1000);
        assert_eq!(addresses.idle(1000), None); // The entry of 0 was out of date.
        addresses.add(&address(1001), 1001);
        assert_eq!(addresses.idle(1001), Some(1));
        assert_eq!(addresses.take(&address(1)), None);
        assert_eq!(addresses.idle(0), Some(2));
        assert_eq!(addresses.idle(1), None);
        assert!(!addresses.idle_since.contains_key(&1), "it is removed once");
    }
}
