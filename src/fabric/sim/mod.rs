//! Simulated NICs in the shape of a libfabric provider: the tables that `ofi::nic` calls, in the
//! process, without libfabric. They run the code for NICs that this machine lacks, with faults at
//! planned times. They replace no real fabric in a claim about speed over a network.
//!
//! A fabric is named `sim`, or with parameters after colons, such as
//! `sim:like=efa:rails=32:gbps=100:depth=256:delay_us=10:slow=1/4@0.5`:
//!
//! | | |
//! | --- | --- |
//! | `like=` | `tcp`, `efa` (the default), `efa-direct` or `verbs`: the provider to imitate (`mode`) |
//! | `rails=` | NICs, 1 to 64; 1 |
//! | `gbps=` | line rate of each, in each direction; 0, the default: no limit |
//! | `depth=` | the most operations that are posted and not read, and the most receives, of each; 256 |
//! | `delay_us=` | one-way delay; 0 |
//! | `slow=1/N@S` | one NIC in N runs at the share S of the line rate |
//! | `clock=` | `wall`, or `virtual`: manual progress only, and time jumps when no event is due |
//! | `seed=` | the seed for the order in which unordered writes land, and for all randomness in virtual time; 1 |
//! | `world=` | endpoints of one process with the same mode and world reach each other; "0" |
//! | `nocopy` | writes and reads copy no bytes: for figures of software cost |
//! | `emulated` | the provider says that it emulates writes, as efa does over a device that has none |
//!
//! `WEFT_SIM_FAULTS` plans faults (`faults`). A comma-separated list gives an endpoint several
//! fabrics, best first, if all use the wall clock.
//!
//! An operation is posted (`endpoint`), occupies the lines of both NICs for some time, and lands
//! (`progress`). Either the poster's own progress lands it, or the target's (`serve`), which it
//! reaches over a `wire`: the latter for messages, and for all operations in some modes. Nothing on
//! that path locks.

mod bell;
mod connect;
mod cut;
mod domain;
mod endpoint;
mod fabric;
mod faults;
mod fid_ops;
mod flight;
mod info;
mod mode;
mod port;
mod progress;
mod queue;
mod ring;
mod serve;
mod spec;
mod wire;
mod world;

pub use fabric::open_fabric;
pub use info::{duplicate, free};

use crate::clock::{Clock, Random};
use crate::status::Result;
use crate::topology::link::State as LinkState;
use libfabric_sys::*;
use spec::Spec;
use std::sync::Arc;
use world::World;

/// The NICs that a fabric's name describes.
pub struct Simulated {
    /// One info for each NIC; `free` frees them.
    pub infos: Vec<*mut fi_info>,
    /// The fabric's name, which peers compare.
    pub fabric: String,
    pub mode: &'static str,
    /// Whether completions imply delivery without a flag.
    pub delivers: bool,
    pub clock: Clock,
    pub random: Random,
}

pub fn list(name: &str) -> Result<Simulated> {
    let spec = Spec::parse(name)?;
    let world = World::get(&spec)?;
    Ok(Simulated {
        infos: (0..spec.rails)
            .map(|rail| info::Info::make(&spec, rail, world.clone(), Arc::default()))
            .collect(),
        fabric: spec.fabric(),
        mode: spec.like.name(),
        delivers: !spec.like.mode().delivery_complete,
        clock: world.clock(),
        random: world.random(),
    })
}

/// The infos for a fabric's name, for callers of the tables; `free` frees them.
pub fn nics(name: &str) -> std::result::Result<Vec<*mut fi_info>, String> {
    list(name).map(|simulated| simulated.infos).map_err(|error| error.message.into_owned())
}

/// Whether the endpoint at an address is gone.
///
/// # Safety
/// The address vector is open, and ours.
pub unsafe fn is_gone(av: *mut fid_av, route: fi_addr_t) -> bool {
    // SAFETY: the address vector is one of `domain`, and open.
    unsafe { (*av.cast::<domain::AddressVector>()).is_gone(route) }
}

/// Begins a new lane at a route: a connection that the other side ended is made again.
///
/// # Safety
/// The address vector is open, and ours.
pub unsafe fn redial(av: *mut fid_av, route: fi_addr_t) {
    // SAFETY: the address vector is one of `domain`, and open.
    unsafe { (*av.cast::<domain::AddressVector>()).redial(route) }
}

/// What the kernel reports of a NIC's link.
///
/// # Safety
/// The domain is open, and ours.
pub unsafe fn link(domain: *mut fid_domain) -> LinkState {
    // SAFETY: the domain is one of `domain`, and open.
    let port = unsafe { &(*domain.cast::<domain::Domain>()).port };
    match (port.has(port::REMOVED), port.has(port::LINKLESS)) {
        (true, _) => LinkState::Removed,
        (false, true) => LinkState::Down,
        (false, false) => LinkState::Up,
    }
}

/// Whether the device of an info is there.
///
/// # Safety
/// The info is ours.
pub unsafe fn is_there(info: *const fi_info) -> bool {
    // SAFETY: `Info::make` made the info.
    unsafe { &*info.cast::<info::Info>() }.is_there()
}

#[cfg(test)]
mod raw_tests;
#[cfg(test)]
mod tests;
