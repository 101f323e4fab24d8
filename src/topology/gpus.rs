//! Which of the machine's NVIDIA GPUs this process may use, without CUDA.
//!
//! In a container, NVIDIA's folder in /proc has the container's GPUs, while /sys has all of the
//! host's. CUDA_VISIBLE_DEVICES selects among the shown ones, by number (in the order of PCI
//! addresses) or by UUID.

use super::pci::{Device, Kind, PciAddress, NVIDIA};
use super::read::Root;
use super::Machine;

const FOLDER: &str = "proc/driver/nvidia/gpus";

/// A GPU that NVIDIA's driver shows.
#[derive(Clone, Debug)]
pub struct Shown {
    pub address: PciAddress,
    pub model: Option<String>,
    uuid: Option<String>,
}

/// Sorted by address.
pub fn read(root: &Root) -> Vec<Shown> {
    let names = root.names(FOLDER);
    let mut shown: Vec<Shown> =
        names.iter().filter_map(|name| Some(gpu(root, name, PciAddress::parse(name)?))).collect();
    shown.sort_by_key(|gpu| gpu.address);
    shown
}

fn gpu(root: &Root, name: &str, address: PciAddress) -> Shown {
    let text = root.text(&format!("{FOLDER}/{name}/information")).unwrap_or_default();
    let field = |title: &str| {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let mut values =
            lines.filter(|(key, _)| key.trim() == title).map(|(_, value)| value.trim().to_owned());
        values.find(|value| !value.is_empty())
    };
    Shown { address, model: field("Model"), uuid: field("GPU UUID") }
}

impl Machine {
    pub fn gpus(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(|device| device.kind == Kind::Gpu)
    }

    /// The GPUs that this process may use; `None` if that is all or none of the machine's.
    /// `visible` is CUDA_VISIBLE_DEVICES.
    pub fn gpus_left(&self, visible: Option<&str>) -> Option<Vec<PciAddress>> {
        let all: Vec<PciAddress> =
            self.gpus().filter(|gpu| gpu.vendor == NVIDIA).map(|gpu| gpu.address).collect();
        let shown = |address: &PciAddress| self.shown.iter().any(|gpu| gpu.address == *address);
        let mut left: Vec<PciAddress> = all.iter().copied().filter(shown).collect();
        if left.is_empty() {
            left = all.clone(); // Without the driver or its folder, no GPU is hidden.
        }
        if let Some(picked) = visible.and_then(|visible| self.picked(&left, visible)) {
            left = picked;
        }
        Some(left).filter(|left| !left.is_empty() && left.len() < all.len())
    }

    /// Parses it like CUDA: up to the first entry that names no GPU. `None` if a UUID is not found.
    fn picked(&self, among: &[PciAddress], visible: &str) -> Option<Vec<PciAddress>> {
        let mut picked = Vec::new();
        for name in visible.split(',').map(str::trim) {
            let gpu = match name.parse::<usize>() {
                Ok(number) => among.get(number).copied(),
                Err(_) if name.starts_with("GPU-") => Some(self.by_uuid(among, name)?),
                Err(_) if name.starts_with("MIG-") => return None,
                Err(_) => None,
            };
            match gpu {
                Some(gpu) if picked.contains(&gpu) => {}
                Some(gpu) => picked.push(gpu),
                None => break,
            }
        }
        Some(picked)
    }

    /// Like CUDA, also accepts an unambiguous prefix of a UUID.
    fn by_uuid(&self, among: &[PciAddress], begin: &str) -> Option<PciAddress> {
        let begins = |gpu: &&Shown| gpu.uuid.as_ref().is_some_and(|uuid| uuid.starts_with(begin));
        let mut matching = self.shown.iter().filter(begins).map(|gpu| gpu.address);
        let only = matching.next().filter(|gpu| among.contains(gpu))?;
        matching.next().is_none().then_some(only)
    }
}
