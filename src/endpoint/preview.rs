//! The machine, and the rails that an endpoint with default settings would open on it.

use crate::fabric::choice::{choose, guess};
use crate::fabric::select;
use crate::status::{Error, Result, Status};
use crate::topology::json::{Rail, Rails};
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
    let listed = if machine.root.is_real() { select::candidates(None, None, machine).ok() } else { None };
    let (source, why, list) = match listed {
        Some(found) => {
            let rail = |c: select::Candidate| Rail { fabric: c.fabric, name: c.name, pci: c.pci };
            let source = if found.libfabric.is_empty() { "sysfs" } else { "libfabric" };
            (source, found.why, found.candidates.into_iter().map(rail).collect::<Vec<Rail>>())
        }
        None => {
            let nics = guess(machine);
            let choice = choose(&nics, select::patterns(None).as_deref(), machine, visible);
            let rail = |i: &usize| nics[*i].clone();
            let chosen = choice.chosen.iter().map(rail);
            let list = chosen.map(|nic| Rail { fabric: nic.fabric, name: nic.name, pci: nic.pci }).collect();
            ("sysfs", choice.why, list)
        }
    };
    let places: Vec<_> = list.iter().map(|rail| rail.pci).collect();
    let workers = if list.is_empty() { Vec::new() } else { machine.worker_groups(&places, 0) };
    Rails { source, why, list, workers }
}
