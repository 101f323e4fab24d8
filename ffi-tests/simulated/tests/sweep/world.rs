//! Two endpoints of this process that are connected, and what they hold.

use ::weft::capi::completion::*;
use ::weft::capi::endpoint::*;
use ::weft::capi::grant::weft_grant_args;
use ::weft::capi::memory::*;
use ::weft::capi::message::{weft_message_release, weft_send};
use ::weft::capi::op::*;
use ::weft::capi::peer::*;
use ::weft::capi::prepared::*;
use ::weft::capi::status::*;
use ::weft::capi::transfer::weft_pages;
use ::weft::simulated::failing;
use anyhow::{bail, ensure, Result};
use std::ffi::{c_void, CStr, CString};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub const LEN: usize = 1 << 16;
/// Where the memory of fake devices begins.
const DEVICE: usize = 0x2a00_0000_0000;
const PATIENCE: Duration = Duration::from_secs(20);
/// Connections that no peer uses are closed well within this time.
const LINGERS: Duration = Duration::from_secs(10);
/// Nothing changes any longer after this many polls of both endpoints.
const QUIET: u32 = 40;

/// Structs of weft.h that begin with their size.
///
/// # Safety
/// Implementors begin with a `u32` for the size, and have only integers and pointers.
pub unsafe trait Sized32 {}

macro_rules! sized {
    ($($name:ty),*) => {
        // SAFETY: the header declares them so.
        $(unsafe impl Sized32 for $name {})*
    };
}
sized!(weft_endpoint_config, weft_memory_args, weft_op_options, weft_pages, weft_grant_args);

/// The defaults that the _INIT macros of weft.h set.
pub fn sized<T: Sized32>() -> T {
    // SAFETY: implementors promise it.
    unsafe {
        let mut zeros: T = zeroed();
        (&raw mut zeros).cast::<u32>().write(size_of::<T>() as u32);
        zeros
    }
}

pub struct World {
    pub fabric: String,
    pub threads: bool,
    pub a: *mut weft_endpoint,
    pub b: *mut weft_endpoint,
    pub peer: weft_peer,
    /// The peer that `b` has in `a`.
    from_b: weft_peer,
    pub address: Vec<u8>,
    third_address: Vec<u8>,
    pub bytes: Box<[[u8; LEN]; 4]>,
    /// `a`'s memory, and of `b` one that all may reach.
    pub local: *mut weft_memory,
    pub theirs: *mut weft_memory,
    pub descriptor: Vec<u8>,
    pub remote: *mut weft_remote_memory,
    /// What the calls make.
    pub made: Made,
    /// Completions of `a` that nobody has asked for.
    done: Vec<weft_completion>,
    /// What is held once the world is open.
    pub first: Holdings,
}

pub struct Made {
    pub endpoint: *mut weft_endpoint,
    pub memory: *mut weft_memory,
    pub remote: *mut weft_remote_memory,
    pub queue: *mut weft_queue,
    pub prepared: *mut weft_prepared,
    pub watch: *mut weft_watch,
    pub word: *mut u64,
    pub address: *mut c_void,
    pub counter: weft_counter,
    pub peer: weft_peer,
    pub op: weft_op,
    pub token: weft_grant_token,
}

impl Default for Made {
    fn default() -> Made {
        // SAFETY: it has only integers and pointers.
        unsafe { zeroed() }
    }
}

/// What is held: by the endpoints, and by the process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holdings(Vec<(&'static str, u64)>);

impl Holdings {
    pub fn registrations(&self) -> Option<u64> {
        self.0.iter().find(|(name, _)| *name == "registrations of NICs").map(|(_, count)| *count)
    }

    /// What there is more of than before: something may have been on its way out.
    pub fn more_than(&self, before: &Holdings) -> Option<String> {
        let differ = self.0.iter().zip(&before.0).filter(|((_, now), (_, then))| now > then);
        let each: Vec<String> =
            differ.map(|((name, now), (_, then))| format!("{name}: {then} before, {now} now")).collect();
        (!each.is_empty()).then(|| each.join("; "))
    }
}

/// A status, and the message of the last call that failed.
pub fn said(status: weft_status) -> String {
    // SAFETY: both are strings that Weft keeps.
    unsafe {
        let (name, why) = (CStr::from_ptr(weft_status_name(status)), CStr::from_ptr(weft_last_error()));
        format!("{} ({})", name.to_string_lossy(), why.to_string_lossy())
    }
}

pub fn ok(what: &str, status: weft_status) -> Result<()> {
    ensure!(status == WEFT_OK, "{what}: {}", said(status));
    Ok(())
}

/// Opens an endpoint.
pub fn open(fabric: &str, threads: bool, endpoint: &mut *mut weft_endpoint) -> weft_status {
    let sim = fabric.starts_with("sim");
    let name = match (sim, threads) {
        (true, true) => format!("{fabric}:rails=2:world=threads"),
        (true, false) => format!("{fabric}:rails=2:world=sweep:clock=virtual"),
        _ => fabric.to_owned(),
    };
    let (name, lo) = (CString::new(name).unwrap_or_default(), CString::from(c"lo"));
    let mut config: weft_endpoint_config = sized();
    config.fabric = name.as_ptr();
    config.rails = if fabric == "tcp" { lo.as_ptr() } else { std::ptr::null() };
    config.progress = if threads { WEFT_PROGRESS_THREADS } else { WEFT_PROGRESS_MANUAL };
    config.rail_count = if fabric == "tcp" { 2 } else { 0 };
    config.workers = if threads && fabric != "host" { 2 } else { 0 };
    config.queue_depth = 64;
    config.max_transfers = 64;
    config.max_peers = 16;
    // SAFETY: the config's strings outlive the call.
    unsafe { weft_endpoint_create(&config, endpoint) }
}

/// `LEN` bytes of a fake device, which nobody frees. Their address is the device's.
pub fn device_bytes() -> *mut c_void {
    static ADDRESS: OnceLock<usize> = OnceLock::new();
    let map = || {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: nothing else is at the address, or the call fails.
        let mapped = unsafe { libc::mmap(DEVICE as *mut c_void, LEN, libc::PROT_NONE, flags, -1, 0) };
        assert_eq!(mapped as usize, DEVICE, "the address is free");
        DEVICE
    };
    *ADDRESS.get_or_init(map) as *mut c_void
}

impl World {
    pub fn open(fabric: &str, threads: bool) -> Result<World> {
        let mut world = World {
            fabric: fabric.to_owned(),
            threads,
            a: null_mut(),
            b: null_mut(),
            peer: 0,
            from_b: 0,
            address: Vec::new(),
            third_address: Vec::new(),
            bytes: vec![[0; LEN]; 4].into_boxed_slice().try_into().expect("there are four"),
            local: null_mut(),
            theirs: null_mut(),
            descriptor: Vec::new(),
            remote: null_mut(),
            made: Made::default(),
            done: Vec::new(),
            first: Holdings(Vec::new()),
        };
        ok("opening", open(fabric, threads, &mut world.a))?;
        ok("opening", open(fabric, threads, &mut world.b))?;
        world.address = world.blob(|world, buffer, len, needed| {
            // SAFETY: the buffer has this length.
            unsafe { weft_endpoint_address(world.b, buffer, len, needed) }
        })?;
        ok("connecting", world.connect())?;
        world.peer = world.made.peer;
        world.await_peer(world.peer, WEFT_COMPLETION_PEER_UP)?;
        let (a, b) = (world.a, world.b);
        ok("registering", world.register_at(b, 2, 0))?;
        world.theirs = world.made.memory;
        world.descriptor = world.blob(|world, buffer, len, needed| {
            // SAFETY: the buffer has this length.
            unsafe { weft_memory_export(world.theirs, buffer, len, needed) }
        })?;
        ok("registering", world.register_at(a, 0, 0))?;
        world.local = world.made.memory;
        ok("importing", world.import())?;
        world.remote = world.made.remote;
        world.first = world.at_rest();
        Ok(world)
    }

    pub fn close(self) -> Result<()> {
        // SAFETY: nobody uses the endpoints any longer.
        unsafe {
            for endpoint in [self.a, self.b] {
                ok("shutting down", weft_endpoint_shutdown(endpoint, 0))?;
                ok("destroying", weft_endpoint_destroy(endpoint))?;
            }
        }
        Ok(())
    }

    fn blob(&self, call: impl Fn(&World, *mut c_void, usize, *mut usize) -> weft_status) -> Result<Vec<u8>> {
        let (mut bytes, mut len) = (vec![0; 65536], 0);
        ok("asking for a blob", call(self, bytes.as_mut_ptr().cast(), bytes.len(), &mut len))?;
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Two ranges, from this one on.
    pub fn register_at(&mut self, endpoint: *mut weft_endpoint, first: usize, access: u32) -> weft_status {
        let mut range =
            |at: usize| weft_memory_range { address: self.bytes[at].as_mut_ptr().cast(), len: LEN as u64 };
        let ranges = [range(first), range(first + 1)];
        let mut args: weft_memory_args = sized();
        args.access = access;
        // SAFETY: the ranges are this value's.
        unsafe { weft_memory_register(endpoint, ranges.as_ptr(), 2, &args, &mut self.made.memory) }
    }

    pub fn import(&mut self) -> weft_status {
        let (at, len) = (self.descriptor.as_ptr().cast(), self.descriptor.len());
        // SAFETY: the descriptor has this length.
        unsafe { weft_remote_memory_import(self.a, self.peer, at, len, &mut self.made.remote) }
    }

    pub fn connect(&mut self) -> weft_status {
        let (at, len) = (self.address.as_ptr().cast(), self.address.len());
        // SAFETY: the address has this length.
        unsafe { weft_peer_connect(self.a, at, len, std::ptr::null(), &mut self.made.peer) }
    }

    /// The endpoint that was made becomes one to connect to.
    pub fn third(&mut self) -> Result<()> {
        let third = self.made.endpoint;
        self.third_address = self.blob(|_, buffer, len, needed| {
            // SAFETY: the buffer has this length.
            unsafe { weft_endpoint_address(third, buffer, len, needed) }
        })?;
        Ok(())
    }

    pub fn connect_third(&mut self) -> weft_status {
        let (at, len) = (self.third_address.as_ptr().cast(), self.third_address.len());
        // SAFETY: the address has this length.
        unsafe { weft_peer_connect(self.a, at, len, std::ptr::null(), &mut self.made.peer) }
    }

    /// Waits until the third endpoint is connected; else the reason.
    pub fn await_third(&mut self) -> weft_status {
        let peer = self.made.peer;
        let is_it = |one: &weft_completion| one.peer == peer;
        self.wait("the peer", is_it).map_or(WEFT_ERR_TIMED_OUT, |done| done.status)
    }

    /// Destroys the third endpoint.
    pub fn drop_third(&mut self) -> Result<()> {
        // SAFETY: the endpoint was made before.
        ok("destroying", unsafe { weft_endpoint_destroy(self.made.endpoint) })?;
        self.made.endpoint = null_mut();
        Ok(())
    }

    /// A message from the other endpoint, which is to be released.
    pub fn await_message(&mut self) -> Result<()> {
        // SAFETY: the text has five bytes.
        let sent = unsafe {
            weft_send(self.b, self.from_b, c"hello".as_ptr().cast(), 5, std::ptr::null(), &mut self.made.op)
        };
        ok("sending", sent)?;
        self.made.op = self.wait("a message", |one| one.kind == WEFT_COMPLETION_MESSAGE)?.op;
        Ok(())
    }

    /// Polls both endpoints once: `a`'s completions are kept, and of `b`'s nothing.
    pub fn poll(&mut self) -> usize {
        // SAFETY: completions have only integers and pointers, and the array has this length.
        unsafe {
            let mut done: [weft_completion; 16] = zeroed();
            let wait = if self.threads { 100_000 } else { 0 };
            let of_a =
                weft_queue_poll(weft_endpoint_queue(self.a), done.as_mut_ptr(), 16, wait).max(0) as usize;
            self.done.extend(&done[..of_a]);
            let of_b = weft_queue_poll(weft_endpoint_queue(self.b), done.as_mut_ptr(), 16, 0).max(0) as usize;
            let third = self.made.endpoint;
            if !third.is_null() {
                weft_queue_poll(weft_endpoint_queue(third), done.as_mut_ptr().add(of_b), 16 - of_b as u32, 0);
            }
            for one in &done[..of_b] {
                if one.kind == WEFT_COMPLETION_PEER_UP && self.from_b == 0 {
                    self.from_b = one.peer;
                }
                if one.kind == WEFT_COMPLETION_MESSAGE || one.kind == WEFT_COMPLETION_NOTIFICATION {
                    weft_message_release(self.b, one.op);
                }
            }
            of_a + of_b
        }
    }

    /// Polls until there is such a completion of `a`, and takes it.
    fn wait(&mut self, what: &str, is_it: impl Fn(&weft_completion) -> bool) -> Result<weft_completion> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.done.iter().position(&is_it) {
                return Ok(self.done.swap_remove(at));
            }
            if Instant::now() > until {
                bail!("no completion of {what}");
            }
            self.poll();
        }
    }

    pub fn await_op(&mut self) -> Result<()> {
        let op = self.made.op;
        let done = self.wait("the operation", |one| one.op == op)?;
        ensure!(done.status == WEFT_OK, "the operation ended with {}", said(done.status));
        Ok(())
    }

    /// Waits until the operation has ended, with whatever status.
    pub fn await_end(&mut self) -> Result<()> {
        let op = self.made.op;
        self.wait("the operation", |one| one.op == op).map(drop)
    }

    pub fn await_peer(&mut self, peer: weft_peer, kind: weft_completion_kind) -> Result<()> {
        let done = self.wait("the peer", |one| one.peer == peer && one.kind == kind)?;
        ensure!(kind != WEFT_COMPLETION_PEER_UP || done.status == WEFT_OK, "{}", said(done.status));
        Ok(())
    }

    pub fn held(&self) -> Holdings {
        let mut all = failing::held(&[self.a, self.b]);
        let entries = |folder: &str| std::fs::read_dir(folder).map_or(0, |all| all.count() as u64);
        all.push(("descriptors", entries("/proc/self/fd")));
        all.push(("threads", entries("/proc/self/task")));
        Holdings(all)
    }

    /// What is held once nothing changes any longer.
    pub fn at_rest(&mut self) -> Holdings {
        let mut quiet = 0;
        while quiet < QUIET {
            quiet = if self.poll() > 0 { 0 } else { quiet + 1 };
        }
        self.held()
    }

    /// The same, but waits for a while until it is as before.
    pub fn at_rest_as(&mut self, before: &Holdings) -> Holdings {
        let until = Instant::now() + LINGERS;
        loop {
            self.poll();
            let now = self.held();
            if now.more_than(before).is_none() || Instant::now() > until {
                return now;
            }
        }
    }
}
