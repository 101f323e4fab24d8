//! Unix sockets between two NICs: they pass memory, wake the other side, and report the end of its
//! process.
//!
//! Their names are abstract: a name vanishes with its process, and other network namespaces do not
//! see it. Nothing here blocks.

use crate::descriptor::Descriptor;
use crate::device::Handle;
use crate::failing::step;
use crate::status::{Error, Result};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// Messages between NICs over a socket.
#[derive(Debug)]
pub enum Control {
    /// The first message, which passes the channel; a later one passes the channel for disks.
    Channel(Descriptor),
    /// Memory from which the initiator writes: number, length, file.
    Area(u32, u64, Descriptor),
    /// A part of device memory, before the memory's handle: number, length, file.
    Part(u32, u64, Descriptor),
    /// Device memory from which the initiator writes: number, handle.
    Device(u32, Handle),
    /// Memory from which the initiator no longer writes.
    Forget(u32),
    Wake,
}

/// The result of reading a socket.
pub enum Received {
    Control(Control),
    Nothing,
    /// The other side is gone, or sent something malformed.
    End,
}

const CHANNEL: u8 = 1;
const AREA: u8 = 2;
const FORGET: u8 = 3;
const WAKE: u8 = 4;
const DEVICE: u8 = 5;
const PART: u8 = 6;
/// Changes with every change of the channel's layout, of its requests, or of the messages.
const VERSION: u32 = 2;
const FRAME: usize = 16;
/// A frame that is followed by a handle.
const LONG: usize = FRAME + 32 + 64;
pub const BACKLOG: i32 = 1024;

fn address_of(name: &str) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: the struct has only integers and characters, for which zero is valid.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // A leading NUL makes the name abstract.
    let room = address.sun_path.len() - 1;
    for (to, from) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let len = size_of::<libc::sa_family_t>() + 1 + name.len().min(room);
    (address, len as libc::socklen_t)
}

fn open() -> Result<Descriptor> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call has no preconditions; it returns a new descriptor or an error.
    Descriptor::opened(|| unsafe { libc::socket(libc::AF_UNIX, kind, 0) })
        .ok_or_else(|| Error::system("making a socket for peers on this host"))
}

pub fn listen(name: &str) -> Result<Descriptor> {
    let socket = open()?;
    let (address, len) = address_of(name);
    // SAFETY: the socket is open, and the address has this length.
    let rc = unsafe {
        match libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) {
            0 => libc::listen(socket.as_raw_fd(), BACKLOG),
            rc => rc,
        }
    };
    if rc != 0 || step("a listener") {
        return Err(Error::system("listening for peers on this host"));
    }
    Ok(socket)
}

/// Connects at once; `None` while the listener's queue is full.
pub fn connect(name: &str) -> Result<Option<Descriptor>> {
    let socket = open()?;
    let (address, len) = address_of(name);
    // SAFETY: the socket is open, and the address has this length.
    let rc = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if rc == 0 {
        return Ok(Some(socket));
    }
    let errno = errno();
    if errno == libc::EAGAIN || errno == libc::EINTR {
        return Ok(None);
    }
    Err(Error { provider_errno: errno, ..Error::system("connecting to a peer on this host") })
}

/// The next connection in the listener's queue, if there is one. An error number if it cannot be
/// accepted now.
pub fn accept(listener: BorrowedFd) -> std::result::Result<Option<Descriptor>, i32> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the socket is open, and the address pointers may be null.
    let accept =
        || unsafe { libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) };
    if let Some(socket) = Descriptor::opened(accept) {
        return Ok(Some(socket));
    }
    match errno() {
        errno @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => Err(errno),
        _ => Ok(None),
    }
}

/// Shuts down a connection or a listener, even where a forked child holds the socket.
pub fn shut(socket: BorrowedFd) {
    // SAFETY: the socket is open during the call.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Space for one descriptor in addition to a frame.
#[repr(C, align(8))]
struct Ancillary([u8; 24]);

fn send(socket: BorrowedFd, kind: u8, number: u32, len: u64, fd: Option<RawFd>) -> bool {
    let mut frame = [0u8; FRAME];
    frame[0] = kind;
    frame[4..8].copy_from_slice(&number.to_ne_bytes());
    frame[8..].copy_from_slice(&len.to_ne_bytes());
    let mut part = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: FRAME };
    let mut beside = Ancillary([0; 24]);
    // SAFETY: the message points to buffers that outlive the call; `beside` has space for one
    // descriptor.
    let sent = unsafe {
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        if let Some(fd) = fd {
            message.msg_control = beside.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd);
        }
        libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    sent == FRAME as isize
}

/// Another descriptor of a socket.
pub fn duplicate(socket: BorrowedFd) -> Option<Descriptor> {
    // SAFETY: the socket is open during the call.
    Descriptor::opened(|| unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0) })
}

pub fn pass_channel(socket: BorrowedFd, fd: BorrowedFd) -> bool {
    send(socket, CHANNEL, VERSION, 0, Some(fd.as_raw_fd()))
}

/// Like `pass_area`, for device memory.
pub fn pass_device(socket: BorrowedFd, number: u32, handle: &Handle) -> bool {
    let mut frame = [0u8; LONG];
    frame[0] = DEVICE;
    frame[4..8].copy_from_slice(&number.to_ne_bytes());
    let device = u64::from(handle.device) | u64::from(handle.in_parts) << 32;
    let words = [handle.process, device, handle.base, handle.len];
    for (at, word) in frame[FRAME..].chunks_exact_mut(8).zip(words) {
        at.copy_from_slice(&word.to_ne_bytes());
    }
    frame[FRAME + 32..].copy_from_slice(&handle.token);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the frame has at least this many bytes.
    unsafe { libc::send(socket.as_raw_fd(), frame.as_ptr().cast(), LONG, flags) == LONG as isize }
}

fn handle_in(frame: &[u8; LONG]) -> Option<Handle> {
    let word = |at: usize| {
        let bytes = frame.get(FRAME + 8 * at..)?.first_chunk::<8>()?;
        Some(u64::from_ne_bytes(*bytes))
    };
    Some(Handle {
        process: word(0)?,
        device: word(1)? as u32,
        in_parts: word(1)? >> 32 != 0,
        base: word(2)?,
        len: word(3)?,
        token: *frame.last_chunk::<64>()?,
    })
}

/// Passes an area; false if that failed and can be tried again.
pub fn pass_area(socket: BorrowedFd, number: u32, len: u64, fd: BorrowedFd) -> bool {
    send(socket, AREA, number, len, Some(fd.as_raw_fd()))
}

pub fn pass_part(socket: BorrowedFd, number: u32, len: u64, fd: BorrowedFd) -> bool {
    send(socket, PART, number, len, Some(fd.as_raw_fd()))
}

/// Memory that the other side may forget, by number. What a full socket does not take waits for the
/// next try: otherwise the other side would keep that memory until the connection ends.
#[derive(Default)]
pub struct Forgotten(Vec<u32>);

impl Forgotten {
    pub fn add(&mut self, socket: BorrowedFd, number: u32) {
        self.0.push(number);
        self.send(socket);
    }

    /// Sends what waits; false if some of it still does. (No number is reused, so the order does not
    /// matter.)
    pub fn send(&mut self, socket: BorrowedFd) -> bool {
        while let Some(number) = self.0.pop() {
            if !send(socket, FORGET, number, 0, None) {
                self.0.push(number);
                return false;
            }
        }
        true
    }
}

/// If the socket is full, the other side has an unread wake-up.
pub fn wake(socket: BorrowedFd) {
    send(socket, WAKE, 0, 0, None);
}

pub fn receive(socket: BorrowedFd) -> Received {
    let mut frame = [0u8; LONG];
    let mut part = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: LONG };
    let mut beside = Ancillary([0; 24]);
    // SAFETY: the message points to buffers that outlive the call, with their lengths.
    let (got, fd) = unsafe {
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = beside.0.as_mut_ptr().cast();
        // Space for exactly one descriptor: the kernel drops any others.
        message.msg_controllen = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
        let got =
            libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC);
        (got, if got < 0 { None } else { passed_fd(&message) })
    };
    if got < 0 {
        let errno = errno();
        return if errno == libc::EAGAIN || errno == libc::EINTR { Received::Nothing } else { Received::End };
    }
    let number = u32::from_ne_bytes([frame[4], frame[5], frame[6], frame[7]]);
    let len = u64::from_ne_bytes([
        frame[8], frame[9], frame[10], frame[11], frame[12], frame[13], frame[14], frame[15],
    ]);
    match (got as usize, frame[0], fd) {
        (FRAME, CHANNEL, Some(fd)) if number == VERSION => Received::Control(Control::Channel(fd)),
        (FRAME, AREA, Some(fd)) => Received::Control(Control::Area(number, len, fd)),
        (FRAME, PART, Some(fd)) => Received::Control(Control::Part(number, len, fd)),
        (FRAME, FORGET, None) => Received::Control(Control::Forget(number)),
        (FRAME, WAKE, None) => Received::Control(Control::Wake),
        (LONG, DEVICE, None) => match handle_in(&frame) {
            Some(handle) => Received::Control(Control::Device(number, handle)),
            None => Received::End,
        },
        _ => Received::End,
    }
}

/// The one descriptor that can come with a message.
///
/// # Safety
/// `message` must be in the state in which `recvmsg` left it.
unsafe fn passed_fd(message: &libc::msghdr) -> Option<Descriptor> {
    // SAFETY: the kernel wrote the header, into room for it that `message` names.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(message);
        if header.is_null()
            || (*header).cmsg_level != libc::SOL_SOCKET
            || (*header).cmsg_type != libc::SCM_RIGHTS
            || (*header).cmsg_len < libc::CMSG_LEN(size_of::<RawFd>() as u32) as _
        {
            return None;
        }
        let fd = libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned();
        Descriptor::opened(|| fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn socket_passes_descriptors_and_reports_close() {
        let name = format!("weft-test-{}", crate::clock::Random::System.u64().unwrap());
        assert!(connect(&name).is_err());
        let listener = listen(&name).unwrap();
        let near = connect(&name).unwrap().unwrap();
        let far = accept(listener.as_fd()).unwrap().unwrap();
        // SAFETY: the call has no preconditions.
        assert_eq!(super::super::user::process_of(near.as_fd()), Some(unsafe { libc::getpid() }));
        assert!(matches!(receive(far.as_fd()), Received::Nothing));
        assert!(pass_area(near.as_fd(), 7, 99, listener.as_fd()));
        wake(near.as_fd());
        let Received::Control(Control::Area(7, 99, fd)) = receive(far.as_fd()) else { panic!("no area") };
        assert_ne!(fd.as_raw_fd(), listener.as_raw_fd());
        assert!(matches!(receive(far.as_fd()), Received::Control(Control::Wake)));
        drop(near);
        assert!(matches!(receive(far.as_fd()), Received::End));
    }
}
