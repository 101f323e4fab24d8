//! The addresses of the two ends of a connection, and its sockets. A NIC may have one of each family: the
//! dialing side takes the first of the other side that it has a family for, and the other one where that does
//! not answer.

use super::connection::Connection;
use super::nic::TcpNic;
use super::routes::Target;
use super::routes::NOBODY;
use super::socket::{from_system, V4, V6};
use crate::fabric::Socket;
use crate::status::{Error, Result, Status};
use crate::wire::address::other_ip;
use crate::wire::tcp::Name;
use std::net::{IpAddr, SocketAddr};
#[cfg(test)]
use std::os::fd::AsFd;
use std::sync::Arc;

const NAME: usize = size_of::<Name>();
/// Bytes of another IP address behind that of a NIC.
const OTHER: usize = 16;

impl TcpNic {
    /// The sockets to a NIC of a peer, that of a route first. Both sides may have connected: bytes move
    /// over the connection of the side that asks for them.
    pub(super) fn sockets_to(&self, target: &Target, at: Option<u32>) -> Vec<Arc<Socket>> {
        let own = at.and_then(|at| self.connections.get(at as usize)?.as_deref());
        let is_other = |one: &&Connection| {
            (one.name, one.owner()) == (target.name, target.peer)
                && own.is_none_or(|own| own.number != one.number)
        };
        let others = self.connections.iter().filter_map(Option::as_deref).filter(is_other);
        own.into_iter().chain(others).filter_map(Connection::shared_socket).collect()
    }

    /// The sockets of the listener and of all connections.
    #[cfg(test)]
    pub fn sockets(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
        let connections = self.connections.iter().flatten().filter_map(|one| one.socket());
        self.listeners.iter().map(AsFd::as_fd).chain(connections).collect()
    }

    /// Our address for a connection with this one.
    pub(super) fn own_for(&self, to: SocketAddr) -> SocketAddr {
        match self.other.filter(|_| self.at.is_ipv4() != to.is_ipv4()) {
            Some(other) => SocketAddr::new(other, self.at.port()),
            None => self.at,
        }
    }

    /// Where to dial a NIC, where else, and its name.
    pub(super) fn target(&self, address: &[u8]) -> Result<(SocketAddr, Option<SocketAddr>, Name)> {
        let (first, other, name) =
            parts(address).filter(|(.., name)| *name != NOBODY).ok_or_else(|| Error {
                provider_errno: libc::EHOSTUNREACH,
                ..Error::new(Status::Fabric, "an address that is none of the fabric \"tcp\"")
            })?;
        let other = other.map(|ip| SocketAddr::new(ip, first.port()));
        let has_family = |to: &SocketAddr| self.own_for(*to).is_ipv4() == to.is_ipv4();
        let mut reached = [Some(first), other].into_iter().flatten().filter(has_family);
        Ok((reached.next().unwrap_or(first), reached.next(), name))
    }
}

fn parts(address: &[u8]) -> Option<(SocketAddr, Option<IpAddr>, Name)> {
    let has_other = [V4, V6].map(|len| len + NAME + OTHER).contains(&address.len());
    let (whole, other) = address.split_at(address.len() - if has_other { OTHER } else { 0 });
    let (at, name) = whole.split_at(whole.len().checked_sub(NAME)?);
    let other = <[u8; OTHER]>::try_from(other).ok().and_then(other_ip);
    Some((from_system(at)?, other, name.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::socket::to_system;
    use super::*;

    #[test]
    fn address_may_have_another_ip_address() {
        for at in ["10.0.0.5:7000", "[fd00::5]:7000"] {
            let at: SocketAddr = at.parse().unwrap();
            let address = [to_system(at), vec![7; NAME]].concat();
            assert_eq!(parts(&address), Some((at, None, [7; NAME])));
            let other = "fd00::6".parse::<std::net::Ipv6Addr>().unwrap();
            let longer = [&address[..], &other.octets()].concat();
            assert_eq!(parts(&longer), Some((at, Some(other.into()), [7; NAME])));
            let zeros = [&address[..], &[0; OTHER]].concat();
            assert_eq!(parts(&zeros), Some((at, None, [7; NAME])));
            for len in (0..longer.len()).filter(|len| *len != address.len()) {
                assert_eq!(parts(&longer[..len]), None, "{len}");
            }
        }
    }
}
