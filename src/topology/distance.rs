//! How far devices are from each other and from NUMA nodes.

use super::pci::Device;
use super::{nodes, Machine};
use std::cmp::Reverse;

/// Nearest first. An unknown node counts as the same node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// A common bridge, by its depth: deeper is nearer.
    Switch(Reverse<usize>),
    /// The same root complex.
    Root,
    /// The same NUMA node.
    Node,
    /// Another node, at the distance that firmware reports.
    Far(u32),
}

impl Distance {
    pub fn name(self) -> &'static str {
        match self {
            Distance::Switch(_) => "switch",
            Distance::Root => "root",
            Distance::Node => "node",
            Distance::Far(_) => "far",
        }
    }
}

impl Machine {
    pub fn distance(&self, a: &Device, b: &Device) -> Distance {
        let same_root = !a.root.is_empty() && a.root == b.root;
        let shared = a.bridges.iter().zip(&b.bridges).take_while(|(a, b)| a == b).count();
        if shared > 0 {
            return Distance::Switch(Reverse(shared));
        }
        match (a.node, b.node) {
            (Some(a), Some(b)) if a != b => Distance::Far(nodes::distance(&self.nodes, a, b)),
            _ if same_root => Distance::Root,
            _ => Distance::Node,
        }
    }

    pub fn distance_from_node(&self, node: u32, device: &Device) -> Distance {
        match device.node {
            Some(own) if own != node => Distance::Far(nodes::distance(&self.nodes, node, own)),
            _ => Distance::Node,
        }
    }
}
