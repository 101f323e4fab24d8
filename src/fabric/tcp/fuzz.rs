//! A connection whose peer sends arbitrary bytes, in pieces of any length, while operations are
//! posted and memory is taken back. Unencrypted, or encrypted: then the peer knows the secret, and
//! bytes also come between its records.

use super::connection::{Connection, State};
use super::sealed::Sealed;
use super::stand::{handshake, number, sockets, Stand, RECEIVE};
use crate::fabric::registry::Registry;
use crate::fabric::{Access, HostRange, Immediate, Rma, Scratch, Segment};
use crate::ids::PeerId;
use crate::wire::seal::Root;
use crate::wire::tcp::{Answer, Kind, Piece, Request};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;

const LEN: usize = 2048;
/// Bytes on both sides of writable memory that must not change.
const GUARD: usize = 256;
const MARK: u8 = 0xA5;
const KEY: u64 = 7;
const BOTH: Access = Access::ALL;

struct World {
    near: Stand,
    far: UnixStream,
    /// The far side's encryption.
    sealed: Option<Box<Sealed>>,
    /// The memory that peers may touch, and that our operations use.
    memory: Vec<u8>,
    local: Vec<u8>,
    /// Operations so far: their tokens are their numbers, from 1 on.
    pushed: usize,
    /// The contents of memory when it was taken back.
    frozen: [Option<Vec<u8>>; 2],
}

pub fn stream(mut data: &[u8]) {
    let how = number(&mut data, 1);
    let mut world = World::new(how & 1 != 0, how & 4 != 0);
    if how & 2 != 0 {
        world.go_on();
        let begin =
            if how & 1 != 0 { Answer::Accepted.bytes().to_vec() } else { handshake().bytes().to_vec() };
        world.say(&begin);
        world.near.connection.authenticate(PeerId::numbered(1));
        assert_eq!(world.near.connection.state, State::Up);
    }
    while !data.is_empty() && world.near.connection.dead().is_none() {
        world.step(&mut data);
        world.go_on();
        world.check();
    }
    world.near.connection.die(libc::ECONNRESET, &mut world.near.pool, &mut world.near.reaped);
    world.check();
    let ended =
        world.near.reaped.iter().map(|one| one.scratch as usize).filter(|at| (1..RECEIVE).contains(at));
    let mut ended: Vec<usize> = ended.collect();
    ended.sort_unstable();
    assert_eq!(ended, (1..=world.pushed).collect::<Vec<_>>(), "each operation ends once");
}

impl World {
    fn new(dialed: bool, sealed: bool) -> World {
        let (socket, far) = sockets();
        let ends = sealed.then(|| {
            let roots = [Root::new(b"correct horse battery")];
            [Sealed::initiator(&roots).expect("a key"), Sealed::target(&roots)]
        });
        let (dials, accepts) = ends.map(|[dials, accepts]| (dials, accepts)).unzip();
        let (connection, sealed) = if dialed {
            (Connection::dialed(socket, dials, handshake(), Some(PeerId::numbered(1)), 0), accepts)
        } else {
            (Connection::accepted(socket, accepts, 0), dials)
        };
        let memory = vec![MARK; GUARD + LEN + GUARD];
        let mut registry = Registry::default();
        let range = HostRange { base: memory.as_ptr() as u64 + GUARD as u64, len: LEN as u64 };
        assert!(registry.add(KEY, range, BOTH, None));
        let near = Stand::new(connection, registry);
        World { near, far, sealed, local: memory.clone(), memory, pushed: 0, frozen: [None, None] }
    }

    fn say(&mut self, bytes: &[u8]) {
        self.put(bytes);
        self.go_on();
    }

    /// Sends from the far side, encrypted where the connection is.
    fn put(&mut self, bytes: &[u8]) {
        let Some(sealed) = &mut self.sealed else { return drop(self.far.write(bytes)) };
        let mut iov = [libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() }];
        let mut at = 0;
        // SAFETY: a slice is readable for its length.
        while at < iov.len() && unsafe { sealed.seal(&mut iov, &mut at, false) }.is_ok() {
            if sealed.send(self.far.as_fd()) != Ok(true) {
                break;
            }
        }
    }

    fn drain(&mut self) {
        let mut room = [0; 8192];
        let Some(sealed) = &mut self.sealed else { return drop(self.far.read(&mut room)) };
        let iov = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        // SAFETY: the buffer is writable for its length.
        let _ = unsafe { sealed.receive(self.far.as_fd(), &[iov], false) };
    }

    fn go_on(&mut self) {
        for pass in 0..4 {
            self.drain();
            if self.near.progress(pass, 1 << 20).is_err() {
                return;
            }
        }
    }

    fn step(&mut self, data: &mut &[u8]) {
        let (what, how) = (number(data, 1), number(data, 1));
        match what % 8 {
            0 => {
                let (bytes, rest) = data.split_at((how as usize).min(data.len()));
                *data = rest;
                let _ = self.far.write(bytes);
            }
            1 | 2 => self.request(how, data),
            3 => {
                let (number, len) = (number(data, 1), number(data, 2) as u32);
                let answer = match how % 3 {
                    0 => Answer::Done(number),
                    1 => Answer::Data { number, len },
                    _ => Answer::Failed { number, errno: len },
                };
                self.put(&answer.bytes());
            }
            4 => {
                self.put(&vec![how as u8; number(data, 2) as usize % (2 * LEN)]);
            }
            5 if self.frozen[1].is_none() => self.push(how, number(data, 2)),
            6 => match how % 4 {
                0 if self.frozen[0].is_none() => {
                    self.near.registry.remove(KEY);
                    self.near.connection.forget(KEY, &mut self.near.sink);
                    self.frozen[0] = Some(self.memory.clone());
                }
                1 if self.frozen[1].is_none() => {
                    let all: Vec<*mut Scratch> = (1..=self.pushed).map(|at| at as *mut Scratch).collect();
                    self.near.connection.disown(&all, &mut self.near.pool, &mut self.near.sink);
                    self.frozen[1] = Some(self.local.clone());
                }
                2 => self.near.connection.refuse(0, &mut self.near.sink),
                _ => {}
            },
            7 => self.near.receive(),
            _ => {}
        }
    }

    /// A nearly valid request, and some of its bytes: other steps may send the rest.
    fn request(&mut self, how: u64, data: &mut &[u8]) {
        let pieces = 1 + number(data, 1) % 4;
        let base = self.memory.as_ptr() as u64 + GUARD as u64;
        let list: Vec<Piece> = (0..pieces)
            .map(|_| Piece {
                address: base.wrapping_add(number(data, 2)).wrapping_sub(64),
                len: number(data, 2) as u32 % LEN as u32,
            })
            .collect();
        let len = list.iter().map(|piece| piece.len).sum::<u32>() + u32::from(how & 128 != 0);
        let kind = [Kind::Write, Kind::Read, Kind::Message][how as usize % 3];
        let request = Request {
            kind,
            pieces: pieces as u16,
            len,
            key: KEY + (how >> 6 & 1),
            immediate: Immediate::new(how as u32 >> 2 & 3),
            address: list[0].address,
        };
        self.put(&request.bytes());
        if pieces > 1 {
            list.iter().for_each(|piece| self.put(&piece.bytes()));
        }
    }

    fn push(&mut self, how: u64, at: u64) {
        let (base, at) = (self.local.as_ptr() as u64 + GUARD as u64, at % (LEN as u64 / 2));
        let segment =
            |i: u64| Segment { local: base + at + i, remote: 4096 + i, len: (LEN as u64 / 2) >> (2 * i) };
        let segments = [segment(0), segment(1)];
        let read = how & 1 != 0;
        let rma = Rma {
            read,
            segments: &segments[..1 + (how as usize >> 1 & 1)],
            descriptor: null_mut(),
            key: 9,
            immediate: None,
            more: false,
        };
        self.pushed += 1;
        self.near.connection.push(
            if read { Kind::Read } else { Kind::Write },
            &rma,
            self.pushed as *mut Scratch,
        );
    }

    fn check(&self) {
        for (bytes, frozen) in [&self.memory, &self.local].into_iter().zip(&self.frozen) {
            let mut guards = [&bytes[..GUARD], &bytes[GUARD + LEN..]].into_iter();
            assert!(guards.all(|guard| guard == [MARK; GUARD]), "written outside of the memory");
            assert!(frozen.as_ref().is_none_or(|then| then == bytes), "written after it was taken back");
        }
    }
}
