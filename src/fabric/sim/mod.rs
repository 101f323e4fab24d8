//! Simulated NICs, shaped as a libfabric provider: the same tables that
//! `ofi::nic` calls, in the process, without libfabric. They let the code for
//! NICs that are not here run, and faults happen when a plan says so. They stand
//! in for no real fabric in a claim about speed over a network.
//!
//! A fabric is named `sim`, or with parameters after colons, such as
//! `sim:like=efa:rails=32:gbps=100:depth=256:delay_us=10:slow=1/4@0.5`:
//!
//! | | |
//! | --- | --- |
//! | `like=` | `tcp`, `efa` (the default), `efa-direct` or `verbs`: the provider to behave like (`mode`) |
//! | `rails=` | NICs, 1 to 64; 1 |
//! | `gbps=` | line rate of each, each way; 0, the default: no limit |
//! | `depth=` | operations that may be posted and not read, and receives, of each; 256 |
//! | `delay_us=` | one way; 0 |
//! | `slow=1/N@S` | one NIC in N runs at the share S of the line rate |
//! | `clock=` | `wall`, or `virtual`: manual progress only, and time jumps when nothing can happen |
//! | `seed=` | of the order in which unordered writes land, and in virtual time of everything; 1 |
//! | `world=` | endpoints of one process, mode and world reach each other; "0" |
//! | `nocopy` | the bytes of writes and reads stay where they are: for figures of software cost |
//!
//! `WEFT_SIM_FAULTS` plans faults (`faults`). Several, separated by commas, are
//! fabrics of one endpoint, best first, if all have a wall clock.
//!
//! An operation is posted (`endpoint`), takes its time on the lines of both
//! NICs and lands (`progress`), by the poster's own progress or, as a message or
//! where the mode is so, by the target's (`serve`), to which it goes over a
//! `wire`. Nothing locks on that way.

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
use libfabric_sys::*;
use spec::Spec;
use world::World;

/// The NICs that a fabric's name describes.
pub struct Simulated {
    /// One info for each NIC; to be freed by `free`.
    pub infos: Vec<*mut fi_info>,
    /// The fabric's name, for peers to compare.
    pub fabric: String,
    pub mode: &'static str,
    /// Completions mean delivery without being asked to.
    pub delivers: bool,
    pub clock: Clock,
    pub random: Random,
}

pub fn list(name: &str) -> Result<Simulated> {
    let spec = Spec::parse(name)?;
    let world = World::of(&spec)?;
    Ok(Simulated {
        infos: (0..spec.rails).map(|rail| info::Info::make(&spec, rail, world.clone())).collect(),
        fabric: spec.fabric(),
        mode: spec.like.name(),
        delivers: !spec.like.mode().delivery_complete,
        clock: world.clock(),
        random: world.random(),
    })
}

/// The infos of a fabric's name, for callers of the tables; to be freed by `free`.
pub fn nics(name: &str) -> std::result::Result<Vec<*mut fi_info>, String> {
    list(name).map(|simulated| simulated.infos).map_err(|error| error.message.into_owned())
}

/// Whether nobody is at an address any longer.
///
/// # Safety
/// An open address vector of ours.
pub unsafe fn is_gone(av: *mut fid_av, route: fi_addr_t) -> bool {
    // SAFETY: the caller promises it.
    unsafe { (*av.cast::<domain::AddressVector>()).is_gone(route) }
}

/// A new lane begins at a route: what the other side ended is connected anew.
///
/// # Safety
/// An open address vector of ours.
pub unsafe fn redial(av: *mut fid_av, route: fi_addr_t) {
    // SAFETY: the caller promises it.
    unsafe { (*av.cast::<domain::AddressVector>()).redial(route) }
}

#[cfg(test)]
mod raw_tests;
#[cfg(test)]
mod tests;
