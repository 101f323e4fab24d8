//! The addresses of the two ends of a connection. A NIC may have one of each family: the dialing side
//! takes the first of the other side that it has a family for, and the other one where that does not answer.

use super::accept::NOBODY;
use super::nic::TcpNic;
use super::socket::{from_system, V4, V6};
use crate::status::{Error, Result, Status};
use crate::wire::address::other_ip;
use crate::wire::tcp::Name;
use std::net::{IpAddr, SocketAddr};

const NAME: usize = size_of::<Name>();
/// Bytes of another IP address behind that of a NIC.
const OTHER: usize = 16;

impl TcpNic {
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
