//! A wire from one NIC to another: requests in one direction, answers in the other. And the state
//! of a connection that two NICs share (`connect`).

use super::port::Port;
use super::ring::Ring;
use crossbeam_utils::{Backoff, CachePadded};
use libfabric_sys::{fi_rma_iov, iovec};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Release, SeqCst};
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Write,
    Read,
    Send,
}

/// Where an operation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Free,
    /// Waiting for a doorbell, a handshake, or a time.
    Here,
    /// The other side may read it.
    InWire,
}

/// An operation in flight. It belongs to the NIC that posted it; while it is in a wire, it belongs
/// to the other NIC, except for `state`, `outbound` and `ends`.
pub struct Op {
    pub state: State,
    pub outbound: u32,
    pub kind: Kind,
    pub context: *mut c_void,
    /// Flags of its completion entry.
    pub flags: u64,
    /// Its sender has closed the connection; the bytes are in `bytes`.
    pub orphan: bool,
    /// Its number among the posts of its connection.
    pub order: u64,
    pub len: usize,
    pub local: iovec,
    pub remote: fi_rma_iov,
    pub data: Option<u64>,
    pub errno: i32,
    pub bytes: Vec<u8>,
}

impl Op {
    fn new() -> Op {
        Op {
            state: State::Free,
            outbound: 0,
            kind: Kind::Write,
            context: ptr::null_mut(),
            flags: 0,
            orphan: false,
            order: 0,
            len: 0,
            local: iovec { iov_base: ptr::null_mut(), iov_len: 0 },
            remote: fi_rma_iov { addr: 0, len: 0, key: 0 },
            data: None,
            errno: 0,
            bytes: Vec::new(),
        }
    }

    /// Copies the bytes: the caller may change its own from now on.
    ///
    /// # Safety
    /// The local range must be readable.
    pub unsafe fn keep_bytes(&mut self) {
        self.bytes.clear();
        if self.len > 0 {
            // SAFETY: the local bytes are valid until the operation is read, and it was not.
            self.bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(self.local.iov_base.cast(), self.len)
            });
        }
        self.local = iovec { iov_base: self.bytes.as_mut_ptr().cast(), iov_len: self.bytes.len() };
    }
}

/// All operations of a NIC; they stay in place while either side may read them.
pub struct Pool(Box<[UnsafeCell<Op>]>);

// SAFETY: an operation's state determines which side may touch it, and rings hand it over.
unsafe impl Send for Pool {}
// SAFETY: an op is used by the one thread that has its index.
unsafe impl Sync for Pool {}

impl Pool {
    pub fn new(size: usize) -> Pool {
        Pool((0..size).map(|_| UnsafeCell::new(Op::new())).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub fn op(&self, op: u32) -> *mut Op {
        self.0[op as usize].get()
    }
}

#[derive(Clone, Copy)]
pub enum Request {
    /// Serve this operation.
    Op(u32),
    /// A write of this length with this immediate has landed.
    Arrived { data: u64, len: usize },
    /// The first contact.
    Handshake,
}

#[derive(Clone, Copy)]
pub enum Answer {
    Op { op: u32, errno: i32 },
    Handshake,
}

/// Requests from one NIC to another, with their arrival times.
pub struct Wire {
    pub from: Arc<Port>,
    pub to: Arc<Port>,
    /// The lives of both ports that it joins.
    lives: [u64; 2],
    pub pool: Arc<Pool>,
    pub copies: bool,
    /// The delay of an answer.
    pub delay: u64,
    /// The wire's connection; 0: none.
    pub link: u64,
    pub requests: Ring<(u64, Request)>,
    pub answers: Ring<(u64, Answer)>,
    /// One side has closed the connection: nothing crosses any longer.
    cut: AtomicBool,
    /// The sender has closed it: bytes that have left still land, and get no answers.
    left: AtomicBool,
    /// The sender is about to close it: nothing is served.
    leaving: AtomicBool,
    /// Set while one side touches memory of the other.
    pub sender_works: CachePadded<AtomicBool>,
    pub target_works: CachePadded<AtomicBool>,
}

/// Writes that were given back, and are still in flight.
pub struct Orphan {
    pub wire: Arc<Wire>,
    pub ops: Vec<u32>,
}

/// Begins to touch the other side's memory, unless that side is closed or the wire is reset; a
/// close or reset waits until this ends.
pub fn enter(wire: &Wire, works: &AtomicBool, other_is_gone: impl Fn(&Wire) -> bool) -> bool {
    works.store(true, SeqCst);
    if other_is_gone(wire) || wire.is_cut() || wire.is_leaving() || wire.is_left() {
        works.store(false, Release);
        return false;
    }
    true
}

pub fn leave(works: &AtomicBool) {
    works.store(false, Release);
}

/// Returns when the other side has finished, which may need a processor first.
fn await_end(works: &AtomicBool) {
    let backoff = Backoff::new();
    while works.load(SeqCst) {
        backoff.snooze();
    }
}

impl Wire {
    pub fn new(
        from: &Arc<Port>,
        to: &Arc<Port>,
        pool: &Arc<Pool>,
        copies: bool,
        delay: u64,
        link: u64,
    ) -> Wire {
        Wire {
            from: from.clone(),
            to: to.clone(),
            lives: [from.life(), to.life()],
            pool: pool.clone(),
            copies,
            delay,
            link,
            requests: Ring::new(2 * pool.len()),
            answers: Ring::new(pool.len() + 1),
            cut: AtomicBool::new(false),
            left: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            sender_works: Default::default(),
            target_works: Default::default(),
        }
    }

    #[inline]
    pub fn target_is_gone(&self) -> bool {
        self.to.is_gone_since(self.lives[1])
    }

    #[inline]
    pub fn sender_is_gone(&self) -> bool {
        self.from.is_gone_since(self.lives[0])
    }

    /// Whether the sender is gone and nothing of it is in flight, or the wire is cut.
    pub fn has_ended(&self) -> bool {
        // SAFETY: only the target calls this, on the thread that pops.
        self.is_cut()
            || (self.sender_is_gone() || self.is_left()) && unsafe { self.requests.peek() }.is_none()
    }

    #[inline]
    pub fn is_cut(&self) -> bool {
        self.cut.load(SeqCst)
    }

    #[inline]
    pub fn is_left(&self) -> bool {
        self.left.load(SeqCst)
    }

    #[inline]
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(SeqCst)
    }

    /// The sender closes the wire: when this returns, its operations belong to it again, except
    /// orphans, which belong to the target.
    pub fn begin_leaving(&self) {
        self.leaving.store(true, SeqCst);
        self.await_target();
    }

    pub fn leave(&self) {
        self.left.store(true, SeqCst);
        self.leaving.store(false, SeqCst);
        self.to.bell.ring();
    }

    /// Either side cuts the wire: when this returns, neither touches the other's memory through it.
    pub fn cut(&self) {
        self.cut.store(true, SeqCst);
        self.from.cuts.fetch_add(1, SeqCst);
        self.from.bell.ring();
        self.await_target();
        self.await_sender();
    }

    pub fn await_sender(&self) {
        await_end(&self.sender_works);
    }

    /// The sender is gone: when this returns, its operations belong to it again.
    pub fn await_target(&self) {
        await_end(&self.target_works);
    }
}

/// A connection, with the state that both of its sides share.
pub struct Link {
    pub number: u64,
    pub caller: Arc<Port>,
    pub listener: Arc<Port>,
    /// One side has closed it.
    pub closed: AtomicBool,
}

/// One side's step, as the other side receives it.
pub enum Call {
    Request(Arc<Link>, Vec<u8>),
    /// To one side of a link, as are the next two.
    Connected(u64),
    Refused(u64),
    Closed(u64),
}

impl Link {
    /// The name of one of its sides; the other side's differs in the last bit.
    pub fn side(&self, listens: bool) -> u64 {
        self.number << 1 | u64::from(listens)
    }

    pub fn other(&self, port: &Port) -> &Arc<Port> {
        match self.caller.number == port.number {
            true => &self.listener,
            false => &self.caller,
        }
    }
}
