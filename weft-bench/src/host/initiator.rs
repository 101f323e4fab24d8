//! The initiator: starts the target, moves pages or a message, takes the time.

use super::side::{pool, Offer, Side};
use super::{command_of, Case, Outcome, Spec};
use crate::engines::check;
use crate::memory::Pool;
use crate::pages::Lists;
use ::weft::capi::completion::*;
use ::weft::capi::endpoint::*;
use ::weft::capi::memory::*;
use ::weft::capi::transfer::*;
use anyhow::{bail, Context, Result};
use std::io::{BufRead, BufReader, Write};
use std::mem::{size_of, zeroed};
use std::process::{Child, Stdio};
use std::ptr;
use std::time::Instant;

/// Transfers of a round, one behind the other.
const IN_A_ROW: usize = 4;
/// Rounds that are not counted.
const WARM_UP: usize = 3;
/// Of a message, there and back, so many times a round.
const THROWS: usize = 1000;

pub fn start(spec: Spec) -> Result<Child> {
    command_of("target", spec)?.stdin(Stdio::piped()).spawn().context("the target")
}

pub fn run(mut target: Child, spec: Spec) -> Result<()> {
    let mut line = String::new();
    BufReader::new(target.stdout.take().context("its output")?).read_line(&mut line)?;
    let offer: Offer = serde_json::from_str(&line).context("the target's offer")?;
    let (page_len, pages, shared) = match spec.case {
        Case::Pages { page_len, pages, shared } => (page_len, pages * 2, shared),
        Case::PingPong => (4096, 1, false),
    };
    let mut side = Side::open(page_len, pages, shared)?;
    side.pool.fill();
    writeln!(target.stdin.take().context("its input")?, "{}", serde_json::to_string(&side.offer()?)?)?;
    let remote = side.import(side.connect(&offer)?, &offer)?;
    let outcome = match spec.case {
        Case::Pages { pages, .. } => move_pages(&side, remote, pages, shared, spec.rounds)?,
        Case::PingPong => throw(&side, remote, spec.rounds)?,
    };
    // SAFETY: our own handle; what is registered goes with it.
    check("weft_endpoint_shutdown", unsafe { weft_endpoint_shutdown(side.endpoint, 0) })?;
    let status = target.wait()?;
    if !status.success() {
        bail!("the target ended with {status}");
    }
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

fn move_pages(
    side: &Side,
    remote: *mut weft_remote_memory,
    pages: usize,
    shared: bool,
    rounds: usize,
) -> Result<Outcome> {
    let page_len = side.pool.page_len;
    let copies = pool(side.endpoint, page_len, pages * 2, shared)?;
    let mut all = Vec::new();
    for round in 0..WARM_UP + rounds {
        let lists: Vec<Lists> = (0..IN_A_ROW)
            .map(|i| Lists::random((round * IN_A_ROW + i) as u64, pages, side.pool.pages))
            .collect();
        let (mut copied, mut moved) = (0.0, 0.0);
        for turn in 0..2 {
            let begun = Instant::now();
            if (turn + round) % 2 == 0 {
                lists.iter().for_each(|lists| copy(&side.pool, &copies, lists));
                copied = begun.elapsed().as_nanos() as f64;
            } else {
                transfer(side, remote, &lists, false, side.memory)?;
                moved = begun.elapsed().as_nanos() as f64;
            }
        }
        if round >= WARM_UP {
            all.push((copied, moved));
        }
    }
    verify(side, remote, pages)?;
    Ok(Outcome { rounds: all, bytes: pages * page_len * IN_A_ROW, lines: Vec::new() })
}

/// The same pages by one thread.
fn copy(from: &Pool, to: &Pool, lists: &Lists) {
    let len = from.page_len;
    for (source, target) in lists.source.iter().zip(&lists.target) {
        let source = from.base().wrapping_add(*source as usize * len);
        let target = to.base().wrapping_add(*target as usize * len);
        // SAFETY: a page of each pool.
        unsafe { ptr::copy_nonoverlapping(source, target, len) };
    }
}

/// Moves the lists' pages, all in flight at once, and waits for them.
fn transfer(
    side: &Side,
    remote: *mut weft_remote_memory,
    lists: &[Lists],
    read: bool,
    local: *mut weft_memory,
) -> Result<()> {
    for lists in lists {
        // SAFETY: arguments of zeros mean defaults.
        let mut args: weft_pages_args = unsafe { zeroed() };
        args.size = size_of::<weft_pages_args>() as u32;
        (args.local, args.remote) = (local, remote);
        (args.local_pages, args.remote_pages) = (lists.source.as_ptr(), lists.target.as_ptr());
        (args.page_len, args.page_count) = (side.pool.page_len as u64, lists.len() as u64);
        // SAFETY: the lists outlive the call, the pools the transfer.
        check("submitting", unsafe {
            if read {
                weft_read_pages(side.endpoint, &args, ptr::null_mut())
            } else {
                weft_write_pages(side.endpoint, &args, ptr::null_mut())
            }
        })?;
    }
    let kind = if read { WEFT_COMPLETION_READ } else { WEFT_COMPLETION_WRITE };
    side.wait(kind, lists.len()).map(|_| ())
}

/// Writes pages, reads them back, and looks at every byte.
fn verify(side: &Side, remote: *mut weft_remote_memory, pages: usize) -> Result<()> {
    let page_len = side.pool.page_len;
    let lists = Lists::random(1, pages, side.pool.pages);
    transfer(side, remote, std::slice::from_ref(&lists), false, side.memory)?;
    let back = Pool::new(page_len, side.pool.pages)?;
    let range = weft_memory_range { address: back.base().cast(), len: back.len() as u64 };
    let mut memory = ptr::null_mut();
    // SAFETY: the pool stays mapped for the life of the process.
    check("weft_memory_register", unsafe {
        weft_memory_register(side.endpoint, &range, 1, ptr::null(), &mut memory)
    })?;
    transfer(side, remote, std::slice::from_ref(&lists), true, memory)?;
    for page in &lists.source {
        let at = *page as usize * page_len;
        // SAFETY: a page of each pool; no transfer is under way.
        let same = unsafe {
            std::slice::from_raw_parts(side.pool.base().add(at), page_len)
                == std::slice::from_raw_parts(back.base().add(at), page_len)
        };
        if !same {
            bail!("page {page} came back with other bytes");
        }
    }
    Ok(())
}

/// Writes a number and waits for its coming back, again and again.
fn throw(side: &Side, remote: *mut weft_remote_memory, rounds: usize) -> Result<Outcome> {
    // SAFETY: arguments of zeros mean defaults.
    let mut args: weft_range_args = unsafe { zeroed() };
    args.size = size_of::<weft_range_args>() as u32;
    (args.local, args.remote, args.len) = (side.memory, remote, 8);
    let word: *mut u64 = side.pool.base().cast();
    // What is sent lies behind what comes back.
    args.local_offset = 64;
    let mut number = 1_000_000u64;
    let mut all = Vec::new();
    for round in 0..WARM_UP + rounds {
        let begun = Instant::now();
        for _ in 0..THROWS {
            number += 1;
            // SAFETY: the pool's ninth word, then its first, which the peer writes.
            unsafe { word.add(8).write_volatile(number) };
            // SAFETY: the arguments name what is open.
            check("weft_write", unsafe { weft_write(side.endpoint, &args, ptr::null_mut()) })?;
            // SAFETY: as above.
            while unsafe { word.read_volatile() } != number {
                side.poll(|one| check("a completion", one.status))?;
            }
        }
        if round >= WARM_UP {
            all.push((begun.elapsed().as_nanos() as f64 / THROWS as f64, 0.0));
        }
    }
    Ok(Outcome { rounds: all, bytes: 8, lines: Vec::new() })
}
