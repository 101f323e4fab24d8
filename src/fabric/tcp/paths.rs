//! By which NIC packets to a destination leave.
//!
//! The kernel chooses the NIC by the destination alone. Where several NICs of this host lead there
//! equally well (all in one subnet, say), one of them would carry everything, unless each socket is
//! bound to its own NIC. Where the routes prefer another NIC, by a rule or a longer prefix, that is
//! the operator's choice, and no socket is bound against it.

use crate::descriptor::{read_to_string, Descriptor};
use crate::topology::network::{self, Reach};
use std::ffi::{CStr, CString};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

/// The choice that the routes make for a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The NIC by which its packets leave.
    pub device: u32,
    /// The NIC in question leads there as well as that one.
    pub leads: bool,
}

/// The NICs of a connection's two directions; 0: unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Carriers {
    pub leaves: u32,
    pub arrives: u32,
    /// The socket was bound to them when it was accepted.
    pub bound: bool,
}

impl Carriers {
    /// Whether another NIC than this one carries a direction.
    pub fn is_elsewhere(&self, own: u32) -> bool {
        let other = |device: u32| ![0, own].contains(&device);
        own != 0 && (other(self.leaves) || other(self.arrives))
    }

    pub fn both(device: u32) -> Carriers {
        Carriers { leaves: device, arrives: device, bound: false }
    }
}

/// Where packets come from, where they go, and their DSCP.
#[derive(Clone, Copy)]
pub struct Flow {
    pub from: IpAddr,
    pub to: SocketAddr,
    pub dscp: u8,
    /// The device that sockets are bound to from the start (a VRF, say); 0: none.
    pub within: u32,
}

/// A route, as the kernel answers with it.
struct Route {
    table: u32,
    prefix: u8,
    local: bool,
    devices: Vec<u32>,
}

/// The index of an interface; 0: there is none of this name.
pub fn index_of(name: &str) -> u32 {
    let Ok(name) = CString::new(name) else { return 0 };
    // SAFETY: the name is a NUL-terminated string.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

pub fn name_of(index: u32) -> Option<String> {
    let mut name = [0 as libc::c_char; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that the call requires; it ends with NUL on success.
    let name = unsafe {
        let name = libc::if_indextoname(index, name.as_mut_ptr());
        (!name.is_null()).then(|| CStr::from_ptr(name))
    }?;
    Some(name.to_string_lossy().into_owned())
}

/// The VRF or another device that an interface is part of.
pub fn master_of(name: &str) -> Option<u32> {
    let text = read_to_string(format!("/sys/class/net/{name}/master/ifindex")).ok()?;
    text.trim().parse().ok()
}

/// What the routes choose for a flow of the NIC `own`; `None` within this host, or if that is not known.
pub fn choice(own: u32, flow: &Flow) -> Option<Choice> {
    let kernel = Kernel::for_flow(own, flow)?;
    let chosen = kernel.route(flow, flow.within, true).filter(|chosen| !chosen.local)?;
    let device = *kernel.route(flow, flow.within, false)?.devices.first()?;
    Some(Choice { device, leads: kernel.leads(own, flow, &chosen) })
}

/// The interfaces that lead somewhere, by index.
pub fn interfaces() -> Vec<u32> {
    let all = network::read().unwrap_or_default().nics().into_iter();
    let all = all.filter(|nic| nic.reach != Reach::Loopback && !nic.served.best.is_empty());
    all.map(|nic| nic.index).collect()
}

/// Whether a host is in a subnet of an interface.
pub fn is_beside(own: u32, host: IpAddr) -> bool {
    network::read().is_ok_and(|network| network.addresses_of(own).iter().any(|address| address.has(host)))
}

/// Those of the other interfaces that lead to the destination of a flow as well as `own`.
pub fn beside(own: u32, flow: &Flow, all: &[u32]) -> Vec<u32> {
    let Some(kernel) = Kernel::for_flow(own, flow) else { return Vec::new() };
    let chosen = kernel.route(flow, flow.within, true).filter(|chosen| !chosen.local);
    let Some(chosen) = chosen.filter(|chosen| kernel.leads(own, flow, chosen)) else { return Vec::new() };
    let others = all.iter().copied().filter(|nic| *nic != own);
    others.filter(|nic| kernel.leads(*nic, flow, &chosen)).collect()
}

/// A setting of an interface, as it applies there.
fn setting(nic: u32, name: &str) -> Option<u32> {
    let nic = name_of(nic)?;
    let setting = |place: &str| {
        let text = read_to_string(format!("/proc/sys/net/ipv4/conf/{place}/{name}")).ok()?;
        text.trim().parse::<u32>().ok()
    };
    Some(setting("all")?.max(setting(&nic)?))
}

/// Whether a NIC drops what arrives by it from where the routes lead by another one.
pub fn is_strict(nic: u32) -> bool {
    setting(nic, "rp_filter") == Some(1)
}

/// The setting of this host that lets packets for an address of `own` arrive by others of its NICs.
pub fn stray_setting(own: u32, others: &[u32]) -> Option<String> {
    if is_strict(own) {
        return Some(format!("net.ipv4.conf.{}.rp_filter=2", name_of(own)?));
    }
    let answers = |nic: &u32| setting(*nic, "arp_ignore") == Some(0);
    others.iter().any(answers).then(|| "net.ipv4.conf.all.arp_ignore=1".to_owned())
}

impl Route {
    /// (The kernel only prefers an IPv6 route of the device that was asked for, and may leave out
    /// the device of an IPv4 route, which has it.)
    fn leads_by(&self, nic: u32, flow: &Flow) -> bool {
        !self.local && (self.devices.contains(&nic) || self.devices.is_empty() && flow.to.is_ipv4())
    }

    fn is_as_good_as(&self, other: &Route) -> bool {
        (self.table, self.prefix) == (other.table, other.prefix)
    }
}

const HEADER: usize = 16;
const ROUTE: usize = 12;
const LOOKUP_TABLE: u32 = 0x1000;
const FIB_MATCH: u32 = 0x2000;
const IP_PROTO: u16 = 27;
const DPORT: u16 = 29;

/// A socket to ask the kernel for routes.
struct Kernel(Descriptor);

impl Kernel {
    fn for_flow(own: u32, flow: &Flow) -> Option<Kernel> {
        // (An address of one link alone needs no routes.)
        let of_link = flow.to.is_ipv6() && network::is_link_local(flow.to.ip());
        let known = own != 0 && flow.from.is_ipv4() == flow.to.is_ipv4() && !of_link;
        if known {
            Kernel::open()
        } else {
            None
        }
    }

    /// Whether a NIC leads to a destination as well as the chosen route.
    fn leads(&self, nic: u32, flow: &Flow, chosen: &Route) -> bool {
        let route = self.route(flow, nic, true);
        route.is_some_and(|route| route.leads_by(nic, flow) && route.is_as_good_as(chosen))
    }

    fn open() -> Option<Kernel> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: the call has no preconditions; it returns a new descriptor or an error.
        let socket = || unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        Descriptor::opened(socket).map(Kernel)
    }

    /// The route of a flow by a device (0: any). `entry`: the entry of the table, and not what
    /// follows from it.
    fn route(&self, flow: &Flow, by: u32, entry: bool) -> Option<Route> {
        let question = question(flow, by, entry);
        let mut answer = [0u8; 8192];
        // SAFETY: both buffers are valid for their lengths. The kernel has answered when `send`
        // returns.
        let len = unsafe {
            let (at, len) = (question.as_ptr().cast(), question.len());
            if libc::send(self.0.as_raw_fd(), at, len, 0) != len as isize {
                return None;
            }
            libc::recv(self.0.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), libc::MSG_DONTWAIT)
        };
        read(answer.get(..usize::try_from(len).ok()?)?)
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn question(flow: &Flow, by: u32, entry: bool) -> Vec<u8> {
    let (from, to) = (octets(flow.from), octets(flow.to.ip()));
    let family = if flow.to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    let bits = to.len() as u8 * 8;
    let flags = LOOKUP_TABLE | if entry { FIB_MATCH } else { 0 };
    let mut message = vec![0; HEADER];
    message.extend([family, bits, bits, flow.dscp << 2, 0, 0, 0, 0]);
    message.extend(flags.to_ne_bytes());
    let mut add = |kind: u16, bytes: &[u8]| {
        message.extend((bytes.len() as u16 + 4).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(bytes);
        message.resize(message.len().next_multiple_of(4), 0);
    };
    add(libc::RTA_DST, &to);
    add(libc::RTA_SRC, &from);
    add(IP_PROTO, &[libc::IPPROTO_TCP as u8]);
    add(DPORT, &flow.to.port().to_be_bytes());
    if by != 0 {
        add(libc::RTA_OIF, &by.to_ne_bytes());
    }
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_ne_bytes());
    message[4..6].copy_from_slice(&libc::RTM_GETROUTE.to_ne_bytes());
    message[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message
}

/// `None`: an error, or no answer to the question.
fn read(answer: &[u8]) -> Option<Route> {
    let len = u32::from_ne_bytes(*answer.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    let head = answer.get(HEADER..HEADER + ROUTE).filter(|_| kind == libc::RTM_NEWROUTE)?;
    let mut route = Route {
        table: head[4].into(),
        prefix: head[1],
        local: head[7] != libc::RTN_UNICAST,
        devices: Vec::new(),
    };
    let mut rest = answer.get(HEADER + ROUTE..len.min(answer.len()))?;
    while let Some((kind, value, next)) = attribute(rest) {
        let number = value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
        match (kind, number) {
            (libc::RTA_TABLE, Some(table)) => route.table = table,
            (libc::RTA_OIF, Some(device)) => route.devices.push(device),
            (libc::RTA_MULTIPATH, _) => {
                let mut hops = value;
                while let Some((_, hop, next)) = attribute(hops) {
                    route.devices.extend(hop.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)));
                    hops = next;
                }
            }
            _ => {}
        }
        rest = next;
    }
    Some(route)
}

/// The first attribute's kind and value, and what follows it. (A next hop has the same form.)
fn attribute(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let kind = u16::from_ne_bytes(*bytes.get(2..)?.first_chunk()?);
    let value = bytes.get(4..len)?;
    Some((kind, value, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}
