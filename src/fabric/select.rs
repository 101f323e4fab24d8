//! Which fabrics and NICs an endpoint opens.

use super::ofi::discover::{self, Entry};
use super::ofi::nic::OfiNic;
use super::{sim, Nic};
use crate::clock::{Clock, Random};
use crate::status::{Error, Result, Status};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Network fabrics, best first: what is opened when nothing is named.
const RANKED: [&str; 4] = ["efa", "verbs;ofi_rxm", "tcp", "tcp;ofi_rxm"];
/// Interfaces that lead to this host only, or to its containers.
const LEFT_OUT: [&str; 3] = ["docker*", "cni*", "virbr*"];

/// A NIC that could be a rail.
#[derive(Clone)]
pub struct Candidate {
    pub fabric: String,
    /// The provider's name for the network the NIC is on.
    pub network: String,
    /// The domain, or the network interface.
    pub name: String,
    entry: Arc<Entry>,
}

impl Candidate {
    pub fn open(&self) -> Result<Box<dyn Nic>> {
        Ok(Box::new(OfiNic::open(&self.entry)?))
    }
}

pub struct Found {
    pub candidates: Vec<Candidate>,
    /// libfabric's version and path.
    pub libfabric: String,
    pub clock: Clock,
    pub random: Random,
}

/// The NICs to open, best fabric first.
pub fn candidates(fabric: Option<&str>, rails: Option<&str>) -> Result<Found> {
    if let Some(name) = simulated(fabric)? {
        let found = discover::simulated(name)?.into_iter().map(candidate).collect();
        return choose(found, rails, "none: simulated, without libfabric".into());
    }
    let library = discover::library()?;
    let wanted = wanted_fabrics(fabric);
    if wanted.iter().flatten().any(|name| name == "shm") {
        discover::settle_shm(library);
    }
    let mut found: Vec<Candidate> = Vec::new();
    for names in &wanted {
        for name in names {
            let entries = discover::entries(library, name)?;
            if !entries.is_empty() {
                found.extend(entries.into_iter().map(candidate));
                break; // The others are other names of the same.
            }
        }
    }
    if fabric.is_none() {
        // Only the best fabric of each kind is worth its NICs' memory.
        let best = found.first().map(|c| c.fabric.clone());
        found.retain(|c| Some(&c.fabric) == best.as_ref());
    } else if let Some(missing) = wanted.iter().find(|names| !found.iter().any(|c| names.contains(&c.fabric)))
    {
        return Err(unknown_fabric(library, &missing[0]));
    }
    if found.is_empty() {
        return Err(unknown_fabric(library, "efa, verbs or tcp"));
    }
    choose(found, rails, library.describe())
}

/// The simulation that is named: alone, since its clock is its own.
fn simulated(fabric: Option<&str>) -> Result<Option<&str>> {
    let mut names = fabric.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty());
    let Some(name) = names.clone().find(|name| sim::is_ours(name)) else { return Ok(None) };
    if names.any(|other| other != name) {
        return Err(Error::invalid(format!(
            "fabric \"{name}\" is simulated, and opened alone or not at all"
        )));
    }
    Ok(Some(name))
}

/// Those that `rails` names, or all that are good for anything.
fn choose(found: Vec<Candidate>, rails: Option<&str>, libfabric: String) -> Result<Found> {
    let patterns = match rails {
        Some(patterns) => Some(patterns.to_owned()),
        None => std::env::var("WEFT_RAILS").ok().filter(|patterns| !patterns.trim().is_empty()),
    };
    let names: Vec<String> = found.iter().map(|c| c.name.clone()).collect();
    let chosen = match &patterns {
        Some(patterns) => by_patterns(found, patterns),
        None => by_default(found),
    };
    if chosen.is_empty() {
        return Err(Error::new(
            Status::NoRails,
            format!(
                "rails \"{}\" matches none of the NICs here: {}",
                patterns.as_deref().unwrap_or("(default)"),
                names.join(", ")
            ),
        ));
    }
    let entry = &chosen[0].entry;
    let (clock, random) = (entry.clock.clone(), entry.random.clone());
    Ok(Found { candidates: chosen, libfabric, clock, random })
}

/// For each fabric that was named, the provider names to try, in order.
fn wanted_fabrics(fabric: Option<&str>) -> Vec<Vec<String>> {
    let Some(fabric) = fabric else {
        return RANKED.iter().map(|name| vec![name.to_string()]).collect();
    };
    let spellings = |name: &str| match name {
        "tcp" => vec!["tcp".to_owned(), "tcp;ofi_rxm".to_owned()],
        "verbs" => vec!["verbs;ofi_rxm".to_owned()],
        other => vec![other.to_owned()],
    };
    fabric.split(',').map(str::trim).filter(|name| !name.is_empty()).map(spellings).collect()
}

fn unknown_fabric(library: &'static discover::Fabrics, name: &str) -> Error {
    let known = discover::providers(library);
    Error::new(
        Status::Unsupported,
        format!(
            "no NIC of fabric \"{name}\" with reliable datagrams and RMA; libfabric {} offers {}",
            library.describe(),
            if known.is_empty() { "none".to_owned() } else { known.join(", ") }
        ),
    )
}

fn candidate(entry: Entry) -> Candidate {
    Candidate {
        fabric: entry.provider.clone(),
        network: entry.network.clone(),
        name: entry.domain.clone(),
        entry: Arc::new(entry),
    }
}

/// "eth*,!eth3": in if it matches one of those without "!" (or there are none),
/// and none of those with.
fn by_patterns(found: Vec<Candidate>, patterns: &str) -> Vec<Candidate> {
    let (outs, ins): (Vec<&str>, Vec<&str>) =
        patterns.split(',').map(str::trim).filter(|p| !p.is_empty()).partition(|p| p.starts_with('!'));
    let wanted = |name: &str| {
        (ins.is_empty() || ins.iter().any(|p| matches(p, name)))
            && !outs.iter().any(|p| matches(&p[1..], name))
    };
    found.into_iter().filter(|c| wanted(&c.name)).collect()
}

fn by_default(found: Vec<Candidate>) -> Vec<Candidate> {
    let (loopback, others): (Vec<_>, Vec<_>) = found
        .into_iter()
        .filter(|c| !LEFT_OUT.iter().any(|p| matches(p, &c.name)) && !c.entry.link_local)
        .partition(|c| c.entry.loopback);
    if others.is_empty() {
        loopback
    } else {
        others
    }
}

/// "*" stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, rest)) => {
            let Some(tail) = name.strip_prefix(head) else { return false };
            (0..=tail.len()).filter(|at| tail.is_char_boundary(*at)).any(|at| matches(rest, &tail[at..]))
        }
    }
}

/// A fabric address for people: "10.0.0.7:4711" where it is a socket address,
/// text where it is text.
pub fn readable(address: &[u8]) -> String {
    let family = address.first_chunk::<2>().map_or(0, |f| u16::from_ne_bytes(*f));
    let port = address.get(2..4).map_or(0, |p| u16::from_be_bytes([p[0], p[1]]));
    match (i32::from(family), address.len()) {
        (libc::AF_INET, 16) => {
            let ip = Ipv4Addr::new(address[4], address[5], address[6], address[7]);
            format!("{ip}:{port}")
        }
        (libc::AF_INET6, 28) => {
            let mut ip = [0; 16];
            ip.copy_from_slice(&address[8..24]);
            format!("[{}]:{port}", Ipv6Addr::from(ip))
        }
        _ => {
            let text = address.split(|b| *b == 0).next().unwrap_or_default();
            let printable = !text.is_empty() && text.iter().all(|b| b.is_ascii_graphic());
            if printable {
                String::from_utf8_lossy(text).into_owned()
            } else {
                address.iter().map(|b| format!("{b:02x}")).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        assert!(matches("eth*", "eth0") && matches("*", "") && matches("a*b*c", "aXbYc"));
        assert!(!matches("eth*", "xeth") && !matches("eth0", "eth01"));
    }

    #[test]
    fn addresses_for_people() {
        let mut v4 = vec![0; 16];
        v4[0] = libc::AF_INET as u8;
        v4[2..8].copy_from_slice(&[0x12, 0x67, 10, 0, 0, 7]);
        assert_eq!(readable(&v4), "10.0.0.7:4711");
        assert_eq!(readable(b"fi_shm://7:0\0"), "fi_shm://7:0");
        assert_eq!(readable(&[1, 2]), "0102");
    }
}
