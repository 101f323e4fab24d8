//! Lists of small entries to many peers.

use super::ends::Side;
use crate::engines::weft::check;
use crate::memory::untouched;
use ::weft::capi::completion::*;
use ::weft::capi::endpoint::*;
use ::weft::capi::list::*;
use anyhow::Result;
use std::mem::{size_of, zeroed};
use std::ptr;
use std::time::Instant;

const FABRIC: &str = "sim:like=efa:nocopy:rails=4";
const PEERS: usize = 16;
const LEN: usize = 64;
/// Entries of a list, by turns to each peer.
const ENTRIES: usize = 16_000;

/// Entries a second, of lists one after the other, by a sender with a worker.
pub fn entries_per_s(lists: usize) -> Result<f64> {
    let sender = Side::open(FABRIC, 1, WEFT_IDLE_SPIN)?;
    let len = LEN * ENTRIES;
    let local = sender.register(untouched(len)?, len)?;
    let mut receivers = Vec::new();
    let mut remotes = Vec::new();
    for _ in 0..PEERS {
        let receiver = Side::open(FABRIC, 0, WEFT_IDLE_SPIN)?;
        let given = receiver.register(untouched(len)?, len)?;
        let peer = sender.connect(&receiver)?;
        while sender.poll(WEFT_COMPLETION_PEER_UP, 0)? == 0 {
            receiver.poll(WEFT_COMPLETION_MESSAGE, 0)?;
        }
        remotes.push(sender.import(peer, given)?);
        receivers.push(receiver);
    }
    let entry = |i: usize| {
        let offset = (i * LEN) as u64;
        let (remote, len) = (remotes[i % PEERS].cast_const(), LEN as u64);
        // SAFETY: integers and pointers.
        let entry: weft_list_entry = unsafe { zeroed() };
        weft_list_entry { local, remote, local_offset: offset, remote_offset: offset, len, ..entry }
    };
    let entries: Vec<weft_list_entry> = (0..ENTRIES).map(entry).collect();
    let write = || -> Result<()> {
        // SAFETY: arguments of zeros mean defaults; the entries outlive the call.
        unsafe {
            let mut args: weft_list_args = zeroed();
            args.size = size_of::<weft_list_args>() as u32;
            (args.entries, args.count) = (entries.as_ptr(), entries.len() as u64);
            check("weft_write_list", weft_write_list(sender.endpoint, &args, ptr::null_mut()))?;
        }
        while sender.poll(WEFT_COMPLETION_WRITE, 0)? == 0 {
            receivers.iter().try_for_each(|receiver| receiver.poll(WEFT_COMPLETION_MESSAGE, 0).map(drop))?;
        }
        Ok(())
    };
    write()?;
    let begun = Instant::now();
    for _ in 0..lists {
        write()?;
    }
    let rate = (lists * ENTRIES) as f64 / begun.elapsed().as_secs_f64();
    sender.close()?;
    receivers.iter().try_for_each(Side::close)?;
    Ok(rate)
}
