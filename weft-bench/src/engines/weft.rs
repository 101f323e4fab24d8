//! Weft, through its C interface; and memcpy for comparison, only in the initiator's process.

use super::{Kind, Rail, Receiver, Sender};
use crate::endpoint::{text, Endpoint, Memory, Offer, Opening, Remote};
use crate::memory::Pool;
use crate::pages::Lists;
use crate::pair::{Case, Fabric, Rival};
use ::weft::capi::completion::*;
use ::weft::capi::memory::*;
use anyhow::{Context, Result};
use serde_json::{to_value, Value};
use std::ptr;
use std::time::Duration;

/// The engine that Weft is compared with.
const STREAMS: u32 = 4;
/// Weft's own tcp.
pub const TCP: &str = "tcp";

/// Asks Weft which rail it opens: the bare loops open libfabric's rail of that name.
pub fn rail(case: &Case) -> Result<Rail> {
    let endpoint = open(case, Kind::Weft)?;
    let (rail, own) = (&endpoint.rails()?[0].0, endpoint.properties()?);
    let provider = if case.fabric == Fabric::Tcp { "tcp;ofi_rxm".to_owned() } else { text(&rail.fabric) };
    Ok(Rail { provider, domain: text(&rail.name), libfabric: text(&own.libfabric) })
}

fn open(case: &Case, kind: Kind) -> Result<Endpoint> {
    let (fabric, names) = match case.fabric {
        Fabric::Tcp => (TCP, Some("lo")),
        Fabric::Host => ("host", None),
    };
    Endpoint::open(&Opening {
        rail_names: names.map(String::from),
        rails: (case.fabric != Fabric::Host && kind != Kind::Streams) as u32,
        streams: if kind == Kind::Streams { STREAMS } else { 0 },
        manual: !case.threads,
        // It never sleeps, like the bare loop.
        spin: !case.cpu && case.rival != Rival::Streams,
        encrypt: kind == Kind::Encrypted,
        ..Opening::over(fabric)
    })
}

fn register(endpoint: &Endpoint, pool: &Pool, access: u32) -> Result<Memory> {
    endpoint.register_ranges(&[pool.range()], access)
}

/// Memory of the kind that the case requires.
pub fn pool(case: &Case) -> Result<Pool> {
    match case.shared {
        true => open(case, Kind::Weft)?.alloc(case.page_len, case.pages * 2),
        false => Pool::new(case.page_len, case.pages * 2),
    }
}

pub struct WeftSender {
    endpoint: Endpoint,
    offer: Offer,
    memory: Memory,
    remote: Remote,
    page_len: usize,
    /// Pages of one submission.
    pages: usize,
    threads: bool,
    reads: bool,
}

impl WeftSender {
    pub fn open(case: &Case, kind: Kind, pool: &Pool, offer: &Value) -> Result<WeftSender> {
        let offer = serde_json::from_value(offer.clone()).context("the target's offer")?;
        let (endpoint, reads) = (open(case, kind)?, kind == Kind::Reads);
        // Peers on this host may read the memory that writes come from.
        let access = if case.fabric == Fabric::Host || reads { 0 } else { WEFT_ACCESS_LOCAL };
        let memory = register(&endpoint, pool, access)?;
        let (page_len, pages, threads, remote) = (pool.page_len, case.pages, case.threads, ptr::null_mut());
        Ok(WeftSender { endpoint, offer, memory, remote, page_len, pages, threads, reads })
    }
}

impl Sender for WeftSender {
    fn connect(&mut self) -> Result<()> {
        let peer = self.endpoint.connect(&self.offer.address)?;
        self.remote = self.endpoint.import(peer, &self.offer)?;
        self.write(&Lists { source: vec![0], target: vec![0] })
    }

    fn write(&mut self, lists: &Lists) -> Result<()> {
        let mut args = Endpoint::pages(self.memory, self.remote, lists, self.page_len);
        let transfers = lists.len().div_ceil(self.pages);
        for at in (0..lists.len()).step_by(self.pages) {
            args.pages.page_count = self.pages.min(lists.len() - at) as u64;
            (args.pages.local.pages, args.pages.remote.pages) = (&lists.source[at], &lists.target[at]);
            match self.reads {
                true => self.endpoint.read_pages(&args)?,
                false => self.endpoint.write_pages(&args)?,
            }
        }
        let kind = if self.reads { WEFT_COMPLETION_READ } else { WEFT_COMPLETION_WRITE };
        self.endpoint.take(kind, transfers).map(drop)
    }

    fn poll(&mut self) -> Result<()> {
        self.endpoint.poll(&mut crate::endpoint::completions::<8>()).map(drop)
    }

    fn describe(&self) -> String {
        format!("weft: {}", if self.threads { "worker threads" } else { "manual progress" })
    }
}

pub struct WeftReceiver {
    endpoint: Endpoint,
    memory: Memory,
    /// How long it sleeps: its workers do all the work.
    pause: Option<Duration>,
}

impl WeftReceiver {
    pub fn open(case: &Case, kind: Kind, pool: &Pool) -> Result<WeftReceiver> {
        let endpoint = open(case, kind)?;
        let memory = register(&endpoint, pool, 0)?;
        let pause = case.threads.then(|| Duration::from_micros(if case.cpu { 1000 } else { 20 }));
        Ok(WeftReceiver { endpoint, memory, pause })
    }
}

impl Receiver for WeftReceiver {
    fn offer(&self) -> Result<Value> {
        Ok(to_value(self.endpoint.offer(self.memory)?)?)
    }

    #[inline]
    fn poll(&mut self) -> Result<()> {
        if let Some(pause) = self.pause {
            std::thread::sleep(pause);
        }
        self.endpoint.poll(&mut crate::endpoint::completions::<4>()).map(drop)
    }
}

/// The same pages, copied by one thread into its own memory.
pub struct Memcpy {
    from: Pool,
    to: Pool,
}

impl Memcpy {
    pub fn open(case: &Case, from: &Pool) -> Result<Memcpy> {
        Ok(Memcpy { from: from.clone(), to: pool(case)? })
    }
}

impl Sender for Memcpy {
    fn write(&mut self, lists: &Lists) -> Result<()> {
        let len = self.from.page_len;
        for (source, target) in lists.source.iter().zip(&lists.target) {
            let source = self.from.base().wrapping_add(*source as usize * len);
            let target = self.to.base().wrapping_add(*target as usize * len);
            // SAFETY: the page belongs to its pool.
            unsafe { ptr::copy_nonoverlapping(source, target, len) };
        }
        Ok(())
    }

    fn describe(&self) -> String {
        "memcpy: one thread".to_owned()
    }
}

/// Its target, which does nothing.
pub struct Nothing;

impl Receiver for Nothing {}
