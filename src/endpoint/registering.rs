//! Registering and deregistering, in steps: a memory has up to 65,536 ranges, each registered with
//! every rail, while other operations proceed and their deadlines pass.

use super::chores::{Back, Chore, Chores, RailRegistrations, Registered, Registering, Reply, Wanted};
use super::core::Core;
use super::lanes::Rails;
use crate::fabric::{Access, Registration};
use crate::ids::RailIndex;
use crate::logging::seldom::warn_seldom;
use crate::memory::Memory;
use crate::peer::Replacing;
use crate::status::Result;
use std::sync::Arc;

/// A pass registers for at most this long, or for a fourth of the time since the last pass that did:
/// where passes take long, or a caller makes them seldom, a revoke waits for many of them. The clock
/// is read after every `LOOK` pieces, and `MOST` limits the pass where time stands still.
const STEP_NS: u64 = 1_000_000;
const STEP_MOST_NS: u64 = 25_000_000;
const LOOK: usize = 8;
const MOST: usize = 1024;

/// glibc keeps the small blocks that a provider frees, and merges all of them at once for the next
/// large request: 10 ms for 65,536 registrations (measured). So they are merged step by step.
fn tidy() {
    const LARGE: usize = 70_000;
    drop(std::hint::black_box(Vec::<u8>::with_capacity(LARGE)));
}

impl Chores {
    pub(super) fn register(&mut self, rails: &Rails, wanted: Wanted, reply: Registered) {
        let (done, all) = (Vec::with_capacity(wanted.ranges.len()), Vec::new());
        let of = Registering { wanted, reply, at: rails.each().next(), done, all, back: Back::Nothing };
        self.queue.push_back(Chore::Register(of));
    }

    pub(super) fn deregister(&mut self, memory: Arc<Memory>, reply: Reply<Result<()>>) {
        self.queue.push_back(Chore::Deregister { memory, reply });
    }

    /// Continues callers' work for a moment; true if there was any.
    pub(super) fn go_on(&mut self, core: &Core, rails: &mut Rails, now: u64) -> bool {
        let Some(mut chore) = self.queue.pop_front() else { return false };
        let since = self.last_ns.replace(now).map_or(0, |last| now.saturating_sub(last));
        let step_ns = (since / 4).clamp(STEP_NS, STEP_MOST_NS);
        let began = core.clock.now();
        for i in 1..=MOST {
            let over = match &mut chore {
                Chore::Register(of) => of.next(rails).map(|outcome| match &of.reply {
                    Registered::Caller(reply) => reply.put(outcome),
                    Registered::Keys(of) => core.registered_anew(of, outcome),
                }),
                Chore::Deregister { memory, reply } => {
                    deregister_next(memory, rails).map(|outcome| reply.put(outcome))
                }
                Chore::CloseKeys(of) => close_key(&of.memory, rails).map(|outcome| match outcome {
                    Ok(()) => core.closed_by_one(of, now),
                    // The provider still uses the registration: try again in the next tick.
                    Err(error) => {
                        warn_seldom!(
                            "memory {:#x}: a NIC still uses a replaced key, for whose closing a revoke or the end of \
                             a peer waits: {error}",
                            of.memory.id
                        );
                        self.unclosed.push(of.clone());
                    }
                }),
            };
            if over.is_some() {
                self.last_ns.take_if(|_| self.queue.is_empty());
                return true;
            }
            if i % LOOK == 0 && core.clock.now().saturating_sub(began) > step_ns {
                break;
            }
        }
        tidy();
        self.queue.push_back(chore);
        true
    }

    pub(super) fn close_keys(&mut self, of: Arc<Replacing>) {
        self.queue.push_back(Chore::CloseKeys(of));
    }

    /// Keys that could not be closed are tried again.
    pub(super) fn close_again(&mut self) {
        self.queue.extend(self.unclosed.drain(..).map(Chore::CloseKeys));
    }
}

impl Registering {
    /// Registers one range with one rail, or deregisters it; returns the result at the end.
    fn next(&mut self, rails: &mut Rails) -> Option<Result<RailRegistrations>> {
        let Registering { wanted, at, done, all, back, .. } = self;
        if !matches!(back, Back::Nothing) {
            if let (Some(at), Some(registration)) = (*at, done.pop()) {
                take_back(rails, at, registration);
                return None;
            }
        }
        match std::mem::replace(back, Back::Nothing) {
            Back::Nothing => {}
            Back::Rail => {
                *at = rails.after(*at);
                return None;
            }
            Back::All(error) => {
                let Some((rail, registrations)) = all.pop() else { return Some(Err(error)) };
                (*at, *done, *back) = (Some(rail), registrations, Back::All(error));
                return None;
            }
        }
        let Some(index) = *at else {
            return Some(Ok(all.drain(..).map(|(rail, known)| (rail, known.into())).collect()));
        };
        let rail = &mut rails[index].rail;
        let skipped = wanted.rails != 0 && !index.is_in(wanted.rails);
        let Some(range) = wanted.ranges.get(done.len()).filter(|_| !skipped) else {
            let next = Vec::with_capacity(wanted.ranges.len());
            all.extend((!skipped).then(|| (index, std::mem::replace(done, next))));
            *at = rails.after(*at);
            return None;
        };
        // Peers reach it by a separate registration (`endpoint::keys`).
        let apart = wanted.access.granted_only && !rail.limits().grants;
        let own = Access { remote_write: false, remote_read: false, ..wanted.access };
        let access = if apart { own } else { wanted.access };
        let learnt = match wanted.device {
            None => rail.register(*range, access).map(Some),
            Some(device) => rail.register_device(*range, access, device),
        };
        match learnt {
            Ok(Some(registration)) => done.push(registration),
            Ok(None) => *back = Back::Rail,
            Err(error) => *back = Back::All(error),
        }
        None
    }
}

fn take_back(rails: &mut Rails, at: RailIndex, registration: Registration) {
    let rail = &mut rails[at].rail;
    if let Err(error) = rail.deregister(registration) {
        log::warn!("rail {}: memory that could not be registered is still known to it: {error}", rail.index);
    }
}

/// Closes one registration; returns the result at the end, or at the first that cannot be closed.
fn deregister_next(memory: &Memory, rails: &mut Rails) -> Option<Result<()>> {
    match close_key(memory, rails) {
        Some(Ok(())) => {}
        other => return other,
    }
    let known = |rail: RailIndex| memory.last_open(rail).copied();
    let next = rails.iter_mut().find_map(|work| Some((known(work.rail.index)?, work)));
    let Some((registration, work)) = next else { return Some(Ok(())) };
    match work.rail.deregister(registration) {
        Ok(()) => {
            memory.closed(work.rail.index);
            None
        }
        Err(error) => Some(Err(error)),
    }
}

/// Closes one replaced registration for peers; returns the result at the end.
fn close_key(memory: &Memory, rails: &mut Rails) -> Option<Result<()>> {
    let known = |rail: RailIndex| memory.exports.lock().next_old(rail);
    let next = rails.iter_mut().find_map(|work| Some((known(work.rail.index)?, work)));
    let Some((registration, work)) = next else { return Some(Ok(())) };
    match work.rail.deregister(registration) {
        Ok(()) => {
            memory.exports.lock().forget(work.rail.index, &registration);
            None
        }
        Err(error) => Some(Err(error)),
    }
}
