//! A second channel to a NIC, for what its disks read and write: requests of a channel are answered in order, so a slow disk
//! would hold up memory and messages. Both have the same socket.

use super::Outgoing;
use crate::fabric::host::area::Shared;
use crate::fabric::host::request::BYTES;
use crate::fabric::host::socket;
use crate::fabric::{Rma, Scratch};
use crate::status::{Error, Result};
use crate::wire::tcp::RUN;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

impl Outgoing {
    /// A channel for disks beside this one; `None`: the socket cannot take it now.
    pub fn make_beside(&self) -> Result<Option<Outgoing>> {
        let Some(socket) = self.socket() else { return Ok(None) };
        let mut other = Outgoing::new()?;
        let second = socket::duplicate(socket).ok_or_else(|| Error::system("a channel for disks"))?;
        // What has a socket shuts it at its end, and with it that of `self`.
        if !other.file.take().is_some_and(|file| socket::pass_channel(socket, file.as_fd())) {
            return Ok(None);
        }
        (other.beside, other.socket) = (true, Some(second));
        Ok(Some(other))
    }

    /// Queues an operation of a disk: its requests are as long as may be.
    pub fn rma_whole(&mut self, rma: &Rma<'_>, area: Option<&Shared>, scratch: *mut Scratch) {
        self.rma(rma, area, scratch);
        let longest = self.channel.longest().load(Ordering::Acquire).clamp(BYTES, RUN);
        if let Some(last) = self.queue.back() {
            let op = &mut self.ops[*last as usize];
            op.whole = true;
            if self.beside {
                op.longest = longest;
            }
        }
    }
}
