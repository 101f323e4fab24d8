//! Machines read from whole sysfs trees, and the choices that follow.

use crate::topology::cpus::CpuSet;
use crate::topology::distance::Distance;
use crate::topology::json::{Rail, Rails};
use crate::topology::network::Network;
use crate::topology::pci::{Device, Kind, PciAddress};
use crate::topology::trees::{self, Tree};
use crate::topology::worker_groups::WorkerGroup;
use crate::topology::{interfaces, Machine};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs;

fn at(address: &str) -> Option<PciAddress> {
    Some(PciAddress::parse(address).unwrap())
}

fn device<'a>(machine: &'a Machine, address: &str) -> &'a Device {
    machine.device(at(address)).unwrap()
}

fn of_kind(machine: &Machine, kind: Kind) -> Vec<&Device> {
    machine.devices.iter().filter(|device| device.kind == kind).collect()
}

/// The RDMA devices, else the network interfaces, as an endpoint finds them.
fn nics(machine: &Machine) -> (Vec<String>, Vec<Option<PciAddress>>) {
    let found = super::choice::guess(machine, &Network::default());
    found.into_iter().map(|nic| (nic.name.trim_end_matches("-rdm").to_owned(), nic.pci)).unzip()
}

fn near(machine: &Machine, visible: Option<&str>) -> Vec<String> {
    let (names, places) = nics(machine);
    let near = machine.near_this_process(&places, visible);
    names.into_iter().zip(near.which).filter(|(_, near)| *near).map(|(name, _)| name).collect()
}

fn groups(machine: &Machine, wanted: usize) -> Vec<WorkerGroup> {
    machine.worker_groups(&nics(machine).1, wanted)
}

fn json(machine: &Machine, visible: Option<&str>) -> serde_json::Value {
    let (names, places) = nics(machine);
    let workers = machine.worker_groups(&places, 0);
    let rail = |(name, pci)| Rail { fabric: "tcp".into(), name, pci };
    let list = names.into_iter().zip(places).map(rail).collect();
    let rails = Rails { source: "sysfs", why: "a test".into(), list, workers, interfaces: Vec::new() };
    serde_json::from_str(&machine.json(rails, visible).unwrap()).unwrap()
}

// An AWS p5 instance.

#[test]
fn p5_topology_is_parsed() {
    let machine = trees::p5().machine();
    assert_eq!((machine.nodes.len(), machine.online.len()), (2, 96));
    assert_eq!(machine.affinity, machine.online);
    assert_eq!(of_kind(&machine, Kind::Gpu).len(), 8);
    assert_eq!(of_kind(&machine, Kind::Nic).len(), 33);
    assert_eq!(of_kind(&machine, Kind::Nvme).len(), 8);
    assert_eq!(of_kind(&machine, Kind::Display).len(), 1);
    let gpu = device(&machine, "0000:53:00.0");
    assert_eq!((gpu.node, gpu.root.as_str()), (Some(0), "pci0000:44"));
    assert_eq!(
        gpu.bridges.iter().map(PciAddress::to_string).collect::<Vec<_>>(),
        ["0000:44:00.0", "0000:45:00.0", "0000:46:04.0"]
    );
    assert_eq!(machine.place_of(&["nosuch", "rdmap79s0"]), at("0000:4f:00.0"));
    assert_eq!(machine.place_of(&["lo"]), None);
}

#[test]
fn pci_distances_are_ordered() {
    let machine = trees::p5().machine();
    let gpu = device(&machine, "0000:53:00.0");
    let to = |address: &str| machine.distance(gpu, device(&machine, address));
    assert_eq!(to("0000:4f:00.0"), Distance::Switch(Reverse(2)));
    assert_eq!(to("0000:60:00.0"), Distance::Node);
    assert_eq!(to("0000:93:00.0"), Distance::Far(21));
    assert_eq!(machine.distance_from_node(1, gpu), Distance::Far(21));
    assert_eq!(machine.distance_from_node(0, gpu), Distance::Node);
    let console = device(&machine, "0000:00:03.0");
    assert_eq!(machine.distance(console, device(&machine, "0000:00:05.0")), Distance::Root);
    let order = [
        Distance::Switch(Reverse(3)),
        Distance::Switch(Reverse(1)),
        Distance::Root,
        Distance::Node,
        Distance::Far(12),
        Distance::Far(21),
    ];
    assert!(order.is_sorted());
}

#[test]
fn p5_ranks_get_the_nics_of_their_gpu() {
    let tree = trees::p5();
    let machine = tree.machine();
    assert_eq!(near(&machine, None).len(), 32);
    let mut seen = BTreeSet::new();
    for gpu in 0..8 {
        let ours = near(&machine, Some(&gpu.to_string()));
        assert_eq!(ours, trees::p5_nics_of_gpu(gpu));
        seen.extend(ours);
    }
    assert_eq!(seen.len(), 32);
    let node: Vec<String> = (4..8).flat_map(trees::p5_nics_of_gpu).collect();
    for mask in ["48-95", "60", "50-55,90"] {
        tree.affinity(mask);
        assert_eq!(near(&tree.machine(), None), node, "{mask}");
    }
    // A visible GPU takes precedence over the CPU mask.
    assert_eq!(near(&tree.machine(), Some("1")), trees::p5_nics_of_gpu(1));
    // If every GPU is visible, or none, or the value is invalid, the CPU mask decides.
    for visible in ["0,1,2,3,4,5,6,7", "", "-1", "NoDevFiles", "99", "GPU-12345678", "MIG-1", "x,0"] {
        assert_eq!(near(&tree.machine(), Some(visible)), node, "{visible}");
    }
    tree.affinity("0-95");
    assert_eq!(near(&tree.machine(), None).len(), 32);
    tree.affinity("47-48");
    assert_eq!(near(&tree.machine(), None).len(), 32);
}

#[test]
fn p5_gpu_has_four_near_nics() {
    let machine = trees::p5().machine();
    let (mut names, mut places) = nics(&machine);
    names.push("nowhere".into());
    places.push(None);
    for gpu in 0..8 {
        let near = machine.near_device(&places, device(&machine, &trees::p5_gpu(gpu)));
        let near: Vec<&String> =
            names.iter().zip(near).filter(|(_, near)| *near).map(|(name, _)| name).collect();
        assert_eq!(near[..4], trees::p5_nics_of_gpu(gpu).iter().collect::<Vec<_>>(), "{gpu}");
        assert_eq!(near[4..], ["nowhere"]);
    }
}

#[test]
fn visible_gpus_end_at_the_first_invalid_entry() {
    let machine = trees::p5().machine();
    let left = |visible: &str| {
        let left = machine.gpus_left(Some(visible)).unwrap_or_default();
        left.iter().map(PciAddress::to_string).collect::<Vec<_>>()
    };
    assert_eq!(left("2, 0"), [trees::p5_gpu(2), trees::p5_gpu(0)]);
    assert_eq!(left("2,2"), [trees::p5_gpu(2)]);
    assert_eq!(left("3,-1,0"), [trees::p5_gpu(3)]);
    assert_eq!(left("3,8,0"), [trees::p5_gpu(3)]);
    // GPUs that other processes hold have no number.
    let mut tree = trees::p5();
    tree.function("pci0000:00/0000:00:02.0", trees::VGA, 0x8086, 0x9a49, 0);
    assert_eq!(tree.machine().gpus().count(), 9);
    assert_eq!(tree.machine().gpus_left(Some("0")), Some(vec![at(&trees::p5_gpu(0)).unwrap()]));
}

#[test]
fn device_without_a_pci_address_is_near_everything() {
    let machine = trees::p5().machine();
    let places = [None, machine.place_of(&["rdmap198s0"]), machine.place_of(&["rdmap79s0"]), None];
    assert_eq!(machine.near_this_process(&places, Some("0")).which, [true, false, true, true]);
}

#[test]
fn node_without_cpus_does_not_restrict_workers() {
    let mut tree = Tree::new();
    tree.nodes(&["0-3", ""]);
    tree.function("pci0000:01/0000:01:00.0", trees::ETHERNET, 0x15b3, 0x1021, 0);
    tree.function("pci0000:02/0000:02:00.0", trees::ETHERNET, 0x15b3, 0x1021, 1);
    tree.net("eth1", Some("0000:01:00.0"), "up");
    tree.net("eth2", Some("0000:02:00.0"), "lowerlayerdown");
    assert_eq!(near(&tree.machine(), None), ["eth1"], "the other is down");
    tree.file("sys/class/net/eth2/operstate", "up");
    tree.affinity("2");
    assert_eq!(near(&tree.machine(), None), ["eth1", "eth2"]);
}

#[test]
fn nodes_with_more_rails_get_more_workers() {
    let mut tree = Tree::new();
    tree.nodes(&["0-3", "4-7"]);
    for bus in 0..8 {
        let address = format!("0000:{bus:02x}:00.0");
        let path = format!("pci0000:{bus:02x}/{address}");
        tree.function(&path, trees::ETHERNET, 0x15b3, 0x1021, (bus > 1) as i32);
        tree.net(&format!("eth{bus}"), Some(&address), "up");
    }
    let groups = groups(&tree.machine(), 0);
    let rails: Vec<&[usize]> = groups.iter().map(|group| &group.rails[..]).collect();
    assert_eq!(rails, [&[0, 1][..], &[2, 3, 4], &[5, 6, 7]]);
}

#[test]
fn container_with_some_gpus_is_parsed() {
    let tree = trees::p5();
    tree.nvidia(&trees::p5_gpu(3), "GPU-aaaa-3");
    assert_eq!(near(&tree.machine(), None), trees::p5_nics_of_gpu(3));
    assert_eq!(near(&tree.machine(), Some("MIG-1")), trees::p5_nics_of_gpu(3), "a part of that one");
    tree.nvidia(&trees::p5_gpu(6), "GPU-abbb-6");
    let machine = tree.machine();
    assert_eq!(near(&machine, None).len(), 8);
    // CUDA numbers only the visible GPUs.
    assert_eq!(near(&machine, Some("1")), trees::p5_nics_of_gpu(6));
    assert_eq!(near(&machine, Some("GPU-ab")), trees::p5_nics_of_gpu(6));
    assert_eq!(near(&machine, Some("GPU-aaaa-3")), trees::p5_nics_of_gpu(3));
    assert_eq!(near(&machine, Some("GPU-a")).len(), 8, "two begin like that");
    let seen = json(&machine, Some("1"));
    let gpus: Vec<&serde_json::Value> =
        seen["devices"].as_array().unwrap().iter().filter(|d| d["usable"] == true).collect();
    assert_eq!(gpus.len(), 1);
    assert_eq!(gpus[0]["name"], "NVIDIA H100 80GB HBM3");
}

#[test]
fn p5_gets_one_worker_per_four_rails() {
    let tree = trees::p5();
    let machine = tree.machine();
    let (names, eight) = (nics(&machine).0, groups(&machine, 0));
    assert_eq!(eight.len(), 8);
    for (i, group) in eight.iter().enumerate() {
        assert_eq!(group.rails.iter().map(|rail| &names[*rail]).collect::<Vec<_>>(), {
            trees::p5_nics_of_gpu(i).iter().collect::<Vec<_>>()
        });
        assert_eq!(group.node, Some(i as u32 / 4));
        assert_eq!(group.cpus.as_ref().unwrap().to_string(), ["0-47", "48-95"][i / 4]);
    }
    tree.affinity("40-55");
    let machine = tree.machine();
    let cpus: BTreeSet<String> =
        groups(&machine, 0).iter().map(|c| c.cpus.clone().unwrap().to_string()).collect();
    assert_eq!(cpus, BTreeSet::from(["40-47".to_owned(), "48-55".to_owned()]));
    // There are fewer workers than CPUs, but at least one.
    for (mask, count) in [("0-3,48-49", 5), ("0,48", 1), ("7", 1)] {
        tree.affinity(mask);
        assert_eq!(groups(&tree.machine(), 0).len(), count, "{mask}");
    }
    // No CPU of the rails' node is allowed: the thread runs on any allowed one.
    tree.affinity("0-9");
    let machine = tree.machine();
    let places = [machine.place_of(&["rdmap198s0"])];
    assert_eq!(machine.worker_groups(&places, 0)[0].cpus, None);
    assert_eq!(machine.worker_groups(&places, 0)[0].node, Some(1));
}

#[test]
fn requested_worker_count_is_kept() {
    let machine = trees::p5().machine();
    for wanted in 1..=64 {
        let groups = groups(&machine, wanted);
        assert_eq!(groups.len(), wanted.min(32));
        let mut all: Vec<usize> = groups.iter().flat_map(|group| group.rails.clone()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..32).collect::<Vec<_>>(), "{wanted}");
        for node in [Some(0), Some(1)] {
            let of_node = groups.iter().filter(|group| group.node == node);
            let sizes: BTreeSet<usize> = of_node.map(|group| group.rails.len()).collect();
            assert!(sizes.is_empty() || sizes.last().unwrap() - sizes.first().unwrap() <= 1, "{wanted}");
        }
        assert_eq!(groups.iter().all(|group| group.node.is_some()), wanted > 1, "{wanted}");
    }
    assert_eq!(groups(&machine, 1)[0].cpus.as_ref().unwrap().to_string(), "0-95");
    assert_eq!(machine.worker_groups(&[], 3), []);
}

#[test]
fn rails_that_share_a_nic_share_a_worker() {
    let machine = trees::p5().machine();
    let (a, b) = (machine.place_of(&["rdmap79s0"]), machine.place_of(&["rdmap198s0"]));
    let groups = machine.worker_groups(&[b, a, None, b, a, None], 3);
    let rails: Vec<&[usize]> = groups.iter().map(|group| &group.rails[..]).collect();
    assert_eq!(rails, [&[1, 4][..], &[0, 3], &[2, 5]]);
    assert_eq!((groups[2].node, &groups[2].cpus), (None, &None));
}

// Other machines.

#[test]
fn two_gpus_per_switch_and_nics_without_gpus_are_parsed() {
    let tree = trees::dgx();
    let machine = tree.machine();
    assert_eq!(of_kind(&machine, Kind::Gpu).len(), 8);
    assert_eq!(of_kind(&machine, Kind::Nic).len(), 10);
    assert_eq!(device(&machine, "0000:13:00.0").node, Some(0), "from the switch above");
    assert_eq!(device(&machine, "0000:10:01.0").node, None);
    for gpu in 0..8 {
        let switch = gpu / 2;
        let names = [format!("mlx5_{}", 2 * switch), format!("mlx5_{}", 2 * switch + 1)];
        assert_eq!(near(&machine, Some(&gpu.to_string())), names, "{gpu}");
    }
    let seen = json(&machine, None);
    let device = |address: &str| {
        let all = seen["devices"].as_array().unwrap();
        all.iter().find(|device| device["address"] == address).unwrap().clone()
    };
    assert_eq!(device("0000:15:00.0")["near_gpus"], serde_json::json!(["0000:13:00.0", "0000:14:00.0"]));
    assert_eq!(device("0000:a1:00.0")["gpu_distance"], "node");
    assert_eq!(device("0000:a1:00.0")["near_gpus"].as_array().unwrap().len(), 4);
    assert_eq!(device("0000:a1:00.0")["near_cpus"], "0-55,112-167");
    let groups = groups(&machine, 0);
    let sizes: Vec<(usize, Option<u32>)> = groups.iter().map(|c| (c.rails.len(), c.node)).collect();
    assert_eq!(sizes, [(2, Some(0)), (3, Some(0)), (2, Some(1)), (3, Some(1))]);
    tree.affinity("56-60");
    assert_eq!(near(&tree.machine(), None), ["mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_9"]);
}

#[test]
fn laptop_is_one_node() {
    let tree = trees::laptop();
    tree.affinity("2-3");
    let machine = tree.machine();
    assert_eq!(nics(&machine).0, ["lo", "tun0", "wlp0s20f3"]);
    assert_eq!(near(&machine, Some("0")), ["lo", "tun0", "wlp0s20f3"]);
    assert_eq!(groups(&machine, 0), [WorkerGroup { rails: vec![0, 1, 2], node: None, cpus: None }]);
    // Naming the only node in the firmware makes no difference.
    fs::write(tree.path().join("sys/bus/pci/devices/0000:00:14.3/numa_node"), "0\n").unwrap();
    let told = tree.machine();
    assert_eq!(
        told.worker_groups(&[at("0000:00:14.3")], 0),
        [WorkerGroup { rails: vec![0], node: Some(0), cpus: None }]
    );
    assert_eq!(groups(&tree.machine(), 0), [WorkerGroup { rails: vec![0, 1, 2], node: None, cpus: None }]);
    assert_eq!(device(&machine, "0000:00:02.0").kind, Kind::Gpu);
    assert!(machine
        .interfaces
        .iter()
        .any(|i| i.name == "docker0" && !i.up && i.kind == interfaces::Type::Net));
}

#[test]
fn missing_node_information_restricts_nothing() {
    let tree = trees::p5();
    for file in tree.files().iter().filter(|file| file.ends_with("numa_node")) {
        fs::write(file, "-1\n").unwrap();
    }
    tree.affinity("0-3");
    let machine = tree.machine();
    assert!(machine.devices.iter().all(|device| device.node.is_none()));
    assert_eq!(near(&machine, None).len(), 32, "near all");
    assert_eq!(near(&machine, Some("5")), trees::p5_nics_of_gpu(5), "the switch is still known");
    assert!(groups(&machine, 4).iter().all(|group| group.node.is_none() && group.cpus.is_none()));
    assert_eq!(machine.cpus_near(None), machine.online);
}

#[test]
fn node_without_nics_uses_those_of_another_node() {
    let mut tree = Tree::new();
    tree.nodes(&["0-3", "4-7", "8-11"]);
    tree.file("sys/devices/system/node/node1/distance", "12 10 30\n");
    for (bus, node) in [(1, 0), (2, 2)] {
        let address = format!("0000:{bus:02x}:00.0");
        tree.function(&format!("pci0000:{bus:02x}/{address}"), trees::ETHERNET, 0x15b3, 0x1021, node);
        tree.net(&format!("eth{bus}"), Some(&address), "up");
    }
    tree.affinity("4-7");
    assert_eq!(near(&tree.machine(), None), ["eth1"]);
    tree.affinity("4-11");
    assert_eq!(near(&tree.machine(), None), ["eth1", "eth2"]);
    // A node that has only memory uses its neighbour's CPUs.
    tree.file("sys/devices/system/node/node1/cpulist", "\n");
    assert_eq!(tree.machine().cpus_near(Some(1)).to_string(), "0-3");
}

#[test]
fn offline_cpus_are_not_used() {
    let tree = trees::p5();
    tree.file("sys/devices/system/cpu/online", "0-3,50\n");
    tree.affinity("0-95");
    let machine = tree.machine();
    assert_eq!(machine.nodes[1].cpus.to_string(), "50");
    assert_eq!(machine.affinity.to_string(), "0-3,50");
    assert_eq!(groups(&machine, 0).len(), 4);
}

#[test]
fn empty_sysfs_is_one_node() {
    let tree = Tree::new();
    let machine = tree.machine();
    assert_eq!(machine.affinity, CpuSet::of_this_thread().unwrap());
    assert!(machine.devices.is_empty() && machine.nodes.is_empty() && machine.interfaces.is_empty());
    let places = vec![None, at("0000:01:00.0")];
    assert_eq!(machine.near_this_process(&places, Some("0")).which, [true, true]);
    let groups = machine.worker_groups(&places, 2);
    assert!(groups.len() == 2 && groups.iter().all(|group| group.cpus.is_none() && group.node.is_none()));
    assert_eq!(json(&machine, None)["devices"], serde_json::json!([]));
    let gone = Machine::read(crate::topology::read::Root::at("/no/such/folder"));
    assert!(gone.devices.is_empty() && !gone.affinity.is_empty());
}

#[test]
fn interface_of_a_virtual_device_is_placed_at_its_parent() {
    let mut tree = Tree::new();
    tree.function("pci0000:00/0000:00:03.0", trees::ETHERNET, 0x1af4, 0x1000, 0);
    tree.file("sys/devices/pci0000:00/0000:00:03.0/virtio2/uevent", "");
    // A directory of which only `device` is a link.
    tree.file("sys/class/net/eth0/operstate", "up\n");
    tree.link("sys/class/net/eth0/device", "../../../devices/pci0000:00/0000:00:03.0/virtio2");
    tree.link("sys/class/net/away/device", "/sys/devices/pci0000:00/0000:00:03.0");
    let machine = tree.machine();
    assert_eq!(machine.place_of(&["eth0"]), at("0000:00:03.0"));
    assert_eq!(machine.place_of(&["away"]), None);
}

#[test]
fn malformed_sysfs_is_ignored() {
    let tree = trees::p5();
    let rubbish: [&[u8]; 6] =
        [b"", b"\xff\xfe\x00rubbish", b"-99999999999999999999", b"0x", b"77", &[b'9'; 100_000]];
    for (i, file) in tree.files().iter().enumerate().filter(|(_, file)| !file.is_symlink()) {
        fs::write(file, rubbish[i % rubbish.len()]).unwrap();
    }
    tree.link("sys/bus/pci/devices/0000:zz:00.0", "../nowhere");
    tree.link("sys/bus/pci/devices/0000:ff:00.0", "pci:/pci:/0000:ff:00.0/../0000:fe:00.0");
    tree.link("sys/class/net/loop", "loop");
    tree.file("sys/devices/system/node/node4294967296/cpulist", "0\n");
    tree.file("sys/devices/system/node/nodex/cpulist", "0\n");
    tree.file("sys/bus/pci/devices/0000:fd:00.0/class/deep", "a folder where a file should be\n");
    let machine = tree.machine();
    exercise(&machine);
    assert!(machine.devices.iter().all(|device| device.node.is_none()));
    assert_eq!(machine.nodes.len(), 2);
}

#[test]
fn pipe_in_sysfs_does_not_block() {
    let tree = Tree::new();
    tree.file("sys/devices/system/cpu/x", "");
    let path = tree.path().join("sys/devices/system/cpu/online");
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the pointer is a NUL-terminated string.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    assert!(tree.machine().devices.is_empty());
}

/// Every query that Weft makes about a machine.
fn exercise(machine: &Machine) {
    let (names, mut places) = nics(machine);
    places.extend(machine.devices.iter().map(|device| Some(device.address)));
    for visible in [None, Some("0"), Some("7,3"), Some("GPU-1")] {
        let near = machine.near_this_process(&places, visible);
        assert_eq!(near.which.len(), places.len());
        assert!(places.is_empty() || near.which.contains(&true));
        let view = json(machine, visible);
        assert_eq!(view["rails"].as_array().unwrap().len(), names.len());
    }
    for wanted in 0..5 {
        let groups = machine.worker_groups(&places, wanted);
        assert!(groups.iter().all(|group| !group.rails.is_empty()));
        assert_eq!(groups.iter().map(|group| group.rails.len()).sum::<usize>(), places.len());
    }
}

#[test]
fn any_subset_of_sysfs_files_is_accepted() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for tree in [trees::p5(), trees::p5(), trees::dgx(), trees::laptop()] {
        tree.nvidia(&trees::p5_gpu(3), "GPU-aaaa-3");
        tree.affinity("0-15,48-50");
        let mut files = tree.files();
        while !files.is_empty() {
            exercise(&tree.machine());
            let gone = files.len().div_ceil(10);
            for _ in 0..gone {
                fs::remove_file(files.swap_remove(random() as usize % files.len())).unwrap();
            }
        }
        exercise(&tree.machine());
    }
}
