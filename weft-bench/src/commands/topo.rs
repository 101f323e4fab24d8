//! `weft-bench topo`: the machine as a tree, and the rails that Weft would open.

use super::Args;
use crate::endpoint::check;
use crate::show::printable;
use crate::tree::{self, Machine};
use anyhow::{bail, Context, Result};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::ptr;
use weft::capi::status::WEFT_ERR_TOO_SMALL;
use weft::capi::topology::weft_topology;

pub const HELP: &str = "\
Shows the machine as Weft sees it: NUMA nodes, PCI switches, GPUs and NICs, which rails an endpoint opens by default,
and where its workers run. CUDA_VISIBLE_DEVICES, WEFT_RAILS and the affinity mask (taskset) count. A warning on stderr
names what several NICs in one subnet need (docs/networks.md).

  --sysfs DIR  a folder that stands for /, with another machine's sys/ and proc/ in it
  --json       print it as JSON: docs/topology.md
";

pub fn run(mut args: Args) -> Result<()> {
    let (sysfs, as_json) = (args.maybe::<PathBuf>("--sysfs")?, args.has("--json"));
    args.end()?;
    if let Some(folder) = &sysfs {
        if !folder.join("sys").is_dir() && !folder.join("proc").is_dir() {
            bail!("{} has neither sys/ nor proc/ in it: name the folder that stands for /", folder.display());
        }
        std::env::set_var("WEFT_SYSFS_ROOT", folder);
    }
    let json = topology()?;
    let machine: Machine = serde_json::from_str(&json).context("what weft_topology wrote")?;
    match as_json {
        true => println!("{json}"),
        false => print!("{}", tree::draw(&machine)),
    }
    let masks = masks();
    let in_subnet = |(name, at): &(&str, Ipv4Addr)| Some((name.to_string(), subnet(*at, *masks.get(at)?)));
    let rails: Vec<_> = machine.own_addresses().iter().filter_map(in_subnet).collect();
    for warning in warnings(&rails, setting) {
        eprintln!("weft-bench: {}", printable(&warning));
    }
    Ok(())
}

/// The length of the prefix of each IPv4 address of this host.
fn masks() -> BTreeMap<Ipv4Addr, u32> {
    let mut masks = BTreeMap::new();
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: the call stores a list, which is freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return masks;
    }
    let mut next = first;
    // SAFETY: the list's elements are valid until it is freed.
    while let Some(one) = unsafe { next.as_ref() } {
        next = one.ifa_next;
        // SAFETY: an address that is there begins with its family; that of IPv4 is such a struct, and so is its mask.
        let ip = |at: *const libc::sockaddr| unsafe {
            let of_v4 = !at.is_null() && i32::from((*at).sa_family) == libc::AF_INET;
            of_v4.then(|| u32::from_be((*at.cast::<libc::sockaddr_in>()).sin_addr.s_addr))
        };
        if let (Some(address), Some(mask)) = (ip(one.ifa_addr), ip(one.ifa_netmask)) {
            masks.insert(address.into(), mask.leading_ones());
        }
    }
    // SAFETY: it is the list, and nothing refers to it any longer.
    unsafe { libc::freeifaddrs(first) };
    masks
}

/// As "10.0.0.0/24".
fn subnet(at: Ipv4Addr, bits: u32) -> String {
    let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
    format!("{}/{bits}", Ipv4Addr::from(u32::from(at) & mask))
}

/// A setting of an interface: the larger one of its own and of that of all.
fn setting(interface: &str, name: &str) -> Option<u32> {
    let read = |place: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{place}/{name}")).ok()?;
        text.trim().parse::<u32>().ok()
    };
    Some(read("all")?.max(read(interface)?))
}

/// What several NICs in one subnet need: values of each setting, the one to set first.
const GOOD: [(&str, &[u32]); 2] = [("arp_ignore", &[1, 2]), ("arp_announce", &[2])];

/// What several of these rails in one subnet lack, by their names and subnets.
fn warnings(rails: &[(String, String)], setting: impl Fn(&str, &str) -> Option<u32>) -> Vec<String> {
    let mut subnets: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, subnet) in rails {
        let names = subnets.entry(subnet).or_default();
        if !names.contains(&&**name) {
            names.push(name);
        }
    }
    let of_subnet = |(subnet, names): (&str, Vec<&str>)| {
        let lacks = |(name, good): &(&str, &[u32])| {
            names.iter().any(|nic| setting(nic, name).is_some_and(|is| !good.contains(&is)))
        };
        let wanted = GOOD.iter().filter(|one| lacks(one));
        let wanted: Vec<String> =
            wanted.map(|(name, good)| format!("net.ipv4.conf.all.{name}={}", good[0])).collect();
        (names.len() > 1 && !wanted.is_empty()).then(|| {
            format!(
                "{} are in one subnet ({subnet}), so neighbours may take one for the other: set {} on every host there",
                names.join(", "),
                wanted.join(" and ")
            )
        })
    };
    subnets.into_iter().filter_map(of_subnet).collect()
}

fn topology() -> Result<String> {
    let mut bytes = vec![0u8; 64 << 10];
    loop {
        let mut len = 0;
        // SAFETY: the caller passes a buffer with its size, and space for the length.
        let status = unsafe { weft_topology(bytes.as_mut_ptr().cast(), bytes.len(), &mut len) };
        if status == WEFT_ERR_TOO_SMALL {
            bytes.resize(2 * len, 0);
            continue;
        }
        check("weft_topology", status)?;
        bytes.truncate(len);
        return String::from_utf8(bytes).context("weft_topology's text");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rails_in_one_subnet_need_settings_of_arp() {
        let rails = [("eth0", [10, 0, 1, 5], 24), ("eth1", [10, 0, 1, 6], 24), ("eth2", [10, 0, 2, 5], 24)];
        let rails = rails.map(|(name, at, bits)| (name.to_owned(), subnet(at.into(), bits)));
        let warned = |ignore, announce| {
            let setting = |nic: &str, name: &str| match (nic, name) {
                ("eth2", _) => Some(0),
                (_, "arp_ignore") => Some(ignore),
                (_, "arp_announce") => Some(announce),
                _ => None,
            };
            warnings(&rails, setting)
        };
        assert!(warned(1, 2).is_empty() && warned(2, 2).is_empty(), "{:?}", warned(1, 2));
        for (ignore, announce, set) in [
            (0, 0, "set net.ipv4.conf.all.arp_ignore=1 and net.ipv4.conf.all.arp_announce=2 on"),
            (1, 1, "set net.ipv4.conf.all.arp_announce=2 on"),
            (8, 2, "set net.ipv4.conf.all.arp_ignore=1 on"),
        ] {
            let said = warned(ignore, announce);
            assert!(said.len() == 1 && said[0].contains(set), "{said:?}");
            assert!(said[0].starts_with("eth0, eth1 are in one subnet (10.0.1.0/24)"), "{said:?}");
        }
        assert!(warnings(&rails[1..], |_, _| Some(0)).is_empty() && warnings(&rails, |_, _| None).is_empty());
        assert_eq!(
            [subnet([10, 0, 0, 7].into(), 0), subnet([10, 0, 0, 7].into(), 32)],
            ["0.0.0.0/0", "10.0.0.7/32"]
        );
    }

    #[test]
    fn prefix_of_the_loopback_address_is_read() {
        assert_eq!(masks().get(&Ipv4Addr::LOCALHOST), Some(&8));
    }
}
