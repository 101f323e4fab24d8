//! Hosts as people have them (`ffi-tests/hosts/*.json`), as `ip -j -d link`, `ip -j addr` and `ip -j route show
//! table all` print them, each with the rails that it should get and what should be left out and why.

use super::select::{by_reason, chosen, interfaces, Found};
use crate::topology::network::{saved_as, Address, Link, Network, Route};
use crate::topology::trees::Tree;
use crate::wire::address::RAILS_MAX;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

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
    let (nics, unusable) = interfaces(network, &machine);
    let mut found = chosen(nics, unusable, None, &machine, String::new()).unwrap();
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

/// Sixteen times the interfaces take about sixteen times as long, and not 256 or 4096 times.
#[test]
fn interfaces_are_judged_in_linear_time() {
    let host = &hosts()["gke-110-pods.json"];
    let many = |times: u32| {
        let one = network(host);
        let (mut links, mut addresses, mut routes) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..times {
            let moved = |link: u32| link + 1000 * round;
            links.extend(one.links.iter().map(|link| Link { index: moved(link.index), ..link.clone() }));
            let relinked = |address: &Address| Address { link: moved(address.link), ..address.clone() };
            addresses.extend(one.addresses.iter().map(relinked));
            routes.extend(one.routes.iter().map(|route| Route { link: moved(route.link), ..route.clone() }));
        }
        Network::new(links, addresses, routes)
    };
    let took = |times| {
        let network = many(times);
        let once = |_| {
            let began = Instant::now();
            assert_eq!(network.nics().len(), network.links.len());
            began.elapsed()
        };
        (0..10).map(once).min().unwrap_or_default()
    };
    let (few, lots) = (took(2), took(32));
    assert!(lots < few * 64, "{few:?}, and {lots:?} of 16 times as many");
}
