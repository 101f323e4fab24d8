//! Machines for tests, as folders with their sysfs and procfs.

use super::read::Root;
use super::Machine;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub const BRIDGE: u32 = 0x060400;
pub const GPU_3D: u32 = 0x030200;
pub const VGA: u32 = 0x030000;
pub const ETHERNET: u32 = 0x020000;
pub const INFINIBAND: u32 = 0x020700;
pub const NVME: u32 = 0x010802;

pub struct Tree {
    folder: TempDir,
    /// The path of each function in sys/devices.
    paths: BTreeMap<String, String>,
}

impl Tree {
    pub fn new() -> Tree {
        Tree { folder: tempfile::tempdir().unwrap(), paths: BTreeMap::new() }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn machine(&self) -> Machine {
        Machine::read(Root::at(self.path()))
    }

    pub fn file(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn link(&self, path: &str, to: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(to, path).unwrap();
    }

    /// NUMA nodes with these CPUs, 21 apart.
    pub fn nodes(&self, cpus: &[&str]) {
        for (i, list) in cpus.iter().enumerate() {
            let row: Vec<&str> = (0..cpus.len()).map(|to| if to == i { "10" } else { "21" }).collect();
            self.file(&format!("sys/devices/system/node/node{i}/cpulist"), format!("{list}\n"));
            self.file(&format!("sys/devices/system/node/node{i}/distance"), row.join(" ") + "\n");
        }
        self.file("sys/devices/system/cpu/online", cpus.join(",") + "\n");
    }

    pub fn affinity(&self, cpus: &str) {
        self.file("proc/self/status", format!("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\n"));
    }

    /// Adds a function at a path like "pci0000:44/0000:44:00.0/0000:45:00.0".
    pub fn function(&mut self, path: &str, class: u32, vendor: u16, device: u16, node: i32) {
        let address = path.rsplit('/').next().unwrap();
        let folder = format!("sys/devices/{path}");
        self.file(&format!("{folder}/class"), format!("0x{class:06x}\n"));
        self.file(&format!("{folder}/vendor"), format!("0x{vendor:04x}\n"));
        self.file(&format!("{folder}/device"), format!("0x{device:04x}\n"));
        self.file(&format!("{folder}/numa_node"), format!("{node}\n"));
        self.file(&format!("{folder}/current_link_speed"), "32.0 GT/s PCIe\n");
        self.file(&format!("{folder}/current_link_width"), "16\n");
        self.link(&format!("sys/bus/pci/devices/{address}"), &format!("../../../devices/{path}"));
        self.paths.insert(address.to_owned(), path.to_owned());
    }

    fn member(&self, class: &str, name: &str, pci: Option<&str>) -> String {
        let above = pci.map_or("virtual", |pci| &self.paths[pci]);
        let folder = format!("sys/devices/{above}/{class}/{name}");
        self.link(&format!("sys/class/{class}/{name}"), &folder.replacen("sys", "../..", 1));
        folder
    }

    pub fn net(&mut self, name: &str, pci: Option<&str>, state: &str) {
        let folder = self.member("net", name, pci);
        self.file(&format!("{folder}/operstate"), format!("{state}\n"));
        self.file(&format!("{folder}/speed"), if pci.is_some() { "100000\n" } else { "-1\n" });
    }

    pub fn rdma(&mut self, name: &str, pci: &str) {
        let folder = self.member("infiniband", name, Some(pci));
        self.file(&format!("{folder}/ports/1/state"), "4: ACTIVE\n");
        self.file(&format!("{folder}/ports/1/rate"), "400 Gb/sec (4X NDR)\n");
    }

    pub fn nvme(&mut self, name: &str, pci: &str) {
        self.member("nvme", name, Some(pci));
    }

    pub fn nvidia(&self, address: &str, uuid: &str) {
        let text = format!("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:  17\nGPU UUID: \t {uuid}\n");
        self.file(&format!("proc/driver/nvidia/gpus/{address}/information"), text);
    }

    /// All files and links, in a fixed order.
    pub fn files(&self) -> Vec<PathBuf> {
        let (mut files, mut folders) = (Vec::new(), vec![self.path().to_owned()]);
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                match entry.file_type().unwrap().is_dir() {
                    true => folders.push(entry.path()),
                    false => files.push(entry.path()),
                }
            }
        }
        files.sort();
        files
    }
}

/// Bus of the root complex above a GPU of a p5.
fn p5_base(gpu: usize) -> usize {
    0x44 + 0x11 * gpu
}

pub fn p5_gpu(gpu: usize) -> String {
    format!("0000:{:02x}:00.0", p5_base(gpu) + 15)
}

pub fn p5_nics_of_gpu(gpu: usize) -> [String; 4] {
    [11, 12, 13, 14].map(|i| format!("rdmap{}s0", p5_base(gpu) + i))
}

/// 2 nodes of 48 CPUs, each with 4 PCI switches, each with a GPU, 4 EFA NICs and
/// a drive; and the host's own network and console.
pub fn p5() -> Tree {
    let mut tree = Tree::new();
    tree.nodes(&["0-47", "48-95"]);
    tree.function("pci0000:00/0000:00:03.0", VGA, 0x1d0f, 0x1111, 0);
    tree.function("pci0000:00/0000:00:05.0", ETHERNET, 0x1d0f, 0xec20, 0);
    tree.net("lo", None, "unknown");
    tree.net("ens32", Some("0000:00:05.0"), "up");
    for gpu in 0..8 {
        let (base, node) = (p5_base(gpu), gpu as i32 / 4);
        let above = format!("pci0000:{base:02x}/0000:{base:02x}:00.0/0000:{:02x}:00.0", base + 1);
        let upstream = above.rsplit_once('/').unwrap().0;
        tree.function(upstream, BRIDGE, 0x1d0f, 0x0200, node);
        tree.function(&above, BRIDGE, 0x1d0f, 0x0200, node);
        let below = |tree: &mut Tree, i: usize, class, vendor, device| {
            let port = format!("{above}/0000:{:02x}:{:02x}.0", base + 2, i);
            tree.function(&port, BRIDGE, 0x1d0f, 0x0200, node);
            let address = format!("0000:{:02x}:00.0", base + 11 + i);
            tree.function(&format!("{port}/{address}"), class, vendor, device, node);
            address
        };
        for (i, name) in p5_nics_of_gpu(gpu).iter().enumerate() {
            let address = below(&mut tree, i, ETHERNET, 0x1d0f, 0xefa2);
            tree.rdma(name, &address);
        }
        assert_eq!(below(&mut tree, 4, GPU_3D, 0x10de, 0x2330), p5_gpu(gpu));
        let drive = below(&mut tree, 5, NVME, 0x1d0f, 0xcd01);
        tree.nvme(&format!("nvme{}", gpu + 1), &drive);
    }
    tree
}

/// 2 sockets of 56 cores with 2 threads each; each has 2 switches of 2 GPUs and 2 NICs,
/// and a NIC at a root complex of its own.
pub fn dgx() -> Tree {
    let mut tree = Tree::new();
    tree.nodes(&["0-55,112-167", "56-111,168-223"]);
    tree.function("pci0000:00/0000:00:1f.0", VGA, 0x1a03, 0x2000, 0);
    for switch in 0..4 {
        let (bus, node) = (0x10 + 0x20 * switch, switch / 2);
        let root = format!("pci0000:{bus:02x}/0000:{bus:02x}:01.0");
        tree.function(&root, BRIDGE, 0x8086, 0x352a, -1);
        let up = format!("{root}/0000:{:02x}:00.0", bus + 1);
        tree.function(&up, BRIDGE, 0x1000, 0xc030, node);
        for i in 0..4 {
            let port = format!("{up}/0000:{:02x}:{i:02x}.0", bus + 2);
            tree.function(&port, BRIDGE, 0x1000, 0xc030, node);
            let address = format!("0000:{:02x}:00.0", bus + 3 + i);
            match i {
                0 | 1 => tree.function(&format!("{port}/{address}"), GPU_3D, 0x10de, 0x2330, -1),
                _ => {
                    tree.function(&format!("{port}/{address}"), INFINIBAND, 0x15b3, 0x1021, node);
                    tree.rdma(&format!("mlx5_{}", 2 * switch + i - 2), &address);
                }
            }
        }
    }
    for node in 0..2 {
        let bus = 0xa0 + 0x10 * node;
        let port = format!("pci0000:{bus:02x}/0000:{bus:02x}:02.0");
        tree.function(&port, BRIDGE, 0x8086, 0x352b, node);
        let address = format!("0000:{:02x}:00.0", bus + 1);
        tree.function(&format!("{port}/{address}"), INFINIBAND, 0x15b3, 0x1021, node);
        tree.rdma(&format!("mlx5_{}", 8 + node), &address);
    }
    tree
}

/// One node, and firmware that reports no node of any device.
pub fn laptop() -> Tree {
    let mut tree = Tree::new();
    tree.nodes(&["0-7"]);
    tree.function("pci0000:00/0000:00:02.0", VGA, 0x8086, 0x9a49, -1);
    tree.function("pci0000:00/0000:00:1d.0", BRIDGE, 0x8086, 0xa0b0, -1);
    tree.function("pci0000:00/0000:00:1d.0/0000:01:00.0", NVME, 0x144d, 0xa80a, -1);
    tree.function("pci0000:00/0000:00:14.3", 0x028000, 0x8086, 0xa0f0, -1);
    tree.nvme("nvme0", "0000:01:00.0");
    tree.net("lo", None, "unknown");
    tree.net("wlp0s20f3", Some("0000:00:14.3"), "up");
    tree.net("docker0", None, "down");
    tree.net("tun0", None, "unknown");
    tree
}
