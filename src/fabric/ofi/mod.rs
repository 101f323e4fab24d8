//! NICs through libfabric. `discover` finds them, and `nic` drives one; `limits` has what each
//! provider's can do; `connections` has the connections of verbs, and `events` reads their events;
//! `settings` sets what providers read from the environment; `signals` keeps them from replacing the
//! host program's handlers.

mod connections;
pub mod discover;
mod efa;
mod events;
mod limits;
pub mod nic;
mod registrations;
mod settings;
pub mod signals;
