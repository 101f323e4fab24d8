//! A peer in another process over loopback tcp, and one here to talk with it.

use crate::engines::{blob, check};
use crate::memory::untouched;
use crate::sim::Side;
use ::weft::capi::completion::*;
use ::weft::capi::endpoint::*;
use ::weft::capi::memory::*;
use ::weft::capi::peer::*;
use ::weft::capi::transfer::*;
use anyhow::{bail, Context, Result};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read};
use std::mem::{size_of, zeroed};
use std::process::{Child, Command, Stdio};
use std::ptr;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
const WAIT_NS: u64 = 5_000_000;

#[derive(clap::Args)]
pub struct Spec {
    /// Endpoints of that process.
    #[arg(long, default_value_t = 1)]
    endpoints: usize,
    /// Bytes of memory of the first.
    #[arg(long, default_value_t = 1 << 20)]
    bytes: usize,
}

#[derive(Serialize, Deserialize)]
struct Offer {
    addresses: Vec<Vec<u8>>,
    descriptor: Vec<u8>,
}

/// The life of that process.
pub fn run(spec: &Spec) -> Result<()> {
    // SAFETY: a plain system call.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let sides = (0..spec.endpoints).map(|_| open()).collect::<Result<Vec<_>>>()?;
    let first = sides.first().context("no endpoint")?;
    let memory = first.register(untouched(spec.bytes)?, spec.bytes)?;
    let offer = Offer {
        addresses: sides.iter().map(address).collect::<Result<_>>()?,
        descriptor: descriptor(memory)?,
    };
    super::tell(&offer)?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

pub fn open() -> Result<Side> {
    Side::open("tcp", 1, WEFT_IDLE_ADAPTIVE)
}

pub fn address(side: &Side) -> Result<Vec<u8>> {
    // SAFETY: `blob` passes buffers with their size.
    blob("weft_endpoint_address", |buffer, capacity, len| unsafe {
        weft_endpoint_address(side.endpoint, buffer, capacity, len)
    })
}

fn descriptor(memory: *mut weft_memory) -> Result<Vec<u8>> {
    // SAFETY: `blob` passes buffers with their size.
    blob("weft_memory_export", |buffer, capacity, len| unsafe {
        weft_memory_export(memory, buffer, capacity, len)
    })
}

/// Completions of a side, after a wait for the first.
pub fn wait(side: &Side) -> Result<Vec<weft_completion>> {
    wait_for(side, WAIT_NS)
}

pub fn wait_for(side: &Side, ns: u64) -> Result<Vec<weft_completion>> {
    // SAFETY: integers and pointers; room for as many completions.
    unsafe {
        let mut done: [weft_completion; 256] = zeroed();
        let count = weft_wait(side.endpoint, done.as_mut_ptr(), done.len() as u32, ns);
        check("weft_wait", count.min(0))?;
        Ok(done[..count as usize].to_vec())
    }
}

/// Waits for a completion of a kind; others that come before it are dropped.
pub fn take(side: &Side, kind: weft_completion_kind) -> Result<weft_completion> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(one) = wait(side)?.into_iter().find(|one| one.kind == kind) {
            return Ok(one);
        }
    }
    bail!("no completion of kind {kind} for {PATIENCE:?}")
}

pub fn begin_connect(side: &Side, address: &[u8]) -> Result<weft_peer> {
    let (data, len, mut peer) = (address.as_ptr().cast(), address.len(), 0);
    // SAFETY: the address outlives the call.
    check("weft_peer_connect", unsafe {
        weft_peer_connect(side.endpoint, data, len, ptr::null(), &mut peer)
    })?;
    Ok(peer)
}

/// Connects, and waits until that is done.
pub fn connect(side: &Side, address: &[u8]) -> Result<weft_peer> {
    let peer = begin_connect(side, address)?;
    check("connecting", take(side, WEFT_COMPLETION_PEER_UP)?.status)?;
    Ok(peer)
}

/// A side of this process, and its peer in another one.
pub struct Far {
    pub side: Side,
    pub child: Child,
    pub addresses: Vec<Vec<u8>>,
    descriptor: Vec<u8>,
}

/// Memory on both sides.
pub struct Joined {
    pub local: *mut weft_memory,
    pub remote: *mut weft_remote_memory,
}

impl Far {
    pub fn start(endpoints: usize, bytes: usize) -> Result<Far> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut child = Command::new(program)
            .args(["fault", "far", "--endpoints", &endpoints.to_string(), "--bytes", &bytes.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the peer")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("the peer's output")?).read_line(&mut line)?;
        let Offer { addresses, descriptor } = serde_json::from_str(&line).context("what the peer says")?;
        Ok(Far { side: open()?, child, addresses, descriptor })
    }

    /// Connects to its first endpoint, with memory of so many bytes.
    pub fn join(&self, bytes: usize) -> Result<Joined> {
        let local = self.side.register(untouched(bytes)?, bytes)?;
        let peer = connect(&self.side, self.addresses.first().context("no endpoint")?)?;
        let (data, len, mut remote) =
            (self.descriptor.as_ptr().cast(), self.descriptor.len(), ptr::null_mut());
        // SAFETY: the descriptor outlives the call.
        check("weft_remote_memory_import", unsafe {
            weft_remote_memory_import(self.side.endpoint, peer, data, len, &mut remote)
        })?;
        Ok(Joined { local, remote })
    }

    pub fn signal(&self, signal: i32) -> Result<()> {
        // SAFETY: a plain system call; the child is ours and not waited for yet.
        if unsafe { libc::kill(self.child.id() as i32, signal) } != 0 {
            return Err(std::io::Error::last_os_error()).context("a signal for the peer");
        }
        Ok(())
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // It may have ended already; nothing else can be done about it.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Err(error) = self.side.close() {
            eprintln!("weft-bench: {error:#}");
        }
    }
}

/// Writes from the start of one memory to the start of another.
pub fn write(side: &Side, joined: &Joined, len: u64, timeout: Duration) -> Result<()> {
    // SAFETY: arguments of zeros mean defaults; both memories stay.
    unsafe {
        let mut args: weft_range_args = zeroed();
        args.size = size_of::<weft_range_args>() as u32;
        (args.local, args.remote, args.len) = (joined.local, joined.remote, len);
        args.timeout_ns = timeout.as_nanos() as u64;
        check("weft_write", weft_write(side.endpoint, &args, ptr::null_mut()))
    }
}
