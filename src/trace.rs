//! Traces: what happened when, in the JSON format that Perfetto (ui.perfetto.dev) and chrome://tracing open.
//!
//! Events of all endpoints are kept while one with a trace is open; when it shuts down, it writes them to
//! its file. At most `MOST` are kept in memory; those after that are counted and dropped. Off, an event
//! costs one load of a flag, and none is raised for a single slice.

use crate::descriptor;
use crate::status::{Error, Result};
use parking_lot::Mutex;
use std::fmt::Write;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Events that are kept, at 72 bytes: 38 MB.
const MOST: usize = 1 << 19;
const _: () = assert!(size_of::<Event>() == 72);

static ON: AtomicBool = AtomicBool::new(false);
static KEPT: Mutex<Kept> = Mutex::new(Kept::new(None));

/// The trace of an endpoint: the file that its shutdown writes.
#[derive(Clone, Debug)]
pub struct Trace(PathBuf);

/// What happened; times are those of CLOCK_MONOTONIC in nanoseconds.
#[derive(Clone, Copy)]
pub enum Event {
    /// An operation ended. `first_post`: 0 if nothing was posted.
    Operation {
        name: &'static str,
        id: u64,
        peer: u64,
        bytes: u64,
        status: i32,
        submit: u64,
        first_post: u64,
        done: u64,
    },
    /// A peer or a rail came up or went down, or something arrived from a peer.
    Arrived { name: &'static str, peer: u64, rail: u32, status: i32, at: u64 },
    /// A worker posted this to a rail.
    Posted { rail: u16, worker: u16, posts: u32, bytes: u64, from: u64, to: u64 },
    /// Slices of an operation were claimed for a rail; `again`: a lane that failed had claimed them.
    Claimed { rail: u16, again: bool, id: u64, first: u64, slices: u64, at: u64 },
    /// Posts of a rail came back.
    Delivered { rail: u16, posts: u32, bytes: u64, inflight: u64, at: u64 },
    /// What happens to a rail now and then.
    Rail { rail: u16, name: &'static str, at: u64 },
}

struct Kept {
    /// The file of the trace that began them.
    file: Option<PathBuf>,
    /// Traces that have begun and not ended.
    users: usize,
    events: Vec<Event>,
    dropped: u64,
}

impl Kept {
    const fn new(file: Option<PathBuf>) -> Kept {
        Kept { file, users: 0, events: Vec::new(), dropped: 0 }
    }
}

/// `make trace-cost` compares with a build that has no traces at all.
#[inline]
pub fn is_on() -> bool {
    cfg!(not(weft_untraced)) && ON.load(Ordering::Relaxed)
}

impl Trace {
    /// "%p" in the name becomes the process id. The file must be one that can be written.
    pub fn new(file: &Path) -> Result<Trace> {
        let trace = Trace::named(file);
        match descriptor::open(OpenOptions::new().create(true).append(true), &trace.0) {
            Ok(_) => Ok(trace),
            Err(error) => {
                Err(Error::invalid(format!("trace {} cannot be written: {error}", trace.0.display())))
            }
        }
    }

    fn named(file: &Path) -> Trace {
        let id = std::process::id().to_string();
        Trace(file.to_str().map_or_else(|| file.into(), |text| text.replace("%p", &id).into()))
    }

    /// Events are kept from now on, behind those that the file has if it is the last one written.
    pub fn begin(&self) {
        let mut kept = KEPT.lock();
        if kept.users == 0 && kept.file.as_ref() != Some(&self.0) {
            *kept = Kept::new(Some(self.0.clone()));
        }
        kept.users += 1;
        ON.store(true, Ordering::Relaxed);
    }

    /// Writes the file. Once for each `begin`.
    pub fn end(&self) {
        let mut kept = KEPT.lock();
        kept.users -= 1;
        ON.store(kept.users > 0, Ordering::Relaxed);
        let file = descriptor::open(OpenOptions::new().create(true).write(true).truncate(true), &self.0);
        let written = file.and_then(|mut file| file.write_all(json(&kept.events, kept.dropped).as_bytes()));
        if let Err(error) = written {
            log::warn!("trace {} cannot be written: {error}", self.0.display());
        }
    }
}

/// Adds what `event` says, where traces are on.
#[inline]
pub fn add(event: impl FnOnce() -> Event) {
    if is_on() {
        keep(event());
    }
}

#[cold]
fn keep(event: Event) {
    let mut kept = KEPT.lock();
    match kept.events.len() < MOST {
        true => kept.events.push(event),
        false => kept.dropped += 1,
    }
}

/// An operation's own row, and those of rails: the format calls them threads.
const OPERATIONS: u32 = 1;
const FIRST_RAIL: u32 = 100;

fn json(events: &[Event], dropped: u64) -> String {
    let process = std::process::id();
    let mut text = String::with_capacity(200 * events.len() + 1000);
    // Writing to a string does not fail, here and below.
    let _ = write!(text, "{{\"otherData\":{{\"dropped\":{dropped}}},\"traceEvents\":[");
    let _ = write!(
        text,
        "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{process},\"args\":{{\"name\":\"weft {process}\"}}}}"
    );
    let mut rails: Vec<u16> = events.iter().filter_map(Event::rail).collect();
    rails.sort_unstable();
    rails.dedup();
    for rail in rails {
        let thread = FIRST_RAIL + u32::from(rail);
        let _ = write!(
            text,
            ",\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{process},\"tid\":{thread},\"args\":{{\"name\":\"rail {rail}\"}}}}"
        );
    }
    events.iter().for_each(|event| event.write(&mut text, process));
    text.push_str("\n]}\n");
    text
}

/// Nanoseconds as the format's microseconds.
struct Micros(u64);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

impl Event {
    fn rail(&self) -> Option<u16> {
        match self {
            Event::Operation { .. } | Event::Arrived { .. } => None,
            Event::Posted { rail, .. }
            | Event::Claimed { rail, .. }
            | Event::Delivered { rail, .. }
            | Event::Rail { rail, .. } => Some(*rail),
        }
    }

    /// Appends it, with a comma before it.
    fn write(&self, text: &mut String, process: u32) {
        let thread = FIRST_RAIL + u32::from(self.rail().unwrap_or(0));
        let of_rail = format_args!("\"pid\":{process},\"tid\":{thread}").to_string();
        let _ = match *self {
            Event::Operation { name, id, peer, bytes, status, submit, first_post, done } => {
                let same = format!(
                    "\"cat\":\"operation\",\"id\":\"{id:#x}\",\"name\":\"{name}\",\"pid\":{process},\"tid\":{OPERATIONS}"
                );
                let args = format!("{{\"peer\":\"{peer:#x}\",\"bytes\":{bytes},\"status\":{status}}}");
                let begun = write!(text, ",\n{{\"ph\":\"b\",{same},\"ts\":{},\"args\":{args}}}", Micros(submit));
                let posted = match first_post {
                    0 => Ok(()),
                    at => write!(
                        text,
                        ",\n{{\"ph\":\"n\",{same},\"ts\":{},\"args\":{{\"event\":\"first post\"}}}}",
                        Micros(at)
                    ),
                };
                begun.and(posted).and(write!(text, ",\n{{\"ph\":\"e\",{same},\"ts\":{}}}", Micros(done)))
            }
            Event::Arrived { name, peer, rail, status, at } => write!(
                text,
                ",\n{{\"ph\":\"i\",\"s\":\"p\",\"name\":\"{name}\",\"pid\":{process},\"tid\":{OPERATIONS},\"ts\":{},\
                 \"args\":{{\"peer\":\"{peer:#x}\",\"rail\":{},\"status\":{status}}}}}",
                Micros(at),
                i64::from(rail as i32)
            ),
            Event::Posted { worker, posts, bytes, from, to, .. } => write!(
                text,
                ",\n{{\"ph\":\"X\",\"name\":\"post\",{of_rail},\"ts\":{},\"dur\":{},\
                 \"args\":{{\"worker\":{worker},\"posts\":{posts},\"bytes\":{bytes}}}}}",
                Micros(from),
                Micros(to.saturating_sub(from))
            ),
            Event::Claimed { again, id, first, slices, at, .. } => write!(
                text,
                ",\n{{\"ph\":\"i\",\"s\":\"t\",\"name\":\"{}\",{of_rail},\"ts\":{},\
                 \"args\":{{\"operation\":\"{id:#x}\",\"first\":{first},\"slices\":{slices}}}}}",
                if again { "claim again" } else { "claim" },
                Micros(at)
            ),
            Event::Delivered { rail, posts, bytes, inflight, at } => write!(
                text,
                ",\n{{\"ph\":\"i\",\"s\":\"t\",\"name\":\"delivered\",{of_rail},\"ts\":{},\
                 \"args\":{{\"posts\":{posts},\"bytes\":{bytes}}}}},\n\
                 {{\"ph\":\"C\",\"name\":\"rail {rail}: bytes in flight\",\"pid\":{process},\"ts\":{},\
                 \"args\":{{\"bytes\":{inflight}}}}}",
                Micros(at),
                Micros(at)
            ),
            Event::Rail { name, at, .. } => {
                write!(text, ",\n{{\"ph\":\"i\",\"s\":\"t\",\"name\":\"{name}\",{of_rail},\"ts\":{}}}", Micros(at))
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_become_json() {
        let events = [
            Event::Operation {
                name: "write",
                id: 16,
                peer: 2,
                bytes: 3,
                status: -4,
                submit: 1_000,
                first_post: 1_500,
                done: 2_001,
            },
            Event::Arrived { name: "RAIL_DOWN", peer: 0, rail: u32::MAX, status: 0, at: 7 },
            Event::Posted { rail: 3, worker: 1, posts: 4, bytes: 5, from: 10, to: 20 },
            Event::Delivered { rail: 3, posts: 1, bytes: 2, inflight: 9, at: 30 },
            Event::Claimed { rail: 3, again: true, id: 16, first: 8, slices: 2, at: 35 },
            Event::Rail { rail: 3, name: "lane reset", at: 40 },
        ];
        let parsed: serde_json::Value = serde_json::from_str(&json(&events, 5)).expect("JSON");
        assert_eq!(parsed["otherData"]["dropped"], 5);
        let all = parsed["traceEvents"].as_array().expect("a list");
        let phases: Vec<&str> = all.iter().filter_map(|event| event["ph"].as_str()).collect();
        assert_eq!(phases, ["M", "M", "b", "n", "e", "i", "X", "i", "C", "i", "i"]);
        assert_eq!((&all[2]["ts"], &all[4]["ts"]), (&1.0.into(), &2.001.into()));
        assert_eq!((&all[2]["id"], &all[2]["args"]["status"]), (&"0x10".into(), &(-4).into()));
        assert_eq!(
            (&all[1]["tid"], &all[6]["tid"], &all[6]["dur"]),
            (&103.into(), &103.into(), &0.01.into())
        );
        assert_eq!((&all[6]["args"]["worker"], &all[9]["args"]["operation"]), (&1.into(), &"0x10".into()));
        assert_eq!((&all[9]["name"], &all[10]["name"]), (&"claim again".into(), &"lane reset".into()));
        assert_eq!((&all[5]["args"]["rail"], &all[8]["args"]["bytes"]), (&(-1).into(), &9.into()));
    }
}
