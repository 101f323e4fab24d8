//! NUMA nodes: their CPUs and distances.

use super::cpus::CpuSet;
use super::read::Root;

/// Firmware's distance of a node to itself, and the default between two nodes.
pub const LOCAL: u32 = 10;
const REMOTE: u32 = 20;

#[derive(Clone, Debug)]
pub struct Node {
    pub id: u32,
    /// Its CPUs that are online.
    pub cpus: CpuSet,
    /// Distances to each node, in the order of their numbers.
    distances: Vec<u32>,
}

const FOLDER: &str = "sys/devices/system/node";

pub fn read(root: &Root, online: &CpuSet) -> Vec<Node> {
    let names = root.names(FOLDER);
    let mut ids: Vec<u32> = names.iter().filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect();
    ids.sort_unstable();
    ids.dedup();
    ids.iter().map(|id| node(root, *id, online)).collect()
}

fn node(root: &Root, id: u32, online: &CpuSet) -> Node {
    let text = |file: &str| root.text(&format!("{FOLDER}/node{id}/{file}")).unwrap_or_default();
    let listed = CpuSet::parse(&text("cpulist"));
    let cpus = if online.is_empty() { listed } else { listed.and(online) };
    // A malformed distance keeps its index.
    let distances = text("distance").split_whitespace().map(|d| d.parse().unwrap_or(REMOTE)).collect();
    Node { id, cpus, distances }
}

pub fn distance(nodes: &[Node], a: u32, b: u32) -> u32 {
    if a == b {
        return LOCAL;
    }
    let place = |id| nodes.iter().position(|node| node.id == id);
    let (Some(from), Some(to)) = (place(a), place(b)) else { return REMOTE };
    let row = &nodes[from].distances;
    if row.len() == nodes.len() {
        row[to]
    } else {
        REMOTE
    }
}
