//! Registering and deregistering, in steps: a memory has up to 65,536 ranges, each registered with
//! every rail, while other operations proceed and their deadlines pass.

use super::chores::{Chore, Chores, Closable, Closing, Registered, Registering, Reply};
use super::core::Core;
use super::lanes::Rails;
use crate::fabric::{Access, Registration};
use crate::ids::RailIndex;
use crate::logging::seldom::warn_seldom;
use crate::revocation::{Scope, Then};
use crate::status::{Error, Result, Status};
use std::sync::atomic::Ordering;

/// A pass registers for at most this long, or for a fourth of the time since the last pass that did:
/// where passes take long, or a caller makes them seldom, a revoke waits for many of them. The clock
/// is read after every `LOOK` pieces, and `MOST` limits the pass where time stands still.
const STEP_NS: u64 = 1_000_000;
const STEP_MOST_NS: u64 = 25_000_000;
const LOOK: usize = 8;
/// A deregistration waits so long for devices that copy for peers.
const COPIES_NS: u64 = 2_000_000_000;
const MOST: usize = 1024;

/// glibc keeps the small blocks that a provider frees, and merges all of them at once for the next
/// large request: 10 ms for 65,536 registrations (measured). So they are merged step by step.
fn tidy() {
    const LARGE: usize = 70_000;
    drop(std::hint::black_box(Vec::<u8>::with_capacity(LARGE)));
}

impl Chores {
    pub(crate) fn push(&mut self, mut chore: Chore, rails: &Rails) {
        if let Chore::Register(registering) = &mut chore {
            registering.at = rails.each().next();
        }
        self.queue.push_back(chore);
    }

    /// Continues callers' work for a moment; true if there was any.
    pub(crate) fn go_on(&mut self, core: &Core, rails: &mut Rails, now: u64) -> bool {
        let Some(mut chore) = self.queue.pop_front() else { return false };
        let since = self.last_ns.replace(now).map_or(0, |last| now.saturating_sub(last));
        let step_ns = (since / 4).clamp(STEP_NS, STEP_MOST_NS);
        let began = core.clock.now();
        for i in 1..=MOST {
            let over = match &mut chore {
                Chore::Register(registering) => registering.next(rails),
                Chore::Close(closing) => {
                    match closing.next(rails).map(|ended| ended.and_then(|()| closing.check_copied(core))) {
                        Some(Err(error)) if closing.is_tried_again(&error, now) => {
                            self.unclosed.push(chore);
                            return true;
                        }
                        Some(outcome) => {
                            closing.finish(outcome, core);
                            true
                        }
                        None => false,
                    }
                }
                Chore::Refresh(memory, set) => {
                    core.refresh(memory, *set, rails);
                    true
                }
                Chore::Back(rail) => {
                    rails[*rail].reopening.handle_known();
                    true
                }
                Chore::Dropped(grant, then) => {
                    if core.grants.copying.has_key(grant.token.key()) {
                        self.unclosed.push(chore);
                        return true;
                    }
                    core.quiesced(&Scope::Grant(grant.clone()), *then);
                    true
                }
            };
            if over {
                self.finish(chore, core, rails);
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

    /// Everything of a chore is done.
    fn finish(&mut self, mut chore: Chore, core: &Core, rails: &mut Rails) {
        if let Chore::Register(Registering { all, .. }) = &mut chore {
            let set = core.returned.load(Ordering::SeqCst);
            for (rail, registrations) in all.of_rails.iter_mut().filter(|(rail, _)| rail.is_in(set)) {
                registrations.iter_mut().for_each(|one| *one = rails[*rail].rail.refreshed(*one));
            }
        }
        match chore {
            Chore::Register(Registering { reply: Registered::Caller(reply), all, .. }) => {
                // The caller has waited for too long: no memory will have them.
                if let Err((all, areas)) = reply.put(all) {
                    let nobody = Reply::new();
                    nobody.abandon(&areas);
                    self.queue.push_back(Chore::close(Closable::These(all.flat()), &nobody));
                }
            }
            Chore::Register(Registering { reply: Registered::Keys(memory), all, .. }) => {
                core.registered_anew(&memory, all)
            }
            Chore::Close(_) | Chore::Refresh(..) | Chore::Back(_) | Chore::Dropped(..) => {}
        }
    }

    /// What could not be closed is tried again.
    pub(crate) fn close_again(&mut self) {
        self.queue.extend(self.unclosed.drain(..));
    }
}

impl Registering {
    /// Registers one range with one rail, or closes a registration of a rail that is skipped; true at
    /// the end.
    fn next(&mut self, rails: &mut Rails) -> bool {
        let Some(index) = self.at else { return true };
        let Registering { wanted, at, done, skips, all, .. } = self;
        let rail = &mut rails[index].rail;
        if *skips {
            match done.pop() {
                Some(registration) => {
                    let closed = rail.deregister(registration);
                    all.left.extend(closed.is_err().then_some((index, registration)));
                }
                None => (*skips, *at) = (false, rails.after(*at)),
            }
            return false;
        }
        let skipped = wanted.rails != 0 && !index.is_in(wanted.rails);
        let Some(range) = wanted.ranges.get(done.len()).filter(|_| !skipped) else {
            let next = Vec::with_capacity(wanted.ranges.len());
            let of_rail = |done| (index, Vec::into_boxed_slice(done));
            all.of_rails.extend((!skipped).then(|| of_rail(std::mem::replace(done, next))));
            *at = rails.after(*at);
            return false;
        };
        // Peers reach it by a separate registration (`owner::keys`).
        let apart = wanted.access.granted_only && !rail.limits().grants;
        let own = Access { remote_write: false, remote_read: false, ..wanted.access };
        let access = if apart { own } else { wanted.access };
        let learnt = match wanted.device {
            None => rail.register(*range, access).map(Some),
            Some((device, shareable)) => rail.register_device(*range, access, device, shareable),
        };
        match learnt {
            Ok(Some(registration)) => done.push(registration),
            Ok(None) => *skips = true,
            Err(error) => {
                all.error = Some(error);
                all.of_rails.push((index, std::mem::take(done).into()));
                *at = None;
            }
        }
        false
    }
}

impl Closing {
    /// Closes one registration; returns the result at the end, or of one that cannot be closed.
    fn next(&mut self, rails: &mut Rails) -> Option<Result<()>> {
        let next = rails.iter_mut().find_map(|work| Some((self.what.last(work.rail.index)?, work)));
        let Some((registration, work)) = next else { return Some(Ok(())) };
        match work.rail.deregister(registration) {
            Ok(()) => {
                self.what.closed(work.rail.index, &registration);
                None
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// Fails while devices copy the memory for requests that are staged.
    fn check_copied(&self, core: &Core) -> Result<()> {
        match &self.what {
            Closable::Memory(memory) if core.grants.copying.has_key(memory.secret) => Err(Error::new(
                Status::Again,
                "a disk or device still copies this memory for a peer; call again",
            )),
            _ => Ok(()),
        }
    }

    /// Whether it goes on, as often as it takes, after one that cannot be closed.
    fn is_tried_again(&mut self, error: &Error, now: u64) -> bool {
        if error.status == Status::Again {
            let waited_ns = now.saturating_sub(*self.since_ns.get_or_insert(now));
            return waited_ns < COPIES_NS || !matches!(self.what, Closable::Memory(_));
        }
        match &self.what {
            Closable::Memory(_) => return false, // Its caller tries again.
            Closable::These(_) => {
                warn_seldom!("memory that could not be registered is still known to a NIC: {error}")
            }
            Closable::Keys(memory) => warn_seldom!(
                "memory {:#x}: a NIC still uses a replaced key, for whose closing a revoke or the end of a peer waits: \
                 {error}",
                memory.id
            ),
        }
        true
    }

    fn finish(&self, outcome: Result<()>, core: &Core) {
        if let Some(reply) = &self.reply {
            _ = reply.put(outcome.map_err(|error| match error.status {
                Status::Again => Error { status: Status::TimedOut, ..error },
                _ => error,
            }));
        }
        if let Closable::Keys(memory) = &self.what {
            core.quiesced(&Scope::Keys(memory.id), Then::Count);
        }
    }
}

impl Closable {
    /// A registration with a rail that is still open.
    fn last(&self, rail: RailIndex) -> Option<Registration> {
        match self {
            Closable::Memory(memory) => {
                memory.exports.lock().next_old(rail).or_else(|| memory.last_open(rail))
            }
            Closable::Keys(memory) => memory.exports.lock().next_old(rail),
            Closable::These(all) => all.last().filter(|(known, _)| *known == rail).map(|(_, one)| *one),
        }
    }

    /// That registration is closed.
    fn closed(&mut self, rail: RailIndex, registration: &Registration) {
        match self {
            Closable::These(all) => _ = all.pop(),
            Closable::Memory(memory) if memory.exports.lock().next_old(rail).is_none() => memory.closed(rail),
            Closable::Memory(memory) | Closable::Keys(memory) => {
                memory.exports.lock().forget(rail, registration)
            }
        }
    }
}
