//! Bare libfabric: a message, and looks at the completion queue until the other
//! side's message is in it.

use super::hands::Hand;
use crate::engines::port::Port;
use crate::engines::Rail;
use crate::memory::Pool;
use anyhow::{bail, Context, Result};
use libfabric_sys::*;
use serde_json::Value;
use std::ffi::c_void;
use std::mem::zeroed;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a message.
pub const LEN: usize = 64;
/// Receives that are always posted; their buffers come first in the pool.
const RECEIVES: usize = 16;
/// As for writes: a message is done long before so many others were sent.
const CONTEXTS: usize = 256;

pub struct Messages {
    port: Port,
    pool: Pool,
    wait_fd: bool,
    inject: bool,
    route: fi_addr_t,
    contexts: Vec<fi_context2>,
    thrown: usize,
    came: u64,
}

impl Messages {
    pub fn open(rail: &Rail, wait_fd: bool, inject: bool) -> Result<Messages> {
        let pool = Pool::new(4096, 1)?;
        let mut messages = Messages {
            port: Port::open(rail, wait_fd, &pool)?,
            pool,
            wait_fd,
            inject,
            route: 0,
            // SAFETY: pointers, for the provider to use.
            contexts: (0..RECEIVES + CONTEXTS).map(|_| unsafe { zeroed() }).collect(),
            thrown: 0,
            came: 0,
        };
        (0..RECEIVES).try_for_each(|at| messages.receive(at))?;
        Ok(messages)
    }

    fn buffer(&self, at: usize) -> *mut c_void {
        self.pool.base().wrapping_add(at * LEN).cast()
    }

    #[inline]
    fn receive(&mut self, at: usize) -> Result<()> {
        let (buffer, context) = (self.buffer(at), (&raw mut self.contexts[at]).cast());
        // SAFETY: the buffer is nobody else's until its context comes back.
        match unsafe { fi_recv(self.port.ep, buffer, LEN, self.port.descriptor, FI_ADDR_UNSPEC, context) } {
            0 => Ok(()),
            rc => bail!("posting a receive: libfabric error {}", -rc),
        }
    }

    #[inline]
    fn post(&mut self) -> isize {
        let (buffer, descriptor) = (self.buffer(RECEIVES), self.port.descriptor);
        let context = (&raw mut self.contexts[RECEIVES + self.thrown % CONTEXTS]).cast();
        // SAFETY: the last message from here has arrived: it was answered.
        unsafe {
            if self.inject {
                fi_inject(self.port.ep, buffer, LEN, self.route)
            } else {
                fi_send(self.port.ep, buffer, LEN, descriptor, self.route, context)
            }
        }
    }

    #[inline]
    fn reap(&mut self) -> Result<()> {
        // SAFETY: integers and pointers.
        let mut entries: [fi_cq_data_entry; 2] = unsafe { zeroed() };
        let count = self.port.reap(&mut entries)?;
        let first = self.contexts.as_ptr() as usize;
        for entry in &entries[..count] {
            let at = (entry.op_context as usize - first) / size_of::<fi_context2>();
            if at < RECEIVES {
                // SAFETY: a received message of ours begins with its number.
                self.came = unsafe { self.buffer(at).cast::<u64>().read() };
                self.receive(at)?;
            }
        }
        Ok(())
    }
}

impl Hand for Messages {
    fn name(&self) -> String {
        let way = if self.inject { "fi_inject" } else { "fi_send" };
        format!("bare {way}, {}", if self.wait_fd { "FI_WAIT_FD" } else { "FI_WAIT_NONE" })
    }

    fn offer(&self) -> Result<Value> {
        Ok(serde_json::to_value(&self.port.address)?)
    }

    fn join(&mut self, offer: &Value, _first: bool) -> Result<()> {
        let address: Vec<u8> = serde_json::from_value(offer.clone()).context("the other side's address")?;
        self.route = self.port.insert(&address)?;
        Ok(())
    }

    fn promises(&self) -> bool {
        true
    }

    #[inline]
    fn throw(&mut self, number: u64) -> Result<()> {
        // SAFETY: as in `post`.
        unsafe { self.buffer(RECEIVES).cast::<u64>().write(number) };
        let mut since = None;
        loop {
            match self.post() {
                0 => break,
                // The first ones connect.
                rc if rc == -(FI_EAGAIN as isize) => self.reap()?,
                rc => bail!("sending a message: libfabric error {}", -rc),
            }
            if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                bail!("no message could be sent for {PATIENCE:?}");
            }
        }
        self.thrown += 1;
        Ok(())
    }

    #[inline]
    fn look(&mut self) -> Result<u64> {
        self.reap()?;
        Ok(self.came)
    }
}
