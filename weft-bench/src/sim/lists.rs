//! Lists of small entries to many peers.

use super::ends::open;
use crate::endpoint::check;
use crate::memory::untouched;
use ::weft::capi::completion::*;
use ::weft::capi::list::*;
use anyhow::Result;
use std::mem::zeroed;
use std::ptr;
use std::time::Instant;

const FABRIC: &str = "sim:like=efa:nocopy:rails=4";
const PEERS: usize = 16;
const LEN: usize = 64;
/// Entries of a list, to each peer in turn.
const ENTRIES: usize = 16_000;

/// Entries per second of consecutive lists, by a sender with a worker.
pub fn entries_per_s(lists: usize) -> Result<f64> {
    let sender = open(FABRIC, 1, true)?;
    let len = LEN * ENTRIES;
    let local = sender.register(untouched(len)?, len)?;
    let mut receivers = Vec::new();
    let mut remotes = Vec::new();
    for _ in 0..PEERS {
        let receiver = open(FABRIC, 0, true)?;
        let given = receiver.register(untouched(len)?, len)?;
        let offer = receiver.offer(given)?;
        let peer = sender.begin_connect(&offer.address)?;
        while sender.count(WEFT_COMPLETION_PEER_UP, 0)? == 0 {
            receiver.count(WEFT_COMPLETION_MESSAGE, 0)?;
        }
        remotes.push(sender.import(peer, &offer)?);
        receivers.push(receiver);
    }
    let entry = |i: usize| {
        let offset = (i * LEN) as u64;
        let (remote, len) = (remotes[i % PEERS].cast_const(), LEN as u64);
        // SAFETY: the struct has only integers and pointers, for which zero is valid.
        let entry: weft_list_entry = unsafe { zeroed() };
        weft_list_entry { local, remote, local_offset: offset, remote_offset: offset, len, ..entry }
    };
    let entries: Vec<weft_list_entry> = (0..ENTRIES).map(entry).collect();
    let write = || -> Result<()> {
        let (first, count) = (entries.as_ptr(), entries.len() as u64);
        // SAFETY: the entries outlive the call.
        check("weft_write_list", unsafe {
            weft_write_list(sender.raw, first, count, ptr::null(), ptr::null_mut())
        })?;
        while sender.count(WEFT_COMPLETION_WRITE, 0)? == 0 {
            receivers.iter().try_for_each(|receiver| receiver.count(WEFT_COMPLETION_MESSAGE, 0).map(drop))?;
        }
        Ok(())
    };
    write()?;
    let begun = Instant::now();
    for _ in 0..lists {
        write()?;
    }
    Ok((lists * ENTRIES) as f64 / begun.elapsed().as_secs_f64())
}
