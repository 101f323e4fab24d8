//! Weft, through its C interface.

use super::{Receiver, Sender};
use crate::memory::Pool;
use crate::pages::Lists;
use crate::pair::{Case, Fabric};
use ::weft::capi::completion::*;
use ::weft::capi::endpoint::*;
use ::weft::capi::memory::*;
use ::weft::capi::peer::*;
use ::weft::capi::status::*;
use ::weft::capi::transfer::*;
use anyhow::{bail, Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ffi::{c_char, c_void, CStr};
use std::mem::{size_of, zeroed};
use std::ptr;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// The rail that Weft opens, by libfabric's names: the others use the same.
#[derive(Clone, Serialize, Deserialize)]
pub struct Rail {
    pub provider: String,
    pub domain: String,
    pub libfabric: String,
}

#[derive(Serialize, Deserialize)]
struct Offer {
    address: Vec<u8>,
    descriptor: Vec<u8>,
}

/// Asks Weft which rail it opens.
pub fn rail(case: &Case) -> Result<Rail> {
    let endpoint = Endpoint::open(case)?;
    // SAFETY: structs of integers and characters, with their size set.
    unsafe {
        let mut rail: weft_rail_properties = zeroed();
        rail.size = size_of::<weft_rail_properties>() as u32;
        check("weft_rail_info", weft_rail_info(endpoint.0, 0, &mut rail))?;
        let mut own: weft_endpoint_properties = zeroed();
        own.size = size_of::<weft_endpoint_properties>() as u32;
        check("weft_endpoint_info", weft_endpoint_info(endpoint.0, &mut own))?;
        Ok(Rail { provider: text(&rail.fabric), domain: text(&rail.name), libfabric: text(&own.libfabric) })
    }
}

pub fn text(field: &[c_char]) -> String {
    // SAFETY: Weft ends its texts with a NUL.
    unsafe { CStr::from_ptr(field.as_ptr()) }.to_string_lossy().into_owned()
}

pub fn check(call: &str, status: weft_status) -> Result<()> {
    if status >= 0 {
        return Ok(());
    }
    // SAFETY: both are C strings, never NULL.
    let (name, message) =
        unsafe { (CStr::from_ptr(weft_status_name(status)), CStr::from_ptr(weft_last_error())) };
    bail!("{call}: {}: {}", name.to_string_lossy(), message.to_string_lossy())
}

/// Asks for the length of a blob, then for the blob.
pub fn blob(call: &str, write: impl Fn(*mut c_void, usize, &mut usize) -> weft_status) -> Result<Vec<u8>> {
    let mut len = 0;
    check(call, write(ptr::null_mut(), 0, &mut len))?;
    let mut bytes = vec![0u8; len];
    check(call, write(bytes.as_mut_ptr().cast(), len, &mut len))?;
    Ok(bytes)
}

struct Endpoint(*mut weft_endpoint);

impl Endpoint {
    fn open(case: &Case) -> Result<Endpoint> {
        let mut endpoint = ptr::null_mut();
        // SAFETY: a config of zeros means defaults; the strings outlive the call.
        unsafe {
            let mut config: weft_endpoint_config = zeroed();
            config.size = size_of::<weft_endpoint_config>() as u32;
            config.fabric = match case.fabric {
                Fabric::Tcp => c"tcp".as_ptr(),
                Fabric::Shm => c"shm".as_ptr(),
            };
            config.rails = match case.fabric {
                Fabric::Tcp => c"lo".as_ptr(),
                Fabric::Shm => c"*".as_ptr(),
            };
            config.rail_count = 1;
            config.packing = if case.packing { WEFT_PACKING_AUTO } else { WEFT_PACKING_OFF };
            // It never sleeps, nor does the bare loop.
            config.idle = WEFT_IDLE_SPIN;
            config.progress = if case.threads { WEFT_PROGRESS_THREADS } else { WEFT_PROGRESS_MANUAL };
            check("weft_endpoint_open", weft_endpoint_open(&config, &mut endpoint))?;
        }
        Ok(Endpoint(endpoint))
    }

    fn register(&self, pool: &Pool, access: u32) -> Result<*mut weft_memory> {
        let range = weft_memory_range { address: pool.base().cast(), len: pool.len() as u64 };
        // SAFETY: all zero bytes are a value of it.
        let mut args: weft_memory_args = unsafe { std::mem::zeroed() };
        (args.size, args.access) = (size_of::<weft_memory_args>() as u32, access);
        let mut memory = ptr::null_mut();
        // SAFETY: the pool stays mapped for the life of the process.
        check("weft_memory_register", unsafe {
            weft_memory_register(self.0, &range, 1, &args, &mut memory)
        })?;
        Ok(memory)
    }

    /// Takes completions; with manual progress this drives the rail.
    #[inline]
    fn poll<'a>(&self, done: &'a mut [weft_completion]) -> Result<&'a [weft_completion]> {
        // SAFETY: room for as many completions.
        let count = unsafe { weft_poll(self.0, done.as_mut_ptr(), done.len() as u32) };
        if count < 0 {
            check("weft_poll", count)?;
        }
        Ok(&done[..count as usize])
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // SAFETY: our own handle, closed once. Registrations go with it.
        let closed = unsafe { check("weft_endpoint_shutdown", weft_endpoint_shutdown(self.0, 0)) }
            // SAFETY: the same.
            .and_then(|()| unsafe { check("weft_endpoint_close", weft_endpoint_close(self.0)) });
        if let Err(error) = closed {
            eprintln!("weft-bench: {error:#}");
        }
    }
}

pub struct WeftSender {
    endpoint: Endpoint,
    offer: Offer,
    memory: *mut weft_memory,
    remote: *mut weft_remote_memory,
    page_len: u64,
    threads: bool,
}

impl WeftSender {
    pub fn open(case: &Case, pool: &Pool, offer: &Value) -> Result<WeftSender> {
        let offer = serde_json::from_value(offer.clone()).context("the target's offer")?;
        let endpoint = Endpoint::open(case)?;
        let memory = endpoint.register(pool, WEFT_ACCESS_LOCAL)?;
        let page_len = pool.page_len as u64;
        Ok(WeftSender { endpoint, offer, memory, remote: ptr::null_mut(), page_len, threads: case.threads })
    }

    /// Polls until a completion of this kind came, and it was a success.
    #[inline]
    fn wait_for(&self, kind: weft_completion_kind) -> Result<()> {
        // SAFETY: integers and pointers.
        let mut done: [weft_completion; 8] = unsafe { zeroed() };
        let (mut idle, mut since) = (0u32, None);
        loop {
            for one in self.endpoint.poll(&mut done)? {
                if one.kind == kind {
                    return check("a completion", one.status);
                }
                if one.kind == WEFT_COMPLETION_PEER_DOWN {
                    check("the peer is down", one.status.min(WEFT_ERR_PEER_CLOSED))?;
                }
            }
            idle = idle.wrapping_add(1);
            if idle % (1 << 20) == 0 && since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                bail!("no completion of kind {kind} for {PATIENCE:?}");
            }
        }
    }
}

impl Sender for WeftSender {
    fn connect(&mut self) -> Result<()> {
        let (mut peer, endpoint) = (0, self.endpoint.0);
        let Offer { address, descriptor } = &self.offer;
        // SAFETY: both blobs outlive the calls.
        unsafe {
            let up =
                weft_peer_connect(endpoint, address.as_ptr().cast(), address.len(), ptr::null(), &mut peer);
            check("weft_peer_connect", up)?;
            self.wait_for(WEFT_COMPLETION_PEER_UP)?;
            let (data, len) = (descriptor.as_ptr().cast(), descriptor.len());
            let imported = weft_remote_memory_import(endpoint, peer, data, len, &mut self.remote);
            check("weft_remote_memory_import", imported)?;
        }
        self.write(&Lists { source: vec![0], target: vec![0] })
    }

    fn write(&mut self, lists: &Lists) -> Result<()> {
        // SAFETY: arguments of zeros mean defaults; the lists outlive the call, the pool the
        // transfer.
        unsafe {
            let mut args: weft_pages_args = zeroed();
            args.size = size_of::<weft_pages_args>() as u32;
            args.local = self.memory;
            args.remote = self.remote;
            args.local_pages = lists.source.as_ptr();
            args.remote_pages = lists.target.as_ptr();
            args.page_len = self.page_len;
            args.page_count = lists.len() as u64;
            check("weft_write_pages", weft_write_pages(self.endpoint.0, &args, ptr::null_mut()))?;
        }
        self.wait_for(WEFT_COMPLETION_WRITE)
    }

    fn poll(&mut self) -> Result<()> {
        // SAFETY: integers and pointers.
        let mut done: [weft_completion; 8] = unsafe { zeroed() };
        self.endpoint.poll(&mut done).map(|_| ())
    }

    fn describe(&self) -> String {
        format!("weft: {}", if self.threads { "worker threads" } else { "manual progress" })
    }
}

pub struct WeftReceiver {
    endpoint: Endpoint,
    memory: *mut weft_memory,
    threads: bool,
}

impl WeftReceiver {
    pub fn open(case: &Case, pool: &Pool) -> Result<WeftReceiver> {
        let endpoint = Endpoint::open(case)?;
        let memory = endpoint.register(pool, 0)?;
        Ok(WeftReceiver { endpoint, memory, threads: case.threads })
    }
}

impl Receiver for WeftReceiver {
    fn offer(&self) -> Result<Value> {
        let (endpoint, memory) = (self.endpoint.0, self.memory);
        // SAFETY: `blob` passes buffers with their size.
        let address = blob("weft_endpoint_address", |buffer, capacity, len| unsafe {
            weft_endpoint_address(endpoint, buffer, capacity, len)
        })?;
        // SAFETY: the same.
        let descriptor = blob("weft_memory_export", |buffer, capacity, len| unsafe {
            weft_memory_export(memory, buffer, capacity, len)
        })?;
        Ok(serde_json::to_value(Offer { address, descriptor })?)
    }

    fn accept(&mut self, _answer: &Value) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn poll(&mut self) -> Result<()> {
        if self.threads {
            // The worker does it all: leave it the core.
            std::thread::sleep(Duration::from_micros(20));
        }
        // SAFETY: integers and pointers.
        let mut done: [weft_completion; 4] = unsafe { zeroed() };
        self.endpoint.poll(&mut done).map(|_| ())
    }
}
