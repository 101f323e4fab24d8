//! A peer's owner: the worker that alone drives the peer's session, hands over what the peer sends, and ends it.
//!
//! `sessions` carries out what the session decides, `deliver` and `talk` handle the peer's frames, and `links` ends
//! it. `keys`, `covered`, `join` and `staged` are what owners of two endpoints ask of each other.

pub(crate) mod atomics;
pub(crate) mod bounds;
pub(crate) mod covered;
pub(crate) mod deliver;
mod durable;
pub(crate) mod fence;
pub(crate) mod granted;
pub(crate) mod join;
pub(crate) mod keys;
pub(crate) mod links;
pub(crate) mod reasons;
pub(crate) mod revoke;
pub(crate) mod sessions;
pub(crate) mod staged;
pub(crate) mod talk;
