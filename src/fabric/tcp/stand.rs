//! One connection with what its NIC has for it, for tests that are the other side of its socket.

use super::connection::{Connection, Moving};
use super::stream::{Spare, SINK};
use crate::descriptor::Descriptor;
use crate::fabric::own::pool::Pool;
use crate::fabric::registry::Registry;
use crate::fabric::{Buffer, Reaped, Scratch};
use crate::wire::tcp::{Handshake, MESSAGE};
use std::collections::VecDeque;
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;

/// The tokens of receives begin with this one.
pub const RECEIVE: usize = 2 << 20;

pub struct Stand {
    pub connection: Connection,
    pub registry: Registry,
    pub receives: VecDeque<(Buffer, *mut Scratch)>,
    /// The memory of receives, and whatever else is to stay.
    pub rooms: Vec<Vec<u8>>,
    pub reaped: Vec<Reaped>,
    pub spare: Spare,
    pub pool: Pool,
    pub sink: Vec<u8>,
}

/// A connection's socket, and the other side of it.
pub fn sockets() -> (Descriptor, UnixStream) {
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    near.set_nonblocking(true).and_then(|()| far.set_nonblocking(true)).expect("they do not block");
    (Descriptor::opened(|| near.into_raw_fd()).expect("a descriptor"), far)
}

pub fn handshake() -> Handshake {
    Handshake { target: [1; 16], initiator: [2; 16], beside: false }
}

/// Takes bytes off the front; zeros once none are left.
pub fn number(data: &mut &[u8], bytes: usize) -> u64 {
    let (taken, rest) = data.split_at(bytes.min(data.len()));
    *data = rest;
    taken.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Stand {
    pub fn new(connection: Connection, registry: Registry) -> Stand {
        let (receives, rooms, reaped) = (VecDeque::new(), Vec::new(), Vec::new());
        let (spare, pool, sink) = (Spare::default(), Pool::default(), vec![0; SINK]);
        Stand { connection, registry, receives, rooms, reaped, spare, pool, sink }
    }

    /// One pass; the error with which the connection has ended in it.
    pub fn progress(&mut self, pass: u32, budget: u64) -> Result<(), i32> {
        self.registry.begin_pass();
        self.connection.heed(true, true, false);
        let mut with = Moving {
            registry: &mut self.registry,
            receives: &mut self.receives,
            reaped: &mut self.reaped,
            spare: &mut self.spare,
            pool: &mut self.pool,
            sink: &mut self.sink,
            pass,
            budget,
        };
        let progressed = self.connection.progress(&mut with);
        match progressed {
            Err(errno) => self.connection.die(errno, &mut self.pool, &mut self.reaped),
            Ok(_) if self.connection.handshake.is_some() => self.connection.accept(),
            Ok(_) => {}
        }
        progressed.map(|_| ())
    }

    /// Posts a receive.
    pub fn receive(&mut self) {
        let room = vec![0u8; MESSAGE];
        let (address, descriptor) = (room.as_ptr() as *mut _, null_mut());
        let buffer = Buffer { address, len: MESSAGE, descriptor, follows: false };
        self.receives.push_back((buffer, (RECEIVE + self.rooms.len()) as *mut Scratch));
        self.rooms.push(room);
        self.connection.feed();
    }
}
