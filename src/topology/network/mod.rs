//! The network as the kernel describes it: interfaces, addresses, routes. What follows from it (which
//! interfaces lead to other hosts, at which addresses they are reached) is a pure function of that.
//!
//! | | |
//! | --- | --- |
//! | [`values`] | what it tells |
//! | [`kernel`] | reads it by netlink |
//! | [`saved`] | reads it from what `ip -j` has printed on any host |
//! | [`reach`] | where each interface leads |
//! | [`addresses`] | the addresses of an interface at which peers find it, best first |
//! | [`watch`] | when something of it has changed |
//! | [`nics`] | the interfaces with both, and the reasons |

mod addresses;
mod kernel;
mod nics;
mod reach;
mod saved;
mod values;
mod watch;

pub use kernel::{read, read_settled};
pub use nics::Nic;
pub use reach::Reach;
#[cfg(test)]
pub use saved::network as saved_as;
pub use saved::read as saved;
pub use values::{is_link_local, Network};
#[cfg(test)]
pub use values::{Address, Link, Route};
pub use watch::{News, Watch};
