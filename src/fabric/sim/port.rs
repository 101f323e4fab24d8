//! Ports: a NIC as other NICs see it, its line, and the memory that they may write to.

use super::bell::Bell;
use super::wire::{Call, Wire};
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::Arc;

/// Bits of a port's state.
pub const TX_DOWN: u32 = 1;
pub const RX_DOWN: u32 = 2;
pub const DEAD: u32 = 4;
pub const ERRORS: u32 = 8;
pub const AGAIN: u32 = 16;
pub const KILLED: u32 = 32;
/// What the kernel reports of the NIC's link.
pub const LINKLESS: u32 = 64;
pub const REMOVED: u32 = 128;
/// No connection can be enabled, as after librdmacm has opened the device a second time.
pub const FORGOTTEN: u32 = 256;

/// A NIC as the others see it.
pub struct Port {
    pub number: u64,
    pub rail: usize,
    /// Set when the owner closes the NIC's endpoint.
    closed: AtomicBool,
    /// How often the endpoint was opened anew: each time the address is another.
    life: AtomicU64,
    /// State set by faults.
    pub state: AtomicU32,
    pub errors: AtomicU32,
    /// Registrations left to close until one fails as in use.
    pub busy: AtomicU32,
    /// How often closing the NIC still fails.
    pub stuck: AtomicU32,
    pub again_until: AtomicU64,
    /// Picoseconds per byte, as the bits of an f64; 0: no limit.
    byte_ps: AtomicU64,
    /// Until when its device is away, once it is removed.
    pub away: Arc<AtomicU64>,
    pub sending: Line,
    pub receiving: Line,
    regions: Mutex<HashMap<u64, Arc<Region>>>,
    inbound: Mutex<Vec<Arc<Wire>>>,
    inbound_changes: AtomicU64,
    /// How many wires from this port were cut.
    pub cuts: AtomicU64,
    pub bell: Bell,
    listens: AtomicBool,
    /// Calls about connections to other NICs, with their arrival times.
    calls: Mutex<Vec<(u64, Call)>>,
}

impl Port {
    pub fn new(number: u64, rail: usize, gbps: f64, away: Arc<AtomicU64>) -> Port {
        let byte_ps = if gbps > 0.0 { 8000.0 / gbps } else { 0.0 };
        Port {
            number,
            rail,
            closed: AtomicBool::new(false),
            life: AtomicU64::new(0),
            state: AtomicU32::new(0),
            errors: AtomicU32::new(0),
            busy: AtomicU32::new(0),
            stuck: AtomicU32::new(0),
            again_until: AtomicU64::new(0),
            byte_ps: AtomicU64::new(byte_ps.to_bits()),
            away,
            sending: Line::default(),
            receiving: Line::default(),
            regions: Mutex::default(),
            inbound: Mutex::default(),
            inbound_changes: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
            bell: Bell::default(),
            listens: AtomicBool::new(false),
            calls: Mutex::default(),
        }
    }

    #[inline]
    pub fn is_gone(&self) -> bool {
        self.closed.load(SeqCst) || self.state.load(SeqCst) & KILLED != 0
    }

    #[inline]
    pub fn life(&self) -> u64 {
        self.life.load(SeqCst)
    }

    /// Whether what a wire of an earlier life led to is gone.
    #[inline]
    pub fn is_gone_since(&self, life: u64) -> bool {
        self.is_gone() || self.life() != life // In this order: `open_anew` has the other one.
    }

    /// An endpoint of the NIC is opened after another one was closed.
    pub fn open_anew(&self) {
        if self.closed.load(SeqCst) {
            self.life.fetch_add(1, SeqCst);
            self.closed.store(false, SeqCst);
        }
    }

    #[inline]
    pub fn has(&self, bits: u32) -> bool {
        self.state.load(Relaxed) & bits != 0
    }

    #[inline]
    pub fn cost(&self, len: usize) -> u64 {
        (len as f64 * f64::from_bits(self.byte_ps.load(Relaxed))) as u64
    }

    pub fn slow_down(&self, share: f64) {
        let byte_ps = f64::from_bits(self.byte_ps.load(Relaxed)) / share;
        self.byte_ps.store(byte_ps.to_bits(), Relaxed);
    }

    // Memory.

    /// Adds a region; false if the key is taken.
    pub fn add_region(&self, region: Arc<Region>) -> bool {
        let mut regions = self.regions.lock();
        if regions.contains_key(&region.key) {
            return false;
        }
        regions.insert(region.key, region);
        true
    }

    pub fn region(&self, key: u64) -> Option<Arc<Region>> {
        self.regions.lock().get(&key).cloned()
    }

    /// Whether a planned fault makes the registration to be closed seem in use.
    pub fn is_busy(&self) -> bool {
        let count = |left: u32| left.checked_sub(1);
        self.busy.fetch_update(SeqCst, SeqCst, count) == Ok(1)
    }

    /// Whether a planned fault makes closing the NIC fail.
    pub fn is_stuck(&self) -> bool {
        self.stuck.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
    }

    /// After it returns, nothing writes to the region.
    pub fn remove_region(&self, region: &Region) {
        region.valid.store(false, SeqCst);
        self.regions.lock().remove(&region.key);
        self.await_writers();
    }

    fn await_writers(&self) {
        self.inbound.lock().iter().for_each(|wire| wire.await_sender());
    }

    // Wires towards this port.

    pub fn attach(&self, wire: &Arc<Wire>) {
        let mut inbound = self.inbound.lock();
        if !self.is_gone() {
            inbound.push(wire.clone());
        }
        self.inbound_changes.fetch_add(1, Release);
    }

    /// Cuts every wire from another port.
    pub fn cut_from(&self, other: &Port) {
        let of_other = |wire: &&Arc<Wire>| wire.from.number == other.number && !wire.is_cut();
        self.inbound.lock().iter().filter(of_other).for_each(|wire| wire.cut());
    }

    /// Cuts the wires of a connection.
    pub fn cut_link(&self, link: u64) {
        let of_link = |wire: &&Arc<Wire>| wire.link == link && !wire.is_cut();
        self.inbound.lock().iter().filter(of_link).for_each(|wire| wire.cut());
    }

    // Connections.

    pub fn listen(&self, listens: bool) {
        self.listens.store(listens, SeqCst);
    }

    pub fn listens(&self) -> bool {
        self.listens.load(SeqCst) && !self.is_gone()
    }

    pub fn call(&self, due: u64, call: Call) {
        self.calls.lock().push((due, call));
        self.bell.ring();
    }

    pub fn has_calls(&self) -> bool {
        !self.calls.lock().is_empty()
    }

    /// The first call whose time has come, and that can pass.
    pub fn take_call(&self, now: u64, passes: impl Fn(&Call) -> bool) -> Option<Call> {
        let mut calls = self.calls.lock();
        let at = calls.iter().position(|(due, call)| *due <= now && passes(call))?;
        Some(calls.remove(at).1)
    }

    /// Copies the wires into `known` if they changed.
    #[inline]
    pub fn inbound(&self, known: &mut Vec<Arc<Wire>>, seen: &mut u64) {
        let changes = self.inbound_changes.load(Acquire);
        if changes != *seen {
            *seen = changes;
            known.clone_from(&self.inbound.lock());
        }
    }

    /// Drops wires over which nothing can arrive any longer.
    pub fn detach_ended(&self) {
        self.inbound.lock().retain(|wire| !wire.has_ended());
        self.inbound_changes.fetch_add(1, Release);
    }

    /// After it returns, no memory is touched for this port.
    pub fn close(&self) {
        self.closed.store(true, SeqCst);
        self.await_writers();
        self.inbound.lock().drain(..).for_each(|wire| wire.from.bell.ring());
    }
}

/// One direction of a link, which bytes occupy one after another.
#[derive(Default)]
pub struct Line {
    /// The end of the last reservation.
    until: CachePadded<AtomicU64>,
}

impl Line {
    /// Reserves the line for `cost`, not before `earliest`; returns when the reservation begins.
    #[inline]
    pub fn take(&self, earliest: u64, cost: u64) -> u64 {
        if cost == 0 {
            return earliest;
        }
        let mut until = self.until.load(Relaxed);
        loop {
            let begin = until.max(earliest);
            match self.until.compare_exchange_weak(until, begin + cost, Relaxed, Relaxed) {
                Ok(_) => return begin,
                Err(now) => until = now,
            }
        }
    }
}

/// Registered memory.
pub struct Region {
    pub base: u64,
    pub len: u64,
    pub key: u64,
    pub access: u64,
    pub virtual_addresses: bool,
    pub valid: AtomicBool,
}

impl Region {
    /// The address of a remote range, if the region contains it and allows the access.
    #[inline]
    pub fn locate(&self, addr: u64, len: u64, access: u64) -> Option<u64> {
        let offset = if self.virtual_addresses { addr.wrapping_sub(self.base) } else { addr };
        let inside = offset <= self.len && len <= self.len - offset;
        (inside && self.access & access != 0 && self.valid.load(SeqCst)).then(|| self.base + offset)
    }
}
