//! Times and bytes of the transfers, and the report made from them.

use super::side::{RailNow, Service};
use super::Load;
use crate::endpoint::text;
use crate::show;
use crate::stats::{quantile, Spread};
use ::weft::capi::completion::weft_completion;
use ::weft::capi::info::weft_lane_statistics;
use serde::{Deserialize, Serialize};

/// What is known about completed transfers.
#[derive(Default)]
pub struct Tally {
    /// Nanoseconds from submission to completion.
    times: Vec<f64>,
    first_post_ns: u64,
    last_done_ns: u64,
    bytes: u64,
    /// For each round of transfers submitted together: the slowest one's rate relative to the
    /// fastest one's.
    evenness: Vec<f64>,
    round: Vec<f64>,
    pub small: Vec<f64>,
    pub small_alone: Vec<f64>,
}

/// The measured values.
#[derive(Serialize, Deserialize)]
pub struct Report {
    /// From the first post to the last completion.
    pub gbps: f64,
    pub seconds: f64,
    pub transfers: usize,
    pub bytes: u64,
    pub pages_per_s: f64,
    pub transfer_us: Quantiles,
    pub cpu_ns_per_slice: Cpu,
    pub fabric: String,
    /// The peer's, over this fabric.
    pub peer: String,
    pub lanes: u32,
    /// Of this fabric.
    pub remote_rails: u32,
    pub rails: Vec<RailShare>,
    /// Since the peer was connected, as `weft_lane_statistics` has them; where our NIC has no link, the state says that.
    pub served_by: Vec<Lane>,
    /// `None`: not verified.
    pub verified: Option<bool>,
    /// The slowest transfer's rate relative to the fastest one's, of those submitted together.
    pub evenness: Option<f64>,
    pub small: Option<Small>,
    /// The rate while it ran, in Gbps, of each quarter of a second, which ended then: in seconds since 1970.
    #[serde(default)]
    pub rates: Vec<(f64, f64)>,
    pub interrupted: bool,
}

#[derive(Serialize, Deserialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p99: f64,
    pub p99_9: f64,
}

/// CPU time of both processes, per post to a rail.
#[derive(Serialize, Deserialize)]
pub struct Cpu {
    pub local: f64,
    pub remote: f64,
}

#[derive(Serialize, Deserialize)]
pub struct RailShare {
    pub name: String,
    pub address: String,
    pub bytes: u64,
    pub share: f64,
}

#[derive(Serialize, Deserialize)]
pub struct Lane {
    pub rail: String,
    pub remote_address: String,
    pub connection_local: String,
    pub connection_remote: String,
    pub state: String,
    pub bytes_written: u64,
    pub bytes_read: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub bytes_per_s: u64,
    pub round_trip_ns: u64,
    pub retransmits: u64,
    pub resets: u64,
    pub reconnects: u64,
}

impl Lane {
    pub fn new(lane: &weft_lane_statistics, rails: &[RailNow]) -> Lane {
        let rail = rails.get(lane.rail as usize);
        let has_link = lane.up == 1 || rail.is_none_or(|rail| rail.up);
        Lane {
            rail: rail.map(|rail| rail.name.clone()).unwrap_or_default(),
            remote_address: text(&lane.remote_address),
            connection_local: text(&lane.connection_local),
            connection_remote: text(&lane.connection_remote),
            // The word of `top`.
            state: if has_link { text(&lane.state) } else { "no link".to_owned() },
            bytes_written: lane.bytes_written,
            bytes_read: lane.bytes_read,
            bytes_sent: lane.bytes_sent,
            bytes_received: lane.bytes_received,
            bytes_per_s: lane.bytes_per_s,
            round_trip_ns: lane.round_trip_ns,
            retransmits: lane.retransmits,
            resets: lane.resets,
            reconnects: lane.reconnects,
        }
    }
}

/// The single transfers, from submission to completion: their median, and the mean of those without
/// the load. A token bucket lets some of them pass faster than the line and the next ones slower;
/// only their mean reflects the line rate.
#[derive(Serialize, Deserialize)]
pub struct Small {
    pub count: usize,
    pub alone_us: f64,
    pub beside_us: f64,
}

/// Values that are only known at the end of a load.
pub struct Ending {
    pub rails: (Vec<RailNow>, Vec<RailNow>),
    pub cpu_ns: (u64, u64),
    pub service: Service,
    pub remote_rails: u32,
    pub interrupted: bool,
}

impl Tally {
    pub fn add(&mut self, done: &weft_completion, load: &Load) {
        self.times.push((done.done_ns - done.submit_ns) as f64);
        if self.first_post_ns == 0 || done.first_post_ns < self.first_post_ns {
            self.first_post_ns = done.first_post_ns;
        }
        self.last_done_ns = self.last_done_ns.max(done.done_ns);
        self.bytes += load.bytes_of_transfer();
        if load.together {
            self.round.push((done.done_ns - done.submit_ns) as f64);
            if self.round.len() == load.in_flight {
                let round = std::mem::take(&mut self.round);
                let (low, high) = round.iter().fold((f64::MAX, 0f64), |(l, h), t| (l.min(*t), h.max(*t)));
                self.evenness.push(low / high);
            }
        }
    }

    pub fn transfers(&self) -> usize {
        self.times.len()
    }

    pub fn report(mut self, load: &Load, ending: Ending) -> Report {
        self.times.sort_by(f64::total_cmp);
        let at = |part| quantile(&self.times, part) / 1000.0;
        let seconds = self.last_done_ns.saturating_sub(self.first_post_ns) as f64 / 1e9;
        let (before, after) = &ending.rails;
        let moved: Vec<u64> = after.iter().zip(before).map(|(a, b)| a.bytes - b.bytes).collect();
        let slices: u64 = after.iter().zip(before).map(|(a, b)| a.slices - b.slices).sum();
        let all: u64 = moved.iter().sum();
        let share = |(rail, bytes): (&RailNow, &u64)| RailShare {
            name: rail.name.clone(),
            address: rail.address.clone(),
            bytes: *bytes,
            share: *bytes as f64 / all.max(1) as f64,
        };
        let service = &ending.service;
        let serves = |(rail, _): &(&RailNow, &u64)| rail.fabric == service.fabric;
        let for_each = |ns: u64| ns as f64 / slices.max(1) as f64;
        Report {
            gbps: self.bytes as f64 * 8.0 / seconds / 1e9,
            seconds,
            transfers: self.times.len(),
            bytes: self.bytes,
            pages_per_s: self.bytes as f64 / load.page_len as f64 / seconds,
            transfer_us: Quantiles { p50: at(0.5), p99: at(0.99), p99_9: at(0.999) },
            cpu_ns_per_slice: Cpu { local: for_each(ending.cpu_ns.0), remote: for_each(ending.cpu_ns.1) },
            lanes: service.lanes.iter().filter(|lane| lane.up == 1).count() as u32,
            served_by: service.lanes.iter().map(|lane| Lane::new(lane, after)).collect(),
            fabric: service.fabric.clone(),
            peer: service.address.clone(),
            remote_rails: ending.remote_rails,
            rails: after.iter().zip(&moved).filter(serves).map(share).collect(),
            verified: None,
            evenness: (!self.evenness.is_empty()).then(|| Spread::new(self.evenness).median),
            small: (!self.small.is_empty()).then(|| Small {
                count: self.small.len(),
                alone_us: self.small_alone.iter().sum::<f64>() / self.small_alone.len() as f64 / 1000.0,
                beside_us: Spread::new(self.small).median / 1000.0,
            }),
            rates: Vec::new(),
            interrupted: ending.interrupted,
        }
    }
}

/// What each lane has done.
pub fn table_of(lanes: &[Lane]) -> String {
    let names =
        ["lane from", "to", "connection", "state", "out", "in", "rate", "round trip", "sent again", "resets"];
    let mut rows = vec![names.map(String::from).to_vec()];
    for lane in lanes {
        // What the system counts has the other side's operations and the headers, too.
        let out = lane.bytes_sent.max(lane.bytes_written);
        let into = lane.bytes_received.max(lane.bytes_read);
        rows.push(vec![
            lane.rail.clone(),
            lane.remote_address.clone(),
            match lane.connection_local.as_str() {
                "" => "-".to_owned(),
                local => format!("{local} - {}", lane.connection_remote),
            },
            lane.state.clone(),
            out.to_string(),
            into.to_string(),
            format!("{:.2} Gbps", lane.bytes_per_s as f64 * 8.0 / 1e9),
            format!("{:.1} us", lane.round_trip_ns as f64 / 1e3),
            lane.retransmits.to_string(),
            lane.resets.to_string(),
        ]);
    }
    show::table(&rows, 4..10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::sized;

    #[test]
    fn lane_of_a_rail_without_a_link_says_so() {
        let state = |up: u32, rail_up: bool| {
            let mut lane: weft_lane_statistics = sized();
            let state = if up == 1 { "up" } else { "handshake" };
            lane.up = up;
            for (to, from) in lane.state.iter_mut().zip(state.bytes()) {
                *to = from as std::ffi::c_char;
            }
            let (fabric, name, address) = ("tcp".to_owned(), "eth0".to_owned(), "10.0.0.1".to_owned());
            Lane::new(&lane, &[RailNow { fabric, name, address, up: rail_up, bytes: 0, slices: 0 }]).state
        };
        assert_eq!([state(1, true), state(0, true), state(0, false)], ["up", "handshake", "no link"]);
    }
}
