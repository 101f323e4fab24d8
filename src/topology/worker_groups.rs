//! The division of rails among workers, and the workers' CPUs.

use super::cpus::CpuSet;
use super::pci::PciAddress;
use super::Machine;

/// Rails per worker by default.
const RAILS_EACH: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerGroup {
    /// Indexes into the list of rails.
    pub rails: Vec<usize>,
    /// The NUMA node of all these rails.
    pub node: Option<u32>,
    /// The CPUs that the worker's thread is pinned to; `None`: not pinned.
    pub cpus: Option<CpuSet>,
}

impl Machine {
    /// Divides rails at these places among `wanted` workers, node by node and switch by switch. 0:
    /// a worker per four rails of a node, but fewer workers than the CPUs of this process.
    pub fn worker_groups(&self, places: &[Option<PciAddress>], wanted: usize) -> Vec<WorkerGroup> {
        let nodes = self.by_node(places);
        let count = match wanted {
            0 => {
                let groups = nodes.iter().map(|rails| rails.len().div_ceil(RAILS_EACH)).sum::<usize>();
                groups.min(self.affinity.len().saturating_sub(1))
            }
            _ => wanted,
        };
        let count = count.clamp(1, places.len().max(1));
        let parts: Vec<Vec<usize>> = if count < nodes.len() {
            cut(&nodes.concat(), count)
        } else {
            let shares = shares(&nodes, count);
            nodes.iter().zip(shares).flat_map(|(rails, share)| cut(rails, share)).collect()
        };
        parts.into_iter().map(|rails| self.worker_group(rails, places)).collect()
    }

    /// The rails of each node, in the order of the PCI tree, so that rails of a switch are
    /// adjacent.
    fn by_node(&self, places: &[Option<PciAddress>]) -> Vec<Vec<usize>> {
        // If there is only one node, an unknown place is on it.
        let node = |rail: &usize| self.node_of(places[*rail]).filter(|_| self.nodes.len() != 1);
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by_key(|rail| {
            let device = self.device(places[*rail]);
            let tree = device.map(|device| (&device.root, &device.bridges, device.address));
            (node(rail).unwrap_or(u32::MAX), tree)
        });
        order.chunk_by(|a, b| node(a) == node(b)).map(<[usize]>::to_vec).collect()
    }

    fn worker_group(&self, rails: Vec<usize>, places: &[Option<PciAddress>]) -> WorkerGroup {
        let nodes: Vec<Option<u32>> = rails.iter().map(|rail| self.node_of(places[*rail])).collect();
        let node = nodes.first().copied().flatten().filter(|first| nodes.iter().all(|n| *n == Some(*first)));
        let near = nodes.iter().fold(CpuSet::default(), |near, node| near.or(&self.cpus_near(*node)));
        let ours = near.and(&self.affinity);
        let narrower = self.nodes.len() > 1 && !nodes.contains(&None) && !ours.is_empty();
        WorkerGroup { rails, node, cpus: narrower.then_some(ours) }
    }
}

/// The number of workers of each node, at least one and at most its rails: each further worker goes
/// to the node with the most rails per worker.
fn shares(nodes: &[Vec<usize>], count: usize) -> Vec<usize> {
    let mut shares = vec![1; nodes.len()];
    for _ in nodes.len()..count {
        let load = |n: &usize| (nodes[*n].len() * 1000 / shares[*n], std::cmp::Reverse(*n));
        if let Some(most) = (0..nodes.len()).max_by_key(load) {
            shares[most] += 1;
        }
    }
    shares
}

fn cut(rails: &[usize], pieces: usize) -> Vec<Vec<usize>> {
    let bound = |piece: usize| rails.len() * piece / pieces;
    (0..pieces)
        .map(|piece| rails[bound(piece)..bound(piece + 1)].to_vec())
        .filter(|p| !p.is_empty())
        .collect()
}
