//! One side of a measurement: an endpoint that is driven by its polling, and a
//! pool of pages.

use crate::engines::{blob, check};
use crate::memory::Pool;
use ::weft::capi::completion::*;
use ::weft::capi::endpoint::*;
use ::weft::capi::memory::*;
use ::weft::capi::peer::*;
use anyhow::{bail, Result};
use serde::{Deserialize, Serialize};
use std::ffi::{c_char, CStr};
use std::mem::{size_of, zeroed, MaybeUninit};
use std::ptr;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// What the other side needs to reach a pool.
#[derive(Serialize, Deserialize)]
pub struct Offer {
    address: Vec<u8>,
    descriptor: Vec<u8>,
}

pub struct Side {
    pub endpoint: *mut weft_endpoint,
    pub pool: Pool,
    pub memory: *mut weft_memory,
}

impl Side {
    /// On the fabric "host".
    pub fn open(page_len: usize, pages: usize, shared: bool) -> Result<Side> {
        let endpoint = manual(c"host", ptr::null())?;
        Side::over(endpoint, pool(endpoint, page_len, pages, shared)?)
    }

    pub fn over(endpoint: *mut weft_endpoint, pool: Pool) -> Result<Side> {
        let range = weft_memory_range { address: pool.base().cast(), len: pool.len() as u64 };
        let mut memory = ptr::null_mut();
        // SAFETY: the pool stays mapped for the life of the process.
        check("weft_memory_register", unsafe {
            weft_memory_register(endpoint, &range, 1, ptr::null(), &mut memory)
        })?;
        Ok(Side { endpoint, pool, memory })
    }

    pub fn offer(&self) -> Result<Offer> {
        // SAFETY: `blob` passes buffers with their size.
        let address = blob("weft_endpoint_address", |buffer, capacity, len| unsafe {
            weft_endpoint_address(self.endpoint, buffer, capacity, len)
        })?;
        // SAFETY: the same.
        let descriptor = blob("weft_memory_export", |buffer, capacity, len| unsafe {
            weft_memory_export(self.memory, buffer, capacity, len)
        })?;
        Ok(Offer { address, descriptor })
    }

    pub fn connect(&self, offer: &Offer) -> Result<weft_peer> {
        let (mut peer, address) = (0, &offer.address);
        // SAFETY: the address outlives the call.
        check("weft_peer_connect", unsafe {
            weft_peer_connect(self.endpoint, address.as_ptr().cast(), address.len(), ptr::null(), &mut peer)
        })?;
        self.wait(WEFT_COMPLETION_PEER_UP, 1)?;
        Ok(peer)
    }

    pub fn import(&self, peer: weft_peer, offer: &Offer) -> Result<*mut weft_remote_memory> {
        let (mut remote, blob) = (ptr::null_mut(), &offer.descriptor);
        // SAFETY: the descriptor outlives the call.
        check("weft_remote_memory_import", unsafe {
            weft_remote_memory_import(self.endpoint, peer, blob.as_ptr().cast(), blob.len(), &mut remote)
        })?;
        Ok(remote)
    }

    /// One pass; what it completed goes to `each`.
    #[inline]
    pub fn poll(&self, mut each: impl FnMut(&weft_completion) -> Result<()>) -> Result<()> {
        let mut done = [const { MaybeUninit::<weft_completion>::uninit() }; 8];
        // SAFETY: room for as many completions.
        let count = unsafe { weft_poll(self.endpoint, done.as_mut_ptr().cast(), done.len() as u32) };
        check("weft_poll", count)?;
        // SAFETY: so many were filled in.
        done[..count as usize].iter().try_for_each(|one| each(unsafe { one.assume_init_ref() }))
    }

    /// Polls until so many completions of this kind came, all successes; the last.
    pub fn wait(&self, kind: weft_completion_kind, mut count: usize) -> Result<weft_completion> {
        let begun = Instant::now();
        // SAFETY: integers and pointers.
        let mut last: weft_completion = unsafe { zeroed() };
        while count > 0 {
            self.poll(|one| {
                if one.kind == kind {
                    (last, count) = (*one, count.saturating_sub(1));
                }
                check("a completion", one.status)
            })?;
            if begun.elapsed() > PATIENCE {
                bail!("no completion of kind {kind} for {PATIENCE:?}");
            }
        }
        Ok(last)
    }
}

/// An endpoint with manual progress; `rails` as in its config.
pub fn manual(fabric: &CStr, rails: *const c_char) -> Result<*mut weft_endpoint> {
    let mut endpoint = ptr::null_mut();
    // SAFETY: a config of zeros means defaults; the texts outlive the call.
    unsafe {
        let mut config: weft_endpoint_config = zeroed();
        config.size = size_of::<weft_endpoint_config>() as u32;
        (config.fabric, config.rails) = (fabric.as_ptr(), rails);
        (config.progress, config.idle) = (WEFT_PROGRESS_MANUAL, WEFT_IDLE_SPIN);
        check("weft_endpoint_open", weft_endpoint_open(&config, &mut endpoint))?;
    }
    Ok(endpoint)
}

/// Memory of the one or the other kind.
pub fn pool(endpoint: *mut weft_endpoint, page_len: usize, pages: usize, shared: bool) -> Result<Pool> {
    if !shared {
        return Pool::new(page_len, pages);
    }
    let mut base = ptr::null_mut();
    // SAFETY: a place for the address.
    check("weft_memory_alloc", unsafe {
        weft_memory_alloc(endpoint, (page_len * pages) as u64, ptr::null(), &mut base)
    })?;
    // SAFETY: just allocated, and never freed.
    Ok(unsafe { Pool::at(base.cast(), page_len, pages) })
}
