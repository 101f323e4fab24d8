//! The choice of the fabrics and NICs that an endpoint opens.

use super::choice::{choose, down, matches, may_have, takes, Listed};
pub use super::found::{by_reason, Candidate, Found};
use super::found::{candidate, host_candidate, of_interface};
use super::ofi::discover::{self, ListedNic};
use super::{host, tcp};
use crate::clock::{Clock, Random};
use crate::status::{Error, Result, Status};
use crate::topology::network::{self, Network, Nic};
use crate::topology::Machine;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Network fabrics, best first: the order in which they are tried by default.
const RANKED: &str = "efa,verbs,tcp";

/// Names of fabrics, in addition to libfabric's providers.
const NAMES: [&str; 4] = ["host", "efa", "verbs", "tcp"];

/// How long an open waits for addresses that the system still checks for duplicates, and how often
/// it looks.
const TENTATIVE: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(20);

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
        let found = found.into_iter().map(|entry| candidate(entry, machine, &Network::default())).collect();
        return chosen(found, Vec::new(), patterns, machine, "none: simulated, without libfabric".into());
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
    Found {
        candidates: vec![nic],
        why: ONLY_HOST.into(),
        left: Vec::new(),
        libfabric: String::new(),
        clock,
        random,
    }
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
    let (mut found, mut unusable, mut libfabric) = (Vec::new(), Vec::new(), String::new());
    for name in names.iter().copied() {
        let before = found.len();
        if name == tcp::NAME {
            let (usable, others) = interfaces(&settled(patterns)?, machine);
            found.extend(usable);
            unusable = others;
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
            // Without interfaces, what libfabric tells decides alone.
            let network = network::read().unwrap_or_default();
            found.extend(entries.into_iter().map(|entry| candidate(entry, machine, &network)));
        }
        if fabric.is_none() && !found.is_empty() {
            break; // Only the best fabric justifies the memory of its NICs.
        }
        if fabric.is_some() && found.len() == before {
            return Err(no_nic(name, &unusable, machine));
        }
    }
    if found.is_empty() {
        return Err(no_nic(fabric.unwrap_or(RANKED), &unusable, machine));
    }
    chosen(found, unusable, patterns, machine, libfabric)
}

/// The interfaces that can be rails of tcp; and the others, each with the reason.
pub(super) fn interfaces(network: &Network, machine: &Machine) -> (Vec<Candidate>, Vec<(String, String)>) {
    let (mut usable, mut others) = (Vec::new(), Vec::new());
    for nic in network.nics() {
        match tcp::Interface::find(&nic) {
            Some(interface) => usable.push(of_interface(&nic, interface, machine)),
            None => others.push((nic.name.clone(), nic.leads().err().unwrap_or_default())),
        }
    }
    (usable, others)
}

/// The network, once no NIC waits for its address.
fn settled(patterns: Option<&str>) -> Result<Network> {
    let began = Instant::now();
    loop {
        let listed = network::read();
        let network = listed
            .map_err(|why| Error::new(Status::System, format!("listing the network interfaces: {why}")))?;
        let waits = |nic: &Nic| nic.waits() && takes(patterns, &nic.name);
        if !network.nics().iter().any(waits) || began.elapsed() > TENTATIVE {
            return Ok(network);
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether a name describes simulated NICs.
fn is_simulated(name: &str) -> bool {
    name == "sim" || name.starts_with("sim:")
}

#[cfg(not(any(test, feature = "sim")))]
fn simulated(fabric: &str) -> Result<Option<Vec<ListedNic>>> {
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
fn simulated(fabric: &str) -> Result<Option<Vec<ListedNic>>> {
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
    let has_own_clock = |entry: &ListedNic| matches!(entry.clock, Clock::Virtual(_));
    if names.len() > 1 && found.iter().any(has_own_clock) {
        return Err(Error::invalid(format!("fabric \"{fabric}\": a virtual clock is alone in its endpoint")));
    }
    Ok(Some(found))
}

/// The NICs that the patterns name, or that lead farthest and are near the devices and CPUs of this
/// process. `unusable`: the NICs that cannot be rails, each with the reason.
pub(super) fn chosen(
    found: Vec<Candidate>,
    unusable: Vec<(String, String)>,
    patterns: Option<&str>,
    machine: &Machine,
    libfabric: String,
) -> Result<Found> {
    let listed: Vec<Listed> = found.iter().filter_map(Candidate::listed).collect();
    let choice = choose(&listed, patterns, machine, visible_gpus().as_deref());
    let candidates: Vec<Candidate> = choice.chosen.iter().map(|i| found[*i].clone()).collect();
    let mut left: Vec<(String, String)> =
        choice.left.into_iter().map(|(i, why)| (listed[i].name.clone(), why)).collect();
    left.extend(unusable);
    if candidates.is_empty() {
        return Err(no_rails(patterns, &by_reason(&left), machine));
    }
    let (clock, random) = candidates[0].time();
    Ok(Found { candidates, why: choice.why, left, libfabric, clock, random })
}

/// The error if no NIC of a named fabric was found. `unusable`: the interfaces that tcp cannot use, each with the
/// reason.
fn no_nic(name: &str, unusable: &[(String, String)], machine: &Machine) -> Error {
    if name == tcp::NAME || !unusable.is_empty() {
        let what = if unusable.is_empty() { "there is none".to_owned() } else { by_reason(unusable) };
        let text = format!(
            "fabric \"{name}\" finds no network interface that is up and has an address: {what}{}",
            down(None, machine)
        );
        return Error::new(Status::NoRails, text);
    }
    let library = discover::started();
    let known = library.map_or_else(Vec::new, discover::providers);
    let version = library.map_or_else(String::new, |library| format!(" of libfabric {}", library.describe()));
    if NAMES.contains(&name) || name.contains(',') {
        let text = format!(
            "no NIC of fabric \"{name}\" is here{}: is the device in this container, and its driver loaded? \
             (fi_info -p '{name}' lists what libfabric finds){}",
            version.replacen(" of", ", says", 1),
            down(None, machine),
        );
        return Error::new(Status::NoRails, text);
    }
    let text = match known.iter().any(|provider| provider == name) {
        true => {
            format!(
                "provider \"{name}\"{version} has no NIC with reliable datagrams and RMA, which Weft needs"
            )
        }
        false => {
            let providers = if known.is_empty() { String::new() } else { format!(": {}", known.join(", ")) };
            format!("\"{name}\" is no fabric: name {}, or a provider{version}{providers}", NAMES.join(", "))
        }
    };
    Error::new(Status::Unsupported, text)
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
