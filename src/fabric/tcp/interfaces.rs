//! The network interfaces that are up, and the address of each for a listener.

use super::socket::{from_system, V4, V6};
use crate::status::{Error, Result};
use std::ffi::CStr;
use std::net::{IpAddr, SocketAddr};

#[derive(Clone, Debug)]
pub struct Interface {
    pub name: String,
    pub address: SocketAddr,
    /// The network's address and prefix length, as "10.77.1.0/24".
    pub network: String,
    pub loopback: bool,
    pub link_local: bool,
}

/// Each interface once: with its first IPv4 address, or else its first IPv6 address that is not
/// link-local.
pub fn list() -> Result<Vec<Interface>> {
    let mut found: Vec<Interface> = Vec::new();
    each_address(|interface| {
        let rank = |of: &Interface| (of.link_local, of.address.is_ipv6());
        match found.iter_mut().find(|known| known.name == interface.name) {
            None => found.push(interface),
            Some(known) if rank(&interface) < rank(known) => *known = interface,
            Some(_) => {}
        }
    })?;
    Ok(found)
}

/// The network of the interface that has this address, as "10.77.1.0/24".
pub fn network_at(ip: IpAddr) -> Option<String> {
    let mut network = None;
    each_address(|interface| {
        if interface.address.ip() == ip {
            network = Some(interface.network);
        }
    })
    .ok()?;
    network
}

/// Every address of every interface that is up.
fn each_address(mut each: impl FnMut(Interface)) -> Result<()> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the call allocates a list, which is freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(Error::system("listing the network interfaces"));
    }
    let mut next: *const libc::ifaddrs = first;
    // SAFETY: the list's entries are valid until it is freed, and end with NULL.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: the reason given above holds here as well.
        if let Some(interface) = unsafe { interface_of(entry) } {
            each(interface);
        }
        next = entry.ifa_next;
    }
    // SAFETY: getifaddrs allocated the list.
    unsafe { libc::freeifaddrs(first) };
    Ok(())
}

/// # Safety
/// getifaddrs made `entry`, and the list is not freed yet.
unsafe fn interface_of(entry: &libc::ifaddrs) -> Option<Interface> {
    if entry.ifa_flags & libc::IFF_UP as u32 == 0 {
        return None;
    }
    // SAFETY: each address is NULL or as long as its family requires; the name is a NUL-terminated
    // string.
    let (address, mask, name) = unsafe {
        let name = CStr::from_ptr(entry.ifa_name).to_string_lossy().into_owned();
        (address_of(entry.ifa_addr)?, address_of(entry.ifa_netmask), name)
    };
    let (loopback, link_local) = match address.ip() {
        IpAddr::V4(ip) => (ip.is_loopback(), ip.is_link_local()),
        IpAddr::V6(ip) => (ip.is_loopback(), ip.segments()[0] & 0xffc0 == 0xfe80),
    };
    let network = network_of(address.ip(), mask.map(|mask| mask.ip()));
    Some(Interface { name, address, network, loopback, link_local })
}

/// # Safety
/// The pointer is NULL, or an address as long as its family requires.
unsafe fn address_of(address: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: the caller promises it.
    unsafe {
        let len = match i32::from(address.as_ref()?.sa_family) {
            libc::AF_INET => V4,
            libc::AF_INET6 => V6,
            _ => return None,
        };
        from_system(std::slice::from_raw_parts(address.cast(), len))
    }
}

fn network_of(ip: IpAddr, mask: Option<IpAddr>) -> String {
    fn and<const N: usize>(ip: [u8; N], mask: [u8; N]) -> ([u8; N], u32) {
        let network = std::array::from_fn(|i| ip[i] & mask[i]);
        (network, mask.iter().map(|byte| byte.count_ones()).sum())
    }
    match (ip, mask) {
        (IpAddr::V4(ip), Some(IpAddr::V4(mask))) => {
            let (network, len) = and(ip.octets(), mask.octets());
            format!("{}/{len}", IpAddr::from(network))
        }
        (IpAddr::V6(ip), Some(IpAddr::V6(mask))) => {
            let (network, len) = and(ip.octets(), mask.octets());
            format!("{}/{len}", IpAddr::from(network))
        }
        _ => ip.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_name_is_address_and_prefix_length() {
        let of = |ip: &str, mask: &str| network_of(ip.parse().unwrap(), mask.parse().ok());
        assert_eq!(of("10.77.1.9", "255.255.255.0"), "10.77.1.0/24");
        assert_eq!(of("127.0.0.1", "255.0.0.0"), "127.0.0.0/8");
        assert_eq!(of("fd00:1::7", "ffff:ffff:ffff:ffff::"), "fd00:1::/64");
        assert_eq!(of("10.77.1.9", ""), "10.77.1.9");
    }

    #[test]
    fn loopback_is_listed() {
        let all = list().unwrap();
        let lo = all.iter().find(|interface| interface.name == "lo").unwrap();
        assert!(lo.loopback && lo.address.ip().is_loopback() && lo.network == "127.0.0.0/8");
        assert_eq!(network_at(lo.address.ip()).as_ref(), Some(&lo.network));
        assert_eq!(network_at([192, 0, 2, 1].into()), None, "an address that no interface has");
    }
}
