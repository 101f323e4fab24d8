//! The bare loop: what a program reaches with plain libfabric. One fi_writemsg
//! for each page (or, as `RUN` says, for several), a window of them in flight, on
//! one endpoint; no sharding, no state, no checks.

use super::port::{contexts, entries, Offer, Patience, Port, Rail, Remote};
use super::{Place, Receiver, Sender};
use crate::memory::Pool;
use crate::pages::Lists;
use anyhow::{bail, Context, Result};
use libfabric_sys::{fi_context2, FI_DELIVERY_COMPLETE, FI_MORE};
use serde_json::{to_value, Value};

const WINDOWS: [usize; 6] = [8, 16, 32, 64, 128, 256];
const REAP: usize = 64;

/// How the initiator learns that all bytes have arrived.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Delivery {
    /// Every write asks for delivery.
    Each,
    /// Only the last one does: for providers that keep writes in order.
    Last,
    /// None but a last write of one byte.
    Flush,
}

#[derive(Clone, Copy, Debug)]
struct Tuning {
    window: usize,
    delivery: Delivery,
    /// FI_MORE on all but the last post of a refill.
    more: bool,
    /// Places that must be free before the window is filled again.
    refill: usize,
}

/// `RUN` pages go with one write, each a segment of it.
pub struct BareSender<const RUN: usize> {
    port: Port,
    wait_fd: bool,
    source: *mut u8,
    page_len: usize,
    remote: Remote,
    /// One for each operation of a transfer: nothing to look for in the loop.
    contexts: Vec<fi_context2>,
    tunings: Vec<Tuning>,
    tuning: Tuning,
}

impl<const RUN: usize> BareSender<RUN> {
    pub fn open(place: &Place, wait_fd: bool, pool: &Pool, offer: &Value) -> Result<Self> {
        let offer: Offer = serde_json::from_value(offer.clone()).context("the target's offer")?;
        let port = Port::open(place.rail, wait_fd, pool)?;
        let remote = port.join(&offer)?;
        let deliveries: &[Delivery] = match port.ordered() {
            true => &[Delivery::Each, Delivery::Last, Delivery::Flush],
            false => &[Delivery::Each],
        };
        let mut tunings = Vec::new();
        for window in WINDOWS {
            let half = window.div_ceil(2);
            for delivery in deliveries.iter().copied() {
                for (more, refill) in [(false, 1), (false, half), (true, 1), (true, half)] {
                    tunings.push(Tuning { window, delivery, more, refill });
                }
            }
        }
        Ok(Self {
            port,
            wait_fd,
            source: pool.base(),
            page_len: pool.page_len,
            remote,
            contexts: contexts(pool.pages + 1),
            tuning: tunings[0],
            tunings,
        })
    }

    /// `len` bytes of each page.
    #[inline]
    fn post(&mut self, at: usize, sources: &[u32], targets: &[u32], len: usize, flags: u64) -> Result<bool> {
        let (source, page_len) = (self.source, self.page_len);
        let segments = sources.iter().zip(targets).map(|(from, to)| {
            (source.wrapping_add(*from as usize * page_len).cast_const(), *to as usize * page_len)
        });
        let context = &raw mut self.contexts[at];
        self.port.post::<RUN>(&self.remote, segments, len, flags, 0, context)
    }
}

impl<const RUN: usize> Sender for BareSender<RUN> {
    fn answer(&self) -> Result<Value> {
        Ok(to_value(self.port.offer()?)?)
    }

    fn connect(&mut self) -> Result<()> {
        // The first writes to a peer connect: they take milliseconds.
        self.write(&Lists { source: vec![0], target: vec![0] })
    }

    fn write(&mut self, lists: &Lists) -> Result<()> {
        let Tuning { window, delivery, more, refill } = self.tuning;
        let pages = lists.len();
        let writes = pages.div_ceil(RUN);
        let total = writes + (delivery == Delivery::Flush) as usize;
        let (mut posted, mut done, mut patience) = (0, 0, Patience::default());
        let mut entries = entries::<REAP>();
        while done < total {
            if posted - done + refill <= window {
                let until = total.min(done + window);
                while posted < until {
                    let is_last = posted + 1 == total;
                    let mut flags = 0;
                    if is_last || delivery == Delivery::Each {
                        flags |= FI_DELIVERY_COMPLETE;
                    }
                    if more && posted + 1 < until {
                        flags |= FI_MORE;
                    }
                    let (from, end, len) = match posted < writes {
                        true => (posted * RUN, pages.min(posted * RUN + RUN), self.page_len),
                        false => (pages - 1, pages, 1),
                    };
                    let (sources, targets) = (&lists.source[from..end], &lists.target[from..end]);
                    if !self.post(posted, sources, targets, len, flags)? {
                        break;
                    }
                    posted += 1;
                }
            }
            let reaped = self.port.reap(&mut entries)?;
            done += reaped;
            if reaped == 0 {
                patience.turn(|| format!("{done} of {total} writes completed"))?;
            }
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<()> {
        match self.port.reap(&mut entries::<1>())? {
            0 => Ok(()),
            _ => bail!("a completion between transfers"),
        }
    }

    fn tunings(&self) -> usize {
        self.tunings.len()
    }

    fn tune(&mut self, tuning: usize) {
        self.tuning = self.tunings[tuning];
    }

    fn describe(&self) -> String {
        let Tuning { window, delivery, more, refill } = self.tuning;
        let delivery = match delivery {
            Delivery::Each => "delivery-complete on each",
            Delivery::Last => "delivery-complete on the last",
            Delivery::Flush => "a delivery-complete byte at the end",
        };
        let more = if more { ", FI_MORE" } else { "" };
        let wait = if self.wait_fd { "FI_WAIT_FD" } else { "FI_WAIT_NONE" };
        let run = if RUN > 1 { format!("{RUN} pages a write, ") } else { String::new() };
        format!("bare: {run}window {window}, filled when {refill} are free, {delivery}{more}, {wait}")
    }
}

pub struct BareReceiver(Port);

impl BareReceiver {
    pub fn open(rail: &Rail, wait_fd: bool, pool: &Pool) -> Result<BareReceiver> {
        Ok(BareReceiver(Port::open(rail, wait_fd, pool)?))
    }
}

impl Receiver for BareReceiver {
    fn offer(&self) -> Result<Value> {
        Ok(to_value(self.0.offer()?)?)
    }

    fn accept(&mut self, answer: &Value) -> Result<()> {
        self.0.join(&serde_json::from_value(answer.clone()).context("the sender's address")?).map(drop)
    }

    #[inline]
    fn poll(&mut self) -> Result<()> {
        self.0.reap(&mut entries::<1>()).map(drop)
    }
}
