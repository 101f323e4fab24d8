//! The bare loop: what a program reaches with plain libfabric. One fi_writemsg
//! for each page (or, as `RUN` says, for several), a window of them in flight, on
//! one endpoint; no sharding, no state, no checks.

use super::port::{Port, Remote};
use super::{Place, Rail, Receiver, Sender};
use crate::memory::Pool;
use crate::pages::Lists;
use anyhow::{bail, Context, Result};
use libfabric_sys::*;
use serde::{Deserialize, Serialize};
use serde_json::{json, Value};
use std::mem::zeroed;
use std::ptr;
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

/// `RUN` pages go with one write, each a segment of it.
pub struct BareSender<const RUN: usize> {
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

impl<const RUN: usize> BareSender<RUN> {
    pub fn open(place: &Place, wait_fd: bool, pool: &Pool, offer: &Value) -> Result<Self> {
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
        Ok(Self {
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

    /// True if the provider took it; false if it has no room. `len` of each page.
    #[inline]
    fn post(&mut self, at: usize, sources: &[u32], targets: &[u32], len: usize, flags: u64) -> Result<bool> {
        let mut iov = [libc::iovec { iov_base: ptr::null_mut(), iov_len: len }; RUN];
        let mut remote = [fi_rma_iov { addr: 0, len, key: self.remote.key }; RUN];
        let mut descriptors = [self.port.descriptor; RUN];
        for (segment, source) in iov.iter_mut().zip(sources) {
            segment.iov_base = self.source.wrapping_add(*source as usize * self.page_len).cast();
        }
        for (segment, target) in remote.iter_mut().zip(targets) {
            segment.addr = self.remote.base + *target as u64 * self.page_len as u64;
        }
        let count = sources.len().min(RUN);
        let message = fi_msg_rma {
            msg_iov: iov.as_ptr(),
            desc: descriptors.as_mut_ptr(),
            iov_count: count,
            addr: self.route,
            rma_iov: remote.as_ptr(),
            rma_iov_count: count,
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

impl<const RUN: usize> Sender for BareSender<RUN> {
    fn connect(&mut self) -> Result<()> {
        // The first writes to a peer connect: they take milliseconds.
        self.write(&Lists { source: vec![0], target: vec![0] })
    }

    fn write(&mut self, lists: &Lists) -> Result<()> {
        let Tuning { window, delivery, more, refill } = self.tuning;
        let pages = lists.len();
        let writes = pages.div_ceil(RUN);
        let total = writes + (delivery == Delivery::Flush) as usize;
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
        let run = if RUN > 1 { format!("{RUN} pages a write, ") } else { String::new() };
        format!("bare: {run}window {window}, filled when {refill} are free, {delivery}{more}, {wait}")
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
