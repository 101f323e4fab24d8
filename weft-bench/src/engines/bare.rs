//! The bare loop: what a program reaches with plain libfabric. One fi_writemsg
//! for each page, a window of them in flight, on one endpoint; no sharding, no
//! state, no checks.

use super::port::{Port, Remote};
use super::{Place, Rail, Receiver, Sender};
use crate::memory::Pool;
use crate::pages::Lists;
use anyhow::{bail, Context, Result};
use libfabric_sys::*;
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};
use std::mem::zeroed;
use std::time::{Duration, Instant};

const WINDOWS: [usize; 6] = [8, 16, 32, 64, 128, 256];
const REAP: usize = 64;
const PATIENCE: Duration = Duration::from_secs(10);

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

#[derive(Serialize, Deserialize)]
struct Offer {
    address: Vec<u8>,
    base: u64,
    key: u64,
}

pub struct BareSender {
    port: Port,
    wait_fd: bool,
    source: *mut u8,
    page_len: usize,
    route: fi_addr_t,
    remote: Remote,
    /// One for each operation of a transfer: nothing to look for in the loop.
    contexts: Vec<fi_context2>,
    tunings: Vec<Tuning>,
    tuning: Tuning,
}

impl BareSender {
    pub fn open(place: &Place, wait_fd: bool, pool: &Pool, offer: &Value) -> Result<BareSender> {
        let offer: Offer = serde_json::from_value(offer.clone()).context("the target's offer")?;
        let port = Port::open(place.rail, wait_fd, pool)?;
        let route = port.insert(&offer.address)?;
        let deliveries: &[Delivery] = match port.ordered() {
            true => &[Delivery::Each, Delivery::Last, Delivery::Flush],
            false => &[Delivery::Each],
        };
        let mut tunings = Vec::new();
        let only = place.case.window.map(|window| vec![window.max(1)]);
        for window in only.unwrap_or_else(|| WINDOWS.to_vec()) {
            let half = window.div_ceil(2);
            for delivery in deliveries.iter().copied() {
                for (more, refill) in [(false, 1), (false, half), (true, 1), (true, half)] {
                    tunings.push(Tuning { window, delivery, more, refill });
                }
            }
        }
        Ok(BareSender {
            port,
            wait_fd,
            source: pool.base(),
            page_len: pool.page_len,
            route,
            remote: Remote { base: offer.base, key: offer.key },
            // SAFETY: pointers, for the provider to use.
            contexts: (0..pool.pages + 1).map(|_| unsafe { zeroed() }).collect(),
            tuning: tunings[0],
            tunings,
        })
    }

    pub fn answer(&self) -> Value {
        json!({ "address": self.port.address })
    }

    /// True if the provider took it; false if it has no room.
    #[inline]
    fn post(&mut self, at: usize, source: u32, target: u32, len: usize, flags: u64) -> Result<bool> {
        let iov = libc::iovec {
            iov_base: self.source.wrapping_add(source as usize * self.page_len).cast(),
            iov_len: len,
        };
        let remote = fi_rma_iov {
            addr: self.remote.base + target as u64 * self.page_len as u64,
            len,
            key: self.remote.key,
        };
        let message = fi_msg_rma {
            msg_iov: &iov,
            desc: &mut self.port.descriptor,
            iov_count: 1,
            addr: self.route,
            rma_iov: &remote,
            rma_iov_count: 1,
            context: (&raw mut self.contexts[at]).cast(),
            data: 0,
        };
        // SAFETY: the message lives through the call, the pool longer than the endpoint.
        match unsafe { fi_writemsg(self.port.ep, &message, FI_COMPLETION | flags) } {
            0 => Ok(true),
            rc if rc == -(FI_EAGAIN as isize) => Ok(false),
            rc => bail!("posting a write: libfabric error {}", -rc),
        }
    }
}

impl Sender for BareSender {
    fn connect(&mut self) -> Result<()> {
        // The first writes to a peer connect: they take milliseconds.
        self.write(&Lists { source: vec![0], target: vec![0] })
    }

    fn write(&mut self, lists: &Lists) -> Result<()> {
        let Tuning { window, delivery, more, refill } = self.tuning;
        let pages = lists.len();
        let total = pages + (delivery == Delivery::Flush) as usize;
        let (mut posted, mut done, mut idle) = (0, 0, 0u32);
        let mut since = None;
        // SAFETY: integers and pointers.
        let mut entries: [fi_cq_data_entry; REAP] = unsafe { zeroed() };
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
                    if !self.post(posted, lists.source[page], lists.target[page], len, flags)? {
                        break;
                    }
                    posted += 1;
                }
            }
            let reaped = self.port.reap(&mut entries)?;
            done += reaped;
            idle = if reaped > 0 { 0 } else { idle.wrapping_add(1) };
            if idle % (1 << 20) == (1 << 20) - 1 {
                let since = *since.get_or_insert_with(Instant::now);
                if since.elapsed() > PATIENCE {
                    bail!("{done} of {total} writes completed, then nothing more for {PATIENCE:?}");
                }
            }
        }
        Ok(())
    }

    fn poll(&mut self) -> Result<()> {
        // SAFETY: integers and pointers.
        let mut entries: [fi_cq_data_entry; 1] = unsafe { zeroed() };
        match self.port.reap(&mut entries)? {
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

pub struct BareReceiver {
    port: Port,
    offer: Value,
}

impl BareReceiver {
    pub fn open(rail: &Rail, wait_fd: bool, pool: &Pool) -> Result<BareReceiver> {
        let port = Port::open(rail, wait_fd, pool)?;
        let Remote { base, key } = port.remote(pool);
        let offer = serde_json::to_value(Offer { address: port.address.clone(), base, key })?;
        Ok(BareReceiver { port, offer })
    }
}

impl Receiver for BareReceiver {
    fn offer(&self) -> Result<Value> {
        Ok(self.offer.clone())
    }

    fn accept(&mut self, answer: &Value) -> Result<()> {
        let address: Vec<u8> =
            serde_json::from_value(answer["address"].clone()).context("the sender's address")?;
        self.port.insert(&address).map(|_| ())
    }

    #[inline]
    fn poll(&mut self) -> Result<()> {
        // SAFETY: integers and pointers.
        let mut entries: [fi_cq_data_entry; 1] = unsafe { zeroed() };
        self.port.reap(&mut entries).map(|_| ())
    }
}
