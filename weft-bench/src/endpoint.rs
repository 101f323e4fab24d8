//! Weft through its C interface: what every measurement uses.

use crate::memory::Pool;
use crate::pages::Lists;
use ::weft::capi::completion::*;
use ::weft::capi::endpoint::*;
use ::weft::capi::info::*;
use ::weft::capi::memory::*;
use ::weft::capi::op::*;
use ::weft::capi::peer::*;
use ::weft::capi::status::*;
use ::weft::capi::transfer::*;
use anyhow::{bail, Context, Result};
use serde::{Deserialize, Serialize};
use std::ffi::{c_char, c_void, CStr, CString};
use std::mem::{size_of, zeroed};
use std::ptr;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
const WAIT_NS: u64 = 1_000_000;

pub type Memory = *mut weft_memory;
pub type Remote = *mut weft_remote_memory;

/// Structs of weft.h that begin with their size.
///
/// # Safety
/// Implementors begin with a `u32` for the size, and all-zero bytes are a valid value.
pub unsafe trait Sized32 {}

macro_rules! sized {
    ($($name:ty),*) => {
        // SAFETY: the structs have only integers, pointers and arrays of these, for which zero is
        // valid.
        $(unsafe impl Sized32 for $name {})*
    };
}
sized!(weft_endpoint_config, weft_endpoint_properties, weft_rail_properties, weft_peer_properties);
sized!(weft_endpoint_statistics, weft_rail_statistics, weft_lane_statistics);
sized!(weft_memory_args, weft_op_options, weft_pages);

/// A write or read of pages.
#[derive(Clone, Copy)]
pub struct PagesRequest {
    pub local: Memory,
    pub remote: Remote,
    pub pages: weft_pages,
    pub options: weft_op_options,
}

/// A write or read of one range.
#[derive(Clone, Copy)]
pub struct RangeRequest {
    pub local: Memory,
    pub local_offset: u64,
    pub remote: Remote,
    pub remote_offset: u64,
    pub len: u64,
    pub options: weft_op_options,
}

/// The defaults that the _INIT macros of weft.h set.
#[inline]
pub fn sized<T: Sized32>() -> T {
    // SAFETY: implementors promise it.
    unsafe {
        let mut zeros: T = zeroed();
        (&raw mut zeros).cast::<u32>().write(size_of::<T>() as u32);
        zeros
    }
}

#[inline]
pub fn check(call: &str, status: weft_status) -> Result<()> {
    if status >= 0 {
        return Ok(());
    }
    failure(call, status)
}

#[cold]
fn failure(call: &str, status: weft_status) -> Result<()> {
    // SAFETY: both pointers are NUL-terminated strings, and never NULL.
    let (name, message) =
        unsafe { (CStr::from_ptr(weft_status_name(status)), CStr::from_ptr(weft_last_error())) };
    bail!("{call}: {}: {}", name.to_string_lossy(), message.to_string_lossy())
}

pub fn text(field: &[c_char]) -> String {
    // SAFETY: Weft ends its texts with a NUL.
    unsafe { CStr::from_ptr(field.as_ptr()) }.to_string_lossy().into_owned()
}

/// Queries the length of a blob, then the blob.
fn blob(call: &str, write: impl Fn(*mut c_void, usize, &mut usize) -> weft_status) -> Result<Vec<u8>> {
    let mut len = 0;
    check(call, write(ptr::null_mut(), 0, &mut len))?;
    loop {
        let mut bytes = vec![0u8; len];
        let status = write(bytes.as_mut_ptr().cast(), bytes.len(), &mut len);
        if status != WEFT_ERR_TOO_SMALL {
            check(call, status)?;
            bytes.truncate(len);
            return Ok(bytes);
        }
    }
}

/// The options of an endpoint; unset ones keep Weft's defaults.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Opening {
    pub fabric: Option<String>,
    pub rail_names: Option<String>,
    pub rails: u32,
    /// tcp connections per NIC.
    pub streams: u32,
    pub workers: u32,
    /// Progress happens when the endpoint is polled.
    pub manual: bool,
    /// Its workers never sleep.
    pub spin: bool,
    /// Connections are encrypted.
    pub encrypt: bool,
    pub queue_depth: u32,
}

impl Opening {
    /// On this fabric; for tcp, on the loopback.
    pub fn over(fabric: &str) -> Opening {
        let rail_names = (fabric == "tcp").then(|| "lo".to_owned());
        Opening { fabric: Some(fabric.to_owned()), rail_names, ..Opening::default() }
    }

    /// With manual progress.
    pub fn manual(fabric: &str) -> Opening {
        Opening { manual: true, spin: true, ..Opening::over(fabric) }
    }

    /// Takes unset options from the other, a client's: none that decides who may connect.
    pub fn or(self, other: Opening) -> Opening {
        Opening {
            fabric: self.fabric.or(other.fabric),
            rail_names: self.rail_names.or(other.rail_names),
            rails: if self.rails > 0 { self.rails } else { other.rails },
            workers: if self.workers > 0 { self.workers } else { other.workers },
            ..self
        }
    }
}

/// What a peer needs to reach a memory.
#[derive(Clone, Serialize, Deserialize)]
pub struct Offer {
    pub address: Vec<u8>,
    pub descriptor: Vec<u8>,
}

const SECRET: &[u8] = b"what both ends know";

/// Closed when dropped, along with its registrations.
pub struct Endpoint {
    pub raw: *mut weft_endpoint,
    queue: *mut weft_queue,
    /// How long `take` sleeps: beside workers that sleep, the processors are for them.
    wait_ns: u64,
}

// SAFETY: any thread may use an endpoint, and several at once.
unsafe impl Send for Endpoint {}
// SAFETY: the library's functions may be called by any thread with the handle.
unsafe impl Sync for Endpoint {}

impl Endpoint {
    pub fn open(opening: &Opening) -> Result<Endpoint> {
        let c_string = |text: &Option<String>| text.clone().map(CString::new).transpose();
        let (fabric, names) = (c_string(&opening.fabric)?, c_string(&opening.rail_names)?);
        let mut config: weft_endpoint_config = sized();
        config.fabric = fabric.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        config.rails = names.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        (config.rail_count, config.workers) = (opening.rails, opening.workers);
        config.tcp_streams = opening.streams;
        config.progress = if opening.manual { WEFT_PROGRESS_MANUAL } else { WEFT_PROGRESS_THREADS };
        config.idle = if opening.spin { WEFT_IDLE_SPIN } else { WEFT_IDLE_ADAPTIVE };
        config.queue_depth = opening.queue_depth;
        if opening.encrypt {
            (config.encrypt, config.secret, config.secret_len) =
                (1, SECRET.as_ptr().cast(), SECRET.len() as u64);
        }
        let mut endpoint = ptr::null_mut();
        // SAFETY: the strings outlive the call.
        check("weft_endpoint_create", unsafe { weft_endpoint_create(&config, &mut endpoint) })?;
        let wait_ns = if opening.manual || opening.spin { 0 } else { WAIT_NS };
        // SAFETY: the endpoint is open.
        let queue = unsafe { weft_endpoint_queue(endpoint) };
        Ok(Endpoint { raw: endpoint, queue, wait_ns })
    }

    pub fn properties(&self) -> Result<weft_endpoint_properties> {
        let mut own = sized();
        // SAFETY: the buffer has space for them.
        check("weft_endpoint_info", unsafe { weft_endpoint_info(self.raw, &mut own, ptr::null_mut()) })?;
        Ok(own)
    }

    /// The properties and counts of each rail.
    pub fn rails(&self) -> Result<Vec<(weft_rail_properties, weft_rail_statistics)>> {
        let one = |index| {
            let (mut is, mut done) = (sized(), sized());
            // SAFETY: the buffer has space for the rails.
            check("weft_rail_info", unsafe { weft_rail_info(self.raw, index, &mut is, &mut done) })?;
            Ok((is, done))
        };
        (0..self.properties()?.rails).map(one).collect()
    }

    /// What the lanes to a peer have done.
    pub fn lanes(&self, peer: weft_peer) -> Result<Vec<weft_lane_statistics>> {
        let mut lanes = Vec::new();
        loop {
            let mut lane = sized();
            // SAFETY: the buffer has space for a lane.
            match unsafe { weft_lane_info(self.raw, peer, lanes.len() as u32, &mut lane) } {
                WEFT_ERR_RANGE => return Ok(lanes),
                status => check("weft_lane_info", status)?,
            }
            lanes.push(lane);
        }
    }

    /// Memory that stays mapped for the life of the process.
    pub fn register(&self, base: *mut u8, len: usize) -> Result<Memory> {
        self.register_ranges(&[weft_memory_range { address: base.cast(), len: len as u64 }], 0)
    }

    pub fn register_ranges(&self, ranges: &[weft_memory_range], access: u32) -> Result<Memory> {
        let mut args: weft_memory_args = sized();
        args.access = access;
        let mut memory = ptr::null_mut();
        // SAFETY: the memory stays mapped for the life of the process.
        check("weft_memory_register", unsafe {
            weft_memory_register(self.raw, ranges.as_ptr(), ranges.len(), &args, &mut memory)
        })?;
        Ok(memory)
    }

    pub fn address(&self) -> Result<Vec<u8>> {
        // SAFETY: `blob` passes buffers with their size.
        blob("weft_endpoint_address", |buffer, capacity, len| unsafe {
            weft_endpoint_address(self.raw, buffer, capacity, len)
        })
    }

    /// All metrics, as text for Prometheus.
    pub fn metrics(&self) -> Result<String> {
        // SAFETY: `blob` passes buffers with their size.
        let text = blob("weft_endpoint_metrics", |buffer, capacity, len| unsafe {
            weft_endpoint_metrics(self.raw, buffer.cast(), capacity, len)
        })?;
        Ok(String::from_utf8(text)?)
    }

    /// Writes the metrics into a buffer that is long enough; returns their length.
    pub fn metrics_into(&self, text: &mut [u8]) -> Result<usize> {
        let mut len = 0;
        // SAFETY: the buffer has the length that is passed with it.
        check("weft_endpoint_metrics", unsafe {
            weft_endpoint_metrics(self.raw, text.as_mut_ptr().cast(), text.len(), &mut len)
        })?;
        Ok(len)
    }

    pub fn offer(&self, memory: Memory) -> Result<Offer> {
        // SAFETY: `blob` passes buffers with their size.
        let descriptor = blob("weft_memory_export", |buffer, capacity, len| unsafe {
            weft_memory_export(memory, buffer, capacity, len)
        })?;
        Ok(Offer { address: self.address()?, descriptor })
    }

    pub fn begin_connect(&self, address: &[u8]) -> Result<weft_peer> {
        let mut peer = 0;
        let (data, len) = (address.as_ptr().cast(), address.len());
        // SAFETY: the address outlives the call.
        let begun = unsafe { weft_peer_connect(self.raw, data, len, ptr::null(), &mut peer) };
        check("weft_peer_connect", begun).map(|()| peer)
    }

    /// Connects, and waits for the result.
    pub fn connect(&self, address: &[u8]) -> Result<weft_peer> {
        let peer = self.begin_connect(address)?;
        self.take(WEFT_COMPLETION_PEER_UP, 1)?;
        Ok(peer)
    }

    pub fn import(&self, peer: weft_peer, offer: &Offer) -> Result<Remote> {
        let (mut remote, data) = (ptr::null_mut(), &offer.descriptor);
        // SAFETY: the descriptor outlives the call.
        check("weft_remote_memory_import", unsafe {
            weft_remote_memory_import(self.raw, peer, data.as_ptr().cast(), data.len(), &mut remote)
        })?;
        Ok(remote)
    }

    /// Completions that are available; with manual progress this drives the rails.
    #[inline]
    pub fn poll<'a>(&self, done: &'a mut [weft_completion]) -> Result<&'a [weft_completion]> {
        // SAFETY: the buffer has space for this many completions.
        let count = unsafe { weft_queue_poll(self.queue, done.as_mut_ptr(), done.len() as u32, 0) };
        check("weft_queue_poll", count)?;
        Ok(&done[..count as usize])
    }

    /// The same after waiting for the first completion.
    fn next<'a>(&self, done: &'a mut [weft_completion], wait_ns: u64) -> Result<&'a [weft_completion]> {
        if wait_ns == 0 {
            return self.poll(done);
        }
        // SAFETY: the buffer has space for this many completions.
        let count = unsafe { weft_queue_poll(self.queue, done.as_mut_ptr(), done.len() as u32, wait_ns) };
        check("weft_queue_poll", count)?;
        Ok(&done[..count as usize])
    }

    pub fn wait(&self, time: Duration) -> Result<Vec<weft_completion>> {
        Ok(self.next(&mut completions::<256>(), time.as_nanos() as u64)?.to_vec())
    }

    /// A status that failed is an error, which says why the peer ended or was not reached, if that failed.
    pub fn check_completion(&self, one: &weft_completion, status: weft_status) -> Result<()> {
        if status >= 0 {
            return Ok(());
        }
        // SAFETY: a status has a name, and `blob` passes buffers with their size.
        let (name, why) = unsafe {
            let reason = |buffer: *mut c_void, capacity, len: &mut usize| {
                weft_peer_reason(self.raw, one.peer, buffer.cast(), capacity, len)
            };
            (CStr::from_ptr(weft_status_name(status)), blob("weft_peer_reason", reason).unwrap_or_default())
        };
        // Of a peer that is there, it says why its fabric serves it.
        let of_peer = matches!(one.kind, WEFT_COMPLETION_PEER_UP | WEFT_COMPLETION_PEER_DOWN)
            || (WEFT_ERR_NO_COMMON_FABRIC..=WEFT_ERR_PEER_LOST).contains(&status);
        match of_peer {
            true => bail!("{}: {}", name.to_string_lossy(), String::from_utf8_lossy(&why)),
            false => bail!("{}", name.to_string_lossy()),
        }
    }

    /// Counts completions of a kind, after a wait of up to `wait_ns` for the first; a failed one is
    /// an error.
    pub fn count(&self, kind: weft_completion_kind, wait_ns: u64) -> Result<usize> {
        let mut done = completions::<16>();
        // SAFETY: the buffer has space for this many completions.
        let count = unsafe { weft_queue_poll(self.queue, done.as_mut_ptr(), done.len() as u32, wait_ns) };
        check("weft_queue_poll", count)?;
        let done = &done[..count as usize];
        done.iter().try_for_each(|one| self.check_completion(one, one.status))?;
        Ok(done.iter().filter(|one| one.kind == kind).count())
    }

    /// Polls until this many completions of a kind have arrived, all successful; returns the last.
    /// Others are dropped.
    #[inline]
    pub fn take(&self, kind: weft_completion_kind, mut count: usize) -> Result<weft_completion> {
        let mut done = completions::<8>();
        let (mut polls, mut since) = (0u32, None);
        loop {
            for one in self.next(&mut done, self.wait_ns)? {
                let is_down = one.kind == WEFT_COMPLETION_PEER_DOWN;
                if one.kind == kind {
                    self.check_completion(one, if is_down { WEFT_OK } else { one.status })?;
                    count -= 1;
                    if count == 0 {
                        return Ok(*one);
                    }
                } else if is_down {
                    self.check_completion(one, one.status.min(WEFT_ERR_PEER_CLOSED))
                        .context("the peer is down")?;
                }
            }
            polls = polls.wrapping_add(1);
            if polls % (1 << 10) == 0 && since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                bail!("no completion of kind {kind} for {PATIENCE:?}");
            }
        }
    }

    /// Moves random pages of one memory to those of another. The lists must outlive the submission.
    pub fn pages(local: Memory, remote: Remote, lists: &Lists, page_len: usize) -> PagesRequest {
        let mut pages: weft_pages = sized();
        (pages.local.pages, pages.remote.pages) = (lists.source.as_ptr(), lists.target.as_ptr());
        (pages.page_len, pages.page_count) = (page_len as u64, lists.len() as u64);
        PagesRequest { local, remote, pages, options: sized() }
    }

    /// Moves bytes from the start of one memory to the start of another.
    pub fn range(local: Memory, remote: Remote, len: usize) -> RangeRequest {
        RangeRequest { local, local_offset: 0, remote, remote_offset: 0, len: len as u64, options: sized() }
    }

    #[inline]
    pub fn write_pages(&self, args: &PagesRequest) -> Result<()> {
        let (to, options) = (ptr::null_mut(), &args.options);
        // SAFETY: the lists outlive the call, and the memories live as long as the process.
        check("weft_write_pages", unsafe {
            weft_write_pages(self.raw, args.local, args.remote, &args.pages, options, to)
        })
    }

    pub fn read_pages(&self, args: &PagesRequest) -> Result<()> {
        let (to, options) = (ptr::null_mut(), &args.options);
        // SAFETY: the handles are open, and the arguments outlive the call.
        check("weft_read_pages", unsafe {
            weft_read_pages(self.raw, args.local, args.remote, &args.pages, options, to)
        })
    }

    #[inline]
    pub fn write(&self, args: &RangeRequest) -> Result<()> {
        let RangeRequest { local, local_offset, remote, remote_offset, len, options } = args;
        // SAFETY: the memories live as long as the process.
        check("weft_write", unsafe {
            weft_write(
                self.raw,
                *local,
                *local_offset,
                *remote,
                *remote_offset,
                *len,
                options,
                ptr::null_mut(),
            )
        })
    }

    pub fn read(&self, args: &RangeRequest) -> Result<()> {
        let RangeRequest { local, local_offset, remote, remote_offset, len, options } = args;
        // SAFETY: the handles are open, and the arguments outlive the call.
        check("weft_read", unsafe {
            weft_read(
                self.raw,
                *local,
                *local_offset,
                *remote,
                *remote_offset,
                *len,
                options,
                ptr::null_mut(),
            )
        })
    }

    /// Pages of `weft_memory_alloc`, which outlive the endpoint.
    pub fn alloc(&self, page_len: usize, pages: usize) -> Result<Pool> {
        let mut base = ptr::null_mut();
        // SAFETY: the caller passes space for the address.
        check("weft_memory_alloc", unsafe {
            weft_memory_alloc(self.raw, (page_len * pages) as u64, WEFT_NUMA_ANY, &mut base)
        })?;
        // SAFETY: the range was just allocated, and is never freed.
        Ok(unsafe { Pool::at(base.cast(), page_len, pages) })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // SAFETY: the handle is our own, and is closed only here.
        let closed = unsafe { check("weft_endpoint_shutdown", weft_endpoint_shutdown(self.raw, 0)) }
            // SAFETY: the handle is open, and nothing uses it after this.
            .and_then(|()| unsafe { check("weft_endpoint_destroy", weft_endpoint_destroy(self.raw)) });
        if let Err(error) = closed {
            eprintln!("weft-bench: {error:#}");
        }
    }
}

/// An empty list with space for this many completions.
#[inline]
pub fn completions<const COUNT: usize>() -> [weft_completion; COUNT] {
    // SAFETY: the struct has only integers and pointers, for which zero is valid.
    unsafe { zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_chooses_rails_and_not_the_secret() {
        let asked = Opening { rails: 2, encrypt: true, ..Opening::over("tcp") };
        let opening = Opening { rails: 1, ..Opening::default() }.or(asked);
        assert!(!opening.encrypt);
        assert_eq!((opening.fabric.as_deref(), opening.rails), (Some("tcp"), 1));
    }
}
