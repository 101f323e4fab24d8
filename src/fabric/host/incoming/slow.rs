//! Requests for devices and disks, once these have copied. Disks may take long, or hang: bytes wait in slots of the NIC's
//! pool, which outlive the channel, and are answered in order like all others: initiators have a channel of its own for
//! them.

use super::{Blocked, Incoming, Outcome, Serving};
use super::{Done, Later, Refused, Senseless, Slow};
use crate::device::Device;
use crate::fabric::grants::Use;
use crate::fabric::host::channel::Channel;
use crate::fabric::host::copy;
use crate::fabric::host::device::Slot;
use crate::fabric::host::request::Request;
use crate::fabric::host::socket;
use crate::fabric::own::pool::{Pool, Purpose};
use crate::fabric::{Connection, GONE, ON_DISK};
use crate::wire::tcp::RUN;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

impl Incoming {
    /// The end of the channel that the peer has passed beside this one, if it may.
    pub fn make_beside(&mut self, number: Connection) -> Option<Incoming> {
        let file = self.passed.take().filter(|_| !self.beside)?;
        let socket = socket::duplicate(self.socket.as_fd())?;
        let channel = Channel::attach(file.as_fd()).inspect_err(|error| log::warn!("{error}")).ok()?;
        channel.longest().store(RUN, Ordering::Release);
        let mut other = Incoming::new(socket, number, channel);
        (other.beside, other.peer) = (true, self.peer);
        Some(other)
    }

    /// Has a disk read or write the bytes of a request. `run`: those of a write.
    #[cold]
    pub(super) fn serve_slow(
        &mut self,
        request: &Request,
        run: Option<*const u8>,
        device: Device,
        entered: Option<Use>,
        places: impl Iterator<Item = (u64, u64)>,
        pool: &mut Pool,
    ) -> Outcome {
        if request.area != 0 {
            return Refused(libc::EACCES); // Disks reach no other process's memory.
        }
        let (filled, len, key) = (run.is_none(), request.len, Some(request.key));
        let purpose = Purpose { out: filled, connection: self.number, device, key, peer: self.peer };
        let number = match pool.take(purpose) {
            Ok(Some(number)) => number,
            Ok(None) => return Later(Blocked::Disk),
            Err(errno) => return Refused(self.known(errno)),
        };
        if let Some(run) = run {
            // SAFETY: `run` has the request's bytes, which fit a slot.
            unsafe { copy::copy(pool.base(number) as *mut u8, run, len as usize, true) };
            copy::settle(true);
        }
        // SAFETY: the places are registered, and a registration waits for the pool's copies before it ends; they are as long
        // as the request, which fits the slot.
        match unsafe { pool.copy(number, places, entered) } {
            Ok(()) => Slow(Slot { number, filled, len }),
            Err(errno) => Refused(errno),
        }
    }

    /// Counts requests that devices have finished; false if the peer violates the protocol.
    ///
    /// The initiator gives a failed read no place, and so takes the bytes of later ones from its place: those that are
    /// elsewhere already fail, too, and then its place is used again.
    #[cold]
    pub(super) fn settle(&mut self, with: &mut Serving) -> bool {
        loop {
            let of_slot = match self.devices.next_slot().map_or(Done, |slot| self.settle_slot(slot, with)) {
                Later(blocked) => {
                    self.unsettled = blocked;
                    break;
                }
                Refused(errno) => errno,
                Senseless => return false,
                _ => 0,
            };
            self.unsettled = Blocked::No;
            let Some((errno, placed)) = self.devices.take(of_slot, with.reaped) else { break };
            let misplaced = placed.and(self.rewind).map_or(0, |_| libc::EIO);
            self.rewind = self.rewind.or(placed.filter(|_| errno != 0));
            self.count(if errno == 0 { misplaced } else { errno });
            self.back = self.rewind.take_if(|_| !self.devices.has_placed()).unwrap_or(self.back);
        }
        self.devices.pump();
        true
    }

    /// A disk has copied a slot, or not yet: the bytes of a read go into the channel.
    fn settle_slot(&mut self, slot: Slot, with: &mut Serving) -> Outcome {
        match with.pool.poll(slot.number) {
            Ok(false) => return Later(Blocked::Disk),
            Ok(true) => {}
            Err(errno) => return Refused(self.known(errno)),
        }
        if slot.filled && self.ended {
            with.pool.give_back(slot.number);
            return Refused(libc::ENOTCONN); // The initiator no longer frees space.
        }
        if slot.filled {
            if with.budget == 0 {
                return Later(Blocked::No);
            }
            let place = match self.room_for(slot.len) {
                Ok(place) => place,
                Err(outcome) => return outcome,
            };
            let (to, from) = (self.channel.back(&place), with.pool.base(slot.number) as *const u8);
            // SAFETY: the slot has the bytes, and the block has space for them.
            unsafe { copy::copy(to, from, slot.len as usize, true) };
            copy::settle(true);
            self.back = place.end;
            with.budget = with.budget.saturating_sub(slot.len);
        }
        with.pool.give_back(slot.number);
        Done
    }

    /// An error number for the peer: only one that has a channel for disks knows theirs.
    fn known(&self, errno: i32) -> i32 {
        if errno > ON_DISK && !self.beside {
            GONE
        } else {
            errno
        }
    }
}
