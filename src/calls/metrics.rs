//! An endpoint's counts, as text for Prometheus (text format 0.0.4). docs/metrics.md has the same
//! names.

use super::lane_info::LaneInfo;
use super::Endpoint;
use crate::ids::PeerId;
use crate::peer::{Peer, PeerInfo};
use crate::rail::Traffic;
use crate::status::{Category, Status};
use crate::transfer::queue::Queue;
use crate::transfer::tally::{Sum, STATUSES};
use crate::worker::core::RailInfo;
use std::fmt::{Display, Write};
use std::sync::{Arc, Weak};

/// Indexes of the histograms' counts that have a bound of their own: 2^10 to 2^36 ns or bytes.
const BOUNDS: std::ops::Range<usize> = 9..36;

/// With more lanes than this, none of them is in the text.
const LANES: usize = 256;

/// The text so far.
struct Text(String);

/// A label's value, escaped.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            c => f.write_char(c),
        })
    }
}

impl Text {
    /// Begins a metric, whose samples follow.
    fn metric(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail, here and below.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// `labels`: the text between the braces.
    fn sample(&mut self, name: &str, labels: impl Display, value: impl Display) {
        let _ = writeln!(self.0, "{name}{{{labels}}} {value}");
    }

    /// A metric of the whole endpoint with one sample.
    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.metric(name, kind, help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    /// A metric with a sample for each value of a label.
    fn by(&mut self, name: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        self.metric(name, "counter", help);
        values.iter().for_each(|(what, value)| self.sample(name, format_args!("{label}=\"{what}\""), value));
    }

    /// Metrics of all of a kind, whose labels are known.
    fn table<T>(&mut self, table: Table<T>, all: &[(String, &T)]) {
        for (name, kind, help, parts) in table {
            self.metric(name, kind, help);
            for (labels, one) in all {
                for (further, value) in *parts {
                    self.sample(name, format_args!("{labels}{further}"), value(one));
                }
            }
        }
    }

    /// Counts by the binary logarithm of a value; `scale`: the unit of those values.
    fn histogram(&mut self, name: &str, help: &str, counts: &[u64], sum: u64, scale: f64) {
        self.metric(name, "histogram", help);
        let mut count = 0;
        for (place, more) in counts.iter().enumerate() {
            count += more;
            if BOUNDS.contains(&place) {
                let bound = (1u64 << (place + 1)) as f64 * scale;
                let _ = writeln!(self.0, "{name}_bucket{{le=\"{bound}\"}} {count}");
            }
        }
        let _ = writeln!(self.0, "{name}_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(self.0, "{name}_sum {}\n{name}_count {count}", sum as f64 * scale);
    }
}

impl Endpoint {
    /// All metrics.
    pub fn metrics(&self) -> String {
        // Until its fabric is known, a peer would have other labels than later.
        let (all, connecting): (Vec<_>, Vec<_>) =
            self.core.peers.all().into_iter().partition(|peer| peer.has_service());
        let known = |peer: &Arc<Peer>| (peer.id, PeerInfo { fabric: peer.fabric(), ..peer.info() });
        let peers: Vec<_> = all.iter().map(known).collect();
        let mut text = Text(String::with_capacity(8 << 10 | self.rails().len() << 11 | peers.len() << 9));
        let up = peers.iter().filter(|(_, peer)| peer.up).count();
        text.single("weft_peers", "gauge", "Peers that are connected.", up);
        let help = "Peers whose fabric is not known yet.";
        text.single("weft_peers_connecting", "gauge", help, connecting.len());
        operations(&mut text, &self.tally());
        self.queues_of(&mut text);
        let help = "Grants of this endpoint's memory that peers may use.";
        text.single("weft_grants", "gauge", help, self.live_grants());
        let rejected = self.handshakes_rejected();
        let help = "Handshakes and connections that were rejected.";
        text.single("weft_handshakes_rejected_total", "counter", help, rejected);
        let help = "Frames dropped as malformed, or of peers that have ended.";
        text.single("weft_frames_dropped_total", "counter", help, self.malformed());
        let (pass, call) = self.longest_pass();
        let help = "The longest pass of a worker thread, in its CPU time; 0: none has taken 0.5 ms.";
        text.single("weft_pass_longest_seconds", "gauge", help, pass as f64 / 1e9);
        let help = "The longest call into a driver.";
        text.single("weft_driver_call_longest_seconds", "gauge", help, call as f64 / 1e9);
        let help = "Flushes of files for durable writes of peers; one may serve several.";
        text.single("weft_file_flushes_total", "counter", help, self.files.flushes());
        let labelled: Vec<(String, &PeerInfo)> =
            peers.iter().map(|(id, peer)| (labels(*id, peer), peer)).collect();
        text.table(OF_PEERS, &labelled);
        let lanes = all.iter().zip(&labelled).map(|(peer, (labels, _))| (labels.clone(), peer));
        self.lanes_of_peers(&mut text, lanes.collect());
        let labels = |index: usize, rail: &RailInfo| {
            let (name, fabric) = (Escaped(&rail.name), Escaped(&rail.fabric));
            format!("rail=\"{index}\",name=\"{name}\",fabric=\"{fabric}\"")
        };
        let rails = self.rails().iter().enumerate();
        let rails: Vec<_> = rails.map(|(index, rail)| (labels(index, rail), &*rail.traffic)).collect();
        text.table(OF_RAILS, &rails);
        text.0
    }

    /// Its own queue first, then the others in the order in which they were made.
    fn queues_of(&self, text: &mut Text) {
        let others: Vec<Arc<Queue>> = self.queues.lock().iter().filter_map(Weak::upgrade).collect();
        let all = std::iter::once(&**self.queue()).chain(others.iter().map(|queue| &**queue));
        let all: Vec<(String, &Queue)> =
            all.enumerate().map(|(index, queue)| (format!("queue=\"{index}\""), queue)).collect();
        text.table(OF_QUEUES, &all);
    }

    /// Each lane of these peers, whose labels are known.
    fn lanes_of_peers(&self, text: &mut Text, peers: Vec<(String, &Arc<Peer>)>) {
        if peers.iter().map(|(_, peer)| peer.traffic().len()).sum::<usize>() > LANES {
            return;
        }
        let of_lane = |peer: &str, lane: LaneInfo| {
            let name = self.rail_of(&lane).map_or("", |rail| &rail.name);
            let (rail, name, remote) = (lane.plan.rail, Escaped(name), Escaped(&lane.address));
            (format!("{peer},rail=\"{rail}\",name=\"{name}\",remote=\"{remote}\""), lane)
        };
        let of_peer = |(labels, peer): &(String, &Arc<Peer>)| {
            self.lanes_of(peer).map(|lane| of_lane(labels, lane)).collect::<Vec<_>>()
        };
        let lanes: Vec<(String, LaneInfo)> = peers.iter().flat_map(of_peer).collect();
        text.metric(
            CONNECTION,
            "gauge",
            "1, of the connection that carries what this endpoint writes and reads.",
        );
        for (labels, lane) in &lanes {
            if let Some((local, far)) = lane.ends {
                text.sample(CONNECTION, format_args!("{labels},local=\"{local}\",far=\"{far}\""), 1);
            }
        }
        let lanes: Vec<(String, &LaneInfo)> =
            lanes.iter().map(|(labels, lane)| (labels.clone(), lane)).collect();
        text.table(OF_LANES, &lanes);
    }
}

/// A peer's address stays when it is connected again; its id does not.
fn labels(id: PeerId, peer: &PeerInfo) -> String {
    let (address, fabric) = (Escaped(&peer.address), Escaped(&peer.fabric));
    format!("peer=\"{:#x}\",address=\"{address}\",fabric=\"{fabric}\"", id.get())
}

fn operations(text: &mut Text, done: &Sum) {
    let help = "Operations that are outstanding.";
    text.single("weft_operations_active", "gauge", help, done.active());
    let kinds = [
        ("write", done.writes),
        ("read", done.reads),
        ("send", done.sends),
        ("atomic", done.atomics),
        ("expect", done.expects),
        ("fence", done.fences),
    ];
    text.by("weft_operations_total", "Operations that were accepted.", "kind", &kinds);
    let bytes = [("write", done.bytes_written), ("read", done.bytes_read), ("send", done.bytes_sent)];
    text.by("weft_bytes_total", "Bytes of the operations that succeeded.", "kind", &bytes);
    let ends =
        (0..STATUSES).filter_map(|place| Some((short_name(-(place as i32))?, done.completions[place])));
    let ends: Vec<(String, u64)> = ends.collect();
    let ends: Vec<(&str, u64)> = ends.iter().map(|(status, count)| (&**status, *count)).collect();
    text.by("weft_completions_total", "Operations that have ended, by their status.", "status", &ends);
    let help = "From submission to completion, of writes and reads that succeeded.";
    text.histogram("weft_transfer_seconds", help, &done.latency, done.latency_sum_ns, 1e-9);
    let help = "Bytes of a write or read that succeeded.";
    let moved = done.bytes_written + done.bytes_read;
    text.histogram("weft_transfer_size_bytes", help, &done.sizes, moved, 1.0);
    let mut both = |name: &str, help: &str, sent: u64, received: u64| {
        text.by(name, help, "direction", &[("sent", sent), ("received", received)]);
    };
    both("weft_messages_total", "Messages that arrived.", done.messages_sent, done.messages_received);
    both("weft_message_bytes_total", "Bytes of these messages.", done.bytes_sent, done.bytes_received);
    let (sent, received) = (done.notifications_sent, done.notifications_received);
    both("weft_notifications_total", "Notifications that arrived.", sent, received);
}

/// The name of an operation's final status, such as "timed_out".
fn short_name(code: i32) -> Option<String> {
    let ends = matches!(Category::from_code(code), Category::Ok | Category::Peer | Category::System)
        || code == Status::Internal as i32;
    let name = Status::name_of(code).to_str().ok().filter(|_| ends)?;
    Some(name.trim_start_matches("WEFT_").trim_start_matches("ERR_").to_lowercase())
}

/// Metrics of all of a kind: name, type and help; each has a sample for each of its labelled parts.
type Table<T> =
    &'static [(&'static str, &'static str, &'static str, &'static [(&'static str, fn(&T) -> f64)])];

#[rustfmt::skip] // Keeps the table's layout.
const OF_PEERS: Table<PeerInfo> = &[
    ("weft_peer_up", "gauge", "1 while the peer is connected.", &[("", |peer| f64::from(u8::from(peer.up)))]),
    ("weft_peer_lanes", "gauge", "Lanes to the peer that are up.", &[("", |peer| peer.lanes.into())]),
];

#[rustfmt::skip] // Keeps the table's layout.
const OF_QUEUES: Table<Queue> = &[
    ("weft_queue_depth", "gauge", "Completions that the queue holds.", &[("", |queue| queue.capacity() as f64)]),
    ("weft_queue_reserved", "gauge", "Places that are taken, by outstanding operations and by completions that wait.",
        &[("", |queue| queue.reserved() as f64)]),
    ("weft_queue_unpolled", "gauge", "Completions that wait to be polled.", &[("", |queue| queue.unpolled() as f64)]),
];

const WRITE: &str = ",direction=\"write\"";
const READ: &str = ",direction=\"read\"";
const SENT: &str = ",direction=\"sent\"";
const RECEIVED: &str = ",direction=\"received\"";
/// (A label of the others would begin new counters with each connection.)
const CONNECTION: &str = "weft_lane_connection";
#[rustfmt::skip] // Keeps the table's layout.
const OF_LANES: Table<LaneInfo> = &[
    ("weft_lane_up", "gauge", "1 while the lane carries operations.",
        &[("", |lane| f64::from(u8::from(lane.traffic.state().1)))]),
    ("weft_lane_handshake", "gauge", "1 while its handshake or probe is under way.",
        &[("", |lane| f64::from(u8::from(matches!(lane.traffic.state().0, "handshake" | "probe"))))]),
    ("weft_lane_stalled", "gauge", "1 while it is up and bytes in flight have not moved for 20 ms.",
        &[("", |lane| f64::from(u8::from(lane.traffic.state().0 == "stalled")))]),
    ("weft_lane_bytes_total", "counter", "Bytes of this endpoint's own writes and reads that it has carried.",
        &[(WRITE, |lane| lane.traffic.moved(false) as f64), (READ, |lane| lane.traffic.moved(true) as f64)]),
    ("weft_lane_system_bytes_total", "counter", "All bytes that the system has counted; 0: it does not.",
        &[(SENT, |lane| lane.seen.bytes_sent as f64), (RECEIVED, |lane| lane.seen.bytes_received as f64)]),
    ("weft_lane_retransmits_total", "counter", "Segments that the system has sent again.",
        &[("", |lane| lane.seen.retransmits as f64)]),
    ("weft_lane_resets_total", "counter", "How often it served and was reset.",
        &[("", |lane| lane.traffic.resets.get() as f64)]),
    ("weft_lane_reconnects_total", "counter", "How often it came up again.",
        &[("", |lane| lane.traffic.reconnects.get() as f64)]),
    ("weft_lane_inflight_bytes", "gauge", "Bytes in flight.",
        &[("", |lane| lane.traffic.inflight_bytes.get() as f64)]),
    ("weft_lane_bytes_per_second", "gauge", "The rate that was measured of late; 0: none.",
        &[("", |lane| lane.traffic.bytes_per_s.get() as f64)]),
    ("weft_lane_round_trip_seconds", "gauge", "The system's estimate, or the shortest time from a post to its delivery; 0: none.",
        &[("", |lane| lane.seen.round_trip_ns as f64 / 1e9)]),
];

const UP: &str = ",state=\"up\"";
const STALLED: &str = ",state=\"stalled\"";

#[rustfmt::skip] // Keeps the table's layout.
const OF_RAILS: Table<Traffic> = &[
    ("weft_rail_bytes_total", "counter", "Bytes of this endpoint's own writes and reads that the rail has carried.",
        &[(WRITE, |rail| rail.carried(false).0 as f64), (READ, |rail| rail.carried(true).0 as f64)]),
    ("weft_rail_slices_total", "counter", "Slices of these: pages, or pieces of large ones.",
        &[(WRITE, |rail| rail.carried(false).1 as f64), (READ, |rail| rail.carried(true).1 as f64)]),
    ("weft_rail_posts_total", "counter", "The posts that carried them.", &[("", |rail| rail.posts.get() as f64)]),
    ("weft_rail_posts_refused_total", "counter", "Posts for which there was no room; they were tried again.",
        &[("", |rail| rail.refused.get() as f64)]),
    ("weft_rail_errors_total", "counter", "Posts that failed.", &[("", |rail| rail.errors.get() as f64)]),
    ("weft_rail_retries_total", "counter", "Handshakes that were repeated.",
        &[("", |rail| rail.retries.get() as f64)]),
    ("weft_rail_frames_total", "counter", "Control frames.",
        &[(SENT, |rail| rail.frames_sent.get() as f64), (RECEIVED, |rail| rail.frames_received.get() as f64)]),
    ("weft_rail_lane_resets_total", "counter", "Lanes that served a peer and were reset.",
        &[("", |rail| rail.lane_resets.get() as f64)]),
    ("weft_rail_lane_reconnects_total", "counter", "Lanes that came up again.",
        &[("", |rail| rail.lane_reconnects.get() as f64)]),
    ("weft_rail_up", "gauge", "1 while the rail is open and its NIC has a link.",
        &[("", |rail| f64::from(rail.is_up() as u8))]),
    ("weft_rail_lanes", "gauge", "Rails of peers that it reaches, and those that take no bytes.",
        &[(UP, |rail| rail.lanes().0.into()), (STALLED, |rail| rail.lanes().1.into())]),
    ("weft_rail_inflight_bytes", "gauge", "Bytes in flight.", &[("", |rail| rail.inflight_bytes.get() as f64)]),
    ("weft_rail_inflight_posts", "gauge", "Posts in flight.", &[("", |rail| rail.inflight_ops.get() as f64)]),
    ("weft_rail_bytes_per_second", "gauge", "The rate that was measured of late, by the fastest lane; 0: none yet.",
        &[("", |rail| rail.bytes_per_s.get() as f64)]),
    ("weft_rail_round_trip_seconds", "gauge", "The shortest time from a post to its delivery; 0: none yet.",
        &[("", |rail| rail.round_trip_ns.get() as f64 / 1e9)]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        assert_eq!(Escaped("x\"\\\n").to_string(), "x\\\"\\\\\\n");
    }

    #[test]
    fn histogram_bucket_counts_values_up_to_its_bound() {
        let (mut text, mut counts) = (Text(String::new()), [0; 40]);
        (counts[0], counts[10], counts[39]) = (1, 2, 4);
        text.histogram("x_bytes", "A size.", &counts, 99, 1.0);
        let lines: Vec<&str> = text.0.lines().collect();
        assert_eq!(lines[..2], ["# HELP x_bytes A size.", "# TYPE x_bytes histogram"]);
        assert_eq!(lines[2..4], ["x_bytes_bucket{le=\"1024\"} 1", "x_bytes_bucket{le=\"2048\"} 3"]);
        assert_eq!(lines[28..30], ["x_bytes_bucket{le=\"68719476736\"} 3", "x_bytes_bucket{le=\"+Inf\"} 7"]);
        assert_eq!(lines[30..], ["x_bytes_sum 99", "x_bytes_count 7"]);
    }
}
