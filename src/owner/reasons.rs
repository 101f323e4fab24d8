//! Why peers could not be reached, and why they ended, in words: for the log, and for whoever asks about a completion.

use crate::descriptor;
use crate::fabric::select::readable;
use crate::fabric::{host, meaning, Cause, LinkState};
use crate::ids::RailIndex;
use crate::lane::Why;
use crate::peer::link::Link;
use crate::peer::{readable_rail, Peer};
use crate::session::{LaneEvent, Plan};
use crate::worker::core::Core;
use crate::worker::inbox::Command;
use std::net::SocketAddr;

impl Core {
    /// Why a peer ends. (Endpoints that only sent a handshake would drive out the others.)
    pub(crate) fn note_end(&self, link: &Link, why: &str) {
        let peer = &link.peer;
        if link.session.is_up() || !peer.connects.lock().is_empty() {
            self.ends.note(peer.id, &format!("{peer}: {why}"));
        }
    }

    pub(crate) fn tell_of_lane(&self, peer: &Peer, plan: Plan, event: LaneEvent) {
        self.command_owner(peer, Command::Lane { peer: peer.id, plan, event });
    }

    /// Reports that a lane's handshake failed.
    pub(crate) fn lane_not_up(&self, peer: &Peer, plan: Plan, errno: i32) {
        let text = match Cause::from_errno(errno) {
            Cause::Absent if self.is_of_host(plan.rail) => {
                "no process of this host has that socket: it ended, or the address is out of date".into()
            }
            _ => meaning(errno),
        };
        let why = self.why_not(peer, plan, text);
        self.tell_of_lane(peer, plan, LaneEvent::Failed { errno, why });
    }

    fn is_of_host(&self, rail: RailIndex) -> bool {
        self.rails.get(rail.place()).is_some_and(|rail| rail.fabric == host::NAME)
    }

    /// What shows whether the way of a lane drops packets of full size.
    pub(crate) fn try_ping(&self, peer: &Peer, plan: Plan) -> String {
        let name = self.rails.get(plan.rail.place()).map_or("", |rail| &rail.name);
        let to =
            peer.rail_address(plan.remote_rail).map_or_else(String::new, |there| readable(&there.address));
        let mtu = descriptor::read_to_string(format!("/sys/class/net/{name}/mtu")).ok();
        ping(&to, mtu.and_then(|mtu| mtu.trim().parse().ok()))
    }

    /// Why a lane is not up, with the addresses of both ends.
    pub(crate) fn why_not(&self, peer: &Peer, plan: Plan, mut text: String) -> Why {
        let there = peer.rail_address(plan.remote_rail);
        let to = there.as_ref().map_or_else(String::new, readable_rail);
        let ours = self.rails.get(plan.rail.place());
        let from = ours.map_or("", |rail| &rail.name);
        if ours.is_some_and(|rail| rail.traffic.link() == LinkState::Down.name()) {
            return Why { at: format!("{to} from {from}"), text: format!("{from} has no link") };
        }
        let is_loopback = to.starts_with("127.") || to.starts_with("[::1]");
        if is_loopback && !self.shares_host(host::NAME, &peer.address) {
            text.push_str(
                "; a loopback address reaches its own host alone: open that endpoint with other rails",
            );
        }
        Why { at: format!("{to} from {from}"), text }
    }
}

/// The MTU has the headers of IP and ICMP in it.
fn ping(address: &str, mtu: Option<u32>) -> String {
    let asks = "does the path carry packets of the interface's MTU?";
    let (Ok(to), Some(mtu)) = (address.parse::<SocketAddr>(), mtu) else { return asks.to_owned() };
    let headers = if to.is_ipv6() { 48 } else { 28 };
    format!("{asks} ping -M do -s {} {}", mtu.saturating_sub(headers), to.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_has_the_mtu_without_headers() {
        assert!(ping("10.0.0.2:4711", Some(9000)).ends_with("MTU? ping -M do -s 8972 10.0.0.2"));
        assert!(ping("[fd00::2]:4711", Some(1500)).ends_with("MTU? ping -M do -s 1452 fd00::2"));
        assert!(
            ping("fe80::1/7", Some(4096)).ends_with("MTU?") && ping("10.0.0.2:4711", None).ends_with("MTU?")
        );
    }
}
