//! The machine as JSON: docs/topology.md describes each field.

use super::pci::{self, Device, Kind, PciAddress, NVIDIA};
use super::{interfaces, nodes, Machine};
use serde_json::{json, Value};
use std::collections::BTreeMap;

/// Incremented when a field changes its meaning; new fields may be added at any time.
const FORMAT: u32 = 1;

/// The rails that an endpoint would open here.
pub struct Rails {
    pub source: &'static str,
    pub why: String,
    pub list: Vec<Rail>,
    pub workers: Vec<super::worker_groups::WorkerGroup>,
    /// What the kernel's network tells of the interfaces.
    pub interfaces: Vec<Interface>,
}

/// A network interface.
pub struct Interface {
    pub name: String,
    /// The addresses at which peers reach it, best first.
    pub addresses: Vec<String>,
    /// The others, each with the reason.
    pub addresses_left_out: Vec<(String, String)>,
    /// Where it leads, or why it is no rail by default.
    pub why: String,
}

pub struct Rail {
    pub fabric: String,
    pub name: String,
    pub pci: Option<PciAddress>,
}

/// -1: unknown.
fn number(node: Option<u32>) -> i64 {
    node.map_or(-1, i64::from)
}

fn names<'a>(devices: impl IntoIterator<Item = &'a Device>) -> Vec<String> {
    devices.into_iter().map(|device| device.address.to_string()).collect()
}

impl Machine {
    /// `visible` is CUDA_VISIBLE_DEVICES.
    pub fn json(&self, rails: Rails, visible: Option<&str>) -> serde_json::Result<String> {
        let left = self.gpus_left(visible);
        let known = self.names_by_device();
        let workers = &rails.workers;
        let worker_of = |rail| workers.iter().position(|group| group.rails.contains(&rail)).unwrap_or(0);
        let rail = |(index, rail): (usize, &Rail)| {
            json!({
                "fabric": rail.fabric,
                "name": rail.name,
                "pci": rail.pci.map(|pci| pci.to_string()),
                "node": number(self.node_of(rail.pci)),
                "worker": worker_of(index),
            })
        };
        let worker = |group: &super::worker_groups::WorkerGroup| {
            json!({
                "node": number(group.node),
                "cpus": group.cpus.as_ref().unwrap_or(&self.affinity).to_string(),
                "pinned": group.cpus.is_some(),
                "rails": group.rails,
            })
        };
        let device = |device| self.device_view(device, left.as_deref(), &known);
        serde_json::to_string_pretty(&json!({
            "format": FORMAT,
            "sysfs_root": self.root.folder().to_string_lossy(),
            "cpus": self.online.to_string(),
            "affinity": self.affinity.to_string(),
            "nodes": self.nodes.iter().map(|node| self.node_view(node)).collect::<Vec<_>>(),
            "devices": self.devices.iter().map(device).collect::<Vec<_>>(),
            "interfaces": self.interface_views(rails.interfaces),
            "rails_source": rails.source,
            "rails_why": rails.why,
            "rails": rails.list.iter().enumerate().map(rail).collect::<Vec<_>>(),
            "workers": workers.iter().map(worker).collect::<Vec<_>>(),
        }))
    }

    fn nics(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(|device| device.kind == Kind::Nic)
    }

    fn node_view(&self, node: &nodes::Node) -> Value {
        let distance = |nic: &&Device| self.distance_from_node(node.id, nic);
        let least = self.nics().map(|nic| distance(&nic)).min();
        let distances = self.nodes.iter().map(|to| nodes::distance(&self.nodes, node.id, to.id));
        json!({
            "node": node.id,
            "cpus": node.cpus.to_string(),
            "usable_cpus": node.cpus.and(&self.affinity).to_string(),
            "distances": distances.collect::<Vec<u32>>(),
            "near_nics": names(self.nics().filter(|nic| Some(distance(nic)) == least)),
        })
    }

    fn device_view(&self, device: &Device, left: Option<&[PciAddress]>, known: &Names) -> Value {
        let (speed, width) = match device.kind {
            Kind::Other | Kind::Display => (None, None),
            _ => pci::link(&self.root, device.address),
        };
        let root = Some(&device.root).filter(|root| !root.is_empty());
        let bridge = device.bridges.last().map(PciAddress::to_string);
        let named = known.get(&device.address).filter(|names| !names.is_empty());
        let fallback = || format!("{} {:04x}", vendor(device.vendor), device.device);
        let mut view = json!({
            "address": device.address.to_string(),
            "kind": device.kind.name(),
            "name": named.map_or_else(fallback, |names| names.join(" ")),
            "vendor": format!("0x{:04x}", device.vendor),
            "device": format!("0x{:04x}", device.device),
            "root": root,
            "parent": bridge.as_ref().or(root),
            "node": number(device.node),
            "link_speed": speed,
            "link_width": width,
        });
        match device.kind {
            Kind::Nic => {
                view["interfaces"] = json!(known.get(&device.address).cloned().unwrap_or_default());
                self.add_nearest(&mut view, device, ["near_gpus", "gpu_distance"], self.gpus());
            }
            Kind::Gpu | Kind::Nvme => {
                self.add_nearest(&mut view, device, ["near_nics", "nic_distance"], self.nics());
            }
            _ => {}
        }
        if device.kind == Kind::Gpu {
            let usable = left.is_none_or(|left| device.vendor != NVIDIA || left.contains(&device.address));
            view["usable"] = json!(usable);
        }
        view
    }

    /// What is nearest to a device; without any, it has no distance.
    fn add_nearest<'a>(
        &'a self,
        view: &mut Value,
        device: &Device,
        [near, far]: [&str; 2],
        others: impl Iterator<Item = &'a Device>,
    ) {
        let (least, nearest) = self.nearest(device, others);
        view["near_cpus"] = json!(self.cpus_near(device.node).to_string());
        view[near] = json!(names(nearest));
        if let Some(least) = least {
            view[far] = json!(least.name());
        }
    }

    /// The interfaces of the tree, then those that only the kernel's network has.
    fn interface_views(&self, mut explained: Vec<Interface>) -> Vec<Value> {
        let mut views: Vec<Value> = Vec::new();
        for interface in &self.interfaces {
            let is_net = interface.kind == interfaces::Type::Net;
            let at = explained.iter().position(|one| is_net && one.name == interface.name);
            let network = at.map(|at| explained.remove(at));
            let mut view = interface_view(&interface.name, network);
            view["type"] = json!(if is_net { "net" } else { "rdma" });
            view["pci"] = json!(interface.pci.map(|pci| pci.to_string()));
            view["up"] = json!(interface.up);
            view["speed_mbps"] = json!(interfaces::speed_mbps(&self.root, interface));
            views.push(view);
        }
        views.extend(
            explained.into_iter().map(|network| interface_view(&network.name.clone(), Some(network))),
        );
        views
    }

    /// Names of devices in the kernel and drivers.
    fn names_by_device(&self) -> Names {
        let mut names = Names::new();
        let interfaces = self.interfaces.iter().map(|i| (i.pci, i.name.clone()));
        let drives = interfaces::members(&self.root, "sys/class/nvme").into_iter();
        let gpus = self.shown.iter().filter_map(|gpu| Some((Some(gpu.address), gpu.model.clone()?)));
        for (address, name) in interfaces.chain(drives.map(|(name, pci)| (pci, name))).chain(gpus) {
            if let Some(address) = address {
                names.entry(address).or_default().push(name);
            }
        }
        names
    }
}

/// An interface of which the tree tells nothing.
fn interface_view(name: &str, network: Option<Interface>) -> Value {
    let why = network.as_ref().map(|network| network.why.clone());
    let (addresses, left) =
        network.map(|network| (network.addresses, network.addresses_left_out)).unwrap_or_default();
    let left = left.into_iter().map(|(address, why)| json!({ "address": address, "why": why }));
    json!({
        "name": name,
        "type": "net",
        "pci": null,
        "up": true,
        "speed_mbps": null,
        "addresses": addresses,
        "addresses_left_out": left.collect::<Vec<_>>(),
        "why": why,
    })
}

type Names = BTreeMap<PciAddress, Vec<String>>;

fn vendor(id: u16) -> &'static str {
    match id {
        NVIDIA => "NVIDIA",
        0x1002 | 0x1022 => "AMD",
        0x8086 => "Intel",
        0x15b3 => "Mellanox",
        0x1d0f => "Amazon",
        0x14e4 | 0x1000 => "Broadcom",
        0x144d => "Samsung",
        0x1af4 => "virtio",
        0x1a03 => "ASPEED",
        _ => "device",
    }
}
