//! Worlds: NICs of one process that reach each other, their clock, and their planned faults.

use super::faults::{self, Fault};
use super::mode::{Like, Mode};
use super::port::Port;
use super::spec::Spec;
use crate::clock::{Clock, Random, Virtual};
use crate::status::{Error, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

/// Plans faults for worlds that begin while the variable is set.
const FAULTS: &str = "WEFT_SIM_FAULTS";

/// Worlds by mode and name.
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
    /// When the next fault occurs; `u64::MAX`: none is planned.
    next_fault: AtomicU64,
    pub counts: Counts,
}

/// Violations by the caller.
#[derive(Default)]
pub struct Counts {
    /// Operations that still waited for a doorbell when their endpoint closed.
    pub lost_flushes: AtomicU64,
    /// Posts and completions whose context slot something else had modified.
    pub spoilt_contexts: AtomicU64,
}

impl World {
    /// The world that a spec names; the first user determines its clock and seed.
    pub fn get(spec: &Spec) -> Result<Arc<World>> {
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

    /// Adds faults to the plan.
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

    /// Whether planned faults have yet to occur.
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

    pub fn open_port(&self, rail: usize, gbps: f64, away: Arc<AtomicU64>) -> Arc<Port> {
        let mut faults = self.faults.lock();
        let mut ports = self.ports.lock();
        let number = ports.len() as u64;
        let port = Arc::new(Port::new(number, rail, gbps, away));
        ports.push(Arc::downgrade(&port));
        drop(ports);
        faults.iter_mut().for_each(|fault| fault.opened(number, self.now()));
        self.order(&mut faults);
        port
    }

    /// The address that peers insert; other processes have worlds of their own.
    pub fn address_of(&self, port: &Port) -> String {
        let life = match port.life() {
            0 => String::new(),
            life => format!(".{life}"),
        };
        format!("sim://{:08x}/{}/{}/{}{life}", std::process::id(), self.like.name(), self.name, port.number)
    }

    pub fn port_at(&self, address: &str) -> Option<Arc<Port>> {
        let number = address.rsplit('/').next()?.split('.').next()?.parse::<usize>().ok()?;
        let port = self.ports.lock().get(number)?.upgrade()?;
        (self.address_of(&port) == address).then_some(port)
    }
}
