//! Memory passed to the target, which then copies by itself. Device memory is copied directly
//! between devices where one reaches the memory that the other's process passed; else through the
//! channel, to and from which devices copy without the worker.

use super::{Flight, Outgoing, Probe, PROBES, PULL};
use crate::device::Device;
use crate::fabric::host::area::Shared;
use crate::fabric::host::channel::{self, Block};
use crate::fabric::host::parts::Passed;
use crate::fabric::host::request::Kind;
use crate::fabric::host::socket::{self, Received};
use crate::fabric::host::user;
use crate::fabric::{Reaped, Rma, Scratch, Segment};
use std::os::fd::AsFd;

impl Outgoing {
    /// Takes what the target passes, and reads its other messages; false when the peer is gone.
    pub(super) fn listen_to(&mut self, words: u32) -> bool {
        for _ in 0..words {
            let Some(socket) = self.socket() else { break };
            match socket::receive(socket) {
                Received::Control(socket::Control::Wake) => {}
                Received::Control(socket::Control::Part(number, len, file)) => {
                    if !self.pulls.add_part(number, len, file) {
                        return false;
                    }
                }
                Received::Control(socket::Control::Device(number, handle))
                    if user::may_pass(socket, &handle) =>
                {
                    self.pulls.passed(number, handle)
                }
                Received::Control(socket::Control::Forget(gone)) => self.pulls.forget(gone),
                Received::Nothing => return true,
                _ => return false,
            }
        }
        true
    }

    /// Passes an area to the target; false if the socket is full.
    #[inline]
    pub(super) fn pass(&mut self, area: &Shared) -> bool {
        if self.passed.get(area.place) == Some(&area.number) {
            return true;
        }
        if self.beside {
            return false; // Disks reach no other process's memory.
        }
        let Some(socket) = self.socket.as_ref().map(AsFd::as_fd) else { return false };
        // The target has space for a limited number of areas.
        if !self.forgotten.send(socket) {
            return false;
        }
        let passed = match (area.handle(), area.file()) {
            (Some(handle), _) => self.passing.pass(socket, (area.number, 0), handle) == Passed::All,
            (_, Some((file, len))) => socket::pass_area(socket, area.number, len, file),
            _ => false,
        };
        if !passed {
            return false;
        }
        self.passed.resize(self.passed.len().max(area.place + 1), 0);
        self.passed[area.place] = area.number;
        true
    }

    /// Drops an area: the target need not keep it mapped.
    pub fn forget(&mut self, area: &Shared) {
        let begun = !self.passing.forget(|(number, _)| number == area.number).is_empty();
        match self.passed.get_mut(area.place).filter(|number| **number == area.number) {
            Some(passed) => *passed = 0,
            None if begun => {}
            None => return,
        }
        for probe in self.probes.iter_mut().filter(|probe| probe.number == area.number) {
            // The number is never reused; the index stays, so that other numbers keep theirs.
            probe.number = 0;
        }
        if let Some(socket) = &self.socket {
            self.forgotten.add(socket.as_fd(), area.number);
        }
    }

    /// Sends what a full socket did not take from `forget`.
    pub fn send_forgotten(&mut self) {
        if let Some(socket) = &self.socket {
            _ = self.forgotten.send(socket.as_fd());
        }
    }

    /// Moves device memory directly between devices, where one reaches the memory that the other's
    /// process passed.
    pub(super) fn rma_of_device(
        &mut self,
        rma: &Rma<'_>,
        area: Option<&Shared>,
        device: Device,
        scratch: *mut Scratch,
    ) {
        let kind = if rma.read { Kind::Read } else { Kind::Write };
        let remote = rma.segments.first().map_or(0, |segment| segment.remote);
        let shared = area.filter(|area| !self.beside && self.reaches_device(rma.read, area, remote, rma.key));
        let shown = match shared {
            Some(_) if rma.read => self.pulls.find(device, rma.key).ok().flatten().map(|n| (n, 0)),
            Some(area) => self.pass(area).then_some((area.number, area.base())),
            None => None,
        };
        let op = self.push(kind, rma.key, shown.unwrap_or((0, 0)), rma.segments, scratch);
        (op.immediate, op.on_device) = (rma.immediate, shown.is_some());
        op.through = shown.is_none().then_some(device);
        op.whole = shown.is_none();
    }

    /// Whether the target can copy from our device memory to a key's memory, or our device in the
    /// other direction. On first use, an empty request asks the target.
    fn reaches_device(&mut self, read: bool, area: &Shared, remote: u64, key: u64) -> bool {
        if read {
            let Some(device) = area.handle().map(|handle| handle.device) else { return false };
            return self
                .pulls
                .find(device, key)
                .unwrap_or_else(|()| {
                    self.ask_to_pull(device, remote, key);
                    None
                })
                .is_some();
        }
        let is_it = |probe: &Probe| probe.number == area.number && probe.key == key;
        if !self.probes.get(self.last_probe).is_some_and(is_it) {
            let Some(at) = self.probes.iter().position(is_it) else {
                self.probe(area, remote, key);
                return false;
            };
            self.last_probe = at;
        }
        self.probes[self.last_probe].reaches == Some(true)
    }

    /// Has the target open device memory of ours, and opens the target's.
    pub fn reach(&mut self, areas: &[&Shared], remotes: &[(u64, u64)]) {
        for area in areas {
            if let Some((remote, key)) = remotes.first() {
                self.reaches_device(false, area, *remote, *key);
            }
            for (remote, key) in remotes {
                self.reaches_device(true, area, *remote, *key);
            }
        }
    }

    #[cold]
    fn ask_to_pull(&mut self, device: Device, remote: u64, key: u64) {
        if self.dead.is_some() || self.socket.is_none() {
            return;
        }
        let number = self.pulls.ask(device, key);
        let segment = Segment { local: 0, remote, len: 0 };
        let op = self.push(Kind::Read, key, (number, 0), &[segment], std::ptr::null_mut());
        (op.probe, op.on_device) = (Some(PULL), true);
    }

    fn probe(&mut self, area: &Shared, remote: u64, key: u64) {
        if self.dead.is_some() || !self.pass(area) {
            return;
        }
        let new = Probe { number: area.number, key, reaches: None };
        let probe = if self.probes.len() < PROBES { self.probes.len() } else { self.next_probe };
        match self.probes.get_mut(probe) {
            None => self.probes.push(new),
            Some(known) if known.reaches.is_some() => *known = new,
            Some(_) => return, // The answer has not arrived yet.
        }
        self.next_probe = (probe + 1) % PROBES;
        let segment = Segment { local: area.base(), remote, len: 0 };
        let target = (area.number, area.base());
        self.push(Kind::Write, key, target, &[segment], std::ptr::null_mut()).probe = Some(probe);
    }

    /// Publishes requests whose bytes devices have copied.
    #[cold]
    pub(super) fn publish_held(&mut self) {
        self.held.pump();
        while let Some(((index, mut request), errno)) = self.held.take() {
            if errno != 0 {
                // The target refuses the request, and so the operation fails.
                self.ops[index as usize].errno = errno;
                (request.key, request.immediate) = (0, None);
            }
            request.publish(self.channel.cell(self.sent), channel::stamp(self.sent));
            self.sent += 1;
            self.wake_due = true;
        }
    }

    /// A device copies a read's bytes out of the channel, or the bytes follow such a copy.
    #[cold]
    pub(super) fn land(&mut self, flight: Flight, block: Block) {
        let op = &mut self.ops[flight.op as usize];
        let mut from = self.channel.back(&block) as u64;
        let mut copied = false;
        match op.through.filter(|_| op.goes_on() && flight.len > 0) {
            Some(device) => {
                let pinned = self.channel.pin(device).and_then(|()| self.landing.choose(device));
                op.errno = pinned.map_or_else(
                    |errno| errno,
                    |()| {
                        op.arrive(flight.len, |Segment { local, len, .. }| {
                            // SAFETY: the block holds as many bytes; the operation's memory is
                            // valid until it is done, or `disown` waits for the copy.
                            unsafe { self.landing.add(from, local, len) };
                            from += len;
                            copied = true;
                            Ok(())
                        })
                    },
                );
            }
            None if op.goes_on() && op.through.is_none() => {
                // SAFETY: the operation's memory is valid until it is reaped, and `from` has the flight's bytes.
                unsafe { op.scatter(flight.len, from as *const u8, flight.stream) };
            }
            None => {}
        }
        self.back = block.end;
        self.landing.push((flight.op, block.end), copied);
    }

    /// The target allows a read, which our device copies.
    pub(super) fn pull(&mut self, flight: Flight, errno: i32) {
        let op = &mut self.ops[flight.op as usize];
        if op.errno == 0 {
            op.errno = errno;
        }
        let mut copied = false;
        if op.goes_on() && flight.len > 0 {
            let place = self.pulls.place_of(op.area);
            op.errno = op.arrive(flight.len, |part| {
                // SAFETY: the operation's memory is valid until it is done.
                unsafe { self.pulls.copy(place, (part.local, part.remote, part.len)) }
                    .inspect(|()| copied = true)
            });
        }
        self.pulls.push(flight.op, copied);
    }

    /// Finishes operations whose bytes our devices have copied.
    #[cold]
    pub(super) fn take_copied(&mut self, reaped: &mut Vec<Reaped>) {
        loop {
            let landed = self.landing.take().map(|((index, end), errno)| {
                self.landed = end;
                (index, errno)
            });
            let Some((index, errno)) = landed.or_else(|| self.pulls.take()) else { break };
            let op = &mut self.ops[index as usize];
            if op.errno == 0 {
                op.errno = errno;
            }
            op.open -= 1;
            if op.open == 0 && op.all_asked {
                self.finish(index, reaped);
            }
        }
        self.pulls.pump();
        self.landing.pump();
        self.give_back();
    }

    /// The memory of these operations must not be touched from here on.
    pub fn disown(&mut self, scratches: &[*mut Scratch]) {
        let mut on_device = false;
        for op in &mut self.ops {
            op.disowned |= !op.scratch.is_null() && scratches.contains(&op.scratch);
            on_device |= op.disowned && (op.on_device || op.through.is_some());
        }
        if on_device {
            self.settle_devices();
        }
    }

    /// Waits until no device of ours touches memory for this route.
    pub fn settle_devices(&mut self) {
        self.pulls.settle();
        self.held.settle();
        self.landing.settle();
    }
}
