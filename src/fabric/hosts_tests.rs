//! Hosts as people have them (`ffi-tests/hosts/*.json`), as `ip -j -d link`, `ip -j addr` and `ip -j route show
//! table all` print them, each with the rails that it should get and what should be left out and why.

use super::select::{by_reason, chosen, interfaces, Found};
use crate::topology::network::{saved_as, Network};
use crate::topology::trees::Tree;
use crate::wire::address::RAILS_MAX;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn hosts() -> BTreeMap<String, Value> {
    let files = fs::read_dir(Path::new(ROOT).join("ffi-tests/hosts")).unwrap().flatten();
    let host = |file: fs::DirEntry| {
        let name = file.file_name().into_string().unwrap();
        (name, serde_json::from_slice(&fs::read(file.path()).unwrap()).unwrap())
    };
    files.map(host).collect()
}

fn network(host: &Value) -> Network {
    saved_as(&host["link"], &host["addr"], &host["route"])
}

fn rails(network: &Network) -> Found {
    let machine = Tree::new().machine();
    let mut found = chosen(interfaces(network, &machine), None, &machine, String::new()).unwrap();
    found.limit(RAILS_MAX);
    found
}

fn texts(value: &Value) -> BTreeMap<&str, &str> {
    let pairs = value.as_object().into_iter().flatten();
    pairs.map(|(name, text)| (name.as_str(), text.as_str().unwrap())).collect()
}

#[test]
fn hosts_get_the_rails_that_lead_to_other_hosts() {
    let (mut wrong, hosts) = (Vec::new(), hosts());
    for (name, host) in &hosts {
        let network = network(host);
        let found = rails(&network);
        let mut check = |holds: bool, what: String| {
            if !holds {
                wrong.push(format!("{name}: {what}"));
            }
        };
        let names: Vec<&str> = found.candidates.iter().map(|nic| nic.name.as_str()).collect();
        let expected = host["rails"].as_object().unwrap();
        check(
            names.len() == expected.len() && names.iter().all(|name| expected.contains_key(*name)),
            format!("rails {names:?}, not {:?}", expected.keys()),
        );
        for nic in network.nics().iter().filter(|nic| names.contains(&nic.name.as_str())) {
            let addresses: Vec<String> =
                nic.served.best.iter().map(|address| address.ip.to_string()).collect();
            let want = expected.get(&nic.name);
            check(
                want == Some(&addresses.clone().into()),
                format!("{} at {addresses:?}, not {want:?}", nic.name),
            );
        }
        for (left, why) in texts(&host["left"]) {
            let reason = found.left.iter().find(|(name, _)| name == left).map(|(_, why)| why.as_str());
            check(
                reason.is_some_and(|reason| reason.contains(why)),
                format!("{left} is left out: {reason:?}"),
            );
        }
        for (nic, network) in texts(&host["network"]) {
            let is = found.candidates.iter().find(|one| one.name == nic).map(|one| one.network.as_str());
            check(is == Some(network), format!("{nic} is in network {is:?}, not {network}"));
        }
        let waits = network.nics().iter().any(|nic| nic.waits());
        check(waits == (host["waits"] == true), format!("waits for addresses: {waits}"));
        // Every interface is a rail or has a reason.
        let explained = found.left.iter().filter(|(_, why)| !why.is_empty()).count();
        check(explained + names.len() == network.links.len(), by_reason(&found.left));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let figures = Path::new(ROOT).join("target/figures");
    fs::create_dir_all(&figures).unwrap();
    fs::write(figures.join("host_snapshots"), format!("{}\n", hosts.len())).unwrap();
}
