//! The choice of the NICs that become rails.

use crate::topology::interfaces::{Interface, Type};
use crate::topology::network::{Network, Nic, Reach};
use crate::topology::pci::PciAddress;
use crate::topology::Machine;

const AMAZON: u16 = 0x1d0f;

/// A NIC's properties that the choice uses.
#[derive(Clone, Debug)]
pub struct Listed {
    pub fabric: String,
    pub name: String,
    /// Where it leads; or why it is no rail unless a pattern names it.
    pub leads: Result<Reach, String>,
    /// The reason for where it leads, in words.
    pub why: String,
    pub pci: Option<PciAddress>,
}

/// Indexes of the chosen NICs, in the order given, and the reason; and of the others, with the
/// reason of each.
#[derive(Debug, Default)]
pub struct Choice {
    pub chosen: Vec<usize>,
    pub why: String,
    pub left: Vec<(usize, String)>,
}

/// Chooses NICs. Patterns that name NICs override every default. Otherwise each fabric keeps its
/// NICs that are not excluded, lead as far as any and are near the devices and CPUs of this process.
/// `visible` is CUDA_VISIBLE_DEVICES.
pub fn choose(nics: &[Listed], patterns: Option<&str>, machine: &Machine, visible: Option<&str>) -> Choice {
    let patterns = Patterns::new(patterns.unwrap_or_default());
    let (matching, others): (Vec<usize>, Vec<usize>) =
        (0..nics.len()).partition(|i| patterns.take(&nics[*i].name));
    let unnamed = if patterns.ins.is_empty() { "excluded by rails" } else { "not named by rails" };
    let mut choice = Choice::default();
    choice.left.extend(others.into_iter().map(|i| (i, unnamed.to_owned())));
    if !patterns.ins.is_empty() {
        let why = format!("their names match \"{}\"", patterns.ins.join(","));
        return Choice { chosen: matching, why, ..choice };
    }
    for fabric in fabrics(nics) {
        let of_fabric = matching.iter().copied().filter(|i| nics[*i].fabric == fabric).collect();
        let useful = that_lead_farthest(nics, of_fabric, &mut choice.left);
        let places: Vec<Option<PciAddress>> = useful.iter().map(|i| nics[*i].pci).collect();
        let near = machine.near_this_process(&places, visible);
        for (i, is_near) in useful.into_iter().zip(near.which) {
            match is_near {
                true => choice.chosen.push(i),
                false => choice.left.push((i, format!("farther away than those {}", near.why))),
            }
        }
        choice.why = near.why;
    }
    choice.left.sort();
    choice
}

/// For an error about missing NICs: the RDMA devices that the patterns choose and whose ports are
/// down, which no provider lists; "" without any.
pub fn down(patterns: Option<&str>, machine: &Machine) -> String {
    let patterns = Patterns::new(patterns.unwrap_or_default());
    let down = |i: &&Interface| i.kind == Type::Rdma && !i.up && patterns.take(&i.name);
    let names: Vec<&str> = machine.interfaces.iter().filter(down).map(|i| i.name.as_str()).collect();
    if names.is_empty() {
        return String::new();
    }
    format!(
        "; here, but with their port down: {} (bring the link up, then start the process again: libfabric lists NICs once)",
        names.join(", ")
    )
}

/// Each fabric once, in the order of the NICs.
fn fabrics(nics: &[Listed]) -> Vec<&str> {
    let mut fabrics: Vec<&str> = Vec::new();
    for nic in nics {
        if !fabrics.contains(&nic.fabric.as_str()) {
            fabrics.push(&nic.fabric);
        }
    }
    fabrics
}

/// How far a NIC leads, the farthest first: only the first that has NICs is used.
fn rank(reach: Reach) -> u32 {
    match reach {
        Reach::Hosts | Reach::Container => 0,
        Reach::Subnet => 1,
        Reach::Tunnel => 2,
        _ => 3,
    }
}

fn that_lead_farthest(nics: &[Listed], among: Vec<usize>, left: &mut Vec<(usize, String)>) -> Vec<usize> {
    let ranks = among.iter().filter_map(|i| nics[*i].leads.as_ref().ok());
    let best = ranks.map(|reach| rank(*reach)).min();
    let mut useful = Vec::new();
    for i in among {
        match &nics[i].leads {
            Ok(reach) if Some(rank(*reach)) == best => useful.push(i),
            Ok(_) => left.push((i, nics[i].why.clone())),
            Err(why) => left.push((i, why.clone())),
        }
    }
    useful
}

/// Whether the patterns do not exclude a NIC.
pub fn takes(patterns: Option<&str>, name: &str) -> bool {
    Patterns::new(patterns.unwrap_or_default()).take(name)
}

/// The names and the exclusions of a pattern list such as "eth*,!eth3".
struct Patterns<'a> {
    ins: Vec<&'a str>,
    outs: Vec<&'a str>,
}

impl<'a> Patterns<'a> {
    fn new(text: &'a str) -> Patterns<'a> {
        let all = text.split(',').map(str::trim).filter(|p| !p.is_empty());
        let (outs, ins): (Vec<&str>, Vec<&str>) = all.partition(|p| p.starts_with('!'));
        Patterns { ins, outs: outs.into_iter().map(|p| &p[1..]).collect() }
    }

    /// Whether a pattern names this NIC (or no pattern names any), and none excludes it.
    fn take(&self, name: &str) -> bool {
        let any = |patterns: &[&str]| patterns.iter().any(|p| matches(p, name));
        (self.ins.is_empty() || any(&self.ins)) && !any(&self.outs)
    }
}

/// "*" stands for any text. Each part between stars matches at its first occurrence, so no part is
/// searched for twice.
pub fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
    let mut left = name.strip_prefix(head).and_then(|name| name.strip_suffix(tail));
    for part in middle.split('*') {
        left = left.and_then(|name| name.split_once(part)).map(|(_, after)| after);
    }
    left.is_some()
}

/// The PCI address of a NIC: the provider's, if this machine has it; else found by the NIC's names.
/// EFA's domains are named after the RDMA device, followed by the kind of endpoint.
pub fn place(
    reported: Option<PciAddress>,
    device: &str,
    domain: &str,
    machine: &Machine,
) -> Option<PciAddress> {
    let short = domain.trim_end_matches("-rdm");
    let known = || machine.device(reported).map(|device| device.address);
    known().or_else(|| machine.place_of(&[device, domain, short])).or(reported)
}

/// Whether the machine may have NICs of a fabric that is opened by default: efa and verbs need RDMA
/// devices, Amazon's and others' respectively.
pub fn may_have(fabric: &str, machine: &Machine) -> bool {
    let amazons = |rdma: &Interface| machine.device(rdma.pci).map(|device| device.vendor == AMAZON);
    let known = !machine.interfaces.is_empty();
    let mut rdma = machine.interfaces.iter().filter(|interface| interface.kind == Type::Rdma);
    match fabric {
        "efa" => !known || rdma.any(|device| amazons(device) != Some(false)),
        "verbs" => !known || rdma.any(|device| amazons(device) != Some(true)),
        _ => true,
    }
}

/// The NICs that would be listed on a machine of which only the tree is known: its RDMA devices, else
/// its network interfaces, of which the tree may have no more than the names.
pub fn guess(machine: &Machine, network: &Network) -> Vec<Listed> {
    let up = |wanted: Type| machine.interfaces.iter().filter(move |i| i.kind == wanted && i.up);
    let is_efa = |pci| machine.device(pci).is_some_and(|nic| nic.vendor == AMAZON);
    let rdma = up(Type::Rdma).map(|i| match is_efa(i.pci) {
        true => ("efa", format!("{}-rdm", i.name), i.pci),
        false => ("verbs", i.name.clone(), i.pci),
    });
    let listed = |(fabric, name, pci): (&str, String, Option<PciAddress>)| Listed {
        fabric: fabric.to_owned(),
        leads: Ok(match (pci.is_some(), name == "lo") {
            (true, _) => Reach::Hosts,
            (_, true) => Reach::Loopback,
            _ => Reach::Subnet,
        }),
        why: String::new(),
        name,
        pci,
    };
    let mut found: Vec<Listed> = rdma.map(listed).collect();
    found.sort_by_key(|nic| nic.pci);
    // With EFA, only EFA is opened.
    let efa: Vec<Listed> = found.iter().filter(|nic| nic.fabric == "efa").cloned().collect();
    match (efa.is_empty(), found.is_empty()) {
        (false, _) => efa,
        (true, false) => found,
        (true, true) if !network.links.is_empty() => {
            network.nics().iter().map(|nic| over_tcp(nic, machine)).collect()
        }
        (true, true) => up(Type::Net).map(|i| listed(("tcp", i.name.clone(), i.pci))).collect(),
    }
}

/// A network interface as a NIC of tcp.
pub fn over_tcp(nic: &Nic, machine: &Machine) -> Listed {
    Listed {
        fabric: super::tcp::NAME.into(),
        name: nic.name.clone(),
        leads: nic.leads(),
        why: nic.why.clone(),
        pci: place(None, &nic.name, &nic.name, machine),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::trees;
    use std::time::Instant;

    #[test]
    fn patterns_match_names_with_stars() {
        assert!(matches("eth*", "eth0") && matches("*", "") && matches("a*b*c", "aXbYc"));
        assert!(!matches("eth*", "xeth") && !matches("eth0", "eth01"));
        assert!(matches("", "") && matches("**", "a") && matches("a*a", "aa") && matches("*ab*", "aab"));
        assert!(!matches("a*a", "a") && !matches("*ab*ab*", "aab") && !matches("", "a"));
        assert!(matches("*é*", "aé") && !matches("é", "e"));
        let take = |patterns, name| Patterns::new(patterns).take(name);
        assert!(take("eth*,!eth3", "eth2") && take("!eth3", "lo") && take("", "lo"));
        assert!(!take("eth*,!eth3", "eth3") && !take("eth*", "lo"));
    }

    /// The result agrees with a plain definition for all short patterns and names, and patterns of
    /// many stars take linear time.
    #[test]
    fn patterns_match_in_linear_time() {
        fn slowly(pattern: &[u8], name: &[u8]) -> bool {
            match pattern {
                [] => name.is_empty(),
                [b'*', rest @ ..] => (0..=name.len()).any(|at| slowly(rest, &name[at..])),
                [first, rest @ ..] => {
                    name.split_first().is_some_and(|(c, name)| c == first && slowly(rest, name))
                }
            }
        }
        let all = |letters: &'static [u8], most: u32| {
            let count = letters.len();
            let text = move |len: u32, i: usize| {
                (0..len).map(|k| letters[i / count.pow(k) % count] as char).collect()
            };
            (0..=most).flat_map(move |len| (0..count.pow(len)).map(move |i| text(len, i)))
        };
        let names: Vec<String> = all(b"ab", 5).collect();
        for pattern in all(b"ab*", 5) {
            for name in &names {
                let expected = slowly(pattern.as_bytes(), name.as_bytes());
                assert_eq!(matches(&pattern, name), expected, "{pattern} {name}");
            }
        }
        let (stars, name) = ("*".repeat(100_000), "a".repeat(100_000));
        assert!(matches(&stars, &name) && !matches(&format!("{stars}x"), &name));
        assert!(!matches(&format!("{}x*", "*a".repeat(1000)), &name));
        // Sixteen times the input takes about sixteen times as long, not 256 times.
        let took = |len: usize| {
            let (pattern, name) = (format!("{}b*", "*aa*a".repeat(len)), "a".repeat(4 * len));
            let once = |_| {
                let began = Instant::now();
                assert!(!matches(&pattern, &name));
                began.elapsed()
            };
            (0..20).map(once).min().unwrap_or_default()
        };
        let (short, long) = (took(4_000), took(64_000));
        assert!(long < short * 64, "{short:?}, and {long:?} of 16 times as much");
    }

    #[test]
    fn fabrics_without_a_device_are_not_searched() {
        let has = |machine: &Machine| ["efa", "verbs", "tcp"].map(|fabric| may_have(fabric, machine));
        assert_eq!(has(&trees::p5().machine()), [true, false, true]);
        let mut tree = trees::Tree::new();
        assert_eq!(has(&tree.machine()), [true, true, true], "no class of devices can be seen");
        tree.net("lo", None, "unknown");
        assert_eq!(has(&tree.machine()), [false, false, true]);
        tree.function("pci0000:00/0000:01:00.0", 0x020700, 0x15b3, 0x1021, 0);
        tree.rdma("mlx5_0", "0000:01:00.0");
        assert_eq!(has(&tree.machine()), [false, true, true]);
    }

    #[test]
    fn devices_whose_ports_are_down_are_named() {
        let mut tree = trees::Tree::new();
        for (i, state) in ["4: ACTIVE", "1: DOWN", "2: INIT"].iter().enumerate() {
            tree.function(&format!("pci0000:00/0000:0{i}:00.0"), 0x020700, 0x15b3, 0x1021, 0);
            tree.rdma(&format!("mlx5_{i}"), &format!("0000:0{i}:00.0"));
            tree.file(&format!("sys/class/infiniband/mlx5_{i}/ports/1/state"), format!("{state}\n"));
        }
        let machine = tree.machine();
        assert!(down(None, &machine).contains(": mlx5_1, mlx5_2 ("));
        assert!(down(Some("mlx5_1,eth0"), &machine).contains(": mlx5_1 ("));
        assert_eq!(down(Some("mlx5_0"), &machine), "");
    }

    fn names(nics: &[Listed], choice: &Choice) -> Vec<String> {
        choice.chosen.iter().map(|i| nics[*i].name.clone()).collect()
    }

    fn tcp(name: &str) -> Listed {
        let leads = match &name[..2] {
            "lo" => Ok(Reach::Loopback),
            "et" => Ok(Reach::Hosts),
            "wg" => Ok(Reach::Tunnel),
            _ => Err(format!("why {name} does not")),
        };
        Listed { fabric: "tcp".into(), name: name.into(), leads, why: format!("why {name}"), pci: None }
    }

    #[test]
    fn nics_that_lead_farthest_are_chosen() {
        let machine = trees::Tree::new().machine();
        let all: Vec<Listed> = ["lo", "docker0", "eth0", "wg0", "eth1"].map(tcp).to_vec();
        let choice = choose(&all, None, &machine, None);
        assert_eq!(names(&all, &choice), ["eth0", "eth1"]);
        let left: Vec<(usize, &str)> = choice.left.iter().map(|(i, why)| (*i, why.as_str())).collect();
        assert_eq!(left, [(0, "why lo"), (1, "why docker0 does not"), (3, "why wg0")]);
        assert_eq!(names(&all, &choose(&all[..2], None, &machine, None)), ["lo"]);
        assert_eq!(names(&all, &choose(&all, Some("docker*,lo"), &machine, None)), ["lo", "docker0"]);
        for (excluded, left) in [("!eth0", "eth1"), ("!eth*,!host", "wg0"), ("!eth*,!wg0", "lo")] {
            assert_eq!(names(&all, &choose(&all, Some(excluded), &machine, None)), [left], "{excluded}");
        }
        // The lo of one fabric is not left out because another fabric has a NIC.
        let mut two = vec![tcp("lo"), tcp("eth0")];
        two[1].fabric = "psm3".into();
        assert_eq!(names(&two, &choose(&two, None, &machine, None)), ["lo", "eth0"]);
        two.push(tcp("lo"));
        assert_eq!(choose(&two, None, &machine, None).chosen.len(), 3, "each once");
    }

    #[test]
    fn p5_rank_gets_the_four_nics_of_its_gpu() {
        let machine = trees::p5().machine();
        let nics = guess(&machine, &Network::default());
        assert_eq!(nics.len(), 32);
        assert!(nics.iter().all(|nic| nic.fabric == "efa" && nic.pci.is_some()));
        for gpu in 0..8 {
            let choice = choose(&nics, None, &machine, Some(&gpu.to_string()));
            assert_eq!(
                names(&nics, &choice),
                trees::p5_nics_of_gpu(gpu).map(|n| format!("{n}-rdm")),
                "{gpu}"
            );
        }
        assert_eq!(choose(&nics, None, &machine, None).chosen.len(), 32);
        let two = choose(&nics, None, &machine, Some("0,7"));
        assert_eq!(two.chosen.len(), 8);
        assert!(two.why.contains("GPU"), "{}", two.why);
    }

    #[test]
    fn nic_place_comes_from_the_provider_or_its_name() {
        let machine = trees::p5().machine();
        let at = PciAddress::parse;
        let placed =
            |reported: Option<&str>, device, domain| place(reported.and_then(at), device, domain, &machine);
        assert_eq!(placed(Some("0000:4f:00.0"), "", "x"), at("0000:4f:00.0"));
        assert_eq!(
            placed(Some("0000:4f:00.0"), "rdmap80s0", "ens32"),
            at("0000:4f:00.0"),
            "reported comes first"
        );
        assert_eq!(placed(None, "rdmap80s0", "ens32"), at("0000:50:00.0"));
        assert_eq!(placed(None, "", "rdmap81s0-rdm"), at("0000:51:00.0"));
        assert_eq!(
            placed(Some("0000:00:00.0"), "", "ens32"),
            at("0000:00:05.0"),
            "there is no such function"
        );
        assert_eq!(placed(Some("0000:ee:00.0"), "", "eth0"), at("0000:ee:00.0"), "/sys may hide it");
        assert_eq!(placed(None, "", "lo"), None);
    }

    #[test]
    fn each_fabric_keeps_its_nearest_nics() {
        let machine = trees::p5().machine();
        let mut nics = guess(&machine, &Network::default());
        nics.push(Listed { pci: machine.place_of(&["ens32"]), ..tcp("eth0") });
        let choice = choose(&nics, None, &machine, Some("0"));
        assert_eq!(choice.chosen.len(), 5);
        assert_eq!(choice.chosen[4], 32);
    }

    #[test]
    fn explicit_rail_patterns_override_defaults() {
        let machine = trees::p5().machine();
        let nics = guess(&machine, &Network::default());
        let choice = choose(&nics, Some("rdmap79*"), &machine, Some("7"));
        assert_eq!(names(&nics, &choice), ["rdmap79s0-rdm"]);
    }
}
