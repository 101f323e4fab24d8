//! The link of an open NIC, as the kernel reports it: asked for again and again, so an answer is a few
//! reads of sysfs that no driver turns into a command to its NIC, where there is an interface to ask.

use super::interfaces::{has_active_port, is_down, states_of_ports, RDMA};
use super::read::Root;

const VERBS: &str = "sys/class/infiniband_verbs";

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum State {
    /// It carries, or nothing else is known.
    #[default]
    Up,
    /// The port or the interface has no link.
    Down,
    /// The device is gone. One of the same name is another device.
    Removed,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Up => "up",
            State::Down => "down",
            State::Removed => "removed",
        }
    }

    /// The error with which lanes over it fail.
    pub fn errno(self) -> i32 {
        match self {
            State::Up => 0,
            State::Down => libc::ENETDOWN,
            State::Removed => libc::ENODEV,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Link {
    root: Root,
    name: String,
    /// The network interface that has the NIC's port, if there is one.
    interface: Option<String>,
    device: Option<Device>,
}

/// An RDMA device.
#[derive(Clone, Debug)]
struct Device {
    /// The files with the states of its ports.
    ports: Vec<String>,
    /// What user space opens of it, which goes first, and the number of that folder, which no later one has.
    node: String,
    number: Option<u64>,
}

impl Link {
    /// The link of a network interface, or of an RDMA device.
    pub fn find(root: Root, name: &str) -> Link {
        let device = Device::find(&root, name);
        let interface = match &device {
            Some(_) => interface_of(&root, name),
            None => Some(name.to_owned()),
        };
        Link { root, name: name.to_owned(), interface, device }
    }

    /// The link of the RDMA device that has the name now, once user space can open it.
    pub fn again(&self) -> Option<Link> {
        let link = Link::find(self.root.clone(), &self.name);
        link.device.as_ref().is_some_and(|device| device.node.starts_with(VERBS)).then_some(link)
    }

    pub fn state(&self) -> State {
        if self.device.as_ref().is_some_and(|device| device.is_removed(&self.root)) {
            return State::Removed;
        }
        let down = match (&self.interface, &self.device) {
            (Some(interface), _) => is_down(&self.root, interface),
            (None, Some(device)) => !has_active_port(&self.root, &device.ports),
            (None, None) => false,
        };
        if down {
            State::Down
        } else {
            State::Up
        }
    }
}

impl Device {
    fn find(root: &Root, name: &str) -> Option<Device> {
        let own = format!("{RDMA}/{name}");
        root.number_of(&own)?;
        let named = |node: &String| root.text(&format!("{node}/ibdev")).is_some_and(|device| device == name);
        let node = root.names(VERBS).iter().map(|node| format!("{VERBS}/{node}")).find(named).unwrap_or(own);
        Some(Device { ports: states_of_ports(root, name), number: root.number_of(&node), node })
    }

    fn is_removed(&self, root: &Root) -> bool {
        root.number_of(&self.node) != self.number
    }
}

/// The interface of a RoCE device: the first that its table of addresses (GIDs) names.
fn interface_of(root: &Root, device: &str) -> Option<String> {
    let ports = format!("{RDMA}/{device}/ports");
    let table = format!("{ports}/{}/gid_attrs/ndevs", root.names(&ports).first()?);
    // (An entry that is free cannot be read; there may be a thousand.)
    (0..root.names(&table).len().min(GIDS))
        .filter_map(|entry| root.text(&format!("{table}/{entry}")))
        .find(|name| !name.is_empty())
}

/// The most entries that are read. Those of the interface itself are the first.
const GIDS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::trees::Tree;
    use std::fs;

    const PCI: &str = "0000:01:00.0";

    fn tree() -> Tree {
        let mut tree = Tree::new();
        tree.function("pci0000:00/0000:01:00.0", 0x020000, 0x15b3, 0x1021, 0);
        tree.rdma("mlx5_0", PCI);
        tree.file("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
        tree
    }

    fn link(tree: &Tree, name: &str) -> Link {
        Link::find(Root::at(tree.path()), name)
    }

    #[test]
    fn port_of_a_device_without_an_interface_is_asked() {
        let tree = tree();
        let port = |text: &str| tree.file("sys/class/infiniband/mlx5_0/ports/1/state", text);
        let link = link(&tree, "mlx5_0");
        assert_eq!(link.state(), State::Up);
        for down in ["1: DOWN\n", "2: INIT\n"] {
            port(down);
            assert_eq!(link.state(), State::Down, "{down}");
        }
        port("4: ACTIVE\n");
        assert_eq!(link.state(), State::Up);
    }

    #[test]
    fn interface_of_a_roce_device_is_asked_in_its_place() {
        let mut tree = tree();
        tree.net("eth1", Some(PCI), "up");
        tree.file("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "");
        tree.file("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/1", "eth1\n");
        let link = link(&tree, "mlx5_0");
        assert_eq!(link.state(), State::Up);
        tree.file("sys/class/net/eth1/carrier", "0\n");
        assert_eq!(link.state(), State::Down);
        tree.file("sys/class/net/eth1/carrier", "1\n");
        assert_eq!(link.state(), State::Up);
    }

    #[test]
    fn device_that_is_made_again_is_another() {
        let tree = tree();
        let (verbs, before) = (tree.path().join("sys/class/infiniband_verbs/uverbs0"), link(&tree, "mlx5_0"));
        // (The folder stays somewhere, so that no later one gets its number.)
        fs::rename(&verbs, tree.path().join("gone")).unwrap();
        assert_eq!((before.state(), before.again().is_some()), (State::Removed, false));
        tree.file("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
        assert_eq!(before.state(), State::Removed);
        assert_eq!(before.again().map(|link| link.state()), Some(State::Up));
    }

    #[test]
    fn link_of_what_is_not_known_is_up() {
        let tree = tree();
        assert_eq!(link(&tree, "sim0").state(), State::Up);
        let mut tree = tree;
        tree.net("eth7", None, "down");
        assert_eq!(link(&tree, "eth7").state(), State::Down);
    }
}
