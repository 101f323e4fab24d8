//! What both sides have: an endpoint with worker threads, and registered pages.

use super::Load;
use crate::endpoint::{check, sized, text, Endpoint, Memory, Offer, Opening, Remote};
use crate::memory::Lent;
use crate::pages::Lists;
use crate::prometheus::Exporter;
use ::weft::capi::completion::*;
use ::weft::capi::info::{weft_lane_statistics, weft_rail_properties, weft_rail_statistics};
use ::weft::capi::memory::*;
use ::weft::capi::op::*;
use ::weft::capi::peer::*;
use ::weft::capi::status::WEFT_ERR_PEER_CLOSED;
use anyhow::{Context, Result};
use std::mem::zeroed;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(120);
/// Weft takes no longer deadlines.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);
/// The `user_data` of the single transfers.
pub const SMALL: usize = usize::MAX;

pub struct Side {
    exporter: Option<Exporter>,
    endpoint: Arc<Endpoint>,
    memory: Memory,
    remote: Remote,
    peer: weft_peer,
    // The endpoint uses these pages, and is dropped before them.
    pub pool: Lent,
    /// Of the single transfers.
    _small: Option<Lent>,
}

/// A rail, and the bytes it has carried so far.
pub struct RailNow {
    pub fabric: String,
    pub name: String,
    pub address: String,
    /// It is open, and its NIC has a link.
    pub up: bool,
    pub bytes: u64,
    pub slices: u64,
}

/// What serves the peer.
pub struct Service {
    pub fabric: String,
    pub address: String,
    pub lanes: Vec<weft_lane_statistics>,
}

impl Side {
    pub fn open(load: &Load, opening: &Opening) -> Result<Side> {
        let pool = Lent::new(load.page_len, load.pages_of_layer() * load.layers)?;
        let small = (load.small > 0).then(|| Lent::new(load.small.next_multiple_of(8), 1)).transpose()?;
        let endpoint = Arc::new(Endpoint::open(opening)?);
        // A range for each layer, and one for the single transfers.
        let len = load.pages_of_layer() * load.page_len;
        let layer = |layer: usize| pool.base().wrapping_add(layer * len);
        let mut ranges: Vec<weft_memory_range> = (0..load.layers)
            .map(|i| weft_memory_range { address: layer(i).cast(), len: len as u64 })
            .collect();
        if let Some(small) = &small {
            ranges.push(weft_memory_range { len: load.small as u64, ..small.range() });
        }
        let memory = endpoint.register_ranges(&ranges, 0)?;
        let (remote, _small) = (ptr::null_mut(), small);
        Ok(Side { exporter: None, endpoint, memory, remote, peer: 0, pool, _small })
    }

    /// From now on its metrics are in a file for Prometheus.
    pub fn export(&mut self, path: Option<&Path>) -> Result<()> {
        self.exporter = path.map(|path| Exporter::start(path, Arc::clone(&self.endpoint))).transpose()?;
        Ok(())
    }

    pub fn offer(&self) -> Result<Offer> {
        self.endpoint.offer(self.memory)
    }

    pub fn connect(&mut self, offer: &Offer) -> Result<()> {
        self.peer = self.endpoint.begin_connect(&offer.address)?;
        // It ends by its own deadline, which the user may have set: up to 24 hours.
        while self.endpoint.count(WEFT_COMPLETION_PEER_UP, u64::MAX)? == 0 {}
        self.remote = self.endpoint.import(self.peer, offer)?;
        Ok(())
    }

    /// Submits the transfer in a slot: its completion names the slot.
    pub fn submit(&self, load: &Load, place: usize, lists: &Lists) -> Result<()> {
        // The others in flight share the link with it.
        self.submit_within(load, place, lists, deadline(load.bytes_in_flight()))
    }

    /// The same, with a deadline.
    pub fn submit_within(&self, load: &Load, place: usize, lists: &Lists, timeout: Duration) -> Result<()> {
        let mut args = Endpoint::pages(self.memory, self.remote, lists, load.page_len);
        if load.read {
            std::mem::swap(&mut args.pages.local, &mut args.pages.remote);
        }
        (args.pages.local.range_step, args.pages.remote.range_step) = (1, 1);
        args.pages.layer_count = load.layers as u32;
        args.options.user_data = ptr::without_provenance_mut(place);
        args.options.timeout_ns = timeout.as_nanos() as u64;
        match load.read {
            true => self.endpoint.read_pages(&args),
            false => self.endpoint.write_pages(&args),
        }
    }

    /// Submits a single transfer.
    pub fn submit_small(&self, load: &Load) -> Result<()> {
        let mut args = Endpoint::range(self.memory, self.remote, load.small);
        args.options.flags = WEFT_CLASS_LATENCY;
        // Behind the layers.
        let offset = (load.layers * load.pages_of_layer() * load.page_len) as u64;
        (args.local_offset, args.remote_offset) = (offset, offset);
        args.options.user_data = ptr::without_provenance_mut(SMALL);
        args.options.timeout_ns = deadline(load.small as u64).as_nanos() as u64;
        match load.read {
            true => self.endpoint.read(&args),
            false => self.endpoint.write(&args),
        }
    }

    /// The transfers that have ended, after waiting for the first.
    pub fn ended(&self, time: Duration) -> Result<Vec<weft_completion>> {
        let mut done = self.endpoint.wait(time)?;
        if let Some(down) = done.iter().find(|one| one.kind == WEFT_COMPLETION_PEER_DOWN) {
            let status = if down.status < 0 { down.status } else { WEFT_ERR_PEER_CLOSED };
            let ended = self.endpoint.check_completion(down, status);
            ended.context("the serving side's endpoint is gone")?;
        }
        done.retain(|one| matches!(one.kind, WEFT_COMPLETION_WRITE | WEFT_COMPLETION_READ));
        Ok(done)
    }

    /// The same, but a failed transfer is an error.
    pub fn done(&self, time: Duration) -> Result<Vec<weft_completion>> {
        let done = self.ended(time)?;
        let check = |one| self.endpoint.check_completion(one, one.status).context("a transfer");
        done.iter().try_for_each(check)?;
        Ok(done)
    }

    pub fn rails(&self) -> Result<Vec<RailNow>> {
        let now = |(rail, done): &(weft_rail_properties, weft_rail_statistics)| RailNow {
            fabric: text(&rail.fabric),
            name: text(&rail.name),
            address: text(&rail.address),
            up: done.up == 1,
            bytes: done.bytes_written + done.bytes_read,
            slices: done.slices_written + done.slices_read,
        };
        Ok(self.endpoint.rails()?.iter().map(now).collect())
    }

    pub fn service(&self) -> Result<Service> {
        let mut peer: weft_peer_properties = sized();
        // SAFETY: the buffer has space for them.
        check("weft_peer_info", unsafe { weft_peer_info(self.endpoint.raw, self.peer, &mut peer) })?;
        let lanes = self.endpoint.lanes(self.peer)?;
        Ok(Service { fabric: text(&peer.fabric), address: text(&peer.address), lanes })
    }
}

/// Slow links and many bytes take time: at least 1 MB/s is expected.
fn deadline(bytes: u64) -> Duration {
    (TIMEOUT + Duration::from_micros(bytes)).min(TIMEOUT_MAX)
}

/// CPU time of this process, all threads.
pub fn cpu_ns() -> u64 {
    // SAFETY: the struct has only integers, for which zero is valid.
    let usage = unsafe {
        let mut usage: libc::rusage = zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_of_a_transfer_counts_all_that_is_in_flight() {
        let load = Load { layers: 80, ..Load::over_tcp(1, 1 << 20, 64, 4) };
        let bytes = (80 << 20) * 64 * 4;
        assert_eq!(deadline(load.bytes_in_flight()), Duration::from_micros(120_000_000 + bytes));
        assert_eq!(deadline(1 << 40), Duration::from_secs(86_400));
    }

    #[test]
    fn pages_of_a_side_go_back_to_the_system_with_it() {
        let load = Load { small: 4096, ..Load::over_tcp(1, 4096, 4, 2) };
        let side = Side::open(&load, &Opening::over("tcp")).unwrap();
        let places = [side.pool.base(), side._small.as_ref().unwrap().base()];
        // SAFETY: the ranges stay mapped.
        let words = || places.map(|base| unsafe { base.cast::<u64>().read_volatile() });
        assert!(words().iter().all(|word| *word != 0));
        drop(side);
        assert_eq!(words(), [0, 0], "the first word of a page that has gone back");
    }
}
