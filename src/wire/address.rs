//! The address of an endpoint, with which others connect to it.
//!
//! ```text
//! u32 "WFTA"  u16 format  u16 lowest and u16 highest wire version  u64 incarnation
//! u32 capabilities
//! u16 rails   rails x (text fabric, text network, bytes address, 16 bytes other)
//! u32 crc32 of all that
//! ```
//!
//! Format 1. All little-endian; texts and bytes carry a u16 length. `other` is another IP address of
//! the NIC, where it listens at the same port, as one of IPv6; zeros: none. (Wire version 1 had keys
//! there, and those before the other address pass over it.) An endpoint that has an address can
//! connect; if a secret is set, it must also prove the secret.

use super::frame::{WIRE_HIGHEST, WIRE_LOWEST};
use super::ADDRESS;
use crate::codec::{Reader, Writer};
use crate::status::{Error, Result, Status};
use std::net::{IpAddr, Ipv6Addr};

pub const RAILS_MAX: usize = 64;
/// Capabilities.
const ATOMICS: u32 = 1;
/// It refuses frames under grants that are not live, and understands that its own are refused.
const GRANTS: u32 = 2;
/// It learns where a NIC has moved to that was opened anew without its asking.
const FOLLOWS: u32 = 4;
/// It flushes files for writes that are durable.
const FLUSHES: u32 = 8;
/// It stages memory that no NIC reaches (`fabric::staged`).
const STAGES: u32 = 16;
/// What callers know of them, as in `weft_peer_properties`.
pub const DOES_ATOMICS: u32 = 1;
pub const DOES_DURABLE: u32 = 2;

/// A rail in an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RailAddress {
    /// The provider: both sides must have the same.
    pub fabric: String,
    /// The name of its network: rails with the same name are paired first.
    pub network: String,
    pub address: Vec<u8>,
    /// Another IP address of the NIC, with the same port.
    pub other: Option<IpAddr>,
}

impl RailAddress {
    /// What a NIC inserts: the address, followed by the other one's bytes.
    pub fn whole(&self) -> Vec<u8> {
        let other = self.other.map(|other| octets(other).to_vec());
        [&self.address[..], &other.unwrap_or_default()].concat()
    }
}

/// The bytes of an IP address, as one of IPv6.
fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The IP address that bytes stand for, if any.
pub fn other_ip(bytes: [u8; 16]) -> Option<IpAddr> {
    let ip = Ipv6Addr::from(bytes).to_canonical();
    (!ip.is_unspecified()).then_some(ip)
}

#[derive(Clone, Debug)]
pub struct Address {
    pub incarnation: u64,
    pub wire: (u16, u16),
    /// Capabilities of the endpoint, one bit each.
    pub capabilities: u32,
    pub rails: Vec<RailAddress>,
}

impl Address {
    pub fn new(incarnation: u64, rails: Vec<RailAddress>) -> Address {
        Address {
            incarnation,
            wire: (WIRE_LOWEST, WIRE_HIGHEST),
            capabilities: ATOMICS | GRANTS | FOLLOWS | FLUSHES | STAGES,
            rails,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new();
        w.u32(ADDRESS.magic).u16(ADDRESS.format).u16(self.wire.0).u16(self.wire.1).u64(self.incarnation);
        w.u32(self.capabilities).u16(self.rails.len() as u16);
        for rail in &self.rails {
            w.short(rail.fabric.as_bytes()).short(rail.network.as_bytes()).short(&rail.address);
            w.raw(&rail.other.map(octets).unwrap_or_default());
        }
        w.sealed()
    }

    pub fn decode(blob: &[u8]) -> Result<Address> {
        ADDRESS.decode(blob, Self::body)
    }

    fn body(r: &mut Reader) -> Option<Address> {
        let (wire, incarnation) = ((r.u16()?, r.u16()?), r.u64()?);
        let (capabilities, count) = (r.u32()?, r.u16()? as usize);
        if count == 0 || count > RAILS_MAX || wire.0 > wire.1 {
            return None;
        }
        let mut rails = Vec::with_capacity(count);
        for _ in 0..count {
            rails.push(RailAddress {
                fabric: r.text()?,
                network: r.text()?,
                address: r.short().filter(|a| !a.is_empty())?.to_vec(),
                other: other_ip(r.u128()?.to_le_bytes()),
            });
        }
        Some(Address { incarnation, wire, capabilities, rails })
    }

    pub fn does_atomics(&self) -> bool {
        self.capabilities & ATOMICS != 0
    }

    pub fn answers_about_grants(&self) -> bool {
        self.capabilities & GRANTS != 0
    }

    pub fn follows(&self) -> bool {
        self.capabilities & FOLLOWS != 0
    }

    pub fn flushes(&self) -> bool {
        self.capabilities & FLUSHES != 0
    }

    /// What callers know of its capabilities.
    pub fn capabilities(&self) -> u32 {
        let known = [(self.does_atomics(), DOES_ATOMICS), (self.flushes(), DOES_DURABLE)];
        known.iter().filter(|(does, _)| *does).map(|(_, what)| what).sum()
    }

    pub fn stages(&self) -> bool {
        self.capabilities & STAGES != 0
    }

    /// Its fabrics without duplicates, in order.
    pub fn fabrics(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for rail in &self.rails {
            if !names.contains(&rail.fabric.as_str()) {
                names.push(&rail.fabric);
            }
        }
        names
    }

    /// The highest wire version that both support.
    pub fn common_wire(&self) -> Result<u16> {
        let version = self.wire.1.min(WIRE_HIGHEST);
        if version < self.wire.0.max(WIRE_LOWEST) {
            return Err(Error::new(
                Status::Version,
                format!(
                    "the peer speaks wire versions {} to {}, this Weft {WIRE_LOWEST} to {WIRE_HIGHEST}",
                    self.wire.0, self.wire.1
                ),
            ));
        }
        Ok(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_round_trips_and_corruption_is_rejected() {
        let rail = |n: u8| RailAddress {
            fabric: "tcp".into(),
            network: format!("10.77.{n}.0/24"),
            address: vec![n; 16],
            other: (n > 1).then(|| [10, 0, 0, n].into()),
        };
        let other = RailAddress { other: "fd00::3".parse().ok(), ..rail(3) };
        assert_eq!((rail(1).whole().len(), other.whole().len()), (16, 32));
        let address = Address::new(42, vec![rail(1), rail(2), other]);
        let blob = address.encode();
        let read = Address::decode(&blob).expect("undamaged");
        assert_eq!((read.incarnation, &read.rails), (42, &address.rails));
        assert!(read.follows() && read.stages() && read.capabilities() == DOES_ATOMICS | DOES_DURABLE);
        let older = Address { capabilities: 3, ..read.clone() };
        assert!(!older.follows() && !older.stages() && older.capabilities() == DOES_ATOMICS, "0.2 does not");
        for at in 0..blob.len() {
            assert_eq!(Address::decode(&blob[..at]).err().map(|e| e.status), Some(Status::Format));
        }
        let error = |blob: &[u8]| Address::decode(blob).expect_err("damaged").message;
        let mut flipped = blob.clone();
        flipped[12] ^= 1; // Of the incarnation: it still reads as an address.
        assert!(error(&flipped).contains("wrong checksum"), "{}", error(&flipped));
        let longer = [&blob[..], &[0; 7]].concat();
        assert!(error(&longer).contains("followed by 7 bytes"), "{}", error(&longer));
        let cut = &blob[..blob.len() - 5];
        assert!(error(cut).contains("cut off") && !error(cut).contains("strlen"), "{}", error(cut));
        assert!(error(&blob[..5]).contains("not strlen") && error(&[]).contains("NULL"));
        let mut newer = address;
        newer.wire = (WIRE_HIGHEST + 1, WIRE_HIGHEST + 2);
        assert_eq!(newer.common_wire().err().map(|e| e.status), Some(Status::Version));
    }
}
