//! Distances: which NICs serve a GPU or a NUMA node, which CPUs a device, and which NICs are near
//! all that this process may use.

use super::cpus::CpuSet;
use super::distance::Distance;
use super::pci::{Device, PciAddress};
use super::{nodes, Machine};

/// Which of some places are near, and the reason in a sentence.
pub struct Near {
    pub which: Vec<bool>,
    pub why: String,
}

impl Machine {
    pub fn device(&self, address: Option<PciAddress>) -> Option<&Device> {
        super::pci::find(&self.devices, address?)
    }

    pub fn node_of(&self, address: Option<PciAddress>) -> Option<u32> {
        self.device(address)?.node
    }

    /// The NICs at these places that are near what this process may use: near its GPUs if it has
    /// only some of the machine's, else near the nodes of its CPUs, else all.
    pub fn near_this_process(&self, places: &[Option<PciAddress>], visible: Option<&str>) -> Near {
        if let Some(gpus) = self.gpus_left(visible) {
            let names: Vec<String> = gpus.iter().map(PciAddress::to_string).collect();
            let which = self.nearest_to_any(places, gpus.iter(), |machine, nic, gpu| {
                machine.device(Some(**gpu)).map(|gpu| machine.distance(gpu, nic))
            });
            let why = format!("nearest to the GPUs that this process may use: {}", names.join(", "));
            return Near { which, why };
        }
        let (ours, others): (Vec<&nodes::Node>, Vec<&nodes::Node>) = self
            .nodes
            .iter()
            .filter(|node| !node.cpus.is_empty())
            .partition(|node| node.cpus.intersects(&self.affinity));
        if ours.is_empty() || others.is_empty() {
            let why = "all, for no GPU narrows the choice and this process may use CPUs of every NUMA node"
                .to_owned();
            return Near { which: vec![true; places.len()], why };
        }
        let ids: Vec<String> = ours.iter().map(|node| node.id.to_string()).collect();
        let which = self.nearest_to_any(places, ours.iter(), |machine, nic, node| {
            Some(machine.distance_from_node(node.id, nic))
        });
        let why =
            format!("nearest to the NUMA nodes of the CPUs that this process may use: {}", ids.join(", "));
        Near { which, why }
    }

    /// The NICs at these places nearest to a device.
    pub fn near_device(&self, places: &[Option<PciAddress>], device: &Device) -> Vec<bool> {
        self.nearest_to_any(places, [device].into_iter(), |machine, nic, device| {
            Some(machine.distance(device, nic))
        })
    }

    fn nearest_to_any<A>(
        &self,
        places: &[Option<PciAddress>],
        anchors: impl Iterator<Item = A>,
        distance: impl Fn(&Machine, &Device, &A) -> Option<Distance>,
    ) -> Vec<bool> {
        let nics: Vec<Option<&Device>> = places.iter().map(|place| self.device(*place)).collect();
        // A NIC with an unknown place is near everything.
        let mut near: Vec<bool> = nics.iter().map(Option::is_none).collect();
        for anchor in anchors {
            let to = |nic: &Option<&Device>| nic.and_then(|nic| distance(self, nic, &anchor));
            let least = nics.iter().filter_map(to).min();
            for (near, nic) in near.iter_mut().zip(&nics) {
                *near |= nic.is_some() && to(nic) == least;
            }
        }
        near
    }

    /// The devices nearest to one, and their distance.
    pub fn nearest<'a>(
        &self,
        to: &Device,
        among: impl Iterator<Item = &'a Device>,
    ) -> (Option<Distance>, Vec<&'a Device>) {
        let all: Vec<(Distance, &Device)> = among.map(|device| (self.distance(to, device), device)).collect();
        let least = all.iter().map(|(distance, _)| *distance).min();
        let nearest = all.into_iter().filter(|(distance, _)| Some(*distance) == least);
        (least, nearest.map(|(_, device)| device).collect())
    }

    /// The CPUs nearest to a NUMA node: its own, or those of the nearest node with CPUs. All, if
    /// the node is unknown.
    pub fn cpus_near(&self, node: Option<u32>) -> CpuSet {
        let Some(node) = node.filter(|id| self.nodes.iter().any(|node| node.id == *id)) else {
            return self.online.clone();
        };
        let with_cpus = self.nodes.iter().filter(|other| !other.cpus.is_empty());
        let nearest = with_cpus.min_by_key(|other| nodes::distance(&self.nodes, node, other.id));
        nearest.map_or_else(|| self.online.clone(), |nearest| nearest.cpus.clone())
    }
}
