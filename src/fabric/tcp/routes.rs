//! The purpose of a route: where a peer's NIC is dialed.

use crate::fabric::own::routes::{self, Whose};
use crate::ids::PeerId;
use crate::wire::tcp::Name;
use std::net::SocketAddr;

/// The target of a route back to an unauthenticated endpoint: no NIC's name.
pub const NOBODY: Name = [0; 16];

/// The purpose of a route.
#[derive(Clone, Copy)]
pub struct Target {
    pub name: Name,
    /// The peer at the address.
    pub peer: Option<PeerId>,
    pub to: SocketAddr,
    /// Where it is dialed if nothing answers there.
    pub other: Option<SocketAddr>,
}

impl routes::Target for Target {
    fn whose(&self) -> Whose {
        (self.name, self.peer)
    }
}
