//! What reaches a worker from other threads: ids of transfers by a bounded
//! queue, everything rarer as commands.

use super::watching::Awaiting;
use crate::fabric::{Access, HostRange, Registration};
use crate::memory::device::Device;
use crate::memory::{Memory, RemoteMemory};
use crate::peer::approach::Approaches;
use crate::peer::{Peer, Plan};
use crate::status::{Error, Result, Status};
use crate::transfer::claims::Run;
use crate::transfer::Outcome;
use crossbeam_queue::ArrayQueue;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{fence, AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

pub enum Command {
    Register {
        ranges: Arc<[HostRange]>,
        access: Access,
        /// One bit each; 0: all.
        rails: u64,
        /// Of a device's memory: which one, and whether other processes can open it.
        device: Option<(Device, bool)>,
        reply: Reply<Result<RailRegistrations>>,
    },
    Deregister {
        memory: Arc<Memory>,
        reply: Reply<Result<()>>,
    },
    /// From a peer's home to the workers that may have lanes; `welcome` is the
    /// hello that asks for them.
    AddLanes {
        peer: Arc<Peer>,
        plans: Vec<Plan>,
        welcome: Option<(Plan, u64)>,
    },
    /// Those over the rails in `keep`, one bit each, stay.
    DropLanes {
        peer: u64,
        keep: u64,
        /// Of a peer that has ended: whether they are cut, and who has yet to do it.
        ended: Option<(bool, Arc<AtomicUsize>)>,
    },
    DrainLanes {
        peer: u64,
    },
    /// A frame to a peer whose home has no lane for it.
    Carry {
        peer: u64,
        bytes: Vec<u8>,
    },
    /// The rest is for the peer's home.
    AddLink {
        peer: Arc<Peer>,
        approaches: Approaches,
        /// It greeted us: the hello's plan and nonce.
        accepted: Option<(Plan, u64)>,
    },
    /// The peer greets over a rail that has no lane to it.
    Greeted {
        peer: u64,
        plan: Plan,
        nonce: u64,
    },
    LaneUp {
        peer: u64,
        plan: Plan,
    },
    LaneFailed {
        peer: u64,
        plan: Plan,
        errno: i32,
        why: String,
    },
    LaneDrained {
        peer: u64,
        plan: Plan,
    },
    /// A lane that served failed, and is cut. The peer does not know (`asks`), or said so.
    LaneBroken {
        peer: u64,
        plan: Plan,
        epoch: u64,
        outcome: Outcome,
        asks: bool,
    },
    /// Nothing of it moves any more, on either side: it may greet again.
    LaneFenced {
        peer: u64,
        plan: Plan,
        epoch: u64,
    },
    /// To a lane's worker: the peer has cut its end, and (`asks`) waits for ours. `epoch` is
    /// that of the lane of who asked.
    Cut {
        peer: u64,
        plan: Plan,
        epoch: u64,
        asks: bool,
    },
    /// Our end is cut, as the peer asked.
    LaneCut {
        peer: u64,
        plan: Plan,
        epoch: u64,
    },
    /// To a worker with lanes: runs of a transfer that lanes left which failed. The
    /// sender's hold goes with it.
    Again {
        id: u64,
        runs: Vec<Run>,
        hops: u32,
    },
    /// The caller wants a fence.
    Fence {
        peer: u64,
        id: u64,
    },
    /// To a peer's workers: its lanes are to come to rest, for a fence of the peer's.
    QuiesceLanes {
        peer: u64,
        number: u64,
    },
    /// They have.
    LanesQuiet {
        peer: u64,
        number: u64,
    },
    /// To a peer's workers: some of its lanes stand still; do the others move?
    Probe {
        peer: u64,
    },
    EndPeer {
        peer: u64,
        outcome: Outcome,
    },
    Frame {
        peer: u64,
        bytes: Vec<u8>,
    },
    Send {
        peer: u64,
        id: u64,
        data: Arc<[u8]>,
        allowance: u64,
    },
    Notify {
        peer: u64,
        id: u64,
    },
    /// To be asked for.
    Atomic {
        peer: u64,
        id: u64,
    },
    Import {
        remote: Arc<RemoteMemory>,
    },
    Release {
        remote: Arc<RemoteMemory>,
    },
    Revoke {
        peer: u64,
        memory: u64,
    },
    Resume {
        peer: u64,
    },
    Connected {
        peer: u64,
    },
    /// A transfer wants a lane between rails that have none.
    Join {
        peer: u64,
        id: u64,
    },
    Disconnect {
        peer: u64,
    },
    /// To be started when a word says so; its hold goes with it.
    Await(Awaiting),
    Shutdown,
}

impl Command {
    /// The worker has ended: who waits for an answer gets one.
    fn refuse(self) {
        match self {
            Command::Register { reply, .. } => reply.put(Err(Error::closed())),
            // The rails are closed, and the registrations with them.
            Command::Deregister { reply, .. } => reply.put(Ok(())),
            Command::DropLanes { ended: Some((_, others)), .. } => {
                others.fetch_sub(1, Ordering::AcqRel);
            }
            _ => {}
        }
    }
}

/// By rail: the ranges' registrations.
pub type RailRegistrations = Vec<(usize, Box<[Registration]>)>;

/// An answer that a caller waits for.
pub struct Reply<T> {
    place: Arc<(Mutex<Option<T>>, Condvar)>,
}

impl<T> Clone for Reply<T> {
    fn clone(&self) -> Self {
        Reply { place: self.place.clone() }
    }
}

impl<T> Reply<T> {
    pub fn new() -> Reply<T> {
        Reply { place: Arc::new((Mutex::new(None), Condvar::new())) }
    }

    pub fn put(&self, value: T) {
        *self.place.0.lock() = Some(value);
        self.place.1.notify_all();
    }

    pub fn take(&self) -> Option<T> {
        self.place.0.lock().take()
    }

    /// Waits a while for the answer.
    pub fn wait(&self, at_most: Duration) -> Option<T> {
        let mut place = self.place.0.lock();
        if place.is_none() {
            self.place.1.wait_for(&mut place, at_most);
        }
        place.take()
    }
}

pub struct Inbox {
    transfers: ArrayQueue<u64>,
    commands: Mutex<VecDeque<Command>>,
    has_commands: AtomicBool,
    /// Changed under the commands' lock.
    closed: AtomicBool,
    sleeping: AtomicBool,
    event: OwnedFd,
}

impl Inbox {
    /// With room for every transfer that can be: a push cannot fail.
    pub fn new(transfers: usize) -> Result<Inbox> {
        // SAFETY: makes a descriptor that nobody else has.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Error::system("making a worker's event fd"));
        }
        Ok(Inbox {
            transfers: ArrayQueue::new(transfers),
            commands: Mutex::default(),
            has_commands: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            // SAFETY: as above.
            event: unsafe { OwnedFd::from_raw_fd(fd) },
        })
    }

    pub fn transfer(&self, id: u64) -> Result<()> {
        self.transfers
            .push(id)
            .map_err(|_| Error::new(Status::Internal, "a worker's queue of transfers is full"))?;
        self.wake();
        Ok(())
    }

    pub fn command(&self, command: Command) {
        if let Some(refused) = self.try_command(command) {
            refused.refuse();
        }
    }

    /// Gives the command back if nobody will obey it.
    pub fn try_command(&self, command: Command) -> Option<Command> {
        let mut commands = self.commands.lock();
        if self.closed.load(Ordering::Relaxed) {
            return Some(command);
        }
        commands.push_back(command);
        drop(commands);
        self.has_commands.store(true, Ordering::Release);
        self.wake();
        None
    }

    /// How many there are: asking costs less than taking from none.
    #[inline]
    pub fn transfers(&self) -> usize {
        self.transfers.len()
    }

    #[inline]
    pub fn next_transfer(&self) -> Option<u64> {
        self.transfers.pop()
    }

    /// Takes what is there; later commands are refused.
    pub fn close(&self) -> VecDeque<Command> {
        let mut commands = self.commands.lock();
        self.closed.store(true, Ordering::Relaxed);
        std::mem::take(&mut *commands)
    }

    pub fn take_commands(&self) -> VecDeque<Command> {
        if !self.has_commands.load(Ordering::Acquire) {
            return VecDeque::new();
        }
        let mut commands = self.commands.lock();
        self.has_commands.store(false, Ordering::Relaxed);
        std::mem::take(&mut *commands)
    }

    /// Without a fence: what is pushed meanwhile is seen the next time.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.transfers.is_empty() && !self.has_commands.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        // Pairs with the fence in `sleep`: either it sees the push, or we see that it sleeps.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::AcqRel) {
            let one = 1u64;
            // SAFETY: writes eight bytes to an eventfd of ours.
            unsafe { libc::write(self.event.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }

    /// Sleeps until something is pushed, one of the descriptors is readable, or
    /// the time has passed.
    pub fn sleep(&self, fds: &mut Vec<libc::pollfd>, at_most: Duration) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.is_empty() {
            fds.push(libc::pollfd { fd: self.event.as_raw_fd(), events: libc::POLLIN, revents: 0 });
            let time = libc::timespec {
                tv_sec: at_most.as_secs() as libc::time_t,
                tv_nsec: at_most.subsec_nanos() as libc::c_long,
            };
            // SAFETY: pollfds, a valid time, no signal mask.
            unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, &time, std::ptr::null()) };
            if fds.last().is_some_and(|event| event.revents != 0) {
                let mut count = 0u64;
                // SAFETY: reads eight bytes from an eventfd of ours.
                unsafe { libc::read(self.event.as_raw_fd(), (&raw mut count).cast(), 8) };
            }
        }
        self.sleeping.store(false, Ordering::Relaxed);
    }
}
