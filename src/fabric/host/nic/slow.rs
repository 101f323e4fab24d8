//! Routes, and operations of disks, of peers and our own.

use super::{line, HostNic, Line, RouteSlot, LOOK, PASS, PIECES};
use crate::device::is_slow;
use crate::fabric::host::area::device_of;
use crate::fabric::host::watch::Whose;
use crate::fabric::{Connection, Posted, Reaped, Rma, Route, Scratch};

/// A disk waits at most this many passes until it is looked at.
const PACE: u64 = 8;

impl HostNic {
    /// Adds a route.
    pub(super) fn place(&mut self, line: Line) -> Route {
        let at = self.vacancy();
        let place = &mut self.places[at];
        place.route = Some(Box::new(line));
        (place.generation as u64) << 32 | at as u64
    }

    pub(super) fn vacancy(&mut self) -> usize {
        self.places.iter().position(|place| place.route.is_none()).unwrap_or_else(|| {
            self.places.push(RouteSlot { generation: 0, route: None });
            self.places.len() - 1
        })
    }

    /// The route for operations of disks over a route: the one beside it, or, if the peer does not know of such (`knows`), it
    /// itself. `Ok(None)`: not yet.
    fn for_disks(&mut self, route: Route, knows: bool) -> Result<Option<Route>, i32> {
        let Some(one) = line(&mut self.places, route) else { return Err(libc::ENOTCONN) };
        if let Some(errno) = one.outgoing.dead() {
            return Err(errno);
        }
        if !knows || one.disks.is_some() {
            return Ok(Some(one.disks.filter(|_| knows).unwrap_or(route)));
        }
        let (name, peer, process, ending) = (one.name.clone(), one.peer, None, None);
        let outgoing = match one.outgoing.make_beside() {
            Ok(Some(outgoing)) => outgoing,
            Ok(None) => return Ok(None),
            Err(error) => {
                log::debug!("no channel for disks: {error}");
                return Ok(Some(route));
            }
        };
        let disks = self.place(Line { outgoing, name, process, peer, ending, disks: None });
        if let Some(one) = line(&mut self.places, route) {
            one.disks = Some(disks);
        }
        Ok(Some(disks))
    }

    #[cold]
    pub(super) fn post_slow(
        &mut self,
        rma: &Rma<'_>,
        route: Route,
        scratches: &[*mut Scratch],
        knows: bool,
    ) -> (usize, Posted) {
        let route = match self.for_disks(route, knows) {
            Ok(Some(route)) => route,
            Ok(None) => return (0, Posted::Again),
            Err(errno) => return (0, Posted::Failed(errno)),
        };
        let Some(one) = line(&mut self.places, route) else { return (0, Posted::Failed(libc::ENOTCONN)) };
        let segments = rma.segments.len() / scratches.len().max(1);
        match one.outgoing.dead() {
            Some(errno) => return (0, Posted::Failed(errno)),
            None if !(1..=PIECES).contains(&segments) => return (0, Posted::Failed(libc::EINVAL)),
            None => {}
        }
        let area = self.areas.get(rma.descriptor as u64);
        let own = device_of(rma.descriptor as u64, area).filter(|device| is_slow(*device));
        for (segments, scratch) in rma.segments.chunks_exact(segments).zip(scratches) {
            let rma = Rma { segments, ..*rma };
            match own {
                Some(device) => {
                    let connection = Connection::MAX - route as u32;
                    self.errands.begin(&rma, (route, connection, one.peer), device, *scratch);
                }
                None => one.outgoing.rma_whole(&rma, area, *scratch),
            }
        }
        one.outgoing.pump(&mut { PASS }, &mut self.finished);
        one.outgoing.wake_peer();
        if own.is_some() {
            let mut finished = std::mem::take(&mut self.finished);
            self.go_on_errands(&mut finished);
            self.finished.append(&mut finished);
        }
        (scratches.len(), Posted::Yes)
    }

    /// Goes on with operations of our own disks.
    #[cold]
    pub(super) fn go_on_errands(&mut self, reaped: &mut Vec<Reaped>) {
        let mut errands = std::mem::take(&mut self.errands);
        errands.go_on(&mut self.pool, reaped, |rma, route, scratch| {
            let one = line(&mut self.places, route).ok_or(libc::ENOTCONN)?;
            if let Some(errno) = one.outgoing.dead() {
                return Err(errno);
            }
            one.outgoing.rma_whole(rma, None, scratch);
            one.outgoing.pump(&mut { PASS }, &mut self.finished);
            one.outgoing.wake_peer();
            Ok(())
        });
        self.errands = errands;
    }

    /// Disks have copied, or slots are free.
    #[cold]
    pub(super) fn look_at_slots(&mut self) {
        self.passes += LOOK / PACE;
        self.pool.watch(|disk| self.watch.add(disk, Whose::Disk).is_ok());
        let heard = std::mem::take(&mut self.heard);
        if heard || self.pool.is_busy() {
            self.pool.go_on(heard);
        }
    }

    /// Drops the routes that are no longer used. One with a route for disks beside it goes after that.
    #[cold]
    pub(super) fn drop_removed(&mut self) {
        for at in 0..self.places.len() {
            let RouteSlot { generation, route: Some(one) } = &self.places[at] else { continue };
            let route = u64::from(*generation) << 32 | at as u64;
            let is_used = !one.outgoing.removed || !one.outgoing.is_idle() || self.errands.are_over(route);
            let disks = one.disks;
            if is_used || disks.is_some_and(|disks| line(&mut self.places, disks).is_some()) {
                continue;
            }
            let place = &mut self.places[at];
            place.generation = place.generation.wrapping_add(1);
            if let Some(mut one) = place.route.take() {
                Self::unwatch_line(&self.watch, &mut one);
            }
        }
    }
}
