//! Addresses that come and go while a NIC is open (DHCP, addresses for privacy, one that moves from host
//! to host).
//!
//! The NIC listens at what its interface has now, at the same port, and dials from there. Connections of
//! an address that is gone end at once: their lanes return over new ones, which this side dials, too.
//! An address that is still there is listened at, although another has taken its place.

use super::connection::Connection;
use super::interfaces::Interface;
use super::listener::{Listener, LISTENER};
use super::nic::TcpNic;
use super::socket::{self, to_system};
use crate::descriptor::Descriptor;
use crate::status::{Error, Result};
use crate::topology::network::{self, Network, News, Watch};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

impl TcpNic {
    #[cold]
    pub(super) fn take_news(&mut self) {
        self.news = false;
        let news = self.watch.as_ref().map(Watch::take).unwrap_or_default();
        if news.is_empty() {
            return;
        }
        self.paths.forget();
        let (own, name) = self.paths.own();
        let ours = [Some(self.at.ip()), self.other];
        let concerns = |news: &News| match news {
            News::Interface { index, name: named } => *index == own || named == name,
            News::Address { index, ip } => *index == own || self.homeless || ours.contains(&Some(*ip)),
            News::Anything => true,
        };
        self.outdated |= news.iter().any(concerns);
        self.link_news |= news.iter().any(|news| concerns(news) && !matches!(news, News::Address { .. }));
        self.take_addresses();
    }

    /// Reads the addresses again, if they may have changed.
    #[cold]
    pub(super) fn take_addresses(&mut self) {
        match self.outdated.then(network::read_settled) {
            Some(Ok(network)) => {
                self.outdated = false;
                self.readdress(&network);
            }
            Some(Err(error)) => {
                log::debug!("{}: its addresses are read again later: {error}", self.paths.own().1)
            }
            None => {}
        }
    }

    fn readdress(&mut self, network: &Network) {
        let exists = |ip: IpAddr| network.addresses.iter().any(|address| address.ip == ip);
        let is_gone = |one: &Connection| {
            let own = one.socket().and_then(|socket| socket::address(socket).ok());
            own.is_some_and(|own| !own.ip().is_unspecified() && !exists(own.ip()))
        };
        self.end_those(libc::EADDRNOTAVAIL, |_, one| is_gone(one));
        let (_, name) = self.paths.own();
        let link = network.links.iter().find(|link| link.name == *name);
        let nic = link.map(|link| network.nic_of(link));
        let after = nic.as_ref().and_then(|nic| Interface::after(nic, self.at.ip(), self.other));
        self.homeless = after.is_none() && !exists(self.at.ip());
        let (Some(nic), Some(mut after)) = (nic, after) else { return };
        after.address.set_port(self.at.port());
        after.other = after.other.filter(|_| self.options.at.ip().is_none());
        self.paths.is_at(nic.index, &after.network);
        if (after.address, after.other) != (self.at, self.other) {
            self.move_to(&after, exists);
        }
    }

    fn move_to(&mut self, to: &Interface, exists: impl Fn(IpAddr) -> bool) {
        self.listen_at(to.address);
        let other = to.other.filter(|ip| self.listen_at(SocketAddr::new(*ip, to.address.port())));
        self.listeners.iter().filter(|one| !exists(one.ip)).for_each(|one| socket::shut(one.as_fd()));
        self.listeners.retain(|one| exists(one.ip));
        if (to.address, other) == (self.at, self.other) {
            return;
        }
        log::info!("{}: the address {} has taken the place of {}", to.name, to.address.ip(), self.at.ip());
        (self.at, self.other) = (to.address, other);
        self.address = self.full_address();
        self.moved_to = Some(to.network.clone());
    }

    /// Listens at another address of the interface, unless it does already; false if that fails.
    pub(super) fn listen_at(&mut self, at: SocketAddr) -> bool {
        if self.listeners.iter().any(|one| one.ip == at.ip()) {
            return true;
        }
        let listeners = self.paths.listen_at(at, &self.options);
        let heeded = listeners.and_then(|all| all.into_iter().try_for_each(|one| self.listen(at.ip(), one)));
        let failed =
            |error: &Error| log::warn!("{}: peers cannot connect to {at}: {error}", self.paths.own().1);
        heeded.inspect_err(failed).is_ok()
    }

    /// Begins to heed a socket that listens.
    pub(super) fn listen(&mut self, ip: IpAddr, socket: Descriptor) -> Result<()> {
        self.epoll.add(socket.as_raw_fd(), libc::EPOLLIN, LISTENER)?;
        self.listeners.push(Listener { ip, socket });
        Ok(())
    }

    pub(super) fn full_address(&self) -> Vec<u8> {
        [to_system(self.options.at.advertised(self.at)), self.name.to_vec()].concat()
    }
}
