//! Worlds: NICs of one process that reach each other, their clock, their lines,
//! and the memory that others may write to.

use super::bell::Bell;
use super::faults::{self, Fault, KILLED};
use super::mode::{Like, Mode};
use super::spec::Spec;
use super::wire::Wire;
use crate::clock::{Clock, Random, Virtual};
use crate::status::{Error, Result};
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Weak};

/// Plans faults, for worlds that begin while it is set.
const FAULTS: &str = "WEFT_SIM_FAULTS";

/// By mode and name.
type Worlds = HashMap<(Like, String), Weak<World>>;

static WORLDS: Mutex<Option<Worlds>> = Mutex::new(None);

pub struct World {
    pub like: Like,
    pub name: String,
    pub seed: u64,
    virtual_time: Option<Arc<Virtual>>,
    clock: Clock,
    begin_ns: u64,
    ports: Mutex<Vec<Weak<Port>>>,
    faults: Mutex<Vec<Fault>>,
    /// When the next fault strikes; `u64::MAX`: none is planned.
    next_fault: AtomicU64,
    pub counts: Counts,
}

/// What went wrong in the hands of the caller.
#[derive(Default)]
pub struct Counts {
    /// Operations that waited for a doorbell when their endpoint closed.
    pub lost_flushes: AtomicU64,
    /// Posts and completions whose context slot was not the provider's alone.
    pub spoilt_contexts: AtomicU64,
}

impl World {
    /// The world that a spec names; the first who names it decides its clock and seed.
    pub fn of(spec: &Spec) -> Result<Arc<World>> {
        let mut worlds = WORLDS.lock();
        let worlds = worlds.get_or_insert_with(HashMap::new);
        worlds.retain(|_, world| world.strong_count() > 0);
        let key = (spec.like, spec.world.clone());
        if let Some(world) = worlds.get(&key).and_then(Weak::upgrade) {
            if world.virtual_time.is_some() != spec.virtual_time || world.seed != spec.seed {
                return Err(Error::invalid(format!(
                    "world \"{}\" exists with another clock or seed: name another world",
                    spec.world
                )));
            }
            return Ok(world);
        }
        let world = Arc::new(World::new(spec)?);
        worlds.insert(key, Arc::downgrade(&world));
        Ok(world)
    }

    fn new(spec: &Spec) -> Result<World> {
        let virtual_time = spec.virtual_time.then(|| Arc::new(Virtual::new(spec.seed)));
        let clock = virtual_time.clone().map_or(Clock::System, Clock::Virtual);
        let world = World {
            like: spec.like,
            name: spec.world.clone(),
            seed: spec.seed,
            virtual_time,
            begin_ns: clock.now(),
            clock,
            ports: Mutex::default(),
            faults: Mutex::default(),
            next_fault: AtomicU64::new(u64::MAX),
            counts: Counts::default(),
        };
        if let Some(plan) = libfabric_sys::variable(FAULTS) {
            world.plan(&plan.to_string_lossy())?;
        }
        Ok(world)
    }

    pub fn mode(&self) -> &'static Mode {
        self.like.mode()
    }

    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    pub fn random(&self) -> Random {
        self.virtual_time.clone().map_or(Random::System, Random::Virtual)
    }

    pub fn is_virtual(&self) -> bool {
        self.virtual_time.is_some()
    }

    /// Picoseconds since the world began.
    #[inline]
    pub fn now(&self) -> u64 {
        (self.clock.now() - self.begin_ns) * 1000
    }

    #[inline]
    pub fn wake_at(&self, due: u64) {
        if self.virtual_time.is_some() {
            self.clock.wake_at(self.begin_ns + due.div_ceil(1000));
        }
    }

    /// Adds faults to those that are planned.
    pub fn plan(&self, plan: &str) -> Result<()> {
        let mut faults = self.faults.lock();
        faults.extend(faults::parse(plan)?);
        self.order(&mut faults);
        Ok(())
    }

    fn order(&self, faults: &mut [Fault]) {
        faults.sort_by_key(|fault| fault.at);
        faults.iter().filter(|fault| fault.has_time()).for_each(|fault| self.wake_at(fault.at));
        self.next_fault.store(faults.first().map_or(u64::MAX, |fault| fault.at), Relaxed);
    }

    /// Faults are planned that have not struck.
    pub fn has_faults(&self) -> bool {
        self.next_fault.load(Relaxed) != u64::MAX
    }

    #[inline]
    pub fn strike_faults(&self) {
        let next = self.next_fault.load(Relaxed);
        if next != u64::MAX && self.now() >= next {
            self.strike(self.now());
        }
    }

    #[cold]
    fn strike(&self, now: u64) {
        let mut faults = self.faults.lock();
        let ports: Vec<Arc<Port>> = self.ports.lock().iter().filter_map(Weak::upgrade).collect();
        let due = faults.iter().take_while(|fault| fault.at <= now).count();
        for fault in faults.drain(..due) {
            ports.iter().filter(|port| fault.is_about(port)).for_each(|port| fault.strike(port, now));
        }
        self.next_fault.store(faults.first().map_or(u64::MAX, |fault| fault.at), Relaxed);
    }

    pub fn open_port(&self, rail: usize, gbps: f64) -> Arc<Port> {
        let mut faults = self.faults.lock();
        let mut ports = self.ports.lock();
        let number = ports.len() as u64;
        let port = Arc::new(Port::new(number, rail, gbps));
        ports.push(Arc::downgrade(&port));
        drop(ports);
        faults.iter_mut().for_each(|fault| fault.opened(number, self.now()));
        self.order(&mut faults);
        port
    }

    /// As peers insert it: other processes have worlds of their own.
    pub fn address_of(&self, port: &Port) -> String {
        format!("sim://{:08x}/{}/{}/{}", std::process::id(), self.like.name(), self.name, port.number)
    }

    pub fn port_at(&self, address: &str) -> Option<Arc<Port>> {
        let number = address.rsplit('/').next()?.parse::<usize>().ok()?;
        let port = self.ports.lock().get(number)?.upgrade()?;
        (self.address_of(&port) == address).then_some(port)
    }
}

/// A NIC as the others see it.
pub struct Port {
    pub number: u64,
    pub rail: usize,
    /// Closed by its owner.
    closed: AtomicBool,
    /// What faults made of it.
    pub state: AtomicU32,
    pub errors: AtomicU32,
    /// Registrations that are closed until one is in use.
    pub busy: AtomicU32,
    pub again_until: AtomicU64,
    /// Picoseconds a byte, as the bits of an f64; 0: no limit.
    byte_ps: AtomicU64,
    pub sending: Line,
    pub receiving: Line,
    regions: Mutex<HashMap<u64, Arc<Region>>>,
    inbound: Mutex<Vec<Arc<Wire>>>,
    inbound_changes: AtomicU64,
    /// How many wires from this port were cut.
    pub cuts: AtomicU64,
    pub bell: Bell,
}

impl Port {
    fn new(number: u64, rail: usize, gbps: f64) -> Port {
        let byte_ps = if gbps > 0.0 { 8000.0 / gbps } else { 0.0 };
        Port {
            number,
            rail,
            closed: AtomicBool::new(false),
            state: AtomicU32::new(0),
            errors: AtomicU32::new(0),
            busy: AtomicU32::new(0),
            again_until: AtomicU64::new(0),
            byte_ps: AtomicU64::new(byte_ps.to_bits()),
            sending: Line::default(),
            receiving: Line::default(),
            regions: Mutex::default(),
            inbound: Mutex::default(),
            inbound_changes: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
            bell: Bell::default(),
        }
    }

    #[inline]
    pub fn is_gone(&self) -> bool {
        self.closed.load(SeqCst) || self.state.load(SeqCst) & KILLED != 0
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

    /// False when the key is taken.
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

    /// Whether the registration that is to be closed is in use, as a fault has it.
    pub fn is_busy(&self) -> bool {
        let count = |left: u32| left.checked_sub(1);
        self.busy.fetch_update(SeqCst, SeqCst, count) == Ok(1)
    }

    /// When it returns, nobody writes to the region.
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

    /// Cuts what comes from another port.
    pub fn cut_from(&self, other: &Port) {
        let of_other = |wire: &&Arc<Wire>| wire.from.number == other.number && !wire.is_cut();
        self.inbound.lock().iter().filter(of_other).for_each(|wire| wire.cut());
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

    /// Forgets wires through which nothing can come any longer.
    pub fn detach_ended(&self) {
        self.inbound.lock().retain(|wire| !wire.has_ended());
        self.inbound_changes.fetch_add(1, Release);
    }

    /// When it returns, nobody touches memory for this port any longer.
    pub fn close(&self) {
        self.closed.store(true, SeqCst);
        self.await_writers();
        self.inbound.lock().drain(..).for_each(|wire| wire.from.bell.ring());
    }
}

/// One direction of a link: bytes follow each other.
#[derive(Default)]
pub struct Line {
    /// Until then it is busy.
    until: CachePadded<AtomicU64>,
}

impl Line {
    /// Takes the line for `cost`, not before `earliest`; when it began.
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
    /// Where a remote range lies, if it lies inside and may be used so.
    #[inline]
    pub fn locate(&self, addr: u64, len: u64, access: u64) -> Option<u64> {
        let offset = if self.virtual_addresses { addr.wrapping_sub(self.base) } else { addr };
        let inside = offset <= self.len && len <= self.len - offset;
        (inside && self.access & access != 0 && self.valid.load(SeqCst)).then(|| self.base + offset)
    }
}
