//! The PCI tree: functions, the bridges above them, and their root complexes.

use super::nodes::Node;
use super::read::Root;
use std::fmt;

/// The address of a function: "0000:53:00.0".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    pub domain: u32,
    pub bus: u8,
    pub device: u8,
    pub function: u8,
}

impl PciAddress {
    pub fn parse(text: &str) -> Option<PciAddress> {
        let (rest, function) = text.split_once('.')?;
        let mut parts = rest.split(':');
        let (domain, bus, device) = (parts.next()?, parts.next()?, parts.next()?);
        let hexadecimal = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit());
        let lengths =
            (4..=8).contains(&domain.len()) && (bus.len(), device.len(), function.len()) == (2, 2, 1);
        if parts.next().is_some() || !lengths || ![domain, bus, device, function].into_iter().all(hexadecimal)
        {
            return None;
        }
        Some(PciAddress {
            domain: u32::from_str_radix(domain, 16).ok()?,
            bus: u8::from_str_radix(bus, 16).ok()?,
            device: u8::from_str_radix(device, 16).ok().filter(|device| *device < 32)?,
            function: u8::from_str_radix(function, 16).ok().filter(|function| *function < 8)?,
        })
    }

    /// The last address in a path: the function that a device belongs to.
    pub fn last_of(path: &str) -> Option<PciAddress> {
        path.rsplit('/').find_map(PciAddress::parse)
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bridge,
    Gpu,
    Nic,
    Nvme,
    /// A display controller without compute, for a server's console.
    Display,
    Other,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Bridge => "bridge",
            Kind::Gpu => "gpu",
            Kind::Nic => "nic",
            Kind::Nvme => "nvme",
            Kind::Display => "display",
            Kind::Other => "other",
        }
    }
}

pub const NVIDIA: u16 = 0x10de;
const AMD: u16 = 0x1002;
const INTEL: u16 = 0x8086;

#[derive(Clone, Debug)]
pub struct Device {
    pub address: PciAddress,
    pub kind: Kind,
    pub vendor: u16,
    pub device: u16,
    /// Like "pci0000:44"; "" if unknown.
    pub root: String,
    /// Bridges above it, from the root complex down.
    pub bridges: Vec<PciAddress>,
    /// Its NUMA node, or else that of the nearest bridge above with one.
    pub node: Option<u32>,
}

const FOLDER: &str = "sys/bus/pci/devices";

/// All functions, by address.
pub fn read(root: &Root, nodes: &[Node]) -> Vec<Device> {
    let names = root.names(FOLDER);
    let mut devices: Vec<Device> =
        names.iter().filter_map(|name| Some(device(root, name, PciAddress::parse(name)?, nodes))).collect();
    devices.sort_by_key(|device| device.address);
    devices.dedup_by_key(|device| device.address);
    let known: Vec<Option<u32>> = devices.iter().map(|device| inherited(&devices, device)).collect();
    devices.iter_mut().zip(known).for_each(|(device, node)| device.node = node);
    devices
}

fn device(root: &Root, name: &str, address: PciAddress, nodes: &[Node]) -> Device {
    let number = |file: &str| root.number(&format!("{FOLDER}/{name}/{file}")).unwrap_or(-1);
    let vendor = u16::try_from(number("vendor")).unwrap_or(0);
    let path = root.link(&format!("{FOLDER}/{name}")).unwrap_or_default();
    let steps = || path.split('/');
    let complex = steps().find(|step| step.starts_with("pci") && step.contains(':'));
    let node = u32::try_from(number("numa_node")).ok();
    Device {
        address,
        kind: kind(number("class") >> 8, vendor),
        vendor,
        device: u16::try_from(number("device")).unwrap_or(0),
        root: complex.unwrap_or_default().to_owned(),
        bridges: steps().filter_map(PciAddress::parse).filter(|bridge| *bridge != address).collect(),
        // A node that does not exist counts as unknown.
        node: node.filter(|id| nodes.is_empty() || nodes.iter().any(|node| node.id == *id)),
    }
}

fn kind(class: i64, vendor: u16) -> Kind {
    match class {
        0x0604 => Kind::Bridge,
        0x0200..=0x02ff => Kind::Nic,
        0x0108 => Kind::Nvme,
        0x0300 if ![NVIDIA, AMD, INTEL].contains(&vendor) => Kind::Display,
        // VGA, 3D, other display controllers, and processing accelerators.
        0x0300 | 0x0302 | 0x0380 | 0x1200 => Kind::Gpu,
        0x0301..=0x03ff => Kind::Display,
        _ => Kind::Other,
    }
}

fn inherited(devices: &[Device], device: &Device) -> Option<u32> {
    let above = || device.bridges.iter().rev().filter_map(|bridge| find(devices, *bridge)?.node);
    device.node.or_else(|| above().next())
}

/// `devices`: as returned by `read`.
pub fn find(devices: &[Device], address: PciAddress) -> Option<&Device> {
    let at = devices.binary_search_by_key(&address, |device| device.address).ok()?;
    devices.get(at)
}

/// Speed ("32.0 GT/s PCIe") and number of lanes of a device's link. Read only for people, because
/// it wakes a sleeping device.
pub fn link(root: &Root, address: PciAddress) -> (Option<String>, Option<i64>) {
    let path = |file: &str| format!("{FOLDER}/{address}/{file}");
    let speed = root.text(&path("current_link_speed")).filter(|speed| speed.contains("GT/s"));
    let width = root.number(&path("current_link_width")).filter(|width| (1..=32).contains(width));
    (speed, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_round_trip() {
        let address = PciAddress::parse("0000:5a:1f.7").unwrap();
        assert_eq!(address, PciAddress { domain: 0, bus: 0x5a, device: 31, function: 7 });
        for text in ["0000:5a:1f.7", "10000:e1:00.0", "00fe:00:02.1"] {
            assert_eq!(PciAddress::parse(text).unwrap().to_string(), text);
        }
        for text in
            ["", "0000:5a:1f", "0000:5a:20.0", "0000:5a:1f.8", "0:5a:1f.0", "0000:+a:1f.0", "0000:5a:1f.0:0"]
        {
            assert_eq!(PciAddress::parse(text), None, "{text}");
        }
        let path = "../../devices/pci0000:00/0000:00:03.0/virtio2/net/eth0";
        assert_eq!(PciAddress::last_of(path).unwrap().to_string(), "0000:00:03.0");
    }
}
