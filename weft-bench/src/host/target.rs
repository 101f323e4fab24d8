//! The target: polls, and returns what is thrown at it, until its peer leaves.

use super::side::{Offer, Side};
use super::{Case, Spec};
use crate::engines::check;
use ::weft::capi::completion::*;
use ::weft::capi::transfer::*;
use anyhow::{Context, Result};
use std::mem::{size_of, zeroed};
use std::ptr;

pub fn run(spec: Spec) -> Result<()> {
    let (page_len, pages, shared) = match spec.case {
        Case::Pages { page_len, pages, shared } => (page_len, pages * 2, shared),
        Case::PingPong => (4096, 1, false),
    };
    let side = Side::open(page_len, pages, shared)?;
    println!("{}", serde_json::to_string(&side.offer()?)?);
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let theirs: Offer = serde_json::from_str(&line).context("the initiator's offer")?;
    let peer = side.wait(WEFT_COMPLETION_PEER_UP, 1)?.peer;
    let remote = side.import(peer, &theirs)?;
    // SAFETY: arguments of zeros mean defaults.
    let mut back: weft_range_args = unsafe { zeroed() };
    back.size = size_of::<weft_range_args>() as u32;
    (back.local, back.remote, back.len) = (side.memory, remote, 8);
    let word: *const u64 = side.pool.base().cast();
    let mut last = 0;
    let mut over = false;
    while !over {
        side.poll(|one| {
            over |= one.kind == WEFT_COMPLETION_PEER_DOWN;
            Ok(())
        })?;
        if spec.case == Case::PingPong {
            // SAFETY: the pool's first bytes, which the peer writes.
            let now = unsafe { word.read_volatile() };
            if now != last {
                last = now;
                // SAFETY: the arguments name what is open.
                check("weft_write", unsafe { weft_write(side.endpoint, &back, ptr::null_mut()) })?;
            }
        }
    }
    Ok(())
}
