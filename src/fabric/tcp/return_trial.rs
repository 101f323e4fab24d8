//! The way back to a NIC in whose place another one carries.
//!
//! Other hosts may have learned from ARP that another NIC has this one's address (`carriers`), and keep
//! that while it works. So for as long as others carry its connections with a host, the NIC announces itself there
//! now and then, and tries to connect by its own device alone: that is answered only if the answer
//! arrives by it. Then those connections end, and their lanes return by the NIC.

use super::carriers::{Paths, Trial};
use super::connection::{Connection, State};
use super::nic::TcpNic;
use super::socket;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

/// The time in which a trial has to be answered.
const ANSWER_NS: u64 = 1_000_000_000;

impl TcpNic {
    pub(super) fn try_return(&mut self, now: u64) {
        if let Some(trial) = &self.paths.trials.current {
            let (host, connected) = (trial.host, socket::is_connected(trial.socket.as_fd()));
            if !connected && now < trial.until_ns {
                return;
            }
            self.paths.trials.current = None;
            if connected {
                self.return_from(host);
            }
        }
        if now >= self.paths.trials.next_ns {
            self.paths.trials.current = self.begin_trial(now);
        }
    }

    /// Tries one of the hosts whose connections another NIC carries, in turn.
    fn begin_trial(&mut self, now: u64) -> Option<Trial> {
        let paths = &self.paths;
        let hosts: Vec<SocketAddr> = self
            .connections
            .iter()
            .flatten()
            .filter_map(|one| {
                let far = one.far.filter(|far| far.is_ipv4() && carries_another(one, paths))?;
                if one.dialed {
                    Some(far)
                } else {
                    let whose = (one.name, one.owner());
                    let targets =
                        self.routes.targets().filter(|(target, _)| (target.name, target.peer) == whose);
                    let dialed = targets.flat_map(|(target, _)| [Some(target.to), target.other]);
                    dialed.flatten().find(|to| to.ip() == far.ip())
                }
            })
            .collect();
        if hosts.is_empty() {
            self.paths.trials.rest(now);
            return None;
        }
        let to = hosts[self.paths.trials.begin(now) % hosts.len()];
        let socket = self.paths.try_return(self.own_for(to), to, &self.options, now)?;
        Some(Trial { host: to.ip(), socket, until_ns: now + ANSWER_NS })
    }

    fn return_from(&mut self, host: IpAddr) {
        let (own, name) = self.paths.own();
        log::info!("{name}: packets from {host} arrive by it again, so its lanes return to it");
        let elsewhere = |one: &Connection| one.host() == Some(host) && one.carriers.is_elsewhere(own);
        self.end_those(libc::ECONNABORTED, |_, one| one.state == State::Up && elsewhere(one));
    }
}

fn carries_another(one: &Connection, paths: &Paths) -> bool {
    let serves = one.state == State::Up && one.owner().is_some();
    serves && one.carriers.is_elsewhere(paths.own().0)
}
