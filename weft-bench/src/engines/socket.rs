//! A plain TCP connection: many pages per writev, received directly into place, with one byte of
//! acknowledgement at the end.

use super::{Receiver, Sender};
use crate::memory::Pool;
use crate::pages::Lists;
use anyhow::{bail, Context, Result};
use serde_json::{json, Value};
use std::io::{self, Read, Write};
use std::mem::{size_of, zeroed};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

const PAGES: usize = 64;

/// The header before the pages of one writev, which says where they belong.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    pages: u32,
    is_last: u32,
    /// Both sides spin on the socket instead of sleeping.
    spin: u32,
    reserved: u32,
    places: [u32; PAGES],
}

const EMPTY: Header = Header { pages: 0, is_last: 0, spin: 0, reserved: 0, places: [0; PAGES] };

impl Header {
    fn iov(&mut self) -> libc::iovec {
        libc::iovec { iov_base: (self as *mut Header).cast(), iov_len: size_of::<Header>() }
    }
}

/// Sends or receives all of `parts`, in as few calls as the socket allows.
fn move_all(
    stream: &TcpStream,
    mut parts: &mut [libc::iovec],
    spin: bool,
    call: impl Fn(i32, &mut libc::msghdr, i32) -> isize,
) -> io::Result<()> {
    let flags = libc::MSG_NOSIGNAL | if spin { libc::MSG_DONTWAIT } else { 0 };
    while !parts.is_empty() {
        // SAFETY: the struct has only integers and pointers, for which zero is valid.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        let rc = call(stream.as_raw_fd(), &mut message, flags);
        if rc == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if rc < 0 {
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => continue,
                _ => return Err(error),
            }
        }
        let mut moved = rc as usize;
        while let Some(first) = parts.first_mut() {
            if moved < first.iov_len {
                first.iov_base = first.iov_base.wrapping_byte_add(moved);
                first.iov_len -= moved;
                break;
            }
            moved -= first.iov_len;
            parts = &mut parts[1..];
        }
    }
    Ok(())
}

fn send_all(stream: &TcpStream, parts: &mut [libc::iovec], spin: bool) -> io::Result<()> {
    // SAFETY: the parts name memory that stays mapped.
    move_all(stream, parts, spin, |fd, message, flags| unsafe { libc::sendmsg(fd, message, flags) })
}

fn receive_all(stream: &TcpStream, parts: &mut [libc::iovec], spin: bool) -> io::Result<()> {
    // SAFETY: `message` names the parts, which are writable until the call returns.
    move_all(stream, parts, spin, |fd, message, flags| unsafe { libc::recvmsg(fd, message, flags) })
}

const TUNINGS: [(usize, bool); 6] = [(4, false), (16, false), (64, false), (4, true), (16, true), (64, true)];

pub struct SocketSender {
    port: u16,
    stream: Option<TcpStream>,
    source: *mut u8,
    page_len: usize,
    /// Pages of one writev.
    group: usize,
    spin: bool,
    tunings: usize,
}

impl SocketSender {
    /// `sleeps`: it never spins.
    pub fn open(pool: &Pool, offer: &Value, sleeps: bool) -> Result<SocketSender> {
        let port = offer["port"].as_u64().context("the target's port")? as u16;
        let ((group, spin), (source, page_len)) = (TUNINGS[0], (pool.base(), pool.page_len));
        let tunings = if sleeps { TUNINGS.len() / 2 } else { TUNINGS.len() };
        Ok(SocketSender { port, stream: None, source, page_len, group, spin, tunings })
    }
}

impl Sender for SocketSender {
    fn connect(&mut self) -> Result<()> {
        let stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_nodelay(true)?;
        self.stream = Some(stream);
        self.write(&Lists { source: vec![0], target: vec![0] })
    }

    fn write(&mut self, lists: &Lists) -> Result<()> {
        let stream = self.stream.as_ref().context("not connected")?;
        let mut header = EMPTY;
        // SAFETY: the struct has only integers and pointers, for which zero is valid.
        let mut parts: [libc::iovec; PAGES + 1] = unsafe { zeroed() };
        for (group, sources) in lists.source.chunks(self.group).enumerate() {
            let first = group * self.group;
            let targets = &lists.target[first..first + sources.len()];
            header.pages = sources.len() as u32;
            header.is_last = (first + sources.len() == lists.len()) as u32;
            header.spin = self.spin as u32;
            header.places[..targets.len()].copy_from_slice(targets);
            parts[0] = header.iov();
            for (part, page) in parts[1..].iter_mut().zip(sources) {
                let iov_base = self.source.wrapping_add(*page as usize * self.page_len).cast();
                *part = libc::iovec { iov_base, iov_len: self.page_len };
            }
            send_all(stream, &mut parts[..sources.len() + 1], self.spin)?;
        }
        let mut done = 0u8;
        let mut answer = [libc::iovec { iov_base: (&raw mut done).cast(), iov_len: 1 }];
        receive_all(stream, &mut answer, self.spin)?;
        Ok(())
    }

    fn tunings(&self) -> usize {
        self.tunings
    }

    fn tune(&mut self, tuning: usize) {
        (self.group, self.spin) = TUNINGS[tuning];
    }

    fn describe(&self) -> String {
        let wait = if self.spin { "spinning" } else { "blocking" };
        format!("socket: {} pages a writev, {wait}", self.group)
    }
}

pub struct SocketReceiver {
    listener: TcpListener,
    stream: Option<TcpStream>,
    target: *mut u8,
    page_len: usize,
    pages: usize,
}

impl SocketReceiver {
    pub fn open(pool: &Pool) -> Result<SocketReceiver> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("listening on loopback")?;
        listener.set_nonblocking(true)?;
        let (target, page_len, pages) = (pool.base(), pool.page_len, pool.pages);
        Ok(SocketReceiver { listener, stream: None, target, page_len, pages })
    }

    /// Receives the rest of a transfer behind its first header.
    fn receive(&self, mut stream: &TcpStream, mut header: Header) -> Result<()> {
        // SAFETY: the struct has only integers and pointers, for which zero is valid.
        let mut parts: [libc::iovec; PAGES + 1] = unsafe { zeroed() };
        loop {
            let count = header.pages as usize;
            let Some(places) = header.places.get(..count) else { bail!("a header of {count} pages") };
            for (part, page) in parts.iter_mut().zip(places) {
                if *page as usize >= self.pages {
                    bail!("page {page} of {}", self.pages);
                }
                let iov_base = self.target.wrapping_add(*page as usize * self.page_len).cast();
                *part = libc::iovec { iov_base, iov_len: self.page_len };
            }
            let spin = header.spin != 0;
            if header.is_last != 0 {
                receive_all(stream, &mut parts[..count], spin)?;
                return Ok(stream.write_all(&[1])?);
            }
            // Receive the next header with the same call.
            let mut next = EMPTY;
            parts[count] = next.iov();
            receive_all(stream, &mut parts[..count + 1], spin)?;
            header = next;
        }
    }
}

impl Receiver for SocketReceiver {
    fn offer(&self) -> Result<Value> {
        Ok(json!({ "port": self.listener.local_addr()?.port() }))
    }

    fn poll(&mut self) -> Result<()> {
        let Some(stream) = &self.stream else {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    stream.set_nodelay(true)?;
                    self.stream = Some(stream);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            return Ok(());
        };
        // SAFETY: the buffer has one byte, which stays in the socket.
        let waiting = unsafe {
            let mut byte = 0u8;
            let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
            libc::recv(stream.as_raw_fd(), (&raw mut byte).cast(), 1, flags)
        };
        if waiting != 1 {
            return Ok(()); // No byte yet; or the sender has closed, and reports that elsewhere.
        }
        let mut bytes = [0u8; size_of::<Header>()];
        (&mut &*stream).read_exact(&mut bytes)?;
        // SAFETY: the struct has only integers, for which any bytes are valid.
        let header: Header = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
        self.receive(stream, header)
    }
}
