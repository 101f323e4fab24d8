//! Packed pages over bare libfabric: the sender gathers many pages into a slot,
//! one large write carries it to the target's landing slot, and the target copies
//! them to their places. A small message each way says that a slot is full, and
//! that it is free again.

use super::port::{contexts, entries, Patience, Port, Rail, Remote};
use super::{Place, Receiver, Sender};
use crate::memory::Pool;
use crate::pages::Lists;
use anyhow::{bail, Context, Result};
use libfabric_sys::{fi_context2, FI_RECV, FI_REMOTE_CQ_DATA};
use serde_json::{to_value, Value};
use std::mem::size_of;
use std::ptr;

const SLOTS: usize = 8;
/// Room of a slot for pages, at most, and for the list of them.
const ROOM: usize = 512 << 10;
const SLOT: usize = ROOM + 8192;
/// Messages are numbers of slots.
const MESSAGE: usize = size_of::<u64>();

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

/// What both sides have: an endpoint, slots, and receives for the messages.
struct Half {
    port: Port,
    /// The slots, and behind them one for messages.
    slots: Pool,
    /// Of receives, then of writes.
    contexts: Vec<fi_context2>,
    remote: Remote,
}

impl Half {
    fn open(rail: &Rail) -> Result<Half> {
        let slots = Pool::new(SLOT, SLOTS + 1)?;
        let port = Port::open(rail, false, &slots)?;
        Ok(Half { port, slots, contexts: contexts(2 * SLOTS), remote: Remote::default() })
    }

    fn offer(&self) -> Result<Value> {
        Ok(to_value(self.port.offer()?)?)
    }

    fn start(&mut self, offer: &Value) -> Result<()> {
        let offer = serde_json::from_value(offer.clone()).context("the other side's offer")?;
        self.remote = self.port.join(&offer)?;
        (0..SLOTS).try_for_each(|at| self.post_receive(at))
    }

    fn slot(&self, slot: usize) -> *mut u8 {
        self.slots.base().wrapping_add(slot * SLOT)
    }

    fn message(&self, at: usize) -> *mut u64 {
        self.slot(SLOTS).wrapping_add(at * 64).cast()
    }

    fn post_receive(&mut self, at: usize) -> Result<()> {
        self.port.receive(self.message(at).cast(), MESSAGE, &raw mut self.contexts[at])
    }

    /// False if the provider has no room.
    fn tell(&self, slot: u64) -> Result<bool> {
        self.port.send(&self.remote, (&raw const slot).cast(), MESSAGE, true, ptr::null_mut())
    }

    /// Calls `told` with each slot that the other side spoke of.
    fn reap(&mut self, told: &mut impl FnMut(usize)) -> Result<usize> {
        let mut entries = entries::<{ 2 * SLOTS }>();
        let reaped = self.port.reap(&mut entries)?;
        for entry in &entries[..reaped] {
            if entry.flags & FI_REMOTE_CQ_DATA != 0 {
                told(entry.data as usize);
            } else if entry.flags & FI_RECV != 0 {
                let first = self.contexts.as_ptr() as usize;
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
    half: Half,
    source: *mut u8,
    page_len: usize,
    tunings: Vec<Tuning>,
    tuning: Tuning,
}

impl PackedSender {
    pub fn open(place: &Place, pool: &Pool, offer: &Value) -> Result<PackedSender> {
        let mut half = Half::open(place.rail)?;
        half.start(offer)?;
        let mut tunings = Vec::new();
        for notice in [Notice::Message, Notice::Immediate] {
            for room in [32 << 10, 64 << 10, 128 << 10, 256 << 10, ROOM] {
                tunings.extend([2, 4, SLOTS].map(|window| Tuning { room, window, notice }));
            }
        }
        let (source, page_len) = (pool.base(), pool.page_len);
        Ok(PackedSender { half, source, page_len, tuning: tunings[0], tunings })
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
        let half = &mut self.half;
        let flags = if self.tuning.notice == Notice::Immediate { FI_REMOTE_CQ_DATA } else { 0 };
        let segment = std::iter::once((half.slot(slot).cast_const(), slot * SLOT));
        let context = &raw mut half.contexts[SLOTS + slot];
        half.port.post::<1>(&half.remote, segment, len, flags, slot as u64, context)
    }
}

impl Sender for PackedSender {
    fn answer(&self) -> Result<Value> {
        self.half.offer()
    }

    fn connect(&mut self) -> Result<()> {
        self.write(&Lists { source: vec![0], target: vec![0] })
    }

    fn write(&mut self, lists: &Lists) -> Result<()> {
        let Tuning { room, window, notice } = self.tuning;
        let piece = self.page_len.min(room);
        let total = lists.len() * (self.page_len / piece);
        let mut free: Vec<usize> = (0..window).collect();
        let (mut gathered, mut patience) = (0, Patience::default());
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
            patience.turn(|| format!("{gathered} of {total} pieces gathered"))?;
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
    half: Half,
    target: *mut u8,
    len: usize,
    full: Vec<usize>,
}

impl PackedReceiver {
    pub fn open(rail: &Rail, pool: &Pool) -> Result<PackedReceiver> {
        let half = Half::open(rail)?;
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
        self.half.offer()
    }

    fn accept(&mut self, answer: &Value) -> Result<()> {
        self.half.start(answer)
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
