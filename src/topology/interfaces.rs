//! The kernel's names of NICs: network interfaces and RDMA devices, with the PCI function of each.
//! Virtual ones have none.

use super::pci::PciAddress;
use super::read::Root;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Net,
    Rdma,
}

#[derive(Clone, Debug)]
pub struct Interface {
    pub name: String,
    pub kind: Type,
    pub pci: Option<PciAddress>,
    /// Whether it can carry traffic, as far as is known.
    pub up: bool,
}

const NET: &str = "sys/class/net";
pub(super) const RDMA: &str = "sys/class/infiniband";

pub fn read(root: &Root) -> Vec<Interface> {
    let mut all = Vec::new();
    for (name, pci) in members(root, NET) {
        let up = !is_down(root, &name);
        all.push(Interface { name, kind: Type::Net, pci, up });
    }
    for (name, pci) in members(root, RDMA) {
        let up = has_active_port(root, &states_of_ports(root, &name));
        all.push(Interface { name, kind: Type::Rdma, pci, up });
    }
    all
}

/// Whether the kernel reports a network interface down. (Its state follows the carrier after up to a
/// second; one that is not set up has no carrier to read.)
pub fn is_down(root: &Root, name: &str) -> bool {
    match root.text(&format!("{NET}/{name}/carrier")) {
        Some(carrier) => carrier == "0",
        None => {
            let state = root.text(&format!("{NET}/{name}/operstate")).unwrap_or_default();
            ["down", "lowerlayerdown", "notpresent"].contains(&state.as_str())
        }
    }
}

/// The files with the states of an RDMA device's ports.
pub(super) fn states_of_ports(root: &Root, name: &str) -> Vec<String> {
    let ports = root.names(&format!("{RDMA}/{name}/ports")).into_iter();
    ports.map(|port| format!("{RDMA}/{name}/ports/{port}/state")).collect()
}

/// Whether one of these files says that its port is active, or none is there.
pub(super) fn has_active_port(root: &Root, states: &[String]) -> bool {
    // Like "4: ACTIVE".
    let states: Vec<String> = states.iter().filter_map(|state| root.text(state)).collect();
    states.is_empty() || states.iter().any(|state| state.starts_with("4:"))
}

/// The members of a class of devices, with their PCI functions.
pub fn members(root: &Root, class: &str) -> Vec<(String, Option<PciAddress>)> {
    let place = |name: &str| {
        let own = root.link(&format!("{class}/{name}")).and_then(|path| PciAddress::last_of(&path));
        let device = || root.resolved(&format!("{class}/{name}/device"));
        own.or_else(|| device().and_then(|path| PciAddress::last_of(&path)))
    };
    let names = root.names(class).into_iter();
    names.map(|name| (place(&name), name)).map(|(pci, name)| (name, pci)).collect()
}

/// Megabits per second, as reported by the driver.
pub fn speed_mbps(root: &Root, interface: &Interface) -> Option<i64> {
    match interface.kind {
        Type::Net => root.number(&format!("{NET}/{}/speed", interface.name)).filter(|speed| *speed > 0),
        Type::Rdma => {
            let ports = root.names(&format!("{RDMA}/{}/ports", interface.name));
            // "400 Gb/sec (4X NDR)".
            let rate = root.text(&format!("{RDMA}/{}/ports/{}/rate", interface.name, ports.first()?))?;
            let gigabits: f64 = rate.split_whitespace().next()?.parse().ok()?;
            (0.001..=1e6).contains(&gigabits).then_some((gigabits * 1000.0) as i64)
        }
    }
}
