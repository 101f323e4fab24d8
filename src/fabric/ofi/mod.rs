//! NICs by libfabric. `discover` finds them, `nic` drives one; `cuts` tries out
//! whether a connection can be closed; `settings` are what providers read as theirs;
//! `signals` keeps them from replacing the host program's handlers; `segments` cleans up after shm.

pub mod discover;
pub mod nic;
mod registrations;
mod resets;
mod routes;
mod segments;
mod settings;
pub mod signals;
