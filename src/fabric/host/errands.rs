//! Our own operations between a disk here and memory of a peer. Each goes through slots of the NIC's pool: a channel gets
//! their bytes only when the disk has read them, and gives back a slot before the disk writes it. So no disk here holds up
//! a channel.

use crate::device::Device;
use crate::fabric::own::pool::{Pool, Purpose};
use crate::fabric::segments::{Cursor, Parts};
use crate::fabric::{Connection, Immediate, Reaped, Rma, Route, Scratch, Segment};
use crate::ids::PeerId;
use crate::wire::tcp::RUN;
use std::ptr;

/// An operation.
struct Errand {
    scratch: *mut Scratch,
    route: Route,
    purpose: Purpose,
    read: bool,
    key: u64,
    immediate: Option<Immediate>,
    segments: Vec<Segment>,
    /// The position up to which runs were begun.
    begun: Cursor,
    /// Runs that have begun and not ended.
    open: u32,
    errno: i32,
}

impl Errand {
    /// Whether no other run begins.
    fn has_begun(&self) -> bool {
        self.errno != 0 || self.begun.is_at_end(&self.segments)
    }

    fn is_over(&self) -> bool {
        self.open == 0 && self.has_begun()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The disk fills the slot.
    Filling,
    Posted,
    /// The disk empties the slot.
    Emptying,
}

/// A part of an operation that fits a slot.
struct Run {
    /// What the posted operation has in place of a scratch, which nothing else has.
    token: u64,
    scratch: *mut Scratch,
    slot: u32,
    /// It is the pool's again: the operation has no caller, and only the peer's answer is waited for.
    disowned: bool,
    stage: Stage,
    parts: Vec<Segment>,
    immediate: Option<Immediate>,
}

#[derive(Default)]
pub struct Errands {
    errands: Vec<Errand>,
    runs: Vec<Run>,
    tokens: u64,
    /// Posted runs that were not reaped yet.
    posted: usize,
}

/// No address has this bit.
const TOKEN: u64 = 1 << 63;

impl Errands {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.errands.is_empty() && self.posted == 0
    }

    /// Whether `go_on` ends an operation, whatever else happens.
    pub fn has_work(&self) -> bool {
        self.errands.iter().any(Errand::is_over)
    }

    /// Whether operations over a route have not ended.
    pub fn are_over(&self, route: Route) -> bool {
        self.errands.iter().any(|errand| errand.route == route)
    }

    /// Begins an operation of a disk here.
    pub fn begin(
        &mut self,
        rma: &Rma<'_>,
        whose: (Route, Connection, Option<PeerId>),
        device: Device,
        scratch: *mut Scratch,
    ) {
        let (route, connection, peer) = whose;
        self.errands.push(Errand {
            scratch,
            route,
            purpose: Purpose { out: !rma.read, connection, device, key: None, peer },
            read: rma.read,
            key: rma.key,
            immediate: rma.immediate,
            segments: rma.segments.to_vec(),
            begun: Cursor::default(),
            open: 0,
            errno: 0,
        });
    }

    /// Goes on with all operations. `post`: posts to a route, or says why not.
    pub fn go_on(
        &mut self,
        pool: &mut Pool,
        reaped: &mut Vec<Reaped>,
        mut post: impl FnMut(&Rma<'_>, Route, *mut Scratch) -> Result<(), i32>,
    ) {
        self.take_reaped(pool, reaped);
        for at in (0..self.runs.len()).rev() {
            let run = &self.runs[at];
            if run.stage == Stage::Posted {
                continue;
            }
            match pool.poll(run.slot) {
                Ok(false) => {}
                Ok(true) if run.stage == Stage::Filling => self.post(at, pool, &mut post),
                Ok(true) => {
                    pool.give_back(run.slot);
                    self.end(at, 0);
                }
                Err(errno) => self.end(at, errno),
            }
        }
        for at in 0..self.errands.len() {
            while self.begin_run(at, pool, &mut post) {}
        }
        self.errands.retain(|errand| {
            if errand.is_over() {
                reaped.push(Reaped::new(errand.scratch, errand.errno));
            }
            !errand.is_over()
        });
    }

    /// Begins the next run of an operation; false if there is none, or no slot.
    fn begin_run(
        &mut self,
        at: usize,
        pool: &mut Pool,
        post: &mut impl FnMut(&Rma<'_>, Route, *mut Scratch) -> Result<(), i32>,
    ) -> bool {
        let errand = &mut self.errands[at];
        if errand.has_begun() {
            return false;
        }
        let mut next = Parts::new(&errand.segments, errand.begun, RUN);
        let parts: Vec<Segment> = next.by_ref().collect();
        let after = next.rest().1;
        let is_last = after.is_at_end(&errand.segments);
        // What is counted comes after all other bytes.
        let immediate = errand.immediate.filter(|_| is_last);
        if immediate.is_some() && errand.open > 0 {
            return false;
        }
        let slot = match pool.take(errand.purpose) {
            Ok(Some(slot)) => slot,
            Ok(None) => return false,
            Err(errno) => {
                errand.errno = errno;
                return false;
            }
        };
        self.tokens += 1;
        (errand.begun, errand.open) = (after, errand.open + 1);
        let (token, scratch) = (TOKEN | self.tokens, errand.scratch);
        self.runs.push(Run {
            token,
            scratch,
            slot,
            disowned: false,
            stage: Stage::Filling,
            parts,
            immediate,
        });
        let run = self.runs.len() - 1;
        if errand.read {
            self.post(run, pool, post);
        } else {
            self.copy(run, pool);
        }
        true
    }

    /// Has the disk fill or empty a run's slot.
    fn copy(&mut self, at: usize, pool: &mut Pool) {
        let run = &self.runs[at];
        let places = run.parts.iter().map(|part| (part.local, part.len));
        // SAFETY: the operation's memory is registered until it is reaped, or its file waits for the disk; a run fits a slot.
        if let Err(errno) = unsafe { pool.copy(run.slot, places, None) } {
            self.end(at, errno);
        }
    }

    fn post(
        &mut self,
        at: usize,
        pool: &mut Pool,
        post: &mut impl FnMut(&Rma<'_>, Route, *mut Scratch) -> Result<(), i32>,
    ) {
        let run = &mut self.runs[at];
        let Some(errand) = self.errands.iter().find(|errand| errand.scratch == run.scratch) else { return };
        let mut local = pool.base(run.slot);
        let segments: Vec<Segment> = run
            .parts
            .iter()
            .map(|part| {
                local += part.len;
                Segment { local: local - part.len, ..*part }
            })
            .collect();
        let (read, key, immediate, descriptor) = (errand.read, errand.key, run.immediate, ptr::null_mut());
        let rma = Rma { read, segments: &segments, descriptor, key, immediate, more: false };
        run.stage = Stage::Posted;
        match post(&rma, errand.route, ptr::without_provenance_mut(run.token as usize)) {
            Ok(()) => self.posted += 1,
            Err(errno) => {
                pool.give_back(run.slot);
                self.end(at, errno);
            }
        }
    }

    /// A run has ended, and its slot is the pool's.
    fn end(&mut self, at: usize, errno: i32) {
        let run = self.runs.swap_remove(at);
        if let Some(errand) = self.errands.iter_mut().find(|errand| errand.scratch == run.scratch) {
            errand.open -= 1;
            if errand.errno == 0 {
                errand.errno = errno;
            }
        }
    }

    /// Takes the posted runs out of what was reaped.
    fn take_reaped(&mut self, pool: &mut Pool, reaped: &mut Vec<Reaped>) {
        let mut over = Vec::new();
        reaped.retain(|one| {
            let token = one.scratch as u64;
            let is_run = token & TOKEN != 0;
            over.extend(is_run.then_some((token, one.errno)));
            !is_run
        });
        self.posted -= over.len();
        for (token, errno) in over {
            // Others have no caller any longer.
            let Some(at) = self.runs.iter().position(|run| run.token == token) else { continue };
            let run = &mut self.runs[at];
            if run.disowned {
                self.end(at, 0);
                continue;
            }
            let read = self.errands.iter().any(|errand| errand.scratch == run.scratch && errand.read);
            if read && errno == 0 {
                run.stage = Stage::Emptying;
                self.copy(at, pool);
            } else {
                pool.give_back(run.slot);
                self.end(at, errno);
            }
        }
    }

    /// These operations have no caller any longer: what a disk does for them is late, and they end when the peer has answered
    /// what was posted, which it may yet do. Returns that; its memory must not be touched from here on.
    pub fn disown(&mut self, scratches: &[*mut Scratch], pool: &mut Pool) -> Vec<*mut Scratch> {
        let mut posted = Vec::new();
        for at in (0..self.runs.len()).rev() {
            let run = &mut self.runs[at];
            if run.disowned || !scratches.contains(&run.scratch) {
                continue;
            }
            pool.give_back(run.slot);
            if run.stage == Stage::Posted {
                run.disowned = true;
                posted.push(ptr::without_provenance_mut(run.token as usize));
            } else {
                self.end(at, 0);
            }
        }
        for errand in self.errands.iter_mut().filter(|errand| scratches.contains(&errand.scratch)) {
            // Nothing is left of it: no error, which would be the lane's.
            errand.segments.clear();
            (errand.begun, errand.errno) = (Cursor::default(), 0);
        }
        posted
    }
}
