//! Non-blocking sockets: the system calls that this fabric uses.

use super::options::Options;
use crate::descriptor::Descriptor;
use crate::fabric::{Seen, Socket};
use crate::failing::step;
use crate::status::{Error, Result, Status};
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// The error number of a failed call.
pub type Outcome<T> = std::result::Result<T, i32>;

const BACKLOG: i32 = 4096;
/// The most unsent bytes that the system holds for a connection. A message waits behind them; and
/// with more of them, fewer are still in a cache when they are sent.
pub const UNSENT: i32 = 256 << 10;
/// (In `libc` for some systems only.)
const BINDTOIFINDEX: i32 = 62;

/// Bytes of `sockaddr_in` and `sockaddr_in6`.
pub const V4: usize = size_of::<libc::sockaddr_in>();
pub const V6: usize = size_of::<libc::sockaddr_in6>();

pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn system(doing: &str) -> Error {
    Error { provider_errno: errno(), ..Error::system(doing) }
}

/// An address in the system's form.
pub fn to_system(address: SocketAddr) -> Vec<u8> {
    let port = address.port().to_be_bytes();
    match address {
        SocketAddr::V4(v4) => {
            let family = (libc::AF_INET as libc::sa_family_t).to_ne_bytes();
            [&family[..], &port, &v4.ip().octets(), &[0; 8]].concat()
        }
        SocketAddr::V6(v6) => {
            let family = (libc::AF_INET6 as libc::sa_family_t).to_ne_bytes();
            let scope = v6.scope_id().to_ne_bytes();
            [&family[..], &port, &[0; 4], &v6.ip().octets(), &scope].concat()
        }
    }
}

pub fn from_system(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(*bytes.first_chunk()?);
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    match (i32::from(family), bytes.len()) {
        (libc::AF_INET, V4) => {
            let ip: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
            Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(ip)), port))
        }
        (libc::AF_INET6, V6) => {
            let ip: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
            let scope = u32::from_ne_bytes(*bytes.get(24..)?.first_chunk()?);
            let ip = Ipv6Addr::from(ip);
            Some(SocketAddr::V6(std::net::SocketAddrV6::new(ip, port, 0, scope)))
        }
        _ => None,
    }
}

/// A socket that is bound to a device; 0: to none.
fn make(ip: IpAddr, device: u32) -> Result<Descriptor> {
    let family = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let flags = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the call has no preconditions; it returns a new descriptor or an error.
    let socket = Descriptor::opened(|| unsafe { libc::socket(family, flags, 0) });
    let socket = socket.ok_or_else(|| system("making a socket"))?;
    if device != 0 && !bind_device(socket.as_fd(), device) {
        return Err(system("binding a socket to a device"));
    }
    Ok(socket)
}

/// Options that an old system does not know stay unset.
fn set(socket: BorrowedFd, level: i32, option: i32, value: i32) -> bool {
    // SAFETY: the integer outlives the call.
    unsafe {
        let (at, len) = ((&raw const value).cast(), size_of::<i32>() as libc::socklen_t);
        libc::setsockopt(socket.as_raw_fd(), level, option, at, len) == 0
    }
}

fn integer(socket: BorrowedFd, level: i32, option: i32) -> Outcome<i32> {
    let (mut value, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the buffer has space for the integer.
    let rc = unsafe {
        let at = (&raw mut value).cast();
        libc::getsockopt(socket.as_raw_fd(), level, option, at, &mut len)
    };
    (rc == 0).then_some(value).ok_or_else(errno)
}

fn bind(socket: BorrowedFd, address: SocketAddr) -> bool {
    let bytes = to_system(address);
    // SAFETY: the address and its length belong together.
    unsafe { libc::bind(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len() as libc::socklen_t) == 0 }
}

/// The device that a socket is bound to; 0: none.
pub fn device(socket: BorrowedFd) -> u32 {
    integer(socket, libc::SOL_SOCKET, BINDTOIFINDEX).map_or(0, |device| device as u32)
}

/// Binds a socket to a device: from here on it sends and receives by that one alone. (Only a
/// privileged process may do so where the socket is bound already.)
pub fn bind_device(socket: BorrowedFd, device: u32) -> bool {
    self::device(socket) == device || set(socket, libc::SOL_SOCKET, BINDTOIFINDEX, device as i32)
}

/// Whether this process may bind its sockets to a device. (Linux before 5.7, and where sockets are bound from the start,
/// as by `ip vrf exec`: a privileged one.)
pub fn may_bind(ip: IpAddr, device: u32) -> bool {
    let made = make(ip, device).map_err(|error| error.provider_errno);
    !matches!(made, Err(libc::EPERM | libc::ENOPROTOOPT))
}

/// The device by which an accepted connection has arrived.
pub fn arrival(socket: BorrowedFd, v4: bool) -> Option<u32> {
    let (level, heed, tell, info, at) = match v4 {
        true => (libc::IPPROTO_IP, libc::IP_PKTINFO, libc::IP_PKTOPTIONS, libc::IP_PKTINFO, 0),
        false => {
            let (heed, info) = (libc::IPV6_RECVPKTINFO, libc::IPV6_PKTINFO);
            (libc::IPPROTO_IPV6, heed, libc::IPV6_2292PKTOPTIONS, info, 16)
        }
    };
    // Heeded for this call only: it would cost time for each packet.
    set(socket, level, heed, 1);
    let (mut bytes, mut len) = ([0u8; 256], 256 as libc::socklen_t);
    // SAFETY: the buffer has space for `len` bytes.
    let rc =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, tell, bytes.as_mut_ptr().cast(), &mut len) };
    set(socket, level, heed, 0);
    // The buffer contains a control message: its length, level, type and data.
    let word = |at: usize| Some(i32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let head = size_of::<libc::cmsghdr>();
    let is_info = (word(head - 8)?, word(head - 4)?) == (level, info);
    let found = rc == 0 && len as usize >= head + at + 4 && is_info;
    word(head + at).filter(|device| found && *device > 0).map(|device| device as u32)
}

/// Sends an empty datagram by a device. If the system has to ask for the receiver's MAC, neighbours
/// learn from its question which NIC has `from`.
pub fn announce(from: IpAddr, to: IpAddr, device: u32) {
    let discard = to_system(SocketAddr::new(to, 9));
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the call has no preconditions; it returns a new descriptor or an error.
    let Some(socket) = Descriptor::opened(|| unsafe { libc::socket(libc::AF_INET, kind, 0) }) else { return };
    if bind_device(socket.as_fd(), device) && bind(socket.as_fd(), SocketAddr::new(from, 0)) {
        // SAFETY: the address and its length belong together, and no bytes are sent.
        unsafe {
            let (at, len) = (discard.as_ptr().cast(), discard.len() as libc::socklen_t);
            libc::sendto(socket.as_raw_fd(), std::ptr::null(), 0, libc::MSG_NOSIGNAL, at, len)
        };
    }
}

/// A second listener at the address of another, for connections that arrive by a device. They are
/// answered by that device, too.
pub fn listen_by(device: u32, first: BorrowedFd, at: SocketAddr, options: &Options) -> Option<Descriptor> {
    let second = make(at.ip(), device).ok()?;
    tune(second.as_fd(), options);
    // The two share the address while the second one begins; no other socket may join them.
    let share = |value: i32| {
        let reuse = |socket| set(socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, value);
        reuse(first) && reuse(second.as_fd())
    };
    set(second.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    // SAFETY: the socket is open.
    let listen = || unsafe { libc::listen(second.as_raw_fd(), BACKLOG) == 0 };
    let begun = share(1) && bind(second.as_fd(), at) && listen();
    share(0);
    begun.then_some(second)
}

/// A listener at an address of this host, by a device (0: any), and its port: one from the range, if
/// there is a range.
pub fn listen(at: SocketAddr, device: u32, options: &Options) -> Result<(Descriptor, SocketAddr)> {
    let Some(range) = options.at.ports() else { return listen_at(at, device, options) };
    let mut at = at;
    while let Some(port) = options.next_port() {
        at.set_port(port);
        match listen_at(at, device, options) {
            Err(error) if error.provider_errno == libc::EADDRINUSE => {}
            other => return other,
        }
    }
    let text = format!(
        "no port of tcp_ports {range} is free at {}: each is in use, or of another rail of this endpoint",
        at.ip()
    );
    Err(Error { provider_errno: libc::EADDRINUSE, ..Error::new(Status::System, text) })
}

pub fn listen_at(at: SocketAddr, device: u32, options: &Options) -> Result<(Descriptor, SocketAddr)> {
    let socket = make(at.ip(), device)?;
    tune(socket_of(&socket), options);
    // Connections of an earlier process with this port may still be closing.
    set(socket_of(&socket), libc::SOL_SOCKET, libc::SO_REUSEADDR, (at.port() != 0).into());
    if step("an address") || !bind(socket_of(&socket), at) {
        return Err(system(&format!("binding a socket to {at}")));
    }
    // SAFETY: the socket is open.
    let listen = || unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) == 0 };
    if step("a listener") || !listen() {
        return Err(system("listening at a socket"));
    }
    let address = address(socket.as_fd())?;
    Ok((socket, address))
}

/// The address of a socket's own end.
pub fn address(socket: BorrowedFd) -> Result<SocketAddr> {
    let (mut bytes, mut len) = ([0u8; V6], V6 as libc::socklen_t);
    // SAFETY: the buffer has space for the longest address.
    let rc = unsafe { libc::getsockname(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), &mut len) };
    let address = bytes.get(..len as usize).filter(|_| rc == 0).and_then(from_system);
    address.ok_or_else(|| system("asking for a socket's address"))
}

fn socket_of(socket: &Descriptor) -> BorrowedFd<'_> {
    socket.as_fd()
}

/// A path that drops everything ends a connection when a silent peer would be lost, and never
/// sooner: bytes in flight have then waited for as long, and so has a peer that reads nothing.
/// Where silence is allowed for ever, the system's own limits apply.
fn tune(socket: BorrowedFd, options: &Options) {
    set(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    set(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, UNSENT);
    if options.dscp > 0 {
        // The value excludes the two bits of ECN; the system knows which of the two options the
        // socket has.
        let class = i32::from(options.dscp) << 2;
        set(socket, libc::IPPROTO_IP, libc::IP_TOS, class);
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class);
    }
    if let Some(silence_ns) = options.liveness_ns {
        let part = |shares: u64| silence_ns.div_ceil(shares * 1_000_000_000).try_into().unwrap_or(i32::MAX);
        let ms = silence_ns.div_ceil(1_000_000).try_into().unwrap_or(i32::MAX);
        set(socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, ms);
        // An idle connection is probed as a silent peer is (`session::liveness`).
        set(socket, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, part(3));
        set(socket, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, part(6));
        set(socket, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 4);
        set(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    }
}

/// Starts to connect from an address of this host, by a device (0: any); the socket becomes writable
/// when connecting ends.
pub fn connect(from: SocketAddr, to: SocketAddr, device: u32, options: &Options) -> Result<Descriptor> {
    let socket = make(to.ip(), device)?;
    tune(socket_of(&socket), options);
    set(socket_of(&socket), libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
    let mut from = from;
    from.set_port(0);
    if from.is_ipv4() == to.is_ipv4() && !bind(socket_of(&socket), from) {
        return Err(no_port("binding a socket to the interface's address"));
    }
    let bytes = to_system(to);
    // SAFETY: the address and its length belong together.
    let rc =
        unsafe { libc::connect(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len() as libc::socklen_t) };
    if rc != 0 && errno() != libc::EINPROGRESS {
        return Err(no_port("connecting to a peer"));
    }
    Ok(socket)
}

/// Here `EADDRINUSE` says that no local port is free. From a peer it says that another endpoint has its address
/// (`ANOTHER`).
fn no_port(doing: &str) -> Error {
    let error = system(doing);
    match error.provider_errno {
        libc::EADDRINUSE => Error { provider_errno: libc::EADDRNOTAVAIL, ..error },
        _ => error,
    }
}

/// The result of connecting: 0 or an error number.
pub fn outcome(socket: BorrowedFd) -> i32 {
    integer(socket, libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or_else(|errno| errno)
}

/// The address of the other end, once it is connected.
fn other_end(socket: BorrowedFd) -> Option<SocketAddr> {
    let (mut bytes, mut len) = ([0u8; V6], V6 as libc::socklen_t);
    // SAFETY: the buffer has space for the longest address.
    let rc = unsafe { libc::getpeername(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), &mut len) };
    bytes.get(..len as usize).filter(|_| rc == 0).and_then(from_system)
}

/// Whether connecting has succeeded.
pub fn is_connected(socket: BorrowedFd) -> bool {
    other_end(socket).is_some()
}

/// The addresses of both ends, our own first.
pub fn ends(socket: &Socket) -> Option<(SocketAddr, SocketAddr)> {
    let socket = socket.as_fd();
    Some((address(socket).ok()?, other_end(socket)?))
}

/// The begin of the system's `tcp_info`; what an older system does not know is 0. (`libc` has more or
/// less of it, by its version.)
#[repr(C)]
#[derive(Default)]
struct Info {
    bytes: [u8; 8],
    words: [u32; 24],
    longs: [u64; 4],
}

impl Info {
    fn ask(socket: BorrowedFd) -> Info {
        let (mut info, mut len) = (Info::default(), size_of::<Info>() as libc::socklen_t);
        // SAFETY: the struct has this length and takes any bytes; an older system fills a part of it.
        unsafe {
            let at = (&raw mut info).cast();
            libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, at, &mut len);
        }
        info
    }
}

/// Whether bytes that were sent are repeated, since nobody acknowledges them.
pub fn is_unacknowledged(socket: BorrowedFd) -> bool {
    let Info { bytes: [_, _, retransmits, ..], words, .. } = Info::ask(socket);
    let unacked = words[4];
    unacked > 0 && retransmits > 0
}

/// What a connection has moved. (Of one that this side has made, the system counts the SYN as a byte.)
pub fn seen(socket: &Socket) -> Seen {
    let Info { words, longs: [_, _, bytes_acked, bytes_received], .. } = Info::ask(socket.as_fd());
    let (rtt_us, total_retrans) = (words[15], words[23]);
    Seen {
        bytes_sent: bytes_acked.saturating_sub(socket.dialed.into()),
        bytes_received,
        retransmits: total_retrans.into(),
        round_trip_ns: u64::from(rtt_us) * 1000,
    }
}

/// The next accepted connection, and its address; or an error number.
pub fn accept(listener: BorrowedFd, options: &Options) -> Outcome<(Descriptor, Option<SocketAddr>)> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let (mut from, mut len) = ([0u8; V6], V6 as libc::socklen_t);
    // SAFETY: the address has space for `len` bytes, and the returned descriptor is new.
    let accept = || unsafe { libc::accept4(listener.as_raw_fd(), from.as_mut_ptr().cast(), &mut len, flags) };
    let socket = Descriptor::opened(accept).ok_or_else(errno)?;
    tune(socket_of(&socket), options);
    let from = from.get(..len as usize).and_then(from_system);
    Ok((socket, from))
}

/// Sends the vectors' bytes; returns how many, or an error number.
///
/// # Safety
/// Each vector covers readable memory.
pub unsafe fn send(socket: BorrowedFd, iov: &[libc::iovec]) -> Outcome<usize> {
    // SAFETY: zero is valid for a message, and the vectors cover readable memory.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (iov.as_ptr().cast_mut(), iov.len() as _);
        libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL)
    };
    usize::try_from(sent).map_err(|_| errno())
}

/// Receives into the vectors; returns how many bytes, 0 at the end, or an error number.
///
/// # Safety
/// Each vector covers writable memory.
pub unsafe fn receive(socket: BorrowedFd, iov: &[libc::iovec]) -> Outcome<usize> {
    // SAFETY: the vectors cover writable memory.
    let got = unsafe { libc::readv(socket.as_raw_fd(), iov.as_ptr(), iov.len() as i32) };
    usize::try_from(got).map_err(|_| errno())
}

/// Whether a call should simply be repeated later.
pub fn is_later(errno: i32) -> bool {
    errno == libc::EAGAIN || errno == libc::EWOULDBLOCK || errno == libc::EINTR
}

/// Shuts down a connection, even if a forked child also has the socket.
pub fn shut(socket: BorrowedFd) {
    // SAFETY: the socket is open during the call.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}
