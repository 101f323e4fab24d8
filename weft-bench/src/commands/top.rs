//! `weft-bench top`: what processes of this user do with Weft, from the metrics that they offer by sockets.

use super::Args;
use crate::show::{printable, table};
use anyhow::{bail, Context, Result};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub const HELP: &str = "\
Shows what processes of this user do with Weft: peers, lanes with their rails and rates, queues, grants, errors. It sees
those that were started with WEFT_METRICS_SOCKET=1 (docs/metrics.md). Ctrl-C ends it.

Of a lane: rail (our NIC), remote (the peer's address), write/s and read/s (bytes of this process's operations), sent/s
and rcvd/s (tcp: all bytes, of both sides' operations), in flight (bytes), rtt us (round trip), resent/s (tcp: segments
sent again), resets (since the peer connected).

Its state: up; stalled (up, and bytes in flight have not moved for 20 ms); handshake (it is being connected); no link
(our NIC has none, or is down); down (none of these). What to do about each: docs/networks.md, \"When it is slow\".

  --interval SECONDS  between two looks, from which rates are taken (1)
  --once              look twice, print that, and end
  --json              print a JSON object for each look; with --once, one
  --folder DIR        where the sockets are ($XDG_RUNTIME_DIR/weft, /run/user/UID/weft and /tmp/weft-UID)
";

pub fn run(mut args: Args) -> Result<()> {
    let (seconds, folder): (f64, Option<PathBuf>) = (args.or("--interval", 1.0)?, args.maybe("--folder")?);
    let (once, json) = (args.has("--once"), args.has("--json"));
    args.end()?;
    let interval = Duration::try_from_secs_f64(seconds).context("--interval")?;
    let folders = folder.map_or_else(own_folders, |folder| vec![folder]);
    let mut before = look(&folders, &mut Vec::new())?;
    loop {
        std::thread::sleep(interval);
        let mut warnings = Vec::new();
        let now = look(&folders, &mut warnings)?;
        let processes: Vec<Process> =
            now.iter().map(|(socket, sample)| Process::new(socket, sample, before.get(socket))).collect();
        let mut out = std::io::stdout().lock();
        if json {
            serde_json::to_writer(&mut out, &serde_json::json!({ "processes": processes }))?;
            writeln!(out)?;
        } else {
            let home = if out.is_terminal() && !once { "\x1b[H\x1b[2J" } else { "" };
            write!(out, "{home}{}", text(&folders, &processes))?;
        }
        out.flush()?;
        // Under the table, which clears the screen before.
        warnings.iter().for_each(|warning| eprintln!("{}", printable(warning)));
        if once {
            return Ok(());
        }
        before = now;
    }
}

/// Where processes of this user may offer metrics, whatever session started them.
fn own_folders() -> Vec<PathBuf> {
    let user = this_user();
    let session = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    let mut all: Vec<PathBuf> = session.map(|folder| Path::new(&folder).join("weft")).into_iter().collect();
    all.push(format!("/run/user/{user}/weft").into());
    all.push(format!("/tmp/weft-{user}").into());
    all.dedup();
    all
}

fn this_user() -> u32 {
    // SAFETY: the call has no preconditions.
    unsafe { libc::geteuid() }
}

/// Whether there is such a folder. One that others could write to is an error: what they say is not to be shown.
fn is_own(folder: &Path) -> Result<bool> {
    let found = match fs::symlink_metadata(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        found => found.with_context(|| format!("reading {}", folder.display()))?,
    };
    if !found.is_dir() || found.uid() != this_user() || found.mode() & 0o077 != 0 {
        bail!("{} is not a folder of this user alone (mode 0700)", folder.display());
    }
    Ok(true)
}

/// What an endpoint's socket said, and when.
struct Sample {
    at: Instant,
    values: Vec<Value>,
}

struct Value {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Of all sockets of these folders, by path.
fn look(folders: &[PathBuf], warnings: &mut Vec<String>) -> Result<BTreeMap<PathBuf, Sample>> {
    let mut found = BTreeMap::new();
    for folder in folders {
        match is_own(folder) {
            Ok(true) => {}
            Ok(false) => continue,
            // Anybody can make one in /tmp.
            Err(error) if folders.len() > 1 => {
                warnings.push(format!("{error:#}"));
                continue;
            }
            Err(error) => return Err(error),
        }
        for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
            let path = entry?.path();
            if !is_socket(&path) {
                continue;
            }
            match read(&path) {
                // Nothing: it is another user's, or a reader before this one has taken its time.
                Ok(text) if text.is_empty() => {}
                Ok(text) => _ = found.insert(path, Sample { at: Instant::now(), values: parse(&text) }),
                // Its process was killed: the name is there only while one listens.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => _ = fs::remove_file(&path),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => warnings.push(format!("{} does not answer: {error}", path.display())),
            }
        }
    }
    Ok(found)
}

/// `PID-INCARNATION.sock`.
fn is_socket(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".sock"));
    name.and_then(|name| name.split_once('-')).is_some_and(|(pid, incarnation)| {
        pid.bytes().all(|byte| byte.is_ascii_digit())
            && incarnation.len() == 16
            && incarnation.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

fn read(path: &Path) -> std::io::Result<String> {
    text_of(connect(path)?)
}

/// Connects at once: a stopped process accepts nobody, and its queue of readers may be full.
fn connect(path: &Path) -> std::io::Result<UnixStream> {
    // SAFETY: the struct has only integers and characters, for which zero is valid.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = path.as_os_str().as_bytes();
    if name.len() >= address.sun_path.len() {
        return Err(ErrorKind::InvalidInput.into());
    }
    for (to, from) in address.sun_path.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call has no preconditions; it returns a new descriptor or an error.
    let socket = match unsafe { libc::socket(libc::AF_UNIX, kind, 0) } {
        fd if fd < 0 => return Err(std::io::Error::last_os_error()),
        // SAFETY: the descriptor is new, and nothing else owns it.
        fd => unsafe { UnixStream::from_raw_fd(fd) },
    };
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the socket is open, and the address has this length.
    match unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => socket.set_nonblocking(false).map(|()| socket),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// What an endpoint says, up to 64 MiB: its text is far smaller. Nothing, where it answers nobody.
fn text_of(socket: UnixStream) -> std::io::Result<String> {
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut text = String::new();
    socket.take(64 << 20).read_to_string(&mut text)?;
    match text.is_empty() || text.ends_with('\n') {
        true => Ok(text),
        false => Err(ErrorKind::UnexpectedEof.into()), // The last number may be a part of one.
    }
}

/// Samples of Prometheus' text format.
fn parse(text: &str) -> Vec<Value> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let of_line = |line: &str| {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        Some(Value { name: name.into(), labels: labels_of(labels), value: value.parse().ok()? })
    };
    lines.filter_map(of_line).collect()
}

/// `a="b",c="d"}`, with escapes.
fn labels_of(text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once("=\"") {
        let (mut value, mut chars) = (String::new(), after.char_indices());
        rest = "";
        while let Some((at, char)) = chars.next() {
            match char {
                '"' => {
                    rest = &after[at + 1..];
                    break;
                }
                '\\' => value.extend(chars.next().map(|(_, next)| if next == 'n' { '\n' } else { next })),
                _ => value.push(char),
            }
        }
        labels.insert(name.trim_start_matches(',').to_owned(), value);
    }
    labels
}

type Labels<'a> = &'a [(&'a str, &'a str)];

impl Sample {
    fn matching<'a>(&'a self, name: &'a str, labels: Labels<'a>) -> impl Iterator<Item = &'a Value> {
        let has = move |value: &&Value| {
            let same =
                |(label, wanted): &(&str, &str)| value.labels.get(*label).is_some_and(|is| is == wanted);
            value.name == name && labels.iter().all(same)
        };
        self.values.iter().filter(has)
    }

    /// The sum of all series that have these labels.
    fn sum(&self, name: &str, labels: Labels) -> f64 {
        self.matching(name, labels).map(|value| value.value).sum()
    }
}

#[derive(Serialize)]
struct Process {
    pid: u32,
    program: String,
    peers_connecting: f64,
    operations_active: f64,
    write_bytes_per_second: f64,
    read_bytes_per_second: f64,
    grants: f64,
    queues: Vec<Queue>,
    /// By what failed, since the endpoint was opened.
    errors: BTreeMap<String, f64>,
    peers: Vec<Peer>,
}

#[derive(Serialize)]
struct Queue {
    unpolled: f64,
    reserved: f64,
    depth: f64,
}

#[derive(Serialize)]
struct Peer {
    peer: String,
    address: String,
    fabric: String,
    up: bool,
    lanes: Vec<Lane>,
}

#[derive(Serialize)]
struct Lane {
    rail: String,
    name: String,
    remote: String,
    state: &'static str,
    write_bytes_per_second: f64,
    read_bytes_per_second: f64,
    /// What the system counts, over tcp: both sides' operations.
    sent_bytes_per_second: f64,
    received_bytes_per_second: f64,
    inflight_bytes: f64,
    round_trip_seconds: f64,
    retransmits: f64,
    retransmits_per_second: f64,
    resets: f64,
}

/// Counters of what failed, and how they are named.
const FAILURES: [(&str, &str); 4] = [
    ("weft_rail_errors_total", "posts failed"),
    ("weft_rail_lane_resets_total", "lanes reset"),
    ("weft_handshakes_rejected_total", "handshakes rejected"),
    ("weft_frames_dropped_total", "frames dropped"),
];

impl Process {
    fn new(socket: &Path, now: &Sample, before: Option<&Sample>) -> Process {
        let name = socket.file_name().unwrap_or_default().to_string_lossy();
        let pid = name.split('-').next().and_then(|pid| pid.parse().ok()).unwrap_or(0);
        let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let program = printable(program.trim_end()); // a program names itself
        let rate = |name: &str, labels: Labels| {
            // A counter that appears has counted for longer than since the last look.
            let known = |before: &&Sample| before.matching(name, labels).next().is_some();
            let Some(before) = before.filter(known) else { return 0.0 };
            (now.sum(name, labels) - before.sum(name, labels)).max(0.0) / (now.at - before.at).as_secs_f64()
        };
        let ends = now.matching("weft_completions_total", &[]);
        let ends = ends.filter_map(|value| Some((value.labels.get("status")?.clone(), value.value)));
        let failures = FAILURES.map(|(metric, name)| (name.to_owned(), now.sum(metric, &[])));
        let failed = |(name, count): &(String, f64)| name != "ok" && *count > 0.0;
        let queue = |value: &Value| {
            let labels: Vec<(&str, &str)> = value.labels.iter().map(|(name, is)| (&**name, &**is)).collect();
            let sum = |name| now.sum(name, &labels);
            Queue {
                unpolled: sum("weft_queue_unpolled"),
                reserved: sum("weft_queue_reserved"),
                depth: value.value,
            }
        };
        Process {
            pid,
            program: program.trim().to_owned(),
            peers_connecting: now.sum("weft_peers_connecting", &[]),
            operations_active: now.sum("weft_operations_active", &[]),
            write_bytes_per_second: rate("weft_rail_bytes_total", &[("direction", "write")]),
            read_bytes_per_second: rate("weft_rail_bytes_total", &[("direction", "read")]),
            grants: now.sum("weft_grants", &[]),
            queues: now.matching("weft_queue_depth", &[]).map(queue).collect(),
            errors: ends.chain(failures).filter(failed).collect(),
            peers: peers(now, &rate),
        }
    }
}

fn peers(now: &Sample, rate: &dyn Fn(&str, Labels) -> f64) -> Vec<Peer> {
    let mut lanes: HashMap<String, Vec<Lane>> = HashMap::new();
    for value in now.matching("weft_lane_up", &[]) {
        let label = |name: &str| value.labels.get(name).cloned().unwrap_or_default();
        let (peer, rail, remote) = (label("peer"), label("rail"), label("remote"));
        let of_lane = [("peer", &*peer), ("rail", &*rail), ("remote", &*remote)];
        let sum = |name: &str| now.sum(name, &of_lane);
        let moved = |name: &str, direction| {
            let [peer, rail, remote] = of_lane;
            rate(name, &[peer, rail, remote, ("direction", direction)])
        };
        let (bytes, system) = ("weft_lane_bytes_total", "weft_lane_system_bytes_total");
        let lane = Lane {
            name: label("name"),
            state: match (value.value > 0.0, sum("weft_lane_stalled") > 0.0) {
                (_, true) => "stalled",
                (true, _) => "up",
                _ if now.matching("weft_rail_up", &of_lane[1..2]).any(|up| up.value == 0.0) => "no link",
                _ if sum("weft_lane_handshake") > 0.0 => "handshake",
                _ => "down",
            },
            write_bytes_per_second: moved(bytes, "write"),
            read_bytes_per_second: moved(bytes, "read"),
            sent_bytes_per_second: moved(system, "sent"),
            received_bytes_per_second: moved(system, "received"),
            inflight_bytes: sum("weft_lane_inflight_bytes"),
            round_trip_seconds: sum("weft_lane_round_trip_seconds"),
            retransmits: sum("weft_lane_retransmits_total"),
            retransmits_per_second: rate("weft_lane_retransmits_total", &of_lane),
            resets: sum("weft_lane_resets_total"),
            rail: rail.clone(),
            remote: remote.clone(),
        };
        lanes.entry(peer).or_default().push(lane);
    }
    let of_peer = |value: &Value| {
        let label = |name: &str| value.labels.get(name).cloned().unwrap_or_default();
        let lanes = lanes.remove(&label("peer")).unwrap_or_default();
        let (peer, address, fabric) = (label("peer"), label("address"), label("fabric"));
        Peer { peer, address, fabric, up: value.value > 0.0, lanes }
    };
    now.matching("weft_peer_up", &[]).map(of_peer).collect()
}

/// Numbers with a unit of a thousand.
fn short(value: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let unit = units.into_iter().find(|(unit, _)| value >= *unit);
    unit.map_or_else(|| format!("{value:.0}"), |(unit, name)| format!("{:.1}{name}", value / unit))
}

fn text(folders: &[PathBuf], processes: &[Process]) -> String {
    if processes.is_empty() {
        let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        let folders = folders.join(", ");
        return format!("no process offers metrics in {folders}: start it with WEFT_METRICS_SOCKET=1\n");
    }
    let mut text = String::new();
    let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<String>>();
    for process in processes {
        let Process { pid, program, operations_active, grants, .. } = process;
        let rates = (short(process.write_bytes_per_second), short(process.read_bytes_per_second));
        text += &format!("{program} ({pid}): {} peers", process.peers.len());
        text += &match process.peers_connecting {
            0.0 => String::new(),
            connecting => format!(" and {connecting} connecting"),
        };
        text += &format!(", {operations_active} operations active, {grants} grants");
        text += &format!("; writes {}B/s, reads {}B/s\n", rates.0, rates.1);
        for (at, queue) in process.queues.iter().enumerate() {
            let Queue { unpolled, reserved, depth } = queue;
            text += &format!("  queue {at}: {unpolled} to poll, {reserved} of {depth} places reserved\n");
        }
        let errors: Vec<String> =
            process.errors.iter().map(|(what, count)| format!("{what} {count}")).collect();
        if !errors.is_empty() {
            text += &format!("  errors: {}\n", errors.join(", "));
        }
        let mut rows = vec![row(&[
            " peer",
            "fabric",
            "rail",
            "remote",
            "state",
            "write/s",
            "read/s",
            "sent/s",
            "rcvd/s",
            "in flight",
            "rtt us",
            "resent/s",
            "resets",
        ])];
        for peer in &process.peers {
            for lane in &peer.lanes {
                let mut cells =
                    row(&[&format!(" {}", peer.address), &peer.fabric, &lane.name, &lane.remote, lane.state]);
                let numbers = [
                    lane.write_bytes_per_second,
                    lane.read_bytes_per_second,
                    lane.sent_bytes_per_second,
                    lane.received_bytes_per_second,
                    lane.inflight_bytes,
                    lane.round_trip_seconds * 1e6,
                    lane.retransmits_per_second,
                    lane.resets,
                ];
                cells.extend(numbers.map(short));
                rows.push(cells);
            }
            if peer.lanes.is_empty() {
                let state = if peer.up { "up" } else { "down" };
                rows.push(row(&[&format!(" {}", peer.address), &peer.fabric, "-", "-", state]));
            }
        }
        if rows.len() > 1 {
            text += &table(&rows, 5..13);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn stopped_process_is_passed_over_when_no_more_readers_find_room() {
        let path = std::env::temp_dir().join(format!("weft-bench-top-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).expect("it listens");
        // SAFETY: the descriptor is open, and a socket that listens may be given another length of its queue.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
        let waits: Vec<_> = std::iter::from_fn(|| connect(&path).ok()).take(10).collect();
        let error = read(&path).map_err(|error| error.kind());
        fs::remove_file(&path).expect("it is there");
        assert!(
            waits.len() < 10 && error == Err(ErrorKind::WouldBlock),
            "{error:?} after {} readers",
            waits.len()
        );
    }

    #[test]
    fn folder_of_others_hides_no_other_folder() {
        let folders = ["/", "/nonexistent/weft"].map(PathBuf::from);
        let mut warnings = Vec::new();
        assert!(look(&folders[..1], &mut warnings).is_err() && look(&folders, &mut warnings).is_ok());
        assert!(matches!(&warnings[..], [one] if one.contains("0700")), "{warnings:?}");
    }

    #[test]
    fn text_that_is_cut_off_is_refused() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        (&theirs).write_all(b"weft_grants 1234\nweft_peers 5").expect("it is written");
        drop(theirs);
        assert!(text_of(ours).is_err());
    }

    #[test]
    fn labels_are_parsed_with_their_escapes() {
        let labels = labels_of(r#"rail="0",name="a\"b\\,c=\nd"}"#);
        assert_eq!(labels["rail"], "0");
        assert_eq!(labels["name"], "a\"b\\,c=\nd");
        assert!(labels_of("").is_empty());
    }

    #[test]
    fn lane_of_a_rail_without_a_link_says_so() {
        let state = |up: [u8; 3]| {
            let [lane, rail, handshake] = up;
            let text = format!(
                "weft_peer_up{{peer=\"0x1\"}} 1\nweft_rail_up{{rail=\"0\"}} {rail}\nweft_rail_up{{rail=\"1\"}} 0\n\
                 weft_lane_up{{peer=\"0x1\",rail=\"0\",remote=\"r\"}} {lane}\n\
                 weft_lane_handshake{{peer=\"0x1\",rail=\"0\",remote=\"r\"}} {handshake}\n"
            );
            let now = Sample { at: Instant::now(), values: parse(&text) };
            Process::new(Path::new("/x/7-a.sock"), &now, None).peers[0].lanes[0].state
        };
        let states = [[1, 1, 0], [0, 1, 1], [0, 1, 0], [0, 0, 1], [0, 0, 0]].map(state);
        assert_eq!(states, ["up", "handshake", "down", "no link", "no link"]);
    }

    #[test]
    fn lane_that_appears_has_no_rate_yet() {
        let peer = "weft_peer_up{peer=\"0x1\"} 1\n";
        let lane = "weft_lane_up{peer=\"0x1\",rail=\"0\",remote=\"r\"} 1\n\
                    weft_lane_retransmits_total{peer=\"0x1\",rail=\"0\",remote=\"r\"} 7\n\
                    weft_lane_bytes_total{peer=\"0x1\",rail=\"0\",remote=\"r\",direction=\"write\"} 5000\n";
        let begun = Instant::now();
        let sample = |at, text: &str| Sample { at, values: parse(text) };
        let (before, now) =
            (sample(begun, peer), sample(begun + Duration::from_secs(1), &format!("{peer}{lane}")));
        let process = Process::new(Path::new("/x/7-a.sock"), &now, Some(&before));
        let lane = &process.peers[0].lanes[0];
        assert_eq!((lane.write_bytes_per_second, lane.retransmits_per_second), (0.0, 0.0));
    }

    #[test]
    fn rates_are_those_between_two_samples() {
        let sample = |at, bytes: u32| {
            let text = format!(
                "# TYPE x counter\nweft_rail_bytes_total{{rail=\"0\",direction=\"write\"}} {bytes}\n\
                 weft_peer_up{{peer=\"0x1\",address=\"a\",fabric=\"tcp\"}} 1\n\
                 weft_lane_up{{peer=\"0x1\",rail=\"0\",name=\"lo\",remote=\"r\"}} 0\n\
                 weft_lane_handshake{{peer=\"0x1\",rail=\"0\",name=\"lo\",remote=\"r\"}} 1\n\
                 weft_lane_retransmits_total{{peer=\"0x1\",rail=\"0\",name=\"lo\",remote=\"r\"}} {bytes}\n\
                 weft_lane_bytes_total{{peer=\"0x1\",rail=\"0\",name=\"lo\",remote=\"r\",direction=\"write\"}} {bytes}\n\
                 weft_completions_total{{status=\"ok\"}} 9\nweft_completions_total{{status=\"timed_out\"}} 2\n"
            );
            Sample { at, values: parse(&text) }
        };
        let begun = Instant::now();
        let (before, now) = (sample(begun, 1000), sample(begun + Duration::from_secs(2), 5000));
        let process = Process::new(Path::new("/x/7-a.sock"), &now, Some(&before));
        assert_eq!((process.pid, process.write_bytes_per_second), (7, 2000.0));
        let lane = &process.peers[0].lanes[0];
        assert_eq!((lane.write_bytes_per_second, lane.retransmits_per_second), (2000.0, 2000.0));
        assert_eq!(lane.state, "handshake");
        assert_eq!((process.errors.len(), process.errors["timed_out"]), (1, 2.0));
        assert!(text(&[PathBuf::from("/x")], &[process]).contains("2.0k"));
    }
}
