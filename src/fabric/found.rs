//! The NICs that could be rails, and those that were chosen.

use super::choice::{over_tcp, place, Listed};
use super::ofi::discover::{self, ListedNic};
use super::ofi::nic::OfiNic;
use super::{host, tcp, Nic, Progress};
use crate::clock::{Clock, Random};
use crate::status::Result;
use crate::topology::interfaces::{speed_mbps, Type};
use crate::topology::network::{Network, Nic as Port, Reach};
use crate::topology::pci::PciAddress;
use crate::topology::Machine;
use std::sync::Arc;

/// Megabits per second of one connection; the maximum default number of connections per link; their
/// number if the link's rate is unknown; and CPUs per connection.
const STREAM_MBPS: i64 = 20_000;
const STREAMS: usize = 8;
const STREAMS_UNKNOWN: usize = 4;
const STREAM_CPUS: usize = 4;

/// The most NICs that a message names for one reason.
const NAMED: usize = 6;

/// A NIC that could be a rail.
#[derive(Clone)]
pub struct Candidate {
    pub fabric: String,
    /// The name of the NIC's network: NICs of one network are paired first.
    pub network: String,
    /// The domain, or the network interface.
    pub name: String,
    /// Where the NIC is.
    pub pci: Option<PciAddress>,
    pub node: Option<u32>,
    /// Where it leads and why, as in `Listed`.
    leads: std::result::Result<Reach, String>,
    why: String,
    source: Source,
}

/// Opens a candidate.
#[derive(Clone)]
enum Source {
    Ofi(Arc<ListedNic>),
    Tcp(tcp::Interface, Arc<tcp::Options>),
    Host,
}

impl Candidate {
    pub fn open(&self, progress: Progress) -> Result<Box<dyn Nic>> {
        Ok(match &self.source {
            Source::Ofi(entry) => Box::new(OfiNic::open(entry.clone(), progress)?),
            Source::Tcp(interface, options) => Box::new(tcp::TcpNic::open(interface, options.clone())?),
            Source::Host => Box::new(host::HostNic::open()?),
        })
    }

    pub fn is_host(&self) -> bool {
        matches!(self.source, Source::Host)
    }

    /// How many rails the candidate becomes. Each connection of tcp is one: as many as `wanted`, or
    /// else as many as the link rate needs and the CPUs, shared by `nics` NICs, can drive.
    pub fn streams(&self, wanted: usize, machine: &Machine, cpus: usize, nics: usize) -> usize {
        let Source::Tcp(interface, options) = &self.source else { return 1 };
        if wanted > 0 || interface.loopback || options.at.ports().is_some() {
            return wanted.max(1);
        }
        let known = machine.interfaces.iter().find(|one| one.kind == Type::Net && one.name == self.name);
        let mbps = known.and_then(|known| speed_mbps(&machine.root, known));
        let needs = mbps.map_or(STREAMS_UNKNOWN, |mbps| (mbps / STREAM_MBPS) as usize);
        needs.min(STREAMS).min(cpus / STREAM_CPUS / nics.max(1)).max(1)
    }

    /// Its name, with its address where it is chosen by that.
    fn at(&self) -> String {
        match &self.source {
            Source::Tcp(interface, _) => format!("{} {}", interface.name, interface.address.ip()),
            Source::Ofi(_) | Source::Host => self.name.clone(),
        }
    }

    pub(super) fn time(&self) -> (Clock, Random) {
        match &self.source {
            Source::Ofi(entry) => (entry.clock.clone(), entry.random.clone()),
            Source::Tcp(..) | Source::Host => (Clock::System, Random::System),
        }
    }

    /// The candidate as a listed NIC, if it takes part in the choice.
    pub(super) fn listed(&self) -> Option<Listed> {
        let (fabric, name, why) = (self.fabric.clone(), self.name.clone(), self.why.clone());
        (!self.is_host()).then(|| Listed { fabric, name, leads: self.leads.clone(), why, pci: self.pci })
    }
}

pub struct Found {
    pub candidates: Vec<Candidate>,
    /// Why these were chosen, in a sentence.
    pub why: String,
    /// The other NICs of their fabrics, each with the reason.
    pub left: Vec<(String, String)>,
    /// libfabric's version and path.
    pub libfabric: String,
    pub clock: Clock,
    pub random: Random,
}

impl Found {
    /// Keeps the NICs that lead best where there are more than an endpoint can have rails.
    pub fn limit(&mut self, most: usize) {
        let mut order: Vec<usize> = (0..self.candidates.len()).collect();
        let reach = |nic: &Candidate| nic.leads.as_ref().map_or(Reach::Down, |reach| *reach);
        let better = |i: &usize| (!self.candidates[*i].is_host(), reach(&self.candidates[*i]));
        order.sort_by_key(better);
        let beyond: Vec<usize> = order.split_off(most.min(order.len()));
        let mut index = 0..;
        self.candidates.retain(|nic| {
            let stays = index.next().is_none_or(|i| !beyond.contains(&i));
            if !stays {
                let why = format!("an endpoint has at most {most} rails, and others come first");
                self.left.push((nic.name.clone(), why));
            }
            stays
        });
    }

    /// What was chosen, and what not, for the log.
    pub fn describe(&self) -> String {
        let nics: Vec<(String, String)> = self
            .candidates
            .iter()
            .map(|nic| (nic.at(), format!("{} {}", nic.fabric, nic.why).trim().to_owned()))
            .collect();
        let left = if self.left.is_empty() { "nothing".to_owned() } else { by_reason(&self.left) };
        format!("{}; chosen: {}; left out: {left}", by_reason(&nics), self.why)
    }

    /// Sets the options of the tcp candidates.
    pub fn set_tcp(&mut self, mut options: tcp::Options) {
        let over_tcp = self.candidates.iter().filter(|one| matches!(one.source, Source::Tcp(..)));
        options.nics = over_tcp.map(|one| tcp::index_of(&one.name)).collect();
        let options = Arc::new(options);
        for candidate in &mut self.candidates {
            let Source::Tcp(_, theirs) = &mut candidate.source else { continue };
            *theirs = options.clone();
            if options.secrets.is_some() {
                // A NIC that encrypts reaches only NICs that encrypt.
                candidate.fabric = tcp::ENCRYPTED.into();
            }
            if let Some(ip) = options.at.ip() {
                // Peers are not on the interface's network.
                candidate.network = ip.to_string();
            }
        }
    }
}

/// NICs behind their reasons, each reason once: "eth1 (down), lo (loopback)".
pub fn by_reason(left: &[(String, String)]) -> String {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, why) in left {
        match groups.iter_mut().find(|(known, _)| known == why) {
            Some((_, names)) => names.push(name),
            None => groups.push((why, vec![name])),
        }
    }
    let group = |(why, names): (&str, Vec<&str>)| {
        let more = names.len().saturating_sub(NAMED);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        format!("{}{more} ({why})", names[..names.len().min(NAMED)].join(", "))
    };
    groups.into_iter().map(group).collect::<Vec<_>>().join("; ")
}

pub(super) fn host_candidate() -> Result<Candidate> {
    let network = host::network()?;
    Ok(Candidate {
        fabric: host::NAME.into(),
        network,
        name: host::NAME.into(),
        pci: None,
        node: None,
        leads: Ok(Reach::Loopback),
        why: String::new(),
        source: Source::Host,
    })
}

pub(super) fn of_interface(nic: &Port, interface: tcp::Interface, machine: &Machine) -> Candidate {
    let Listed { fabric, name, leads, why, pci } = over_tcp(nic, machine);
    let (network, source) = (interface.network.clone(), Source::Tcp(interface, Arc::default()));
    Candidate { node: machine.node_of(pci), pci, fabric, network, name, leads, why, source }
}

/// The network of a NIC. verbs has one name for the networks of all RoCE devices, so there the network is that of the
/// interface that has the NIC's IP address.
fn network_of(entry: &ListedNic, network: &Network) -> String {
    let ip = entry.ip.filter(|_| entry.provider == discover::CONNECTED);
    ip.and_then(|ip| network.subnet_at(ip)).unwrap_or_else(|| entry.network.clone())
}

pub(super) fn candidate(entry: ListedNic, machine: &Machine, network: &Network) -> Candidate {
    let pci = place(entry.pci, &entry.device, &entry.domain, machine);
    // A domain may be a network interface, virtual ones among them.
    let interface = network.nics().into_iter().find(|nic| nic.name == entry.domain);
    let (leads, why) = match interface {
        _ if entry.loopback => (Ok(Reach::Loopback), "loopback".into()),
        _ if entry.link_local => (Err("its address is link-local".to_owned()), String::new()),
        Some(nic) => (nic.leads(), nic.why),
        None => (Ok(Reach::Hosts), "a NIC".into()),
    };
    Candidate {
        node: machine.node_of(pci),
        pci,
        fabric: entry.provider.clone(),
        network: network_of(&entry, network),
        name: entry.domain.clone(),
        leads,
        why,
        source: Source::Ofi(Arc::new(entry)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::network::Link;
    use crate::topology::trees::Tree;

    #[test]
    fn stream_count_follows_link_rate_and_cpus() {
        let mut tree = Tree::new();
        tree.nodes(&["0-3"]);
        for (name, speed) in [("eth1", "100000"), ("eth2", "400000"), ("eth3", "-1"), ("eth4", "10000")] {
            tree.net(name, None, "up");
            tree.file(&format!("sys/class/net/{name}/speed"), format!("{speed}\n"));
        }
        let machine = tree.machine();
        let candidate = |name: &str, loopback| {
            let (name, address, network) = (name.to_owned(), ([10, 0, 0, 1], 0).into(), "10.0.0.0/24".into());
            let nic = Network::default().nic_of(&Link { name: name.clone(), ..Link::default() });
            let interface = tcp::Interface { name, address, other: None, network, loopback };
            of_interface(&nic, interface, &machine)
        };
        let streams = |name, cpus, nics| candidate(name, false).streams(0, &machine, cpus, nics);
        let of_line = ["eth1", "eth2", "eth3", "eth4"].map(|name| streams(name, 1000, 1));
        assert_eq!(of_line, [5, STREAMS, STREAMS_UNKNOWN, 1]);
        let of_cpus =
            [(96, 1), (16, 1), (16, 2), (16, 8), (2, 1)].map(|(cpus, nics)| streams("eth1", cpus, nics));
        assert_eq!(of_cpus, [5, 4, 2, 1, 1]);
        assert_eq!(candidate("eth1", false).streams(3, &machine, 2, 1), 3);
        assert_eq!(candidate("eth1", true).streams(0, &machine, 1000, 1), 1);
        let mut found = candidate("eth1", false);
        let at = tcp::At::new(Some("7000-7009"), None).unwrap();
        found.source = match found.source {
            Source::Tcp(interface, _) => {
                Source::Tcp(interface, Arc::new(tcp::Options { at, ..Default::default() }))
            }
            other => other,
        };
        assert_eq!(found.streams(0, &machine, 1000, 1), 1, "a port of the range for each rail");
    }
}
