//! Which of Weft's statistics become which metrics.

use super::text::{Kind, Labels, Text};
use crate::engines::{check, text};
use ::weft::capi::endpoint::*;
use ::weft::capi::statistics::*;
use ::weft::capi::status::*;
use anyhow::Result;
use std::ffi::CStr;
use std::mem::{size_of, zeroed};

/// A rail, and the labels of its samples.
struct Rail {
    index: String,
    name: String,
    fabric: String,
    done: weft_rail_statistics,
}

impl Rail {
    fn read(endpoint: *mut weft_endpoint, index: u32) -> Result<Rail> {
        // SAFETY: structs of integers and characters, with their size set.
        unsafe {
            let mut is: weft_rail_properties = zeroed();
            is.size = size_of::<weft_rail_properties>() as u32;
            check("weft_rail_info", weft_rail_info(endpoint, index, &mut is))?;
            let mut done: weft_rail_statistics = zeroed();
            done.size = size_of::<weft_rail_statistics>() as u32;
            check("weft_rail_stats", weft_rail_stats(endpoint, index, &mut done))?;
            Ok(Rail { index: index.to_string(), name: text(&is.name), fabric: text(&is.fabric), done })
        }
    }
}

/// All metrics of an endpoint, as text.
pub fn of(endpoint: *mut weft_endpoint) -> Result<String> {
    // SAFETY: structs of integers and characters, with their size set.
    let (own, done) = unsafe {
        let mut own: weft_endpoint_properties = zeroed();
        own.size = size_of::<weft_endpoint_properties>() as u32;
        check("weft_endpoint_info", weft_endpoint_info(endpoint, &mut own))?;
        let mut done: weft_endpoint_statistics = zeroed();
        done.size = size_of::<weft_endpoint_statistics>() as u32;
        check("weft_endpoint_stats", weft_endpoint_stats(endpoint, &mut done))?;
        (own, done)
    };
    let rails = (0..own.rails).map(|index| Rail::read(endpoint, index)).collect::<Result<Vec<Rail>>>()?;
    let mut text = Text::default();
    operations(&mut text, &done);
    messages(&mut text, &done);
    carried(&mut text, &rails);
    states(&mut text, &rails);
    Ok(text.finish())
}

fn operations(text: &mut Text, done: &weft_endpoint_statistics) {
    text.metric("weft_peers", Kind::Gauge, "Peers that are connected.").sample(&[], f64::from(done.peers));
    text.metric("weft_operations_active", Kind::Gauge, "Operations that are outstanding.")
        .sample(&[], done.active as f64);
    text.metric("weft_operations_total", Kind::Counter, "Operations that were accepted.")
        .sample(&[("kind", "write")], done.writes as f64)
        .sample(&[("kind", "read")], done.reads as f64)
        .sample(&[("kind", "send")], done.sends as f64)
        .sample(&[("kind", "atomic")], done.atomics as f64)
        .sample(&[("kind", "expect")], done.expects as f64)
        .sample(&[("kind", "fence")], done.fences as f64);
    text.metric("weft_bytes_total", Kind::Counter, "Bytes of the operations that succeeded.")
        .sample(&[("kind", "write")], done.bytes_written as f64)
        .sample(&[("kind", "read")], done.bytes_read as f64)
        .sample(&[("kind", "send")], done.bytes_sent as f64);
    let mut completions =
        text.metric("weft_completions_total", Kind::Counter, "Operations that have ended, by their status.");
    for (place, count) in done.completions.iter().enumerate() {
        if let Some(status) = status(place) {
            completions.sample(&[("status", &status)], *count as f64);
        }
    }
    let bound = |i: usize| 2f64.powi(i as i32 + 1) / 1e9;
    let (last, rest) = done.latency.split_last().unwrap_or((&0, &[]));
    text.metric(
        "weft_transfer_seconds",
        Kind::Histogram,
        "From submission to completion, of writes and reads that succeeded.",
    )
    .histogram(
        rest.iter().enumerate().map(|(i, count)| (bound(i), *count)),
        *last,
        done.latency_sum_ns as f64 / 1e9,
    );
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
        text.metric(name, Kind::Counter, help)
            .sample(&[("direction", "sent")], sent as f64)
            .sample(&[("direction", "received")], received as f64);
    };
    both("weft_messages_total", "Messages that arrived.", done.messages_sent, done.messages_received);
    both("weft_message_bytes_total", "Bytes of these messages.", done.bytes_sent, done.bytes_received);
    both(
        "weft_notifications_total",
        "Notifications that arrived.",
        done.notifications_sent,
        done.notifications_received,
    );
    text.metric("weft_frames_dropped_total", Kind::Counter, "Frames that made no sense.")
        .sample(&[], done.frames_dropped as f64);
}

type Value = fn(&weft_rail_statistics) -> f64;

/// A metric of all rails: of each a sample for each of `parts`, whose first is a label if any.
fn of_rails(text: &mut Text, rails: &[Rail], what: (&str, Kind, &str), parts: &[(Labels, Value)]) {
    let (name, kind, help) = what;
    let mut metric = text.metric(name, kind, help);
    for rail in rails {
        let own = [("rail", &*rail.index), ("name", &*rail.name), ("fabric", &*rail.fabric)];
        for (further, value) in parts {
            metric.sample(&[&own[..], further].concat(), value(&rail.done));
        }
    }
}

const WRITE: Labels = &[("direction", "write")];
const READ: Labels = &[("direction", "read")];
const SENT: Labels = &[("direction", "sent")];
const RECEIVED: Labels = &[("direction", "received")];
const UP: Labels = &[("state", "up")];
const STALLED: Labels = &[("state", "stalled")];

fn carried(text: &mut Text, rails: &[Rail]) {
    let mut counter = |name: &str, help: &str, parts: &[(Labels, Value)]| {
        of_rails(text, rails, (name, Kind::Counter, help), parts)
    };
    counter(
        "weft_rail_bytes_total",
        "Bytes of this endpoint's own writes and reads that the rail has carried.",
        &[(WRITE, |rail| rail.bytes_written as f64), (READ, |rail| rail.bytes_read as f64)],
    );
    counter(
        "weft_rail_slices_total",
        "Slices of these: pages, or pieces of large ones.",
        &[(WRITE, |rail| rail.slices_written as f64), (READ, |rail| rail.slices_read as f64)],
    );
    counter("weft_rail_posts_total", "The posts that carried them.", &[(&[], |rail| rail.posts as f64)]);
    counter(
        "weft_rail_posts_refused_total",
        "Posts for which there was no room; they were tried again.",
        &[(&[], |rail| rail.posts_refused as f64)],
    );
    counter("weft_rail_errors_total", "Posts that failed.", &[(&[], |rail| rail.errors as f64)]);
    counter(
        "weft_rail_retries_total",
        "Greetings of peers that were repeated.",
        &[(&[], |rail| rail.retries as f64)],
    );
    counter(
        "weft_rail_frames_total",
        "Control frames.",
        &[(SENT, |rail| rail.frames_sent as f64), (RECEIVED, |rail| rail.frames_received as f64)],
    );
}

fn states(text: &mut Text, rails: &[Rail]) {
    let mut gauge = |name: &str, help: &str, parts: &[(Labels, Value)]| {
        of_rails(text, rails, (name, Kind::Gauge, help), parts)
    };
    gauge("weft_rail_up", "1 while the rail is open.", &[(&[], |rail| f64::from(rail.up))]);
    gauge(
        "weft_rail_lanes",
        "Rails of peers that it reaches, and those that take no bytes.",
        &[(UP, |rail| f64::from(rail.lanes)), (STALLED, |rail| f64::from(rail.lanes_stalled))],
    );
    gauge("weft_rail_inflight_bytes", "Bytes in flight.", &[(&[], |rail| rail.inflight_bytes as f64)]);
    gauge("weft_rail_inflight_posts", "Posts in flight.", &[(&[], |rail| rail.inflight_posts as f64)]);
    gauge(
        "weft_rail_bytes_per_second",
        "The rate that was measured of late, by the fastest lane; 0: none yet.",
        &[(&[], |rail| rail.bytes_per_s as f64)],
    );
    gauge(
        "weft_rail_round_trip_seconds",
        "The shortest time from a post to its delivery; 0: none yet.",
        &[(&[], |rail| rail.round_trip_ns as f64 / 1e9)],
    );
}
