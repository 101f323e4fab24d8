//! Packed pages over bare libfabric: the sender gathers many pages into a slot,
//! one large write carries it to the target's landing slot, and the target copies
//! them to their places. A small message each way says that a slot is full, and
//! that it is free again.

use super::port::{Port, Remote};
use super::{Place, Rail, Receiver, Sender};
use crate::memory::Pool;
use crate::pages::Lists;
use anyhow::{bail, Context, Result};
use libfabric_sys::*;
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};
use std::mem::{size_of, zeroed};
use std::ptr;
use std::time::{Duration, Instant};

const SLOTS: usize = 8;
/// Room of a slot for pages, at most, and for the list of them.
const ROOM: usize = 512 << 10;
const SLOT: usize = ROOM + 8192;
/// Messages are numbers of slots.
const MESSAGE: usize = size_of::<u64>();
const PATIENCE: Duration = Duration::from_secs(10);

/// How the target learns that a slot is full.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Notice {
    Message,
    /// The write's own immediate.
    Immediate,
}

#[derive(Clone, Copy, Debug)]
struct Tuning {
    room: usize,
    window: usize,
    notice: Notice,
}

#[derive(Serialize, Deserialize)]
struct Offer {
    address: Vec<u8>,
    base: u64,
    key: u64,
}

/// What both sides have: an endpoint, slots, and receives for the messages.
struct Half {
    port: Port,
    /// The slots, and behind them one for messages.
    slots: Pool,
    contexts: [fi_context2; 2 * SLOTS],
    route: fi_addr_t,
}

impl Half {
    fn open(rail: &Rail) -> Result<Half> {
        let slots = Pool::new(SLOT, SLOTS + 1)?;
        let port = Port::open(rail, false, &slots)?;
        // SAFETY: pointers, for the provider to use.
        Ok(Half { port, slots, contexts: unsafe { zeroed() }, route: 0 })
    }

    /// Receives are posted when the half has come to rest: the provider keeps
    /// pointers to the contexts.
    fn start(&mut self, address: &[u8]) -> Result<()> {
        self.route = self.port.insert(address)?;
        (0..SLOTS).try_for_each(|at| self.post_receive(at))
    }

    fn slot(&self, slot: usize) -> *mut u8 {
        self.slots.base().wrapping_add(slot * SLOT)
    }

    fn message(&self, at: usize) -> *mut u64 {
        self.slot(SLOTS).wrapping_add(at * 64).cast()
    }

    fn post_receive(&mut self, at: usize) -> Result<()> {
        let (buffer, context) = (self.message(at), &raw mut self.contexts[at]);
        let (ep, desc) = (self.port.ep, self.port.descriptor);
        // SAFETY: buffer and context live as long as the endpoint.
        match unsafe { fi_recv(ep, buffer.cast(), MESSAGE, desc, FI_ADDR_UNSPEC, context.cast()) } {
            0 => Ok(()),
            rc => bail!("posting a receive: libfabric error {}", -rc),
        }
    }

    /// False if the provider has no room.
    fn tell(&self, slot: u64) -> Result<bool> {
        // SAFETY: inject copies the number before it returns.
        match unsafe { fi_inject(self.port.ep, (&raw const slot).cast(), MESSAGE, self.route) } {
            0 => Ok(true),
            rc if rc == -(FI_EAGAIN as isize) => Ok(false),
            rc => bail!("sending a message: libfabric error {}", -rc),
        }
    }

    /// Calls `told` with each slot that the other side spoke of.
    fn reap(&mut self, told: &mut impl FnMut(usize)) -> Result<usize> {
        // SAFETY: integers and pointers.
        let mut entries: [fi_cq_data_entry; 2 * SLOTS] = unsafe { zeroed() };
        let reaped = self.port.reap(&mut entries)?;
        for entry in &entries[..reaped] {
            if entry.flags & FI_REMOTE_CQ_DATA != 0 {
                told(entry.data as usize);
            } else if entry.flags & FI_RECV != 0 {
                let first = (&raw const self.contexts) as usize;
                let at = (entry.op_context as usize - first) / size_of::<fi_context2>();
                // SAFETY: the message has arrived in a buffer of ours.
                let slot = unsafe { self.message(at).read() };
                self.post_receive(at)?;
                told(slot as usize);
            }
        }
        Ok(reaped)
    }
}

/// The head of a slot: how many pieces, how long each; their places follow as
/// `u32`, counted in pieces, and then the pieces.
#[repr(C)]
#[derive(Clone, Copy)]
struct Head {
    count: u32,
    piece: u32,
}

impl Head {
    /// Where the first piece lies.
    fn len(self) -> usize {
        (size_of::<Head>() + self.count as usize * 4).next_multiple_of(64)
    }
}

pub struct PackedSender {
    half: Box<Half>,
    source: *mut u8,
    page_len: usize,
    remote: Remote,
    answer: Value,
    tunings: Vec<Tuning>,
    tuning: Tuning,
}

impl PackedSender {
    pub fn open(place: &Place, pool: &Pool, offer: &Value) -> Result<PackedSender> {
        let offer: Offer = serde_json::from_value(offer.clone()).context("the target's offer")?;
        let mut half = Box::new(Half::open(place.rail)?);
        half.start(&offer.address)?;
        let answer = json!({ "address": half.port.address });
        let mut tunings = Vec::new();
        for notice in [Notice::Message, Notice::Immediate] {
            for room in [32 << 10, 64 << 10, 128 << 10, 256 << 10, ROOM] {
                tunings.extend([2, 4, SLOTS].map(|window| Tuning { room, window, notice }));
            }
        }
        Ok(PackedSender {
            half,
            source: pool.base(),
            page_len: pool.page_len,
            remote: Remote { base: offer.base, key: offer.key },
            answer,
            tuning: tunings[0],
            tunings,
        })
    }

    pub fn answer(&self) -> Value {
        self.answer.clone()
    }

    /// Copies the pieces from `first` on into a slot; how many, and how long it is now.
    fn gather(&self, slot: usize, lists: &Lists, first: usize, piece: usize) -> (usize, usize) {
        let per_page = self.page_len / piece;
        let count = (self.tuning.room / piece).min(lists.len() * per_page - first);
        let head = Head { count: count as u32, piece: piece as u32 };
        let base = self.half.slot(slot);
        let places: *mut u32 = base.wrapping_add(size_of::<Head>()).cast();
        // SAFETY: a slot has room for this many pieces and their list, and belongs to us until
        // it is posted; pages lie in the pool.
        unsafe {
            base.cast::<Head>().write(head);
            let mut to = base.add(head.len());
            for at in 0..count {
                let (page, part) = ((first + at) / per_page, (first + at) % per_page);
                places.add(at).write((lists.target[page] as usize * per_page + part) as u32);
                let from = self.source.add(lists.source[page] as usize * self.page_len + part * piece);
                ptr::copy_nonoverlapping(from, to, piece);
                to = to.add(piece);
            }
        }
        (count, head.len() + count * piece)
    }

    /// False if the provider has no room.
    fn post(&mut self, slot: usize, len: usize) -> Result<bool> {
        let half = &mut *self.half;
        let iov = libc::iovec { iov_base: half.slot(slot).cast(), iov_len: len };
        let addr = self.remote.base + (slot * SLOT) as u64;
        let remote = fi_rma_iov { addr, len, key: self.remote.key };
        let message = fi_msg_rma {
            msg_iov: &iov,
            desc: &mut half.port.descriptor,
            iov_count: 1,
            addr: half.route,
            rma_iov: &remote,
            rma_iov_count: 1,
            context: (&raw mut half.contexts[SLOTS + slot]).cast(),
            data: slot as u64,
        };
        let notice = if self.tuning.notice == Notice::Immediate { FI_REMOTE_CQ_DATA } else { 0 };
        // SAFETY: the message lives through the call, slots and contexts as long as the endpoint.
        match unsafe { fi_writemsg(half.port.ep, &message, FI_COMPLETION | notice) } {
            0 => Ok(true),
            rc if rc == -(FI_EAGAIN as isize) => Ok(false),
            rc => bail!("posting a write: libfabric error {}", -rc),
        }
    }
}

impl Sender for PackedSender {
    fn connect(&mut self) -> Result<()> {
        self.write(&Lists { source: vec![0], target: vec![0] })
    }

    fn write(&mut self, lists: &Lists) -> Result<()> {
        let Tuning { room, window, notice } = self.tuning;
        let piece = self.page_len.min(room);
        let total = lists.len() * (self.page_len / piece);
        let mut free: Vec<usize> = (0..window).collect();
        let mut gathered = 0;
        let since = Instant::now();
        let mut calls = 0u32;
        while gathered < total || free.len() < window {
            let slot = if gathered < total { free.pop() } else { None };
            if let Some(slot) = slot {
                let (count, len) = self.gather(slot, lists, gathered, piece);
                gathered += count;
                while !self.post(slot, len)? {
                    self.half.reap(&mut |slot| free.push(slot))?;
                }
                while notice == Notice::Message && !self.half.tell(slot as u64)? {
                    self.half.reap(&mut |slot| free.push(slot))?;
                }
            }
            self.half.reap(&mut |slot| free.push(slot))?;
            calls = calls.wrapping_add(1);
            if calls % (1 << 20) == 0 && since.elapsed() > PATIENCE {
                bail!("{gathered} of {total} pieces gathered, then nothing more for {PATIENCE:?}");
            }
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<()> {
        let mut told = false;
        self.half.reap(&mut |_| told = true)?;
        if told {
            bail!("a slot became free between transfers");
        }
        Ok(())
    }

    fn tunings(&self) -> usize {
        self.tunings.len()
    }

    fn tune(&mut self, tuning: usize) {
        self.tuning = self.tunings[tuning];
    }

    fn describe(&self) -> String {
        let Tuning { room, window, notice } = self.tuning;
        let notice = if notice == Notice::Message { "a message" } else { "an immediate" };
        format!("packed: {window} slots of {}, {notice} for each", crate::show::size(room))
    }
}

pub struct PackedReceiver {
    half: Box<Half>,
    target: *mut u8,
    len: usize,
    full: Vec<usize>,
}

impl PackedReceiver {
    pub fn open(rail: &Rail, pool: &Pool) -> Result<PackedReceiver> {
        let half = Box::new(Half::open(rail)?);
        Ok(PackedReceiver { half, target: pool.base(), len: pool.len(), full: Vec::with_capacity(SLOTS) })
    }

    /// Copies the pieces of a slot to their places.
    fn scatter(&self, slot: usize) -> Result<()> {
        let base = self.half.slot(slot);
        // SAFETY: the slot is full, and the sender does not touch it until it is told.
        unsafe {
            let head = base.cast::<Head>().read();
            let (count, piece) = (head.count as usize, head.piece as usize);
            if head.len() + count * piece > SLOT {
                bail!("a slot with {count} pieces of {piece} bytes");
            }
            let places: *const u32 = base.add(size_of::<Head>()).cast();
            let mut from = base.add(head.len());
            for at in 0..count {
                let to = places.add(at).read() as usize * piece;
                if to + piece > self.len {
                    bail!("a piece at byte {to} of {}", self.len);
                }
                ptr::copy_nonoverlapping(from, self.target.add(to), piece);
                from = from.add(piece);
            }
        }
        Ok(())
    }
}

impl Receiver for PackedReceiver {
    fn offer(&self) -> Result<Value> {
        let Remote { base, key } = self.half.port.remote(&self.half.slots);
        Ok(serde_json::to_value(Offer { address: self.half.port.address.clone(), base, key })?)
    }

    fn accept(&mut self, answer: &Value) -> Result<()> {
        let address: Vec<u8> =
            serde_json::from_value(answer["address"].clone()).context("the sender's address")?;
        self.half.start(&address)
    }

    fn poll(&mut self) -> Result<()> {
        let mut full = std::mem::take(&mut self.full);
        self.half.reap(&mut |slot| full.push(slot))?;
        for slot in full.drain(..) {
            if slot >= SLOTS {
                bail!("slot {slot} of {SLOTS}");
            }
            self.scatter(slot)?;
            while !self.half.tell(slot as u64)? {
                self.half.reap(&mut |slot| self.full.push(slot))?;
            }
        }
        if self.full.is_empty() {
            self.full = full;
        }
        Ok(())
    }
}
