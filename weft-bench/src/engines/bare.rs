//! The bare loop: what a program reaches with plain libfabric. It posts one fi_writemsg per page,
//! with a window of them in flight, on one endpoint; it has no sharding, state or checks.

use super::port::{contexts, entries, Offer, Patience, Port, Rail, Remote};
use super::{Place, Receiver, Sender};
use crate::memory::Pool;
use crate::pages::Lists;
use anyhow::{bail, Context, Result};
use libfabric_sys::{fi_context2, FI_DELIVERY_COMPLETE, FI_MORE};
use serde_json::{to_value, Value};

const WINDOWS: [usize; 6] = [8, 16, 32, 64, 128, 256];
const REAP: usize = 64;

/// How the initiator finds out that all bytes have arrived.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Delivery {
    /// Every write requests delivery.
    Each,
    /// Only the last write requests it: for providers that keep writes in order.
    Last,
    /// Only a last write of one byte requests it.
    Flush,
}

#[derive(Clone, Copy, Debug)]
struct Tuning {
    window: usize,
    delivery: Delivery,
    /// FI_MORE on all but the last post of a refill.
    more: bool,
    /// Free slots that are needed before the window is filled again.
    refill: usize,
}

pub struct BareSender {
    port: Port,
    wait_fd: bool,
    source: *mut u8,
    page_len: usize,
    remote: Remote,
    /// One slot for each operation of a transfer, so the loop searches nothing.
    contexts: Vec<fi_context2>,
    tunings: Vec<Tuning>,
    tuning: Tuning,
}

impl BareSender {
    pub fn open(place: &Place, wait_fd: bool, pool: &Pool, offer: &Value) -> Result<BareSender> {
        let offer = serde_json::from_value(offer.clone()).context("the target's offer")?;
        BareSender::over(Port::open(place.rail, wait_fd, pool)?, wait_fd, pool, &offer)
    }

    pub fn over(port: Port, wait_fd: bool, pool: &Pool, offer: &Offer) -> Result<BareSender> {
        let remote = port.join(offer)?;
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
        let (source, page_len, contexts) = (pool.base(), pool.page_len, contexts(pool.pages + 1));
        let tuning = tunings[0];
        Ok(BareSender { port, wait_fd, source, page_len, remote, contexts, tunings, tuning })
    }

    /// Posts as Weft does to NICs that do not keep writes in order.
    pub fn tune_for_unordered(&mut self) {
        self.tuning = Tuning { window: 128, delivery: Delivery::Each, more: true, refill: 1 };
    }

    /// Moves the pages; calls `idle` when no write has completed.
    #[inline]
    pub fn transfer(&mut self, lists: &Lists, mut idle: impl FnMut() -> Result<()>) -> Result<()> {
        let Tuning { window, delivery, more, refill } = self.tuning;
        let pages = lists.len();
        let total = pages + (delivery == Delivery::Flush) as usize;
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
                    let (page, len) = if posted < pages { (posted, self.page_len) } else { (pages - 1, 1) };
                    let from = self.source.wrapping_add(lists.source[page] as usize * self.page_len);
                    let there = lists.target[page] as usize * self.page_len;
                    let context = &raw mut self.contexts[posted];
                    if !self.port.write(&self.remote, from.cast_const(), there, len, flags, context)? {
                        break;
                    }
                    posted += 1;
                }
            }
            let reaped = self.port.reap(&mut entries)?;
            done += reaped;
            if reaped == 0 {
                idle()?;
                patience.turn(|| format!("{done} of {total} writes completed"))?;
            }
        }
        Ok(())
    }
}

impl Sender for BareSender {
    fn answer(&self) -> Result<Value> {
        Ok(to_value(self.port.offer()?)?)
    }

    fn connect(&mut self) -> Result<()> {
        // The first writes to a peer connect, which takes milliseconds.
        self.write(&Lists { source: vec![0], target: vec![0] })
    }

    fn write(&mut self, lists: &Lists) -> Result<()> {
        self.transfer(lists, || Ok(()))
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
        format!("bare: window {window}, filled when {refill} are free, {delivery}{more}, {wait}")
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
