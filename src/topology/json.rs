//! The machine as JSON: docs/topology.md describes each field.

use super::pci::{self, Device, Kind, PciAddress, NVIDIA};
use super::{interfaces, nodes, Machine};
use serde::Serialize;
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

#[derive(Serialize)]
struct View {
    format: u32,
    sysfs_root: String,
    cpus: String,
    affinity: String,
    nodes: Vec<NodeView>,
    devices: Vec<DeviceView>,
    interfaces: Vec<InterfaceView>,
    rails_source: &'static str,
    rails_why: String,
    rails: Vec<RailView>,
    workers: Vec<WorkerView>,
}

#[derive(Serialize)]
struct NodeView {
    node: u32,
    cpus: String,
    usable_cpus: String,
    distances: Vec<u32>,
    near_nics: Vec<String>,
}

#[derive(Serialize)]
struct DeviceView {
    address: String,
    kind: &'static str,
    name: String,
    vendor: String,
    device: String,
    root: Option<String>,
    parent: Option<String>,
    node: i64,
    link_speed: Option<String>,
    link_width: Option<i64>,
    #[serde(flatten)]
    near: Option<NearView>,
}

/// Fields of GPUs, NICs and drives alone.
#[derive(Serialize)]
struct NearView {
    near_cpus: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    usable: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interfaces: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    near_nics: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nic_distance: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    near_gpus: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_distance: Option<&'static str>,
}

#[derive(Serialize)]
struct InterfaceView {
    name: String,
    r#type: &'static str,
    pci: Option<String>,
    up: bool,
    speed_mbps: Option<i64>,
    addresses: Vec<String>,
    addresses_left_out: Vec<LeftView>,
    why: Option<String>,
}

#[derive(Serialize)]
struct LeftView {
    address: String,
    why: String,
}

#[derive(Serialize)]
struct RailView {
    fabric: String,
    name: String,
    pci: Option<String>,
    node: i64,
    worker: usize,
}

#[derive(Serialize)]
struct WorkerView {
    node: i64,
    cpus: String,
    pinned: bool,
    rails: Vec<usize>,
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
        let names = self.names_by_device();
        let device = |device| self.device_view(device, left.as_deref(), &names);
        let workers = &rails.workers;
        let worker_of = |rail| workers.iter().position(|group| group.rails.contains(&rail)).unwrap_or(0);
        let rail = |(index, rail): (usize, &Rail)| RailView {
            fabric: rail.fabric.clone(),
            name: rail.name.clone(),
            pci: rail.pci.map(|pci| pci.to_string()),
            node: number(self.node_of(rail.pci)),
            worker: worker_of(index),
        };
        serde_json::to_string_pretty(&View {
            format: FORMAT,
            sysfs_root: self.root.folder().to_string_lossy().into_owned(),
            cpus: self.online.to_string(),
            affinity: self.affinity.to_string(),
            nodes: self.nodes.iter().map(|node| self.node_view(node)).collect(),
            devices: self.devices.iter().map(device).collect(),
            interfaces: self.interface_views(rails.interfaces),
            rails_source: rails.source,
            rails_why: rails.why,
            rails: rails.list.iter().enumerate().map(rail).collect(),
            workers: workers.iter().map(|group| self.worker_view(group)).collect(),
        })
    }

    fn nics(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(|device| device.kind == Kind::Nic)
    }

    fn node_view(&self, node: &nodes::Node) -> NodeView {
        let distance = |nic: &&Device| self.distance_from_node(node.id, nic);
        let least = self.nics().map(|nic| distance(&nic)).min();
        NodeView {
            node: node.id,
            cpus: node.cpus.to_string(),
            usable_cpus: node.cpus.and(&self.affinity).to_string(),
            distances: self.nodes.iter().map(|to| nodes::distance(&self.nodes, node.id, to.id)).collect(),
            near_nics: names(self.nics().filter(|nic| Some(distance(nic)) == least)),
        }
    }

    fn device_view(&self, device: &Device, left: Option<&[PciAddress]>, known: &Names) -> DeviceView {
        let (speed, width) = match device.kind {
            Kind::Other | Kind::Display => (None, None),
            _ => pci::link(&self.root, device.address),
        };
        let root = Some(device.root.clone()).filter(|root| !root.is_empty());
        let bridge = device.bridges.last().map(PciAddress::to_string);
        let named = known.get(&device.address).filter(|names| !names.is_empty());
        let fallback = || format!("{} {:04x}", vendor(device.vendor), device.device);
        DeviceView {
            address: device.address.to_string(),
            kind: device.kind.name(),
            name: named.map_or_else(fallback, |names| names.join(" ")),
            vendor: format!("0x{:04x}", device.vendor),
            device: format!("0x{:04x}", device.device),
            parent: bridge.or_else(|| root.clone()),
            root,
            node: number(device.node),
            link_speed: speed,
            link_width: width,
            near: self.near_view(device, left, known),
        }
    }

    fn near_view(&self, device: &Device, left: Option<&[PciAddress]>, known: &Names) -> Option<NearView> {
        let kind = device.kind;
        if ![Kind::Gpu, Kind::Nic, Kind::Nvme].contains(&kind) {
            return None;
        }
        let nics = (kind != Kind::Nic).then(|| self.nearest(device, self.nics()));
        let gpus = (kind == Kind::Nic).then(|| self.nearest(device, self.gpus()));
        let usable = left.is_none_or(|left| device.vendor != NVIDIA || left.contains(&device.address));
        let interfaces = || known.get(&device.address).cloned().unwrap_or_default();
        Some(NearView {
            near_cpus: self.cpus_near(device.node).to_string(),
            usable: (kind == Kind::Gpu).then_some(usable),
            interfaces: (kind == Kind::Nic).then(interfaces),
            nic_distance: nics.as_ref().and_then(|(least, _)| Some(least.as_ref()?.name())),
            near_nics: nics.map(|(_, near)| names(near)),
            gpu_distance: gpus.as_ref().and_then(|(least, _)| Some(least.as_ref()?.name())),
            near_gpus: gpus.map(|(_, near)| names(near)),
        })
    }

    /// The interfaces of the tree, then those that only the kernel's network has.
    fn interface_views(&self, mut explained: Vec<Interface>) -> Vec<InterfaceView> {
        let mut views: Vec<InterfaceView> = Vec::new();
        for interface in &self.interfaces {
            let is_net = interface.kind == interfaces::Type::Net;
            let at = explained.iter().position(|one| is_net && one.name == interface.name);
            let speed = interfaces::speed_mbps(&self.root, interface);
            let pci = interface.pci.map(|pci| pci.to_string());
            let kind = if is_net { "net" } else { "rdma" };
            let network = at.map(|at| explained.remove(at));
            views.push(interface_view(&interface.name, kind, pci, interface.up, speed, network));
        }
        for network in explained {
            let name = network.name.clone();
            views.push(interface_view(&name, "net", None, true, None, Some(network)));
        }
        views
    }

    fn worker_view(&self, group: &super::worker_groups::WorkerGroup) -> WorkerView {
        WorkerView {
            node: number(group.node),
            cpus: group.cpus.as_ref().unwrap_or(&self.affinity).to_string(),
            pinned: group.cpus.is_some(),
            rails: group.rails.clone(),
        }
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

fn interface_view(
    name: &str,
    r#type: &'static str,
    pci: Option<String>,
    up: bool,
    speed_mbps: Option<i64>,
    network: Option<Interface>,
) -> InterfaceView {
    let why = network.as_ref().map(|network| network.why.clone());
    let (addresses, left) =
        network.map(|network| (network.addresses, network.addresses_left_out)).unwrap_or_default();
    let addresses_left_out = left.into_iter().map(|(address, why)| LeftView { address, why }).collect();
    InterfaceView { name: name.to_owned(), r#type, pci, up, speed_mbps, addresses, addresses_left_out, why }
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
