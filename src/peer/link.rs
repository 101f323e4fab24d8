//! The owner's side of a peer: its channels, and everything that waits for them.

use super::staged::Staged;
use super::{status_of_end, Peer};
use crate::codec::{Reader, Writer};
use crate::ids::{GrantToken, Hold, MemoryId, OpId};
use crate::memory::{self, RemoteMemory};
use crate::revocation::asking::Asking;
use crate::revocation::quiescing::Quiescing;
use crate::revocation::withdrawals::Withdrawals;
use crate::session::channel::{Channel, Out};
use crate::session::{Plan, Session};
use crate::status::Status;
use crate::transfer::durable::{Answer, Request};
use crate::transfer::ending::{Accepted, Sweep};
use crate::transfer::operation::{Failed, Message, Move};
use crate::transfer::Outcome;
use crate::wire::frame::{numbers, Kind, CHANNELS, HEADER, REQUESTS, SYSTEM, USER};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// Counters that one frame raises; every fabric's frames hold this many, with a grant.
const RAISES: usize = 126;
/// Bytes of a message frame before its part of the message.
const PART: usize = 8;

/// A caller's fence that the peer has answered.
pub struct Fence {
    pub id: OpId,
    /// Copies of devices before this one may not be done.
    pub before: u64,
    /// How many workers have yet to count what has arrived. `None`: they are asked once the copies are done.
    pub workers: Option<usize>,
}

pub struct Link {
    pub peer: Arc<Peer>,
    /// Set if the peer connected to us: places for its PEER_UP and PEER_DOWN are reserved.
    pub accepted: bool,
    pub session: Session,
    /// A message of which only some parts have arrived.
    pub assembly: Option<Assembly>,
    /// Remote memories of this peer, by the number that the owner's answer carries.
    pub remotes: HashMap<u64, Arc<RemoteMemory>>,
    next_remote: u64,
    /// Those numbers, by the owner's id of the memory.
    numbers: HashMap<MemoryId, Vec<u64>>,
    /// Memories of ours that the peer has imported.
    pub imports: HashSet<MemoryId>,
    /// Memories that the peer revokes while our transfers still use them.
    pub revoking: BTreeSet<MemoryId>,
    /// Transfers that wait for lanes.
    pub joining: Vec<Hold>,
    /// Atomics without an answer from the peer.
    pub atomics: BTreeMap<OpId, Hold>,
    /// Requests of the peer to flush files, by numbers of our own.
    pub flushing: BTreeMap<u64, Flushing>,
    pub next_flush: u64,
    /// Transfers that no lane carries, and what the peer asks of such memory.
    pub staged: Staged,
    /// Grants of the peer of which it is asked what they cover.
    pub asking: HashMap<GrantToken, memory::Asking>,
    /// Failed transfers whose peer was notified of their success.
    pub notified: BTreeSet<OpId>,
    /// Operations that end before the lanes drain, while closing.
    pub ending: Option<Outstanding>,
    /// What the peer has to quiesce for.
    pub quiesces: Asking,
    /// Fences of our callers that it has answered.
    pub fences: Vec<Fence>,
    /// What has to become idle: for fences of the peer, or to close.
    pub quiescing: Vec<Quiescing<Wait>>,
    /// What the peer has taken back: the transfers that use it end in steps.
    pub withdrawals: Withdrawals<Sweep>,
    /// When the oldest unacknowledged frame was sent.
    pub asked_ns: Option<u64>,
    /// Since when something from the peer waits for space here.
    pub held_back_ns: Option<u64>,
    /// Since when an idle lane refuses every frame.
    pub refused_ns: Option<u64>,
    /// The link is in the worker's list of links to check.
    pub dirty: bool,
}

/// A request of the peer to flush files.
pub struct Flushing {
    /// The peer's.
    pub id: u64,
    /// Memories that are not flushed yet.
    pub left: usize,
    pub answer: Answer,
}

/// What something that comes to rest waits for.
pub enum Wait {
    /// The operations accepted before the request end.
    Accepted(Accepted),
    /// The operations under revoked grants end.
    Swept,
    /// The peer receives the frames of ended operations: the last number of each channel, and
    /// unanswered atomics, and transfers that are staged.
    Taken([Option<u32>; CHANNELS], Vec<OpId>),
}

/// Operations of an ending peer that are still outstanding.
pub struct Outstanding {
    /// Transfers that would otherwise not have begun yet.
    pub waited: Vec<Hold>,
    pub all: Sweep,
    pub outcome: Outcome,
}

pub struct Assembly {
    pub bytes: Vec<u8>,
    pub total: usize,
}

/// A received part of a message.
pub struct MessagePart<'a> {
    pub total: usize,
    pub offset: usize,
    pub bytes: &'a [u8],
}

impl Link {
    /// Releases everything that waits here for a peer that ends.
    pub fn take_outstanding(&mut self, outcome: Outcome) -> Outstanding {
        let ended = Outcome { status: status_of_end(outcome.status), ..outcome };
        let state = remote_state_of_end(outcome.status);
        let mut waited = std::mem::take(&mut self.joining);
        waited.extend(self.asking.drain().flat_map(|(_, asking)| asking.waiting));
        waited.extend(self.remotes.values().flat_map(|remote| remote.settle(state)));
        Outstanding { waited, all: Sweep::of_peer(self.peer.id, ended), outcome: ended }
    }

    pub fn new(peer: Arc<Peer>, session: Session, accepted: bool) -> Link {
        Link {
            peer,
            accepted,
            session,
            assembly: None,
            remotes: HashMap::new(),
            next_remote: 1,
            numbers: HashMap::new(),
            imports: HashSet::new(),
            revoking: BTreeSet::new(),
            joining: Vec::new(),
            atomics: BTreeMap::new(),
            flushing: BTreeMap::new(),
            next_flush: 0,
            staged: Staged::default(),
            asking: HashMap::new(),
            notified: BTreeSet::new(),
            ending: None,
            quiesces: Asking::default(),
            fences: Vec::new(),
            quiescing: Vec::new(),
            withdrawals: Withdrawals::default(),
            asked_ns: None,
            held_back_ns: None,
            refused_ns: None,
            dirty: false,
        }
    }

    pub fn push(&mut self, out: Out) {
        if let Some(channel) = out.kind.channel() {
            self.session.channels[channel].push(out);
        }
    }

    /// Queues an answer. Answers go before our own requests, so however many requests there are,
    /// answers only accumulate at a peer that does not read them.
    pub fn push_answer(&mut self, out: Out) {
        self.session.channels[SYSTEM].push_ahead(out);
    }

    /// Answers that are queued for the peer.
    pub fn answers(&self) -> usize {
        self.session.channels[SYSTEM].ahead()
    }

    fn push_short(&mut self, id: OpId, data: &[u8], allowance: u64) {
        let mut body = Vec::with_capacity(PART + data.len());
        body.extend_from_slice(&(data.len() as u64).to_le_bytes());
        body.extend_from_slice(data);
        let out = Out::new(Kind::Message, body);
        self.session.channels[USER].push(Out { done: Some(id), allowance, ..out });
    }

    /// Cuts a message into frames of at most this many bytes; the last one completes the send.
    pub fn push_message(&mut self, id: OpId, message: &Message, frame: usize) {
        let (Message { data, allowance }, step) = (message, frame - HEADER - PART);
        if data.len() <= step {
            return self.push_short(id, data, *allowance);
        }
        let total = data.len();
        let mut offset = 0;
        loop {
            let end = total.min(offset + step);
            let mut body = Writer::new();
            body.u32(total as u32).u32(offset as u32);
            let mut out = Out::new(Kind::Message, body.finish());
            out.payload = Some((data.clone(), offset..end));
            let last = end == total;
            if last {
                out.done = Some(id);
                out.allowance = *allowance;
            }
            self.session.channels[USER].push(out);
            offset = end;
            if last {
                return;
            }
        }
    }

    /// Queues what the peer gets from a transfer after its last byte: the counters that it raises,
    /// and the notification. The last frame completes the transfer; `speculative`: once its bytes
    /// have arrived, too. `staged`: no posts have raised counters.
    pub fn push_arrived(&mut self, id: OpId, transfer: &Move, speculative: bool, staged: bool) {
        let mut raises = transfer.raises();
        if staged {
            raises.extend(transfer.raised_by_posts());
        }
        // On the notification's channel, counters precede it; on another channel they need not wait
        // for notifications that the user has not released.
        let kind = if transfer.notify.is_some() { Kind::Raise } else { Kind::Count };
        let out = |kind: Kind, body: Vec<u8>| match transfer.grant {
            Some(grant) => Out::new(kind.under(), [&grant.get().to_le_bytes()[..], &body].concat()),
            None => Out::new(kind, body),
        };
        let mut frames: Vec<Out> = raises
            .chunks(RAISES)
            .map(|some| {
                let pairs = some.iter().flat_map(|(immediate, by)| [immediate.get().into(), *by]);
                out(kind, numbers(&pairs.collect::<Vec<u64>>()))
            })
            .collect();
        if let Some((value, data)) = &transfer.notify {
            let mut body = Writer::new();
            body.u64(*value).raw(data);
            frames.push(out(Kind::Notify, body.finish()));
        }
        if frames.is_empty() {
            frames.push(out(kind, Vec::new())); // It only asks whether its grant is live.
        }
        frames.iter_mut().for_each(|out| out.speculative = speculative);
        if let Some(last) = frames.last_mut() {
            (last.done, last.or_failure) = (Some(id), transfer.notifies_failure);
        }
        frames.into_iter().for_each(|out| self.push(out));
    }

    /// Asks the peer to flush the files that a transfer has written.
    pub fn push_flush(&mut self, id: OpId, transfer: &Move) {
        let memories = transfer.view().remotes().map(|remote| remote.id).collect();
        let body = Request { id: id.get(), grant: transfer.grant, memories }.encode();
        self.push(Out { done: Some(id), ..Out::new(Kind::Flush, body) });
    }

    /// Queues the notification of a failed transfer, unless its success was already notified.
    pub fn push_failed(&mut self, id: OpId, failed: &Failed) {
        let unheard = matches!(failed.status, Status::Revoked | Status::PeerLost | Status::PeerClosed);
        if self.notified.remove(&id) || self.session.channels[USER].has_sent(id) || unheard {
            return;
        }
        let body = numbers(&[failed.value, failed.status as i32 as u32 as u64]);
        self.push(match failed.grant {
            Some(grant) => Out::new(Kind::FailureUnder, [&grant.get().to_le_bytes()[..], &body].concat()),
            None => Out::new(Kind::Failure, body),
        });
    }

    /// Asks the owner whether a memory still exists.
    pub fn push_import(&mut self, remote: Arc<RemoteMemory>) {
        let number = self.next_remote;
        self.next_remote += 1;
        self.push(Out::new(Kind::Import, numbers(&[remote.id.get(), remote.secret, number])));
        remote.number.store(number, Ordering::Relaxed);
        self.numbers.entry(remote.id).or_default().push(number);
        self.remotes.insert(number, remote);
    }

    /// The caller has released a remote memory.
    pub fn forget(&mut self, remote: &RemoteMemory) {
        let number = remote.number.load(Ordering::Relaxed);
        if self.remotes.remove(&number).is_some() {
            if let Entry::Occupied(mut numbers) = self.numbers.entry(remote.id) {
                numbers.get_mut().retain(|one| *one != number);
                if numbers.get().is_empty() {
                    numbers.remove();
                }
            }
        }
    }

    fn numbered(&self, memory: MemoryId) -> impl Iterator<Item = &Arc<RemoteMemory>> {
        self.numbers.get(&memory).into_iter().flatten().filter_map(|number| self.remotes.get(number))
    }

    /// The remote memories with this id at their owner.
    pub fn remotes_of(&self, memory: MemoryId) -> Vec<Arc<RemoteMemory>> {
        self.numbered(memory).cloned().collect()
    }

    /// Memories that lost their last user: their owner can be notified.
    pub fn take_revoked(&mut self) -> Vec<MemoryId> {
        let unused = |memory: &MemoryId| !self.numbered(*memory).any(|remote| remote.users() > 0);
        let done: Vec<MemoryId> = self.revoking.iter().copied().filter(unused).collect();
        done.iter().for_each(|memory| {
            self.revoking.remove(memory);
        });
        done
    }

    /// Whether frames of a channel may be delivered: nothing is published before PEER_UP.
    pub fn takes(&self, channel: usize) -> bool {
        channel == SYSTEM || self.session.is_up()
    }

    /// Whether frames wait for an acknowledgement.
    pub fn is_asking(&self) -> bool {
        self.session.channels.iter().any(Channel::is_asking)
    }

    /// Whether a deadline of the link is near.
    pub fn is_waiting(&self) -> bool {
        self.asked_ns.is_some()
            || self.ending.is_some()
            || !self.revoking.is_empty()
            || self.quiesces.is_waiting()
            || !self.withdrawals.is_empty()
            || self.is_held_back()
    }

    /// Whether its session has a timer that is due.
    pub fn is_due(&self, now: u64) -> bool {
        self.session.poll_timeout().is_some_and(|due| due <= now)
    }

    /// Whether received frames wait for space.
    pub fn is_held_back(&self) -> bool {
        [USER, REQUESTS].iter().any(|channel| self.session.channels[*channel].deliverable().is_some())
    }

    /// The lanes that serve the peer.
    pub fn lanes_up(&self) -> impl Iterator<Item = Plan> + '_ {
        self.session.lanes_up()
    }
}

impl<'a> MessagePart<'a> {
    pub fn read(body: &'a [u8]) -> Option<MessagePart<'a>> {
        let mut r = Reader::new(body);
        let (total, offset) = (r.u32()? as usize, r.u32()? as usize);
        let bytes = r.rest();
        (offset.checked_add(bytes.len())? <= total).then_some(MessagePart { total, offset, bytes })
    }
}

/// The status of memories of a peer that has ended.
pub fn remote_state_of_end(how: Status) -> crate::memory::RemoteState {
    use crate::memory::RemoteState;
    match how {
        Status::Ok | Status::Canceled => RemoteState::Disconnected,
        Status::PeerClosed => RemoteState::PeerClosed,
        _ => RemoteState::PeerLost,
    }
}
