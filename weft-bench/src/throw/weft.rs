//! Weft, through its C interface, with manual progress.

use super::hands::{Game, Hand, Words};
use super::messages;
use crate::engines::check;
use crate::host::side::{manual, Offer, Side};
use ::weft::capi::completion::*;
use ::weft::capi::memory::*;
use ::weft::capi::message::*;
use ::weft::capi::peer::*;
use ::weft::capi::transfer::*;
use anyhow::{Context, Result};
use serde_json::Value;
use std::mem::{size_of, zeroed};
use std::ptr;

pub struct Weft {
    game: Game,
    side: Side,
    words: Words,
    peer: weft_peer,
    remote: *mut weft_remote_memory,
    /// The last number of a message or notification.
    came: u64,
}

impl Weft {
    pub fn open(game: Game) -> Result<Weft> {
        let words = Words::new()?;
        let side = Side::over(manual(c"tcp", c"lo".as_ptr())?, words.pool().clone())?;
        Ok(Weft { game, side, words, peer: 0, remote: ptr::null_mut(), came: 0 })
    }

    #[inline]
    fn write(&mut self, number: u64, flags: u32) -> Result<()> {
        self.words.set(number);
        // SAFETY: arguments of zeros mean defaults; they name what is open.
        check("weft_write", unsafe {
            let mut args: weft_range_args = zeroed();
            args.size = size_of::<weft_range_args>() as u32;
            (args.local, args.remote, args.len) = (self.side.memory, self.remote, size_of::<u64>() as u64);
            args.local_offset = Words::going() as u64;
            args.flags = flags;
            if flags & WEFT_NOTIFY != 0 {
                args.notify = number;
            }
            weft_write(self.side.endpoint, &args, ptr::null_mut())
        })
    }

    #[inline]
    fn send(&mut self, number: u64) -> Result<()> {
        let mut message = [0u64; messages::LEN / size_of::<u64>()];
        message[0] = number;
        // SAFETY: as above; the message is copied by the call.
        check("weft_send", unsafe {
            let mut args: weft_send_args = zeroed();
            args.size = size_of::<weft_send_args>() as u32;
            (args.peer, args.data, args.len) = (self.peer, message.as_ptr().cast(), messages::LEN as u64);
            weft_send(self.side.endpoint, &args, ptr::null_mut())
        })
    }
}

impl Hand for Weft {
    fn name(&self) -> String {
        match self.game {
            Game::Words => "weft",
            Game::Messages => "weft_send",
            Game::Notifications => "weft_write of a word, with a notification",
        }
        .to_owned()
    }

    fn promises(&self) -> bool {
        true
    }

    fn offer(&self) -> Result<Value> {
        Ok(serde_json::to_value(self.side.offer()?)?)
    }

    fn join(&mut self, offer: &Value, first: bool) -> Result<()> {
        let offer: Offer = serde_json::from_value(offer.clone()).context("the other side's offer")?;
        self.peer = match first {
            true => self.side.connect(&offer)?,
            false => self.side.wait(WEFT_COMPLETION_PEER_UP, 1)?.peer,
        };
        self.remote = self.side.import(self.peer, &offer)?;
        Ok(())
    }

    #[inline]
    fn throw(&mut self, number: u64) -> Result<()> {
        match self.game {
            Game::Words => self.write(number, 0),
            Game::Notifications => self.write(number, WEFT_NOTIFY),
            Game::Messages => self.send(number),
        }
    }

    #[inline]
    fn look(&mut self) -> Result<u64> {
        let (endpoint, came) = (self.side.endpoint, &mut self.came);
        self.side.poll(|one| {
            match one.kind {
                WEFT_COMPLETION_NOTIFICATION => *came = one.value,
                WEFT_COMPLETION_MESSAGE => {
                    // SAFETY: a message of ours begins with its number, and is valid until released.
                    *came = unsafe { one.data.cast::<u64>().read_unaligned() };
                    // SAFETY: the id of a message that was polled.
                    let released = unsafe { weft_message_release(endpoint, one.transfer) };
                    check("weft_message_release", released)?;
                }
                _ => {}
            }
            check("a completion", one.status)
        })?;
        Ok(if self.game == Game::Words { self.words.came() } else { self.came })
    }
}
