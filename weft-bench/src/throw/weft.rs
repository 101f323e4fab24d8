//! Weft, through its C interface, with manual progress.

use super::hands::{Hand, Words};
use crate::engines::check;
use crate::host::side::{manual, Offer, Side};
use ::weft::capi::completion::*;
use ::weft::capi::memory::*;
use ::weft::capi::transfer::*;
use anyhow::{Context, Result};
use serde_json::Value;
use std::mem::{size_of, zeroed};
use std::ptr;

pub struct Weft {
    side: Side,
    words: Words,
    remote: *mut weft_remote_memory,
}

impl Weft {
    pub fn open() -> Result<Weft> {
        let words = Words::new()?;
        let side = Side::over(manual(c"tcp", c"lo".as_ptr())?, words.pool().clone())?;
        Ok(Weft { side, words, remote: ptr::null_mut() })
    }
}

impl Hand for Weft {
    fn name(&self) -> String {
        "weft".to_owned()
    }

    fn promises(&self) -> bool {
        true
    }

    fn offer(&self) -> Result<Value> {
        Ok(serde_json::to_value(self.side.offer()?)?)
    }

    fn join(&mut self, offer: &Value, first: bool) -> Result<()> {
        let offer: Offer = serde_json::from_value(offer.clone()).context("the other side's offer")?;
        self.remote = match first {
            true => self.side.connect(&offer)?,
            false => {
                let peer = self.side.wait(WEFT_COMPLETION_PEER_UP, 1)?.peer;
                self.side.import(peer, &offer)?
            }
        };
        Ok(())
    }

    #[inline]
    fn throw(&mut self, number: u64) -> Result<()> {
        self.words.set(number);
        // SAFETY: arguments of zeros mean defaults; they name what is open.
        check("weft_write", unsafe {
            let mut args: weft_range_args = zeroed();
            args.size = size_of::<weft_range_args>() as u32;
            (args.local, args.remote, args.len) = (self.side.memory, self.remote, size_of::<u64>() as u64);
            args.local_offset = Words::going() as u64;
            weft_write(self.side.endpoint, &args, ptr::null_mut())
        })
    }

    #[inline]
    fn look(&mut self) -> Result<u64> {
        self.side.poll(|one| check("a completion", one.status))?;
        Ok(self.words.came())
    }
}
