//! The machine, and the rails that an endpoint with default settings would open on it.

use crate::fabric::choice::{choose, guess};
use crate::fabric::select;
use crate::status::{Error, Result, Status};
use crate::topology::json::{Interface, Rail, Rails};
use crate::topology::network::{self, Network, Nic};
use crate::topology::read::Root;
use crate::topology::Machine;

/// The preview as JSON.
pub fn preview() -> Result<String> {
    let machine = Machine::read(Root::from_environment());
    let visible = select::visible_gpus();
    let rails = rails(&machine, visible.as_deref());
    let json = machine.json(rails, visible.as_deref());
    json.map_err(|error| Error::new(Status::Internal, format!("the machine as JSON: {error}")))
}

/// The rails that an open would use; guessed from the topology where an open would find none, or
/// where the topology describes another machine.
fn rails(machine: &Machine, visible: Option<&str>) -> Rails {
    let is_real = machine.root.is_real();
    let listed = if is_real { select::candidates(None, None, machine).ok() } else { None };
    let network = if is_real { network::read().unwrap_or_default() } else { network::saved(&machine.root) };
    let (source, why, list, left) = match listed {
        Some(found) => {
            let rail = |c: select::Candidate| Rail { fabric: c.fabric, name: c.name, pci: c.pci };
            let source = if found.libfabric.is_empty() { "sysfs" } else { "libfabric" };
            let list = found.candidates.into_iter().map(rail).collect::<Vec<Rail>>();
            (source, found.why, list, found.left)
        }
        None => {
            let nics = guess(machine, &network);
            let choice = choose(&nics, select::patterns(None).as_deref(), machine, visible);
            let chosen = choice.chosen.iter().map(|i| nics[*i].clone());
            let list = chosen.map(|nic| Rail { fabric: nic.fabric, name: nic.name, pci: nic.pci }).collect();
            let left = choice.left.into_iter().map(|(i, why)| (nics[i].name.clone(), why)).collect();
            ("sysfs", choice.why, list, left)
        }
    };
    let places: Vec<_> = list.iter().map(|rail| rail.pci).collect();
    let workers = if list.is_empty() { Vec::new() } else { machine.worker_groups(&places, 0) };
    Rails { source, why, list, workers, interfaces: interfaces(&network, &left) }
}

/// The network interfaces, each with the reason for which it is left out, or else where it leads.
fn interfaces(network: &Network, left: &[(String, String)]) -> Vec<Interface> {
    let interface = |nic: Nic| {
        let left = left.iter().find(|(name, _)| *name == nic.name).map(|(_, why)| why.clone());
        let refused = nic.served.left.iter().map(|left| (left.ip.to_string(), left.why.to_owned()));
        Interface {
            why: left.or_else(|| nic.leads().err()).unwrap_or(nic.why),
            name: nic.name,
            addresses: nic.served.best.iter().map(|address| address.ip.to_string()).collect(),
            addresses_left_out: refused.collect(),
        }
    };
    network.nics().into_iter().map(interface).collect()
}
