//! Which fabrics and NICs an endpoint opens.

use super::choice::{choose, place, Listed};
use super::ofi::discover::{self, Entry};
use super::ofi::nic::OfiNic;
use super::Nic;
use crate::status::{Error, Result, Status};
use crate::topology::pci::PciAddress;
use crate::topology::Machine;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Network fabrics, best first: what is opened when nothing is named.
const RANKED: [&str; 4] = ["efa", "verbs;ofi_rxm", "tcp", "tcp;ofi_rxm"];

/// A NIC that could be a rail.
#[derive(Clone)]
pub struct Candidate {
    pub fabric: String,
    /// The provider's name for the network the NIC is on.
    pub network: String,
    /// The domain, or the network interface.
    pub name: String,
    /// Where the NIC is.
    pub pci: Option<PciAddress>,
    pub node: Option<u32>,
    entry: Arc<Entry>,
}

impl Candidate {
    pub fn open(&self) -> Result<Box<dyn Nic>> {
        Ok(Box::new(OfiNic::open(&self.entry)?))
    }

    fn listed(&self) -> Listed {
        Listed {
            fabric: self.fabric.clone(),
            name: self.name.clone(),
            loopback: self.entry.loopback,
            link_local: self.entry.link_local,
            pci: self.pci,
        }
    }
}

pub struct Found {
    pub candidates: Vec<Candidate>,
    /// Why these, in a sentence.
    pub why: String,
    /// libfabric's version and path.
    pub libfabric: String,
}

/// The patterns that decide on rails: the caller's, or else the environment's.
pub fn patterns(rails: Option<&str>) -> Option<String> {
    let theirs = rails.map(str::to_owned);
    theirs.or_else(|| std::env::var("WEFT_RAILS").ok().filter(|patterns| !patterns.trim().is_empty()))
}

/// CUDA_VISIBLE_DEVICES.
pub fn visible_gpus() -> Option<String> {
    std::env::var("CUDA_VISIBLE_DEVICES").ok()
}

/// The NICs to open, best fabric first.
pub fn candidates(fabric: Option<&str>, rails: Option<&str>, machine: &Machine) -> Result<Found> {
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
                found.extend(entries.into_iter().map(|entry| candidate(entry, machine)));
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
    let patterns = patterns(rails);
    let listed: Vec<Listed> = found.iter().map(Candidate::listed).collect();
    let choice = choose(&listed, patterns.as_deref(), machine, visible_gpus().as_deref());
    let chosen: Vec<Candidate> = choice.chosen.iter().map(|i| found[*i].clone()).collect();
    if chosen.is_empty() {
        return Err(Error::new(
            Status::NoRails,
            format!(
                "rails \"{}\" matches none of the NICs here: {}",
                patterns.as_deref().unwrap_or("(default)"),
                listed.iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>().join(", ")
            ),
        ));
    }
    Ok(Found { candidates: chosen, why: choice.why, libfabric: library.describe() })
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

fn candidate(entry: Entry, machine: &Machine) -> Candidate {
    let pci = place(entry.pci, &entry.device, &entry.domain, machine);
    Candidate {
        node: machine.node_of(pci),
        pci,
        fabric: entry.provider.clone(),
        network: entry.network.clone(),
        name: entry.domain.clone(),
        entry: Arc::new(entry),
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
    fn addresses_for_people() {
        let mut v4 = vec![0; 16];
        v4[0] = libc::AF_INET as u8;
        v4[2..8].copy_from_slice(&[0x12, 0x67, 10, 0, 0, 7]);
        assert_eq!(readable(&v4), "10.0.0.7:4711");
        assert_eq!(readable(b"fi_shm://7:0\0"), "fi_shm://7:0");
        assert_eq!(readable(&[1, 2]), "0102");
    }
}
