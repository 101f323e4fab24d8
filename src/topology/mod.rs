//! The machine: its NUMA nodes and CPUs, its PCI tree with GPUs and NICs, and the distances between
//! them.
//!
//! It is read from sysfs, procfs and netlink, or under a folder that can be given (`WEFT_SYSFS_ROOT`). A
//! machine may show little or nothing of itself, as in a container: a device with an unknown place
//! counts as near everything, and nothing here fails.
//!
//! | | |
//! | --- | --- |
//! | [`read`] | files, links and folders of the tree |
//! | [`cpus`], [`nodes`], [`pci`], [`interfaces`], [`gpus`] | the parts of the machine |
//! | [`network`] | interfaces, addresses and routes, and which interfaces lead to other hosts |
//! | [`link`] | whether an open NIC's link is up, or its device gone |
//! | [`distance`], [`near`] | distances, and what is near this process |
//! | [`worker_groups`] | which worker drives which rails, and where |
//! | [`json`] | all of it, for people and programs |

pub mod cpus;
pub mod distance;
pub mod gpus;
pub mod interfaces;
pub mod json;
pub mod link;
pub mod near;
pub mod network;
pub mod nodes;
pub mod pci;
pub mod read;
#[cfg(test)]
pub mod trees;
pub mod worker_groups;

use cpus::CpuSet;
use interfaces::Interface;
use nodes::Node;
use pci::{Device, PciAddress};
use read::Root;

#[derive(Clone, Debug)]
pub struct Machine {
    pub root: Root,
    /// CPUs that are online.
    pub online: CpuSet,
    /// CPUs that the calling thread may use.
    pub affinity: CpuSet,
    /// Sorted by number; empty where the tree has none.
    pub nodes: Vec<Node>,
    /// Sorted by address.
    pub devices: Vec<Device>,
    pub interfaces: Vec<Interface>,
    /// GPUs that NVIDIA's driver shows this process.
    pub shown: Vec<gpus::Shown>,
}

impl Machine {
    pub fn read(root: Root) -> Machine {
        let listed = CpuSet::parse(&root.text("sys/devices/system/cpu/online").unwrap_or_default());
        let nodes = nodes::read(&root, &listed);
        let of_nodes = nodes.iter().fold(CpuSet::default(), |all, node| all.or(&node.cpus));
        let affinity = affinity(&root);
        // A tree without CPUs gets those of this machine.
        let own = CpuSet::of_this_thread().unwrap_or_default();
        let online = [listed, of_nodes, affinity.clone(), own].into_iter().find(|cpus| !cpus.is_empty());
        let online = online.unwrap_or_default();
        let ours = affinity.and(&online);
        Machine {
            affinity: if ours.is_empty() { online.clone() } else { ours },
            online,
            devices: pci::read(&root, &nodes),
            nodes,
            interfaces: interfaces::read(&root),
            shown: gpus::read(&root),
            root,
        }
    }

    /// The PCI function behind any of a NIC's names: a network interface or an RDMA device.
    pub fn place_of(&self, names: &[&str]) -> Option<PciAddress> {
        let place = |name: &&str| self.interfaces.iter().find(|i| i.name == **name)?.pci;
        names.iter().find_map(place)
    }
}

/// The affinity of the calling thread; in a tree of another machine, the one recorded there.
fn affinity(root: &Root) -> CpuSet {
    if root.is_real() {
        return CpuSet::of_this_thread().unwrap_or_default();
    }
    let status = root.text("proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    CpuSet::parse(list.unwrap_or_default())
}
