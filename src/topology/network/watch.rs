//! News of the network: that an interface has changed, or an address has come or gone. What is there now,
//! `kernel::read` tells.

use super::kernel::{address, link, Socket, BYTES};
use netlink_packet_core::NetlinkBuffer;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

const GROUPS: i32 = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum News {
    Interface {
        index: u32,
        name: String,
    },
    Address {
        index: u32,
        ip: IpAddr,
    },
    /// Too much for the kernel to keep: anything may have changed.
    Anything,
}

/// A descriptor that becomes readable with news.
pub struct Watch(Socket);

impl Watch {
    pub fn open() -> Result<Watch, String> {
        let socket = Socket::open(GROUPS as u32);
        socket.map(Watch).map_err(|error| format!("changes of the network are not seen: {error}"))
    }

    /// The news since the last call.
    pub fn take(&self) -> Vec<News> {
        let (mut buffer, mut news) = (vec![0; BYTES], Vec::new());
        loop {
            match self.0.receive(&mut buffer) {
                Ok(len) => read(buffer.get(..len).unwrap_or_default(), &mut news),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => news.push(News::Anything),
                Err(_) => return news,
            }
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.descriptor().as_fd()
    }
}

fn read(mut left: &[u8], news: &mut Vec<News>) {
    while let Ok(one) = NetlinkBuffer::new_checked(left) {
        let about = match one.message_type() {
            libc::RTM_NEWLINK | libc::RTM_DELLINK => {
                link(one.payload()).map(|link| News::Interface { index: link.index, name: link.name })
            }
            libc::RTM_NEWADDR | libc::RTM_DELADDR => {
                address(one.payload()).map(|found| News::Address { index: found.link, ip: found.ip })
            }
            _ => None,
        };
        news.extend(about);
        left = left.get((one.length() as usize).next_multiple_of(4)..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_far_as_they_go() {
        let message = |kind: u16, body: &[u8]| {
            let head = [(16 + body.len() as u32).to_ne_bytes(), [0; 4], [0; 4], [0; 4]].concat();
            let mut whole = [&head[..], body].concat();
            whole[4..6].copy_from_slice(&kind.to_ne_bytes());
            whole
        };
        let address = [2, 24, 0, 0, 7, 0, 0, 0, 8, 0, 2, 0, 10, 9, 0, 1];
        let link = [&[0, 0, 0, 0, 7, 0, 0, 0][..], &[0; 8], &[8, 0, 3, 0, b'n', b'1', 0, 0]].concat();
        let all = [
            message(libc::RTM_DELADDR, &address),
            message(libc::RTM_NEWROUTE, &address),
            message(libc::RTM_NEWLINK, &link),
        ]
        .concat();
        let mut news = Vec::new();
        read(&all, &mut news);
        let expected = [
            News::Address { index: 7, ip: [10, 9, 0, 1].into() },
            News::Interface { index: 7, name: "n1".into() },
        ];
        assert_eq!(news, expected);
        (0..all.len()).for_each(|len| read(&all[..len], &mut Vec::new()));
    }

    #[test]
    fn watch_has_nothing_to_tell_at_first() {
        let _ = Watch::open().unwrap().take();
    }
}
