//! Bare libfabric: a write, and nothing but looks at the completion queue until the
//! other side's write has come.

use super::hands::{Hand, Words};
use crate::engines::port::{Port, Remote};
use crate::engines::Rail;
use anyhow::{bail, Context, Result};
use libfabric_sys::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::mem::zeroed;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);
/// An operation is done long before so many others were posted: each throw is
/// answered before the next.
const CONTEXTS: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Write,
    Inject,
    /// Asks for delivery, as Weft must for its completions. Nothing waits for it here.
    Delivered,
}

pub struct Bare {
    port: Port,
    words: Words,
    wait_fd: bool,
    way: Way,
    route: fi_addr_t,
    remote: Remote,
    contexts: Vec<fi_context2>,
    thrown: usize,
}

#[derive(Serialize, Deserialize)]
struct Offer {
    address: Vec<u8>,
    base: u64,
    key: u64,
}

impl Bare {
    pub fn open(rail: &Rail, wait_fd: bool, way: Way) -> Result<Bare> {
        let words = Words::new()?;
        Ok(Bare {
            port: Port::open(rail, wait_fd, words.pool())?,
            words,
            wait_fd,
            way,
            route: 0,
            remote: Remote { base: 0, key: 0 },
            // SAFETY: pointers, for the provider to use.
            contexts: (0..CONTEXTS).map(|_| unsafe { zeroed() }).collect(),
            thrown: 0,
        })
    }

    #[inline]
    fn post(&mut self, word: *const u64) -> isize {
        let context = (&raw mut self.contexts[self.thrown % CONTEXTS]).cast();
        let (ep, Remote { base, key }, len) = (self.port.ep, self.remote, size_of::<u64>());
        let (word, mut descriptor) = (word.cast_mut().cast(), self.port.descriptor);
        // SAFETY: the word stays in place while the endpoint is open, the context until it comes
        // back; the message lives through the call.
        unsafe {
            match self.way {
                Way::Write => fi_write(ep, word, len, descriptor, self.route, base, key, context),
                Way::Inject => fi_inject_write(ep, word, len, self.route, base, key),
                Way::Delivered => {
                    let message = fi_msg_rma {
                        msg_iov: &libc::iovec { iov_base: word, iov_len: len },
                        desc: &mut descriptor,
                        iov_count: 1,
                        addr: self.route,
                        rma_iov: &fi_rma_iov { addr: base, len, key },
                        rma_iov_count: 1,
                        context,
                        data: 0,
                    };
                    fi_writemsg(ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE)
                }
            }
        }
    }

    #[inline]
    fn reap(&self) -> Result<()> {
        // SAFETY: integers and pointers.
        let mut entries: [fi_cq_data_entry; 1] = unsafe { zeroed() };
        self.port.reap(&mut entries).map(|_| ())
    }
}

impl Hand for Bare {
    fn name(&self) -> String {
        let way = match self.way {
            Way::Write => "fi_write",
            Way::Inject => "fi_inject_write",
            Way::Delivered => "delivery-complete",
        };
        format!("bare {way}, {}", if self.wait_fd { "FI_WAIT_FD" } else { "FI_WAIT_NONE" })
    }

    fn offer(&self) -> Result<Value> {
        let Remote { base, key } = self.port.remote(self.words.pool());
        Ok(serde_json::to_value(Offer { address: self.port.address.clone(), base, key })?)
    }

    fn join(&mut self, offer: &Value, _first: bool) -> Result<()> {
        let offer: Offer = serde_json::from_value(offer.clone()).context("the other side's offer")?;
        self.route = self.port.insert(&offer.address)?;
        self.remote = Remote { base: offer.base, key: offer.key };
        Ok(())
    }

    fn promises(&self) -> bool {
        self.way == Way::Delivered
    }

    #[inline]
    fn throw(&mut self, number: u64) -> Result<()> {
        let word = self.words.set(number);
        let mut since = None;
        loop {
            match self.post(word) {
                0 => break,
                // The first ones connect.
                rc if rc == -(FI_EAGAIN as isize) => self.reap()?,
                rc => bail!("posting a write: libfabric error {}", -rc),
            }
            if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                bail!("no write could be posted for {PATIENCE:?}");
            }
        }
        self.thrown += 1;
        Ok(())
    }

    #[inline]
    fn look(&mut self) -> Result<u64> {
        self.reap()?;
        Ok(self.words.came())
    }
}
