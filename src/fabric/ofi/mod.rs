//! NICs by libfabric. `discover` finds them, `nic` drives one; `connections` are those of verbs, and
//! `events` what becomes of them; `settings` are what providers read as theirs; `signals` keeps them
//! from replacing the host program's handlers; `segments` cleans up after shm.

mod connections;
pub mod discover;
mod events;
pub mod nic;
mod registrations;
mod segments;
mod settings;
pub mod signals;
