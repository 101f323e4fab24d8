//! Whether anybody listens at a peer's address. ofi_rxm tries to connect again and again,
//! and says nothing of being refused: so the system is asked, by a connection of our own,
//! which is closed at once.

use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A connection that is being made.
pub struct Call(OwnedFd);

/// Whether a fabric can tell that nobody listens at an address any more.
pub fn tells(fabric: &str) -> bool {
    fabric == crate::fabric::tcp::NAME || fabric == "tcp;ofi_rxm" || fabric.starts_with("sim:")
}

impl Call {
    /// From one of our addresses to one of the peer's, as libfabric knows them: IPv4 and IPv6.
    pub fn begin(from: &[u8], to: &[u8]) -> Option<Call> {
        let family = u16::from_ne_bytes(to.get(..2)?.try_into().ok()?);
        let len = match i32::from(family) {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
            _ => return None,
        };
        let (mut from, to) = (from.get(..len)?.to_vec(), to.get(..len)?);
        // Any port.
        from[2..4].fill(0);
        // SAFETY: makes a descriptor that nobody else has; the addresses are as long as said.
        unsafe {
            let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            let fd = libc::socket(family.into(), kind, 0);
            if fd < 0 {
                return None;
            }
            let fd = OwnedFd::from_raw_fd(fd);
            libc::bind(fd.as_raw_fd(), from.as_ptr().cast(), len as u32);
            let rc = libc::connect(fd.as_raw_fd(), to.as_ptr().cast(), len as u32);
            let errno = std::io::Error::last_os_error().raw_os_error();
            (rc == 0 || errno == Some(libc::EINPROGRESS) || errno == Some(libc::ECONNREFUSED))
                .then_some(Call(fd))
        }
    }

    /// Whether it was refused; `None`: nobody has answered yet.
    pub fn is_refused(&self) -> Option<bool> {
        let mut fd = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        let (mut errno, mut len) = (0, size_of::<i32>() as u32);
        // SAFETY: one descriptor; an integer and its length.
        unsafe {
            if libc::poll(&mut fd, 1, 0) != 1 {
                return None;
            }
            let into = (&raw mut errno).cast();
            libc::getsockopt(fd.fd, libc::SOL_SOCKET, libc::SO_ERROR, into, &mut len);
        }
        Some(errno == libc::ECONNREFUSED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};
    use std::time::{Duration, Instant};

    fn address(port: u16) -> Vec<u8> {
        let mut bytes = vec![0; size_of::<libc::sockaddr_in>()];
        bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        bytes[4..8].copy_from_slice(&Ipv4Addr::LOCALHOST.octets());
        bytes
    }

    fn answer(port: u16) -> bool {
        let call = Call::begin(&address(9), &address(port)).expect("a call");
        let begin = Instant::now();
        loop {
            if let Some(refused) = call.is_refused() {
                return refused;
            }
            assert!(begin.elapsed() < Duration::from_secs(5));
        }
    }

    #[test]
    fn closed_port_refuses_at_once() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("its address").port();
        assert!(!answer(port));
        drop(listener);
        assert!(answer(port));
    }

    #[test]
    fn address_of_no_ip_family_is_not_called() {
        assert!(Call::begin(&[], &[]).is_none() && Call::begin(&[0; 16], &[0; 16]).is_none());
        assert!(Call::begin(&address(1), &address(1)[..8]).is_none());
    }
}
