//! The choice of the fabrics and NICs that an endpoint opens.

use super::choice::{choose, down, matches, may_have, place, Listed};
use super::ofi::discover::{self, Entry};
use super::ofi::nic::OfiNic;
use super::{host, tcp, Nic, Progress};
use crate::clock::{Clock, Random};
use crate::status::{Error, Result, Status};
use crate::topology::interfaces::{speed_mbps, Type};
use crate::topology::pci::PciAddress;
use crate::topology::Machine;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Network fabrics, best first: the order in which they are tried by default.
const RANKED: &str = "efa,verbs,tcp";

/// Megabits per second of one connection; the maximum default number of connections per link; their
/// number if the link's rate is unknown; and CPUs per connection.
const STREAM_MBPS: i64 = 20_000;
const STREAMS: usize = 8;
const STREAMS_UNKNOWN: usize = 4;
const STREAM_CPUS: usize = 4;

/// Names of fabrics, in addition to libfabric's providers.
const NAMES: [&str; 4] = ["host", "efa", "verbs", "tcp"];

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
    source: Source,
}

/// Opens a candidate.
#[derive(Clone)]
enum Source {
    Ofi(Arc<Entry>),
    Tcp(tcp::Interface, Arc<tcp::Options>),
    Host,
}

impl Candidate {
    pub fn open(&self, progress: Progress) -> Result<Box<dyn Nic>> {
        Ok(match &self.source {
            Source::Ofi(entry) => Box::new(OfiNic::open(entry, progress)?),
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
        let known = machine.interfaces.iter().find(|one| one.of == Type::Net && one.name == self.name);
        let mbps = known.and_then(|known| speed_mbps(&machine.root, known));
        let needs = mbps.map_or(STREAMS_UNKNOWN, |mbps| (mbps / STREAM_MBPS) as usize);
        needs.min(STREAMS).min(cpus / STREAM_CPUS / nics.max(1)).max(1)
    }

    fn time(&self) -> (Clock, Random) {
        match &self.source {
            Source::Ofi(entry) => (entry.clock.clone(), entry.random.clone()),
            Source::Tcp(..) | Source::Host => (Clock::System, Random::System),
        }
    }

    /// The candidate as a listed NIC, if it takes part in the choice.
    fn listed(&self) -> Option<Listed> {
        let (loopback, link_local) = match &self.source {
            Source::Ofi(entry) => (entry.loopback, entry.link_local),
            Source::Tcp(interface, _) => (interface.loopback, interface.link_local),
            Source::Host => return None,
        };
        let (fabric, name) = (self.fabric.clone(), self.name.clone());
        Some(Listed { fabric, name, loopback, link_local, pci: self.pci })
    }
}

pub struct Found {
    pub candidates: Vec<Candidate>,
    /// Why these were chosen, in a sentence.
    pub why: String,
    /// libfabric's version and path.
    pub libfabric: String,
    pub clock: Clock,
    pub random: Random,
}

impl Found {
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

/// The patterns that choose rails: the caller's, or else the environment's.
pub fn patterns(rails: Option<&str>) -> Option<String> {
    let theirs = rails.map(str::to_owned);
    let variable = || libfabric_sys::variable("WEFT_RAILS")?.into_string().ok();
    theirs.or_else(|| variable().filter(|patterns| !patterns.trim().is_empty()))
}

/// CUDA_VISIBLE_DEVICES.
pub fn visible_gpus() -> Option<String> {
    std::env::var("CUDA_VISIBLE_DEVICES").ok()
}

/// Why no other fabric was opened.
const ONLY_HOST: &str = "the fabric of this host is alone";

/// The NICs to open, best fabric first. By default, that is `host` and the best network fabric, or
/// `host` alone without a network fabric.
pub fn candidates(fabric: Option<&str>, rails: Option<&str>, machine: &Machine) -> Result<Found> {
    let patterns = patterns(rails);
    let patterns = patterns.as_deref();
    let Some(fabric) = fabric else { return default_candidates(patterns, machine) };
    let mut named: Vec<&str> = fabric.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    named.sort_unstable();
    let upper = |name: &&&str| !NAMES.contains(*name) && NAMES.contains(&name.to_ascii_lowercase().as_str());
    if let Some(name) = named.iter().find(upper) {
        let why = format!("\"{name}\" is no fabric: names are lower case, \"{}\"", name.to_ascii_lowercase());
        return Err(Error::new(Status::Unsupported, why));
    }
    if let Some(twice) = named.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::invalid(format!("fabric \"{fabric}\" names {} twice", twice[0])));
    }
    if let Some(found) = simulated(fabric)? {
        let found = found.into_iter().map(|entry| candidate(entry, machine)).collect();
        return chosen(found, patterns, machine, "none: simulated, without libfabric".into());
    }
    let is_host = |name: &&str| *name == host::NAME;
    let (on_host, others): (Vec<&str>, Vec<&str>) = fabric.split(',').map(str::trim).partition(is_host);
    if on_host.is_empty() {
        return network_candidates(Some(fabric), patterns, machine);
    }
    let nic = if leaves_out_host(patterns) { None } else { Some(host_candidate()?) };
    if others.iter().all(|name| name.is_empty()) {
        let nic = nic.ok_or_else(|| no_rails(patterns, host::NAME, machine))?;
        return Ok(only_host(nic));
    }
    let mut found = network_candidates(Some(&others.join(",")), patterns, machine)?;
    found.candidates.splice(0..0, nic);
    Ok(found)
}

/// Candidates that can encrypt.
pub fn encrypting(fabric: Option<&str>, rails: Option<&str>, machine: &Machine) -> Result<Found> {
    let names = fabric.map_or_else(|| format!("{},{}", host::NAME, tcp::NAME), str::to_owned);
    let known = |name: &str| name == host::NAME || name == tcp::NAME || name.is_empty();
    if let Some(name) = names.split(',').map(str::trim).find(|name| !known(name)) {
        return Err(Error::new(
            Status::Unsupported,
            format!("encrypt is 1, and fabric \"{name}\" cannot encrypt: only {} can", tcp::NAME),
        ));
    }
    candidates(Some(&names), rails, machine)
}

fn default_candidates(patterns: Option<&str>, machine: &Machine) -> Result<Found> {
    let nic = if leaves_out_host(patterns) { None } else { host_candidate().ok() };
    match (network_candidates(None, patterns, machine), nic) {
        (Ok(mut found), nic) => {
            found.candidates.splice(0..0, nic);
            Ok(found)
        }
        // Without a network, processes of this host can still be reached.
        (Err(error), Some(nic))
            if patterns.is_none() && matches!(error.status, Status::NoLibfabric | Status::NoRails) =>
        {
            log::warn!("only processes of this host can be reached: {}", error.message);
            Ok(only_host(nic))
        }
        (Err(error), _) => Err(error),
    }
}

fn only_host(nic: Candidate) -> Found {
    let (clock, random) = (Clock::System, Random::System);
    Found { candidates: vec![nic], why: ONLY_HOST.into(), libfabric: String::new(), clock, random }
}

fn host_candidate() -> Result<Candidate> {
    let network = host::network()?;
    Ok(Candidate {
        fabric: host::NAME.into(),
        network,
        name: host::NAME.into(),
        pci: None,
        node: None,
        source: Source::Host,
    })
}

/// Patterns apply to the network's NICs: only "!" excludes `host`.
fn leaves_out_host(patterns: Option<&str>) -> bool {
    let mut all = patterns.unwrap_or_default().split(',').filter_map(|p| p.trim().strip_prefix('!'));
    all.any(|pattern| matches(pattern, host::NAME))
}

fn no_rails(patterns: Option<&str>, names: &str, machine: &Machine) -> Error {
    let down = down(patterns, machine);
    let patterns = patterns.unwrap_or("(default)");
    let hint = match patterns.trim() == host::NAME {
        true => {
            format!(" (for processes of one host alone, name it as the fabric: fabric \"{}\")", host::NAME)
        }
        false => String::new(),
    };
    Error::new(
        Status::NoRails,
        format!("rails \"{patterns}\" matches none of the NICs here: {names}{hint}{down}"),
    )
}

/// The NICs of the named fabrics, or of the best fabric that has any.
fn network_candidates(fabric: Option<&str>, patterns: Option<&str>, machine: &Machine) -> Result<Found> {
    let names = fabric.unwrap_or(RANKED).split(',').map(str::trim).filter(|name| !name.is_empty());
    // Fabrics without a device are not searched for: then libfabric is not even loaded.
    let names: Vec<&str> = names.filter(|name| fabric.is_some() || may_have(name, machine)).collect();
    if fabric.is_none() && names == [tcp::NAME] && libfabric_sys::variable("WEFT_LIBFABRIC").is_some() {
        log::warn!(
            "libfabric is not loaded, though WEFT_LIBFABRIC names one: this machine has no RDMA device; name a fabric to \
             have it loaded"
        );
    }
    let (mut found, mut libfabric) = (Vec::new(), String::new());
    for name in names.iter().copied() {
        let before = found.len();
        if name == tcp::NAME {
            found.extend(tcp::list()?.into_iter().map(|interface| over_tcp(interface, machine)));
        } else {
            let library = match discover::library(&names) {
                // A library that the user named must load.
                Err(error) if fabric.is_none() && libfabric_sys::variable("WEFT_LIBFABRIC").is_none() => {
                    log::warn!("{name} is not used, though this machine may have a NIC for it: {error}");
                    continue;
                }
                library => library?,
            };
            libfabric = library.describe();
            let entries = discover::entries(library, name)?;
            found.extend(entries.into_iter().map(|entry| candidate(entry, machine)));
        }
        if fabric.is_none() && !found.is_empty() {
            break; // Only the best fabric justifies the memory of its NICs.
        }
        if fabric.is_some() && found.len() == before {
            return Err(no_nic(name, machine));
        }
    }
    if found.is_empty() {
        return Err(no_nic(fabric.unwrap_or(RANKED), machine));
    }
    chosen(found, patterns, machine, libfabric)
}

/// Whether a name describes simulated NICs.
fn is_simulated(name: &str) -> bool {
    name == "sim" || name.starts_with("sim:")
}

#[cfg(not(any(test, feature = "sim")))]
fn simulated(fabric: &str) -> Result<Option<Vec<Entry>>> {
    match fabric.split(',').map(str::trim).find(|name| is_simulated(name)) {
        None => Ok(None),
        Some(name) => Err(Error::new(
            Status::Unsupported,
            format!(
                "fabric \"{name}\" is simulated, and this libweft.so was built without simulated NICs: `make \
                 lib-simulated` builds one with them, for tests"
            ),
        )),
    }
}

/// The named simulations: they exclude other fabrics, and each other if one has its own clock.
#[cfg(any(test, feature = "sim"))]
fn simulated(fabric: &str) -> Result<Option<Vec<Entry>>> {
    let names: Vec<&str> = fabric.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let Some(name) = names.iter().find(|name| is_simulated(name)) else { return Ok(None) };
    if names.iter().any(|other| !is_simulated(other)) {
        return Err(Error::invalid(format!(
            "fabric \"{name}\" is simulated: it is not opened beside others"
        )));
    }
    let mut found = Vec::new();
    for name in &names {
        found.extend(discover::simulated(name)?);
    }
    let has_own_clock = |entry: &Entry| matches!(entry.clock, Clock::Virtual(_));
    if names.len() > 1 && found.iter().any(has_own_clock) {
        return Err(Error::invalid(format!("fabric \"{fabric}\": a virtual clock is alone in its endpoint")));
    }
    Ok(Some(found))
}

/// The NICs that the patterns name, or that are near the devices and CPUs of this process.
fn chosen(
    found: Vec<Candidate>,
    patterns: Option<&str>,
    machine: &Machine,
    libfabric: String,
) -> Result<Found> {
    let listed: Vec<Listed> = found.iter().filter_map(Candidate::listed).collect();
    let choice = choose(&listed, patterns, machine, visible_gpus().as_deref());
    let chosen: Vec<Candidate> = choice.chosen.iter().map(|i| found[*i].clone()).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = listed.iter().map(|nic| nic.name.as_str()).collect();
        return Err(no_rails(patterns, &names.join(", "), machine));
    }
    let (clock, random) = chosen[0].time();
    Ok(Found { candidates: chosen, why: choice.why, libfabric, clock, random })
}

/// The error if no NIC of a named fabric was found.
fn no_nic(name: &str, machine: &Machine) -> Error {
    let library = discover::started();
    let known = library.map_or_else(Vec::new, discover::providers);
    let of = library.map_or_else(String::new, |library| format!(" of libfabric {}", library.describe()));
    if NAMES.contains(&name) || name.contains(',') {
        let text = format!(
            "no NIC of fabric \"{name}\" is here{}: is the device in this container, and its driver loaded? \
             (fi_info -p '{name}' lists what libfabric finds){}",
            of.replacen(" of", ", says", 1),
            down(None, machine),
        );
        return Error::new(Status::NoRails, text);
    }
    let text = match known.iter().any(|provider| provider == name) {
        true => {
            format!("provider \"{name}\"{of} has no NIC with reliable datagrams and RMA, which Weft needs")
        }
        false => {
            let providers = if known.is_empty() { String::new() } else { format!(": {}", known.join(", ")) };
            format!("\"{name}\" is no fabric: name {}, or a provider{of}{providers}", NAMES.join(", "))
        }
    };
    Error::new(Status::Unsupported, text)
}

fn over_tcp(interface: tcp::Interface, machine: &Machine) -> Candidate {
    let pci = place(None, &interface.name, &interface.name, machine);
    Candidate {
        node: machine.node_of(pci),
        pci,
        fabric: tcp::NAME.into(),
        network: interface.network.clone(),
        name: interface.name.clone(),
        source: Source::Tcp(interface, Arc::default()),
    }
}

/// The network of a NIC. verbs has one name for the networks of all RoCE devices, so there the network is that of the
/// interface that has the NIC's IP address.
fn network_of(entry: &Entry) -> String {
    let ip = entry.ip.filter(|_| entry.provider == discover::CONNECTED);
    ip.and_then(tcp::network_at).unwrap_or_else(|| entry.network.clone())
}

fn candidate(entry: Entry, machine: &Machine) -> Candidate {
    let pci = place(entry.pci, &entry.device, &entry.domain, machine);
    Candidate {
        node: machine.node_of(pci),
        pci,
        fabric: entry.provider.clone(),
        network: network_of(&entry),
        name: entry.domain.clone(),
        source: Source::Ofi(Arc::new(entry)),
    }
}

/// A fabric address in readable form: "10.0.0.7:4711" for a socket address; text stays text.
pub fn readable(address: &[u8]) -> String {
    let family = address.first_chunk::<2>().map_or(0, |f| u16::from_ne_bytes(*f));
    let port = address.get(2..4).map_or(0, |p| u16::from_be_bytes([p[0], p[1]]));
    match (i32::from(family), address.len()) {
        (libc::AF_INET, 16 | 32) => {
            let ip = Ipv4Addr::new(address[4], address[5], address[6], address[7]);
            format!("{ip}:{port}")
        }
        (libc::AF_INET6, 28 | 44) => {
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
            let (address, network) = (([10, 0, 0, 1], 0).into(), "10.0.0.0/24".into());
            over_tcp(
                tcp::Interface { name: name.into(), address, network, loopback, link_local: false },
                &machine,
            )
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

    #[test]
    fn only_an_explicit_exclusion_drops_host() {
        for (patterns, out) in
            [(None, false), (Some("eth*"), false), (Some("!eth0, !ho*"), true), (Some("!host"), true)]
        {
            assert_eq!(leaves_out_host(patterns), out, "{patterns:?}");
        }
    }

    #[test]
    fn readable_addresses_show_ip_and_port() {
        let mut v4 = vec![0; 16];
        v4[0] = libc::AF_INET as u8;
        v4[2..8].copy_from_slice(&[0x12, 0x67, 10, 0, 0, 7]);
        assert_eq!(readable(&v4), "10.0.0.7:4711");
        assert_eq!(readable(b"fi_sim://7:0\0"), "fi_sim://7:0");
        assert_eq!(readable(&[1, 2]), "0102");
    }
}
