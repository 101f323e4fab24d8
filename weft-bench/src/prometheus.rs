//! What an endpoint and its rails have done, in a file for Prometheus, in its text format 0.0.4: as the textfile
//! collector of its node exporter wants it.

use crate::endpoint::{check, sized, text, Endpoint};
use ::weft::capi::info::*;
use ::weft::capi::status::*;
use anyhow::{Context, Result};
use std::ffi::CStr;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(1);

/// Writes the file once a second, and when it is dropped: before the endpoint is closed.
pub struct Exporter {
    /// Nothing is sent: the thread ends when it goes.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// A path that cannot be written is an error at once.
    pub fn start(path: &Path, endpoint: Arc<Endpoint>) -> Result<Exporter> {
        let path = path.to_owned();
        let write = move || replace(&path, &metrics(&endpoint)?);
        write()?;
        let (stop, stopped) = channel::<()>();
        let thread = std::thread::Builder::new().name("prometheus".into()).spawn(move || loop {
            let last = stopped.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout);
            if let Err(error) = write() {
                eprintln!("weft-bench: {error:#}");
            }
            if last {
                return;
            }
        })?;
        Ok(Exporter { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.stop.take();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            eprintln!("weft-bench: the thread that writes for Prometheus failed");
        }
    }
}

/// Readers see the old text or the new one, and never a part: the collector reads
/// only what is called *.prom.
fn replace(path: &Path, text: &str) -> Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    written.with_context(|| format!("writing {}", path.display()))
}

type Labels<'a> = &'a [(&'a str, &'a str)];

/// The text so far.
#[derive(Default)]
struct Text(String);

impl Text {
    /// Begins a metric, whose samples follow.
    fn metric(&mut self, name: &str, kind: &str, help: &str) {
        self.0 += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: Labels, value: f64) {
        let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let label = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", escaped(value));
        let labels: Vec<String> = labels.iter().map(label).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    /// A metric with a sample for each value of a label.
    fn by(&mut self, name: &str, kind: &str, help: &str, label: &str, values: &[(&str, u64)]) {
        self.metric(name, kind, help);
        values.iter().for_each(|(of, value)| self.sample(name, &[(label, of)], *value as f64));
    }

    /// Of counts by the binary logarithm of their nanoseconds; the last one has no bound.
    fn histogram(&mut self, name: &str, help: &str, counts: &[u64], sum: f64) {
        self.metric(name, "histogram", help);
        let mut count = 0;
        for (at, more) in counts.iter().enumerate() {
            count += more;
            let bound = if at + 1 == counts.len() { f64::INFINITY } else { 2f64.powi(at as i32 + 1) / 1e9 };
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
            self.sample(&format!("{name}_bucket"), &[("le", &bound)], count as f64);
        }
        self.sample(&format!("{name}_sum"), &[], sum);
        self.sample(&format!("{name}_count"), &[], count as f64);
    }
}

/// All metrics of an endpoint, as text.
fn metrics(endpoint: &Endpoint) -> Result<String> {
    let mut done: weft_endpoint_statistics = sized();
    // SAFETY: a place for them.
    check("weft_endpoint_info", unsafe {
        weft_endpoint_info(endpoint.raw, std::ptr::null_mut(), &mut done)
    })?;
    let mut text = Text::default();
    operations(&mut text, &done);
    messages(&mut text, &done);
    let rails = endpoint.rails()?;
    for (name, kind, help, parts) in OF_RAILS {
        text.metric(name, kind, help);
        for (index, rail) in rails.iter().enumerate() {
            parts.iter().for_each(|(labels, value)| of_rail(&mut text, name, (index, rail), labels, *value));
        }
    }
    Ok(text.0)
}

fn operations(text: &mut Text, done: &weft_endpoint_statistics) {
    text.metric("weft_peers", "gauge", "Peers that are connected.");
    text.sample("weft_peers", &[], f64::from(done.peers));
    text.metric("weft_operations_active", "gauge", "Operations that are outstanding.");
    text.sample("weft_operations_active", &[], done.active as f64);
    let (atomics, expects, fences) = (done.atomics, done.expects, done.fences);
    let kinds = [("write", done.writes), ("read", done.reads), ("send", done.sends)];
    let kinds = [&kinds[..], &[("atomic", atomics), ("expect", expects), ("fence", fences)]].concat();
    text.by("weft_operations_total", "counter", "Operations that were accepted.", "kind", &kinds);
    let bytes = [("write", done.bytes_written), ("read", done.bytes_read), ("send", done.bytes_sent)];
    text.by("weft_bytes_total", "counter", "Bytes of the operations that succeeded.", "kind", &bytes);
    let ends = done.completions.iter().enumerate().filter_map(|(at, count)| Some((status(at)?, *count)));
    let ends: Vec<(String, u64)> = ends.collect();
    let ends: Vec<(&str, u64)> = ends.iter().map(|(status, count)| (&**status, *count)).collect();
    let help = "Operations that have ended, by their status.";
    text.by("weft_completions_total", "counter", help, "status", &ends);
    let help = "From submission to completion, of writes and reads that succeeded.";
    text.histogram("weft_transfer_seconds", help, &done.latency, done.latency_sum_ns as f64 / 1e9);
}

/// The name of a status that operations end with: "timed_out".
fn status(place: usize) -> Option<String> {
    let status = -(place as weft_status);
    let ends =
        matches!(weft_status_category(status), WEFT_CATEGORY_OK | WEFT_CATEGORY_PEER | WEFT_CATEGORY_SYSTEM)
            || status == WEFT_ERR_INTERNAL;
    // SAFETY: a C string, never NULL.
    let name = unsafe { CStr::from_ptr(weft_status_name(status)) }.to_string_lossy().into_owned();
    let short = name.trim_start_matches("WEFT_").trim_start_matches("ERR_").to_lowercase();
    ends.then_some(short)
}

fn messages(text: &mut Text, done: &weft_endpoint_statistics) {
    let mut both = |name: &str, help: &str, sent: u64, received: u64| {
        text.by(name, "counter", help, "direction", &[("sent", sent), ("received", received)]);
    };
    both("weft_messages_total", "Messages that arrived.", done.messages_sent, done.messages_received);
    both("weft_message_bytes_total", "Bytes of these messages.", done.bytes_sent, done.bytes_received);
    let (sent, received) = (done.notifications_sent, done.notifications_received);
    both("weft_notifications_total", "Notifications that arrived.", sent, received);
    text.metric("weft_frames_dropped_total", "counter", "Frames that made no sense.");
    text.sample("weft_frames_dropped_total", &[], done.frames_dropped as f64);
}

type Rail = (weft_rail_properties, weft_rail_statistics);
type Value = fn(&weft_rail_statistics) -> f64;
/// A metric of all rails: its name, kind and help; of each rail a sample for each of its parts.
type OfRails = (&'static str, &'static str, &'static str, &'static [(Labels<'static>, Value)]);

fn of_rail(text: &mut Text, name: &str, (index, rail): (usize, &Rail), further: Labels, value: Value) {
    let (index, rail_name, fabric) =
        (index.to_string(), self::text(&rail.0.name), self::text(&rail.0.fabric));
    let own = [("rail", &*index), ("name", &*rail_name), ("fabric", &*fabric)];
    text.sample(name, &[&own[..], further].concat(), value(&rail.1));
}

const WRITE: Labels = &[("direction", "write")];
const READ: Labels = &[("direction", "read")];
const SENT: Labels = &[("direction", "sent")];
const RECEIVED: Labels = &[("direction", "received")];
const UP: Labels = &[("state", "up")];
const STALLED: Labels = &[("state", "stalled")];

#[rustfmt::skip] // A table.
const OF_RAILS: &[OfRails] = &[
    ("weft_rail_bytes_total", "counter", "Bytes of this endpoint's own writes and reads that the rail has carried.",
        &[(WRITE, |rail| rail.bytes_written as f64), (READ, |rail| rail.bytes_read as f64)]),
    ("weft_rail_slices_total", "counter", "Slices of these: pages, or pieces of large ones.",
        &[(WRITE, |rail| rail.slices_written as f64), (READ, |rail| rail.slices_read as f64)]),
    ("weft_rail_posts_total", "counter", "The posts that carried them.", &[(&[], |rail| rail.posts as f64)]),
    ("weft_rail_posts_refused_total", "counter", "Posts for which there was no room; they were tried again.",
        &[(&[], |rail| rail.posts_refused as f64)]),
    ("weft_rail_errors_total", "counter", "Posts that failed.", &[(&[], |rail| rail.errors as f64)]),
    ("weft_rail_retries_total", "counter", "Handshakes that were repeated.",
        &[(&[], |rail| rail.retries as f64)]),
    ("weft_rail_frames_total", "counter", "Control frames.",
        &[(SENT, |rail| rail.frames_sent as f64), (RECEIVED, |rail| rail.frames_received as f64)]),
    ("weft_rail_up", "gauge", "1 while the rail is open.", &[(&[], |rail| rail.up as f64)]),
    ("weft_rail_lanes", "gauge", "Rails of peers that it reaches, and those that take no bytes.",
        &[(UP, |rail| rail.lanes as f64), (STALLED, |rail| rail.lanes_stalled as f64)]),
    ("weft_rail_inflight_bytes", "gauge", "Bytes in flight.", &[(&[], |rail| rail.inflight_bytes as f64)]),
    ("weft_rail_inflight_posts", "gauge", "Posts in flight.", &[(&[], |rail| rail.inflight_posts as f64)]),
    ("weft_rail_bytes_per_second", "gauge", "The rate that was measured of late, by the fastest lane; 0: none yet.",
        &[(&[], |rail| rail.bytes_per_s as f64)]),
    ("weft_rail_round_trip_seconds", "gauge", "The shortest time from a post to its delivery; 0: none yet.",
        &[(&[], |rail| rail.round_trip_ns as f64 / 1e9)]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_labels_are_escaped() {
        let mut text = Text::default();
        text.sample("a_total", &[("name", "x\"\\\n")], 3.0);
        assert_eq!(text.0, "a_total{name=\"x\\\"\\\\\\n\"} 3\n");
    }
}
