//! Endpoints of this process, joined.

use crate::engines::weft::{blob, check};
use ::weft::capi::completion::*;
use ::weft::capi::endpoint::*;
use ::weft::capi::memory::*;
use ::weft::capi::peer::*;
use anyhow::{bail, Result};
use std::ffi::CString;
use std::mem::{size_of, zeroed};
use std::ptr;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const WAIT_NS: u64 = 1_000_000;

pub struct Side {
    pub endpoint: *mut weft_endpoint,
}

impl Side {
    pub fn open(fabric: &str, workers: u32, idle: u32) -> Result<Side> {
        Side::with_queue(fabric, workers, idle, 0)
    }

    /// With a queue of so many completions; 0: the default.
    pub fn with_queue(fabric: &str, workers: u32, idle: u32, depth: u32) -> Result<Side> {
        let rails = if fabric.starts_with("sim") { ptr::null() } else { c"lo".as_ptr() };
        let fabric = CString::new(fabric)?;
        let mut endpoint = ptr::null_mut();
        // SAFETY: a config of zeros means defaults; the string outlives the call.
        unsafe {
            let mut config: weft_endpoint_config = zeroed();
            config.size = size_of::<weft_endpoint_config>() as u32;
            (config.fabric, config.rails) = (fabric.as_ptr(), rails);
            config.progress = if workers == 0 { WEFT_PROGRESS_MANUAL } else { WEFT_PROGRESS_THREADS };
            (config.workers, config.idle, config.queue_depth) = (workers, idle, depth);
            check("weft_endpoint_open", weft_endpoint_open(&config, &mut endpoint))?;
        }
        Ok(Side { endpoint })
    }

    pub fn register(&self, base: *mut u8, len: usize) -> Result<*mut weft_memory> {
        let range = weft_memory_range { address: base.cast(), len: len as u64 };
        let mut memory = ptr::null_mut();
        // SAFETY: mapped for the life of the process.
        let registered = unsafe { weft_memory_register(self.endpoint, &range, 1, ptr::null(), &mut memory) };
        check("weft_memory_register", registered)?;
        Ok(memory)
    }

    /// Counts completions of a kind, after a wait of up to `wait_ns` for the first;
    /// any that is none of success is an error.
    pub fn poll(&self, kind: weft_completion_kind, wait_ns: u64) -> Result<usize> {
        // SAFETY: integers and pointers; room for as many completions.
        unsafe {
            let mut done: [weft_completion; 16] = zeroed();
            let count = weft_wait(self.endpoint, done.as_mut_ptr(), done.len() as u32, wait_ns);
            check("weft_wait", count)?;
            for one in &done[..count as usize] {
                check("a completion", one.status)?;
            }
            Ok(done[..count as usize].iter().filter(|one| one.kind == kind).count())
        }
    }

    /// Begins to connect to another endpoint of this process.
    pub fn connect(&self, other: &Side) -> Result<weft_peer> {
        // SAFETY: `blob` passes buffers with their size.
        let address = blob("weft_endpoint_address", |buffer, capacity, len| unsafe {
            weft_endpoint_address(other.endpoint, buffer, capacity, len)
        })?;
        let (data, len, mut peer) = (address.as_ptr().cast(), address.len(), 0);
        // SAFETY: the address outlives the call.
        check("weft_peer_connect", unsafe {
            weft_peer_connect(self.endpoint, data, len, ptr::null(), &mut peer)
        })?;
        Ok(peer)
    }

    /// A memory of a peer.
    pub fn import(&self, peer: weft_peer, given: *mut weft_memory) -> Result<*mut weft_remote_memory> {
        // SAFETY: as above.
        let descriptor = blob("weft_memory_export", |buffer, capacity, len| unsafe {
            weft_memory_export(given, buffer, capacity, len)
        })?;
        let (data, len, mut remote) = (descriptor.as_ptr().cast(), descriptor.len(), ptr::null_mut());
        // SAFETY: the descriptor outlives the call.
        check("weft_remote_memory_import", unsafe {
            weft_remote_memory_import(self.endpoint, peer, data, len, &mut remote)
        })?;
        Ok(remote)
    }

    pub fn close(&self) -> Result<()> {
        // SAFETY: our own handle, closed once.
        unsafe {
            check("weft_endpoint_shutdown", weft_endpoint_shutdown(self.endpoint, 0))?;
            check("weft_endpoint_close", weft_endpoint_close(self.endpoint))
        }
    }
}

/// A sender, and a receiver that is polled now and then.
pub struct Ends {
    pub sender: Side,
    pub receiver: Side,
    pub peer: weft_peer,
    /// How long it sleeps between polls: beside workers, the processors are theirs.
    wait_ns: u64,
}

impl Ends {
    /// With so many workers of each; 0: it progresses as it is polled.
    pub fn open(fabric: &str, (workers, of_receiver): (u32, u32), idle: u32) -> Result<Ends> {
        let (sender, receiver) = (Side::open(fabric, workers, idle)?, Side::open(fabric, of_receiver, idle)?);
        let manual = workers == 0;
        Ok(Ends { sender, receiver, peer: 0, wait_ns: if manual { 0 } else { WAIT_NS } })
    }

    /// It does not sleep any more while it waits.
    pub fn spin(&mut self) {
        self.wait_ns = 0;
    }

    pub fn connect(&mut self) -> Result<()> {
        self.peer = self.sender.connect(&self.receiver)?;
        self.until(WEFT_COMPLETION_PEER_UP, 1).map(|_| ())
    }

    /// The receiver's memory, as the sender knows it.
    pub fn import(&self, given: *mut weft_memory) -> Result<*mut weft_remote_memory> {
        self.sender.import(self.peer, given)
    }

    /// Polls until so many completions of a kind have come, or more: how many.
    pub fn until(&self, kind: weft_completion_kind, count: usize) -> Result<usize> {
        let (begun, mut done, mut polls) = (Instant::now(), 0, 0u32);
        let seldom = if self.wait_ns == 0 { 64 } else { 1 };
        while done < count {
            done += self.sender.poll(kind, self.wait_ns)?;
            polls = polls.wrapping_add(1);
            // The receiver has little to say; NICs serve it.
            if polls % seldom == 0 {
                self.receiver.poll(WEFT_COMPLETION_MESSAGE, 0)?;
                if polls % (seldom << 10) == 0 && begun.elapsed() > PATIENCE {
                    bail!("no completion of kind {kind}: {done} of {count}");
                }
            }
        }
        Ok(done)
    }

    pub fn close(&self) -> Result<()> {
        self.sender.close()?;
        self.receiver.close()
    }
}
