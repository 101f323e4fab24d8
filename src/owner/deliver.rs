//! What becomes of a peer's frames: each is handed over in order, and stays with its sender where
//! there is no room for it.

use super::sessions::show_lanes;
use crate::fabric::staged::Pool;
use crate::ids::{GrantToken, MemoryId};
use crate::memory::{RemoteMemory, RemoteState};
use crate::peer::link::{Assembly, Link, MessagePart, Wait};
use crate::room;
use crate::session::channel::Out;
use crate::status::Status;
use crate::transfer::completion::{self, Completion};
use crate::transfer::ending::Sweep;
use crate::transfer::Outcome;
use crate::wire::frame::{numbers, read_numbers, Kind};
use crate::worker::config::MESSAGE_MAX;
use crate::worker::core::Core;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// The most bytes of a notification's data: callers rely on it.
const NOTIFY_DATA: usize = 256;

/// A peer whose notifications or messages have waited this long for a full queue is reported.
const HELD_BACK_NS: u64 = 1_000_000_000;

/// The outcome of delivering the next frame of a channel.
pub(crate) enum Delivery {
    Taken,
    /// Taken, and a caller waits for its acknowledgement.
    TakenUrgently,
    /// Taken, but the grant that it names is not live: the sender's operation does not succeed.
    Refused,
    /// No space: leave the frame with the sender.
    Stalled,
}

/// A worker's pass, as far as frames are concerned.
pub(crate) struct Pass<'a> {
    pub core: &'a Core,
    /// Operations that the pass has ended because counters reached their values.
    pub ended: &'a mut usize,
    /// The slots of what is staged.
    pub pool: &'a mut Pool,
    pub now: u64,
}

impl Pass<'_> {
    /// Raises counters after a transfer's last byte: pairs of an immediate and an increment.
    pub(crate) fn raise(&mut self, body: &[u8]) -> Delivery {
        for pair in body.chunks(16) {
            match read_numbers::<2>(pair) {
                Some([immediate, by]) => self.core.count(immediate as u32, by, self.now, self.ended),
                None => self.core.count_malformed(),
            }
        }
        Delivery::TakenUrgently
    }
}

impl Link {
    /// Delivers the next frame of a channel; false if there is no space for it.
    pub(crate) fn hand_in(&mut self, pass: &mut Pass, channel: usize, kind: Kind, body: &[u8]) -> bool {
        let (core, now) = (pass.core, pass.now);
        let delivery = self.hand_over(pass, kind, body);
        let taken = !matches!(delivery, Delivery::Stalled);
        if taken {
            match delivery {
                Delivery::Refused => self.session.channels[channel].refuse(now),
                delivery => {
                    self.session.channels[channel].deliver(now, matches!(delivery, Delivery::TakenUrgently))
                }
            }
            self.held_back_ns = None;
            self.session.catch_up();
        } else {
            let since = *self.held_back_ns.get_or_insert(now);
            if now.saturating_sub(since) > HELD_BACK_NS && core.queue.is_full() {
                core.warn_of_full_queue(&self.peer);
            }
        }
        taken
    }

    fn hand_over(&mut self, pass: &mut Pass, kind: Kind, body: &[u8]) -> Delivery {
        match kind {
            Kind::Message => self.message(pass, body),
            Kind::Notify => self.notification(pass, body),
            Kind::Count | Kind::Raise => pass.raise(body),
            Kind::Failure => self.failure(pass, body),
            Kind::Atomic => self.atomic(pass.core, body, None),
            Kind::NotifyUnder
            | Kind::RaiseUnder
            | Kind::CountUnder
            | Kind::FailureUnder
            | Kind::AtomicUnder => self.under_a_grant(pass, kind, body),
            Kind::AtomicDone => self.atomic_done(pass, body),
            Kind::AskGrant => self.tell_grant(pass.core, body),
            Kind::Flush => self.flush(pass.core, body),
            Kind::Stage => self.stage_asked(pass.core, body),
            Kind::Staged => self.stage_answered(pass, body),
            Kind::Stored => self.stored(pass, body),
            Kind::Fetched => self.fetched(pass, body),
            Kind::Unstage => self.unstage(pass, body),
            _ => self.system(pass, kind, body),
        }
    }

    fn system(&mut self, pass: &mut Pass, kind: Kind, body: &[u8]) -> Delivery {
        let (core, now) = (pass.core, pass.now);
        match (kind, read_numbers::<1>(body), read_numbers::<2>(body), read_numbers::<3>(body)) {
            (Kind::Ready | Kind::Reset | Kind::ResetDone, ..) => {
                if self.session.handle_frame(kind, body, now).is_err() {
                    core.count_malformed();
                }
            }
            (Kind::Import, .., Some([memory, secret, number])) => {
                let memory = MemoryId::new(memory);
                let offered = core.memories.offer(memory, secret, self.peer.id);
                let known = offered.is_some();
                self.imports.extend(known.then_some(memory));
                let found = if known { "found" } else { "not here" };
                log::debug!("{}: imports memory {memory:#x}: {found}", self.peer);
                let answer = Out::new(Kind::Imported, numbers(&[number, known as u64]));
                match offered.filter(|memory| memory.exports.lock().has_other_keys()) {
                    Some(memory) => self.answer_with_keys(core, &memory, answer),
                    None => self.answer(core, answer),
                }
            }
            (Kind::Imported, _, Some([number, known]), _) => {
                if let Some(remote) = self.remotes.get(&number) {
                    let state = if known == 1 { RemoteState::Ready } else { RemoteState::Gone };
                    if state == RemoteState::Gone {
                        self.peer.gone.lock().insert(remote.id);
                    }
                    show_lanes(core, self, [remote]);
                    core.answered(remote, state, now);
                }
            }
            (Kind::Revoke, Some([memory]), ..) => {
                let memory = MemoryId::new(memory);
                self.peer.gone.lock().insert(memory);
                // Transfers of a remote memory known to be gone have ended, or are being ended.
                let unknown = |remote: &Arc<RemoteMemory>| remote.state() != RemoteState::Gone;
                for remote in self.remotes_of(memory).into_iter().filter(unknown) {
                    core.answered(&remote, RemoteState::Gone, now);
                    let sweep = Sweep::of_remote(&remote, Outcome::new(Status::MemoryGone));
                    self.withdrawals.handle_gone(sweep);
                }
                self.go_on_sweeping(core, now, || true);
                self.revoking(core, memory);
            }
            (Kind::Revoked, Some([memory]), ..) => {
                let memory = MemoryId::new(memory);
                self.imports.remove(&memory);
                core.memories.released(memory, self.peer.id)
            }
            (Kind::Withdraw, _, Some([low, high]), _) => {
                let token = u128::from(low) | u128::from(high) << 64;
                GrantToken::new(token)
                    .map_or_else(|| core.count_malformed(), |grant| self.withdrawn(pass, grant))
            }
            (Kind::QuiesceRevoked, Some([number]), ..) => self.begin_quiescing(core, number, Wait::Swept),
            (Kind::Keys, ..) => self.keys_came(core, body, now),
            (Kind::Granted, ..) => self.grant_answered(core, body, now),
            (Kind::Quiesce, Some([number]), ..) => self.quiesce(core, number),
            (Kind::Quiesced, Some([number]), ..) => self.peer_quiesced(core, number, now),
            (Kind::Flushed, ..) => self.flush_answered(core, body, now),
            _ => core.count_malformed(),
        }
        Delivery::TakenUrgently
    }

    /// A part of a message: the last part publishes the message.
    fn message(&mut self, pass: &mut Pass, body: &[u8]) -> Delivery {
        let core = pass.core;
        let Some(part) = MessagePart::read(body).filter(|part| part.total <= MESSAGE_MAX) else {
            core.count_malformed();
            return Delivery::Taken;
        };
        if part.offset == 0 && self.assembly.is_some() || part.bytes.is_empty() && part.total > 0 {
            core.count_malformed();
            return Delivery::Taken;
        }
        if part.offset == 0 {
            let held = self.peer.held.load(Ordering::Relaxed);
            let room = held == 0 || held + part.total as u64 <= core.config.message_bytes;
            let bytes = room::vec(part.total, "a message of a peer");
            let Some(mut bytes) = bytes.ok().filter(|_| room && core.queue.reserve(1)) else {
                self.peer.stalled.store(true, Ordering::Relaxed);
                return Delivery::Stalled;
            };
            if part.bytes.len() == part.total {
                bytes.extend_from_slice(part.bytes);
                self.publish_message(pass, bytes);
                return Delivery::Taken;
            }
            self.assembly = Some(Assembly { bytes, total: part.total });
        }
        let Some(assembly) =
            self.assembly.as_mut().filter(|a| a.total == part.total && a.bytes.len() == part.offset)
        else {
            core.count_malformed();
            return Delivery::Taken;
        };
        assembly.bytes.extend_from_slice(part.bytes);
        if assembly.bytes.len() < assembly.total {
            return Delivery::Taken;
        }
        let bytes = self.assembly.take().map(|a| a.bytes).unwrap_or_default();
        self.publish_message(pass, bytes);
        Delivery::Taken
    }

    /// Publishes a message, whose place in the queue is reserved.
    fn publish_message(&self, pass: &Pass, bytes: Vec<u8>) {
        let (core, now) = (pass.core, pass.now);
        let mut completion = Completion::new(completion::KIND_MESSAGE, Outcome::OK, self.peer.id, now);
        completion.bytes = bytes.len() as u64;
        core.table.tally.message(completion.bytes);
        if !bytes.is_empty() {
            let (id, data) = core.messages.keep(bytes, &self.peer, true);
            completion.transfer = id;
            completion.data = data.cast();
        }
        core.queue.publish(completion);
    }

    pub(crate) fn notification(&self, pass: &Pass, body: &[u8]) -> Delivery {
        let (core, now) = (pass.core, pass.now);
        let Some((value, data)) = body.split_first_chunk::<8>().filter(|(_, data)| data.len() <= NOTIFY_DATA)
        else {
            core.count_malformed();
            return Delivery::Taken;
        };
        if !core.queue.reserve(1) {
            return Delivery::Stalled;
        }
        let mut completion = Completion::new(completion::KIND_NOTIFICATION, Outcome::OK, self.peer.id, now);
        completion.notify = u64::from_le_bytes(*value);
        core.table.tally.notification();
        if !data.is_empty() {
            let (id, kept) = core.messages.keep(data.to_vec(), &self.peer, false);
            completion.transfer = id;
            completion.data = kept.cast();
            completion.bytes = data.len() as u64;
        }
        core.queue.publish(completion);
        Delivery::TakenUrgently
    }

    /// A transfer of the peer has failed.
    pub(crate) fn failure(&self, pass: &Pass, body: &[u8]) -> Delivery {
        let (core, now) = (pass.core, pass.now);
        let known =
            read_numbers::<2>(body).map(|[value, code]| (value, Status::from_code(code as u32 as i32)));
        let Some((value, status)) = known.filter(|(_, status)| *status != Status::Ok) else {
            core.count_malformed();
            return Delivery::Taken;
        };
        if !core.queue.reserve(1) {
            return Delivery::Stalled;
        }
        let outcome = Outcome::new(status);
        let mut completion = Completion::new(completion::KIND_NOTIFICATION, outcome, self.peer.id, now);
        completion.notify = value;
        core.table.tally.notification();
        core.queue.publish(completion);
        Delivery::TakenUrgently
    }

    /// Takes the next step of ending transfers of remote memories and grants that are gone. True:
    /// all have ended.
    pub(crate) fn go_on_sweeping(&mut self, core: &Core, now: u64, over: impl Fn() -> bool) -> bool {
        self.withdrawals.poll(|sweep| core.table.go_on(sweep, now, &over));
        self.withdrawals.is_empty()
    }
}
