//! A load between two hosts: one serves, the other runs it, each in a process of its own, and the
//! results of both.
//!
//! | | |
//! | --- | --- |
//! | [`client`], [`server`] | what each side does |
//! | [`idle`] | instead of a load: what both sides cost while they do nothing |
//! | [`page`] | one page at a time, which a caller waits for |
//! | [`progress`] | whether bytes move, and what is wrong if they do not |
//! | [`side`] | what both have: an endpoint with worker threads, and pages |
//! | [`talk`] | the TCP connection over which they agree |
//! | [`tally`] | times and bytes of the transfers, and the report |

pub mod client;
pub mod idle;
pub mod page;
mod progress;
pub mod server;
mod side;
mod talk;
pub mod tally;

use crate::endpoint::Opening;
use crate::pages::Lists;
use anyhow::{bail, Result};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};

/// Operations that fit comfortably into the endpoint's queues.
const IN_FLIGHT_MAX: usize = 4096;
const BYTES_MAX: usize = 1 << 40;

/// What to move, and how often. The client chooses it and sends it to the server.
#[derive(Clone, Serialize, Deserialize)]
pub struct Load {
    pub page_len: usize,
    /// Pages per transfer, in each layer.
    pub pages: usize,
    pub layers: usize,
    /// Concurrent transfers: each has its own pages.
    pub in_flight: usize,
    pub adjacent: bool,
    /// The client reads the server's pages.
    pub read: bool,
    pub seconds: f64,
    /// The number of transfers, instead of a time.
    pub repeat: Option<u64>,
    /// Wait for all transfers in flight before the next ones are submitted.
    pub together: bool,
    pub cold: bool,
    /// Bytes of the single transfers that run in addition to the load.
    pub small: usize,
    pub verify: bool,
    pub opening: Opening,
}

impl Load {
    /// Random pages over this many rails of tcp.
    pub fn over_tcp(rails: u32, page_len: usize, pages: usize, in_flight: usize) -> Load {
        Load {
            page_len,
            pages,
            layers: 1,
            in_flight,
            adjacent: false,
            read: false,
            seconds: 1.0,
            repeat: None,
            together: false,
            cold: false,
            small: 0,
            verify: false,
            opening: Opening { rails, fabric: Some("tcp".into()), ..Opening::default() },
        }
    }

    /// Names an impossible setting, from the command line or a client.
    pub fn check(&self) -> Result<()> {
        let Load { page_len, pages, layers, in_flight, small, seconds, .. } = *self;
        if page_len == 0 || page_len % 8 != 0 {
            bail!("pages of {page_len} bytes: they must be a multiple of 8");
        }
        if pages == 0 || in_flight == 0 || !(1..=65535).contains(&layers) {
            bail!("at least one page, one transfer in flight, and 1 to 65535 layers are needed");
        }
        if in_flight > IN_FLIGHT_MAX {
            bail!("{in_flight} transfers in flight: at most {IN_FLIGHT_MAX}");
        }
        if !(seconds > 0.0 && seconds <= 86400.0) {
            bail!("{seconds} seconds: more than 0, up to 86400");
        }
        let bytes = [in_flight, layers, page_len].iter().try_fold(pages, |all, by| all.checked_mul(*by));
        if bytes.is_none_or(|bytes| bytes > BYTES_MAX) || small > BYTES_MAX {
            bail!("pages x layers x transfers in flight are more than {BYTES_MAX} bytes");
        }
        Ok(())
    }

    /// Pages of all concurrent transfers, in each layer.
    pub fn pages_of_layer(&self) -> usize {
        self.pages * self.in_flight
    }

    /// The pages of the transfer in a slot, in each layer.
    pub fn lists(&self, place: usize) -> Lists {
        let mut lists = Lists::random(place as u64 + 1, self.pages, self.pages);
        if self.adjacent {
            lists.source = (0..self.pages as u32).collect();
            lists.target = lists.source.clone();
        }
        for page in lists.source.iter_mut().chain(&mut lists.target) {
            *page += (place * self.pages) as u32;
        }
        lists
    }

    /// The pages of all transfers, with all layers in sequence.
    fn all_lists(&self) -> Lists {
        let mut all = Lists { source: Vec::new(), target: Vec::new() };
        for layer in 0..self.layers {
            let first = (layer * self.pages_of_layer()) as u32;
            for place in 0..self.in_flight {
                let lists = self.lists(place);
                all.source.extend(lists.source.iter().map(|page| first + page));
                all.target.extend(lists.target.iter().map(|page| first + page));
            }
        }
        all
    }

    pub fn bytes_of_transfer(&self) -> u64 {
        (self.page_len * self.pages * self.layers) as u64
    }

    fn bytes_in_flight(&self) -> u64 {
        self.bytes_of_transfer() * self.in_flight as u64
    }
}

/// Set when the user interrupts; a second interrupt ends the process at once.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

pub fn catch_interruptions() {
    extern "C" fn interrupted(_: libc::c_int) {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            // SAFETY: the function may be called in a signal handler.
            unsafe { libc::_exit(130) };
        }
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler only sets a word, or ends the process.
        unsafe { libc::signal(signal, interrupted as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        Load { layers: 3, ..Load::over_tcp(1, 8, 5, 4) }
    }

    #[test]
    fn impossible_loads_are_rejected() {
        assert!(load().check().is_ok());
        assert!(Load { page_len: 7, ..load() }.check().is_err());
        assert!(Load { pages: usize::MAX / 2, ..load() }.check().is_err());
        assert!(Load { in_flight: 0, ..load() }.check().is_err());
        assert!(Load { seconds: f64::NAN, ..load() }.check().is_err());
    }

    #[test]
    fn transfers_share_no_page() {
        let load = load();
        for mut pages in [load.all_lists().source, load.all_lists().target] {
            pages.sort_unstable();
            assert_eq!(pages, (0..60).collect::<Vec<u32>>());
        }
        assert!(load.lists(2).source.iter().all(|page| (10..15).contains(page)));
    }
}
