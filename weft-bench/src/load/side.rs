//! What both sides have: an endpoint with worker threads, and registered pages.

use super::{Load, Opening};
use crate::engines::{blob, check, text};
use crate::memory::Pool;
use crate::pages::Lists;
use crate::prometheus::Exporter;
use ::weft::capi::completion::*;
use ::weft::capi::endpoint::*;
use ::weft::capi::memory::*;
use ::weft::capi::peer::*;
use ::weft::capi::statistics::*;
use ::weft::capi::transfer::*;
use anyhow::{bail, Context, Result};
use std::ffi::CString;
use std::mem::{size_of, zeroed};
use std::path::Path;
use std::ptr;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
const TIMEOUT: Duration = Duration::from_secs(120);
/// The `user_data` of the transfers beside the load.
pub const SMALL: usize = usize::MAX;

pub struct Side {
    endpoint: *mut weft_endpoint,
    memory: *mut weft_memory,
    remote: *mut weft_remote_memory,
    peer: weft_peer,
    pub pool: Pool,
    exporter: Option<Exporter>,
}

/// A rail, and what it has carried so far.
pub struct RailNow {
    pub fabric: String,
    pub name: String,
    pub address: String,
    pub bytes: u64,
    pub slices: u64,
}

impl Side {
    pub fn open(load: &Load, opening: &Opening) -> Result<Side> {
        let pool = Pool::new(load.page_len, load.pages_of_layer() * load.layers)?;
        let endpoint = open(opening)?;
        let (memory, remote) = (ptr::null_mut(), ptr::null_mut());
        let mut side = Side { endpoint, memory, remote, peer: 0, pool, exporter: None };
        side.register(load)?;
        Ok(side)
    }

    /// From now on its figures are in a file for Prometheus.
    pub fn export(&mut self, path: Option<&Path>) -> Result<()> {
        self.exporter = path.map(|path| Exporter::start(path, self.endpoint)).transpose()?;
        Ok(())
    }

    /// A range for each layer, and one for the transfers beside the load.
    fn register(&mut self, load: &Load) -> Result<()> {
        let len = load.pages_of_layer() * load.page_len;
        let layer = |layer: usize| self.pool.base().wrapping_add(layer * len);
        let mut ranges: Vec<weft_memory_range> = (0..load.layers)
            .map(|i| weft_memory_range { address: layer(i).cast(), len: len as u64 })
            .collect();
        if load.small > 0 {
            let small = Pool::new(load.small.next_multiple_of(8), 1)?;
            ranges.push(weft_memory_range { address: small.base().cast(), len: load.small as u64 });
        }
        // SAFETY: pools stay mapped for the life of the process.
        check("weft_memory_register", unsafe {
            weft_memory_register(self.endpoint, ranges.as_ptr(), ranges.len(), ptr::null(), &mut self.memory)
        })
    }

    pub fn address(&self) -> Result<Vec<u8>> {
        // SAFETY: `blob` passes buffers with their size.
        blob("weft_endpoint_address", |buffer, capacity, len| unsafe {
            weft_endpoint_address(self.endpoint, buffer, capacity, len)
        })
    }

    pub fn descriptor(&self) -> Result<Vec<u8>> {
        // SAFETY: `blob` passes buffers with their size.
        blob("weft_memory_export", |buffer, capacity, len| unsafe {
            weft_memory_export(self.memory, buffer, capacity, len)
        })
    }

    pub fn connect(&mut self, address: &[u8], descriptor: &[u8]) -> Result<()> {
        // SAFETY: both blobs outlive the calls.
        unsafe {
            let (data, len) = (address.as_ptr().cast(), address.len());
            check(
                "weft_peer_connect",
                weft_peer_connect(self.endpoint, data, len, ptr::null(), &mut self.peer),
            )?;
            self.wait_until_up()?;
            let (data, len) = (descriptor.as_ptr().cast(), descriptor.len());
            check(
                "weft_remote_memory_import",
                weft_remote_memory_import(self.endpoint, self.peer, data, len, &mut self.remote),
            )
        }
    }

    fn wait_until_up(&self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            for one in self.wait(Duration::from_millis(100))? {
                if one.kind == WEFT_COMPLETION_PEER_UP {
                    return check("connecting to the serving side", one.status);
                }
            }
        }
        bail!("the serving side's endpoint did not answer for {PATIENCE:?}")
    }

    /// Submits the transfer in a place: its completion names the place.
    pub fn submit(&self, load: &Load, place: usize, lists: &Lists) -> Result<()> {
        // Slow links and many bytes take their time: at least 1 MB/s is expected.
        let len = (load.pages_of_layer() * load.page_len) as u64;
        self.submit_within(load, place, lists, TIMEOUT + Duration::from_micros(len))
    }

    /// The same, with a deadline.
    pub fn submit_within(&self, load: &Load, place: usize, lists: &Lists, timeout: Duration) -> Result<()> {
        // SAFETY: arguments of zeros mean defaults; the lists outlive the call, the pool the
        // transfer.
        unsafe {
            let mut args: weft_pages_args = zeroed();
            args.size = size_of::<weft_pages_args>() as u32;
            args.local = self.memory;
            args.remote = self.remote;
            let (local, remote) = match load.read {
                true => (&lists.target, &lists.source),
                false => (&lists.source, &lists.target),
            };
            args.local_pages = local.as_ptr();
            args.remote_pages = remote.as_ptr();
            args.local_range_step = 1;
            args.remote_range_step = 1;
            args.page_len = load.page_len as u64;
            args.page_count = lists.len() as u64;
            args.layer_count = load.layers as u32;
            args.user_data = ptr::without_provenance_mut(place);
            args.timeout_ns = timeout.as_nanos() as u64;
            match load.read {
                true => check("weft_read_pages", weft_read_pages(self.endpoint, &args, ptr::null_mut())),
                false => check("weft_write_pages", weft_write_pages(self.endpoint, &args, ptr::null_mut())),
            }
        }
    }

    /// Submits a transfer beside the load.
    pub fn submit_small(&self, load: &Load) -> Result<()> {
        // SAFETY: as with `submit`.
        unsafe {
            let mut args: weft_range_args = zeroed();
            args.size = size_of::<weft_range_args>() as u32;
            args.flags = WEFT_CLASS_LATENCY;
            args.local = self.memory;
            args.remote = self.remote;
            args.local_range = load.layers as u32;
            args.remote_range = load.layers as u32;
            args.len = load.small as u64;
            args.user_data = ptr::without_provenance_mut(SMALL);
            args.timeout_ns = TIMEOUT.as_nanos() as u64;
            match load.read {
                true => check("weft_read", weft_read(self.endpoint, &args, ptr::null_mut())),
                false => check("weft_write", weft_write(self.endpoint, &args, ptr::null_mut())),
            }
        }
    }

    pub fn wait(&self, time: Duration) -> Result<Vec<weft_completion>> {
        // SAFETY: integers and pointers; room for as many completions.
        unsafe {
            let mut done: [weft_completion; 64] = zeroed();
            let count = weft_wait(self.endpoint, done.as_mut_ptr(), 64, time.as_nanos() as u64);
            check("weft_wait", count.min(0))?;
            Ok(done[..count as usize].to_vec())
        }
    }

    pub fn rails(&self) -> Result<Vec<RailNow>> {
        // SAFETY: structs of integers and characters, with their size set.
        unsafe {
            let mut own: weft_endpoint_properties = zeroed();
            own.size = size_of::<weft_endpoint_properties>() as u32;
            check("weft_endpoint_info", weft_endpoint_info(self.endpoint, &mut own))?;
            let one = |index| {
                let mut rail: weft_rail_properties = zeroed();
                rail.size = size_of::<weft_rail_properties>() as u32;
                check("weft_rail_info", weft_rail_info(self.endpoint, index, &mut rail))?;
                let mut done: weft_rail_statistics = zeroed();
                done.size = size_of::<weft_rail_statistics>() as u32;
                check("weft_rail_stats", weft_rail_stats(self.endpoint, index, &mut done))?;
                Ok(RailNow {
                    fabric: text(&rail.fabric),
                    name: text(&rail.name),
                    address: text(&rail.address),
                    bytes: rail.bytes,
                    slices: done.slices_written + done.slices_read,
                })
            };
            (0..own.rails).map(one).collect()
        }
    }

    /// Pairs of rails that reach each other.
    pub fn lanes(&self) -> Result<u32> {
        // SAFETY: a struct of integers and characters, with its size set.
        unsafe {
            let mut peer: weft_peer_properties = zeroed();
            peer.size = size_of::<weft_peer_properties>() as u32;
            check("weft_peer_info", weft_peer_info(self.endpoint, self.peer, &mut peer))?;
            Ok(peer.lanes)
        }
    }
}

fn open(opening: &Opening) -> Result<*mut weft_endpoint> {
    let c_string = |text: &Option<String>| text.clone().map(CString::new).transpose();
    let fabric = c_string(&opening.fabric).context("the provider's name")?;
    let names = c_string(&opening.rail_names).context("the rails' names")?;
    let mut endpoint = ptr::null_mut();
    // SAFETY: a config of zeros means defaults; the strings outlive the call.
    unsafe {
        let mut config: weft_endpoint_config = zeroed();
        config.size = size_of::<weft_endpoint_config>() as u32;
        config.fabric = fabric.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        config.rails = names.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        config.rail_count = opening.rails.unwrap_or(0);
        config.workers = opening.workers.unwrap_or(0);
        check("weft_endpoint_open", weft_endpoint_open(&config, &mut endpoint))?;
    }
    Ok(endpoint)
}

impl Drop for Side {
    fn drop(&mut self) {
        self.exporter.take();
        // SAFETY: our own handle, closed once. Registrations go with it.
        let closed = unsafe { check("weft_endpoint_shutdown", weft_endpoint_shutdown(self.endpoint, 0)) }
            // SAFETY: the same.
            .and_then(|()| unsafe { check("weft_endpoint_close", weft_endpoint_close(self.endpoint)) });
        if let Err(error) = closed {
            eprintln!("weft-bench: {error:#}");
        }
    }
}

/// CPU time of this process, all threads.
pub fn cpu_ns() -> u64 {
    // SAFETY: a struct of integers.
    let usage = unsafe {
        let mut usage: libc::rusage = zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}
