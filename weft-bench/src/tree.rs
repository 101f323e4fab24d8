//! The machine as a tree: NUMA node, root complex, switch, devices. Bridges with only one child are
//! not shown.

use crate::show::printable;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// The parts of weft_topology's object that are shown.
#[derive(Deserialize)]
pub struct Machine {
    sysfs_root: String,
    cpus: String,
    affinity: String,
    nodes: Vec<Node>,
    devices: Vec<Device>,
    interfaces: Vec<Interface>,
    rails_source: String,
    rails_why: String,
    rails: Vec<Rail>,
    workers: Vec<Worker>,
}

#[derive(Deserialize)]
struct Node {
    node: i64,
    cpus: String,
    usable_cpus: String,
}

#[derive(Deserialize)]
struct Device {
    address: String,
    kind: String,
    name: String,
    parent: Option<String>,
    node: i64,
    link_speed: Option<String>,
    link_width: Option<i64>,
    usable: Option<bool>,
}

#[derive(Deserialize)]
struct Interface {
    name: String,
    pci: Option<String>,
    up: bool,
    speed_mbps: Option<i64>,
    addresses: Vec<String>,
    addresses_left_out: Vec<Left>,
    why: Option<String>,
}

#[derive(Deserialize)]
struct Left {
    address: String,
    why: String,
}

#[derive(Deserialize)]
struct Rail {
    fabric: String,
    name: String,
    pci: Option<String>,
    worker: usize,
}

#[derive(Deserialize)]
struct Worker {
    node: i64,
    cpus: String,
    pinned: bool,
    rails: Vec<usize>,
}

/// The most interfaces that one line names.
const NAMED: usize = 6;

pub fn draw(machine: &Machine) -> String {
    let mut out = String::new();
    let whose = if machine.sysfs_root == "/" { "this machine" } else { &machine.sysfs_root };
    line(&mut out, &format!("{whose}: CPUs {}; this process may use {}", machine.cpus, machine.affinity));
    for node in &machine.nodes {
        let usable = match node.usable_cpus.as_str() {
            "" => "this process may use none of them".to_owned(),
            all if all == node.cpus => "this process may use all of them".to_owned(),
            some => format!("this process may use {some}"),
        };
        let cpus = if node.cpus.is_empty() { "no CPUs" } else { &format!("CPUs {}; {usable}", node.cpus) };
        title(&mut out, &format!("NUMA node {}: {cpus}", node.node));
        machine.branch_of(node.node).draw("", &mut out);
    }
    let elsewhere = machine.branch_of(-1);
    if !elsewhere.is_empty() {
        title(&mut out, "No NUMA node known:");
        elsewhere.draw("", &mut out);
    }
    let without: Vec<String> = machine.interfaces.iter().filter(|i| i.pci.is_none()).map(state).collect();
    if !without.is_empty() {
        title(&mut out, &format!("Not on PCI: {}", without.join(", ")));
    }
    machine.draw_rails(&mut out);
    machine.draw_network(&mut out);
    out
}

/// In names of another machine's tree there may be any characters.
fn line(out: &mut String, text: &str) {
    out.push_str(&printable(text));
    out.push('\n');
}

fn title(out: &mut String, text: &str) {
    out.push('\n');
    line(out, text);
}

fn state(interface: &Interface) -> String {
    format!("{}{}", interface.name, if interface.up { "" } else { " (down)" })
}

impl Machine {
    /// The IPv4 addresses of this machine's rails of tcp, with the rail's name.
    pub fn own_addresses(&self) -> Vec<(&str, Ipv4Addr)> {
        let named = |name: &str| self.rails.iter().any(|rail| rail.fabric == "tcp" && rail.name == name);
        let rails = self.interfaces.iter().filter(|one| self.sysfs_root == "/" && named(&one.name));
        rails
            .flat_map(|one| one.addresses.iter().filter_map(|at| Some((&*one.name, at.parse().ok()?))))
            .collect()
    }

    /// Everything on a node.
    fn branch_of(&self, node: i64) -> Branch {
        let mut top = Branch::default();
        let node_of = |device: &Device| match &self.nodes[..] {
            [only] => only.node, // The only node is the right one, even for a device that does not report it.
            nodes if nodes.iter().any(|node| node.node == device.node) => device.node,
            _ => -1,
        };
        let on = |device: &&Device| node_of(device) == node;
        for device in self.devices.iter().filter(on) {
            if ["gpu", "nic", "nvme"].contains(&device.kind.as_str()) {
                let path = self.path_to(device);
                path.iter()
                    .rev()
                    .fold(&mut top, |branch, step| branch.below(step))
                    .leaves
                    .push(self.leaf(device));
            }
        }
        top.below.values_mut().for_each(Branch::shorten);
        top
    }

    /// The ancestors of a device, nearest first. The walk ends even if the input has a cycle.
    fn path_to(&self, device: &Device) -> Vec<String> {
        let mut path: Vec<String> = Vec::new();
        let mut parent = device.parent.clone();
        while let Some(above) = parent.filter(|above| !path.contains(above)) {
            parent = self.devices.iter().find(|d| d.address == above).and_then(|d| d.parent.clone());
            path.push(above);
        }
        path
    }

    fn leaf(&self, device: &Device) -> String {
        let own = |pci: &Option<String>| pci.as_ref() == Some(&device.address);
        let mut details = Vec::new();
        if let (Some(speed), Some(width)) = (&device.link_speed, device.link_width) {
            details.push(format!("x{width} {}", speed.trim_end_matches(" PCIe")));
        }
        let interfaces = self.interfaces.iter().filter(|interface| own(&interface.pci));
        for interface in interfaces {
            match interface.speed_mbps {
                _ if !interface.up => details.push(format!("{} is down", interface.name)),
                Some(speed) => details.push(format!("{} Gbps", speed as f64 / 1000.0)),
                None => {}
            }
        }
        if device.usable == Some(false) {
            details.push("not for this process".to_owned());
        }
        for (index, rail) in self.rails.iter().enumerate().filter(|(_, rail)| own(&rail.pci)) {
            details.push(format!("rail {index} of worker {}", rail.worker));
        }
        details.dedup();
        format!("{:4} {}  {:24} {}", device.kind, device.address, device.name, details.join(", "))
    }

    fn draw_rails(&self, out: &mut String) {
        let source = match self.rails_source.as_str() {
            "libfabric" => "as libfabric lists them",
            _ => "without libfabric",
        };
        title(out, &format!("Rails that an endpoint opens by default ({}), {source}:", self.rails.len()));
        line(out, &format!("  {}", self.rails_why));
        for (index, worker) in self.workers.iter().enumerate() {
            let stays = if worker.pinned { "stays on" } else { "runs on" };
            let node = if worker.node < 0 { String::new() } else { format!(" (node {})", worker.node) };
            line(out, &format!("  worker {index} {stays} CPUs {}{node}", worker.cpus));
            for rail in &worker.rails {
                if let Some(Rail { fabric, name, pci, .. }) = self.rails.get(*rail) {
                    let pci = pci.as_deref().unwrap_or("");
                    line(out, &format!("    rail {rail:2} {fabric}  {name}  {pci}"));
                }
            }
        }
    }
}

impl Machine {
    /// Each network interface with its addresses and the reason for which it is a rail, or not. Those with
    /// one reason and no address are drawn in one line.
    fn draw_network(&self, out: &mut String) {
        let mut lines: Vec<(Vec<&str>, String, String)> = Vec::new();
        for interface in &self.interfaces {
            let Some(why) = &interface.why else { continue };
            let rail = self.rails.iter().position(|rail| rail.name == interface.name);
            let rail = rail.map_or_else(String::new, |rail| format!("rail {rail}, "));
            let addresses = interface.addresses.join(", ");
            let left = interface
                .addresses_left_out
                .iter()
                .map(|left| format!("; not {}: {}", left.address, left.why));
            // A reason that names the addresses needs no repetition.
            let left: String = left.filter(|_| !interface.addresses.is_empty()).collect();
            let text = format!("{rail}{why}{left}");
            match lines
                .iter_mut()
                .find(|(_, at, known)| at.is_empty() && addresses.is_empty() && *known == text)
            {
                Some((names, ..)) => names.push(&interface.name),
                None => lines.push((vec![&interface.name], addresses, text)),
            }
        }
        if !lines.is_empty() {
            title(out, "Network interfaces:");
        }
        for (names, addresses, text) in lines {
            let more = names.len().saturating_sub(NAMED);
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            let names = format!("{}{more}", names[..names.len().min(NAMED)].join(", "));
            let addresses = if addresses.is_empty() { addresses } else { format!("  {addresses}") };
            line(out, &format!("  {names}{addresses}  ({text})"));
        }
    }
}

#[derive(Default)]
struct Branch {
    below: BTreeMap<String, Branch>,
    leaves: Vec<String>,
    /// It has ports, or is one.
    is_switch: bool,
}

impl Branch {
    fn below(&mut self, name: &str) -> &mut Branch {
        self.is_switch = true;
        self.below.entry(name.to_owned()).or_default()
    }

    fn is_empty(&self) -> bool {
        self.below.is_empty() && self.leaves.is_empty()
    }

    /// Removes the bridges between this device and its children.
    fn shorten(&mut self) {
        for (name, mut branch) in std::mem::take(&mut self.below) {
            branch.shorten();
            match (branch.below.len(), branch.leaves.len()) {
                (0, 1) => self.leaves.append(&mut branch.leaves),
                (1, 0) => self.below.append(&mut branch.below),
                _ => {
                    self.below.insert(name, branch);
                }
            }
        }
        self.leaves.sort();
    }

    fn draw(&self, indent: &str, out: &mut String) {
        let count = self.leaves.len() + self.below.len();
        let branch = |at| if at + 1 == count { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        for (at, leaf) in self.leaves.iter().enumerate() {
            line(out, format!("{indent}{}{leaf}", branch(at).0).trim_end());
        }
        for (at, (name, below)) in self.below.iter().enumerate() {
            let (tick, more) = branch(self.leaves.len() + at);
            let what = match (name.starts_with("pci"), below.is_switch) {
                (true, _) => "root complex",
                (false, true) => "switch",
                (false, false) => "port",
            };
            line(out, &format!("{indent}{tick}{what} {name}"));
            below.draw(&format!("{indent}{more}"), out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{json, Value};

    fn device(address: &str, kind: &str, parent: &str, node: i64) -> Value {
        let name = format!("n{}", &address[5..7]);
        let (link_speed, link_width): (_, Option<i64>) = ("32.0 GT/s PCIe", Some(16));
        let usable = (kind == "gpu").then_some(address != "0000:06:00.0");
        json!({ "address": address, "kind": kind, "name": name, "parent": parent, "node": node,
                "link_speed": link_speed, "link_width": link_width, "usable": usable })
    }

    #[test]
    fn control_characters_in_names_of_another_machine_are_not_drawn() {
        let name = "eth0\u{1b}[2J\nNUMA node 9: forged";
        let text = draw(
            &serde_json::from_value(json!({
                "sysfs_root": "/other", "cpus": "0", "affinity": "0", "rails_source": "sysfs", "rails_why": name,
                "nodes": [{ "node": 0, "cpus": "0", "usable_cpus": "0" }],
                "devices": [{ "address": "0000:01:00.0", "kind": "nic", "name": name, "parent": "pci0000:00",
                              "node": 0, "link_speed": null, "link_width": null, "usable": null }],
                "interfaces": [{ "name": name, "pci": null, "up": true, "speed_mbps": null, "addresses": [],
                                 "addresses_left_out": [], "why": name }],
                "rails": [{ "fabric": "tcp", "name": name, "pci": null, "worker": 0 }],
                "workers": [{ "node": 0, "cpus": "0", "pinned": false, "rails": [0] }],
            }))
            .unwrap(),
        );
        assert!(
            !text.contains('\u{1b}') && !text.lines().any(|line| line.starts_with("NUMA node 9")),
            "{text}"
        );
        assert!(text.matches("eth0\\u{1b}[2J\\nNUMA").count() >= 4, "{text}");
    }

    #[test]
    fn tree_of_one_node_shows_every_device() {
        let mut machine = Machine {
            nodes: vec![Node { node: 0, cpus: "0-7".into(), usable_cpus: "0-7".into() }],
            devices: vec![serde_json::from_value(device("0000:08:00.0", "nvme", "pci0000:00", -1)).unwrap()],
            ..serde_json::from_value(json!({
                "sysfs_root": "/", "cpus": "0-7", "affinity": "0-7", "rails_source": "sysfs", "rails_why": "",
                "nodes": [], "devices": [], "interfaces": [], "rails": [], "workers": [],
            }))
            .unwrap()
        };
        assert!(!draw(&machine).contains("No NUMA node known"));
        machine.nodes.clear();
        assert!(draw(&machine).contains("No NUMA node known"));
    }

    #[test]
    fn switch_is_drawn_with_its_devices() {
        let devices = [
            device("0000:01:00.0", "bridge", "pci0000:00", 0),
            device("0000:02:00.0", "bridge", "0000:01:00.0", 0),
            device("0000:03:00.0", "bridge", "0000:02:00.0", 0),
            device("0000:03:01.0", "bridge", "0000:02:00.0", 0),
            device("0000:05:00.0", "nic", "0000:03:00.0", 0),
            device("0000:06:00.0", "gpu", "0000:03:01.0", 0),
            device("0000:07:00.0", "other", "pci0000:00", 0),
            device("0000:08:00.0", "nvme", "pci0000:00", -1),
            device("0000:09:00.0", "bridge", "0000:09:00.0", -1),
            device("0000:0a:00.0", "nic", "0000:09:00.0", -1),
        ];
        let eth0 = json!({ "name": "eth0", "pci": "0000:05:00.0", "up": true, "speed_mbps": 100_000,
                           "addresses": ["10.0.0.5", "fd00::5"], "why": "a NIC",
                           "addresses_left_out": [{ "address": "fe80::5", "why": "link-local" }] });
        let other = |name: &str, why: &str| {
            json!({ "name": name, "pci": null, "up": true, "speed_mbps": null, "addresses": [],
                    "addresses_left_out": [], "why": why })
        };
        let (lo, veth) = (other("lo", "loopback"), |name| other(name, "leads to a container"));
        let machine = json!({
            "sysfs_root": "/", "cpus": "0-7", "affinity": "0-3", "rails_source": "sysfs", "rails_why": "why",
            "nodes": [{ "node": 0, "cpus": "0-7", "usable_cpus": "0-3" },
                      { "node": 1, "cpus": "", "usable_cpus": "" }], "devices": devices,
            "interfaces": [eth0, lo, veth("veth1"), veth("veth2")],
            "rails": [{ "fabric": "tcp", "name": "eth0", "pci": "0000:05:00.0", "worker": 0 }],
            "workers": [{ "node": 0, "cpus": "0-3", "pinned": false, "rails": [0] }],
        });
        let text = draw(&serde_json::from_value(machine).unwrap());
        let lines: Vec<String> =
            text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines,
            [
                "this machine: CPUs 0-7; this process may use 0-3",
                "",
                "NUMA node 0: CPUs 0-7; this process may use 0-3",
                "└─ root complex pci0000:00",
                "└─ switch 0000:02:00.0",
                "├─ gpu 0000:06:00.0 n06 x16 32.0 GT/s, not for this process",
                "└─ nic 0000:05:00.0 n05 x16 32.0 GT/s, 100 Gbps, rail 0 of worker 0",
                "",
                "NUMA node 1: no CPUs",
                "",
                "No NUMA node known:",
                "├─ port 0000:09:00.0",
                "│ └─ nic 0000:0a:00.0 n0a x16 32.0 GT/s",
                "└─ root complex pci0000:00",
                "└─ nvme 0000:08:00.0 n08 x16 32.0 GT/s",
                "",
                "Not on PCI: lo, veth1, veth2",
                "",
                "Rails that an endpoint opens by default (1), without libfabric:",
                "why",
                "worker 0 runs on CPUs 0-3 (node 0)",
                "rail 0 tcp eth0 0000:05:00.0",
                "",
                "Network interfaces:",
                "eth0 10.0.0.5, fd00::5 (rail 0, a NIC; not fe80::5: link-local)",
                "lo (loopback)",
                "veth1, veth2 (leads to a container)",
            ]
        );
    }
}
