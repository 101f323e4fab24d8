//! A sequenced channel of control frames towards one peer: each frame is delivered once and in
//! order, over whichever lanes. A receiver without space leaves a frame undelivered and
//! unacknowledged: the window then holds the sender back.
//!
//! A receiver may also refuse a frame under a grant. It takes the frame, so that others do not wait
//! for it, and names it in its acknowledgements, so that the sender's operation does not succeed.
//! Headers of frames have no space for that: they acknowledge only what precedes the first refused
//! frame, until the sender must know of the refusal.

use crate::ids::OpId;
use crate::wire::frame::{Kind, CHANNELS};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The most frames in flight in one direction.
pub const WINDOW: u32 = 64;
/// How long an acknowledgement waits for a frame to travel with.
pub const ACK_DELAY_NS: u64 = 50_000;
/// An answer counts as immediate within this time.
const ANSWER_NS: u64 = 50_000;
/// Where the entries of held frames begin: behind those of refused ones.
const HELD: u64 = 1 + CHANNELS as u64;
/// How many frames may wait before those of ended transfers are dropped.
const LONG: usize = 1024;

/// A frame to send.
#[derive(Debug)]
pub struct Out {
    pub kind: Kind,
    pub body: Vec<u8>,
    /// A part of a message, copied only when the frame is posted.
    pub payload: Option<(Arc<Vec<u8>>, Range<usize>)>,
    /// The operation that the frame's acknowledgement completes; of a Flush, that which wants it.
    pub done: Option<OpId>,
    /// Sent before the operation is known to have arrived, behind its writes: none of its frames goes over another lane.
    pub speculative: bool,
    /// If this frame is dropped, the operation's failure is notified instead.
    pub or_failure: bool,
    /// Bytes of the sender's allowance that the acknowledgement returns.
    pub allowance: u64,
    /// The frame was sent before, and keeps its number.
    pub again: bool,
}

impl Out {
    pub fn new(kind: Kind, body: Vec<u8>) -> Out {
        Out {
            kind,
            body,
            payload: None,
            done: None,
            speculative: false,
            or_failure: false,
            allowance: 0,
            again: false,
        }
    }

    pub fn payload(&self) -> &[u8] {
        self.payload.as_ref().map_or(&[], |(bytes, range)| &bytes[range.clone()])
    }
}

#[derive(Default)]
pub struct Channel {
    /// Frames that precede all of `waiting`.
    ahead: VecDeque<Out>,
    waiting: VecDeque<Out>,
    /// How many of `ahead` precede the first of `waiting`, so that a peer with endless requests
    /// does not starve it.
    before: usize,
    /// How many wanted frames the last check found waiting.
    wanted: usize,
    /// Sent frames, in sequence; the first is number `acknowledged + 1`.
    unacknowledged: VecDeque<Out>,
    acknowledged: u32,
    /// The number of the last frame delivered here.
    delivered: u32,
    /// Frames received but not yet delivered.
    out_of_order: BTreeMap<u32, (Kind, Vec<u8>)>,
    /// The numbers of refused frames, of which the sender may not know yet: those of one window.
    refused: VecDeque<u32>,
    /// Delivered frames that are not acknowledged to the sender, and since when.
    owed: u32,
    owed_since: u64,
    /// A caller waits for the acknowledgement: send it at once instead of with the next frame.
    urgent: bool,
    /// Urgent frames were recently answered at once; the time of the last separate acknowledgement.
    answers: bool,
    alone_ns: u64,
}

impl Channel {
    pub fn push(&mut self, out: Out) {
        if self.waiting.is_empty() {
            self.before = self.ahead.len();
        }
        self.waiting.push_back(out);
    }

    /// Queues a frame before all others.
    pub fn push_first(&mut self, out: Out) {
        self.ahead.push_front(out);
        self.before += 1;
    }

    /// Queues a frame before those of `push`, possibly except the first, and in order with others
    /// of its kind.
    pub fn push_ahead(&mut self, out: Out) {
        self.ahead.push_back(out);
    }

    pub fn ahead(&self) -> usize {
        self.ahead.len()
    }

    /// A lane failed: frames that it may have lost are sent again with their numbers. Returns the
    /// transfers with speculative notifications, of which it is unknown whether they arrived or
    /// were notified; their frames are dropped.
    pub fn rewind(&mut self) -> Vec<OpId> {
        // Frames without a number were never sent, and are dropped.
        let mut retracted: Vec<OpId> =
            self.waiting.iter().filter(|out| out.speculative).filter_map(|out| out.done).collect();
        self.waiting.retain(|out| !out.speculative);
        while let Some(mut out) = self.unacknowledged.pop_back() {
            if out.speculative {
                retracted.extend(out.done.take());
                out = Out::new(out.kind.raising_nothing(), Vec::new());
            }
            out.again = true;
            self.waiting.push_front(out);
        }
        retracted
    }

    /// The peer has a sent frame that it cannot deliver yet: it will, so neither the frame is taken back nor those of its
    /// operation before it.
    pub fn is_held(&mut self, number: u32) {
        let at = number.wrapping_sub(self.acknowledged).wrapping_sub(1) as usize;
        let Some(out) = self.unacknowledged.get_mut(at) else { return };
        out.speculative = false;
        let before = self.unacknowledged.iter_mut().take(at).rev();
        // (Only the last frame of an operation carries it.)
        before.take_while(|out| out.done.is_none()).for_each(|out| out.speculative = false);
    }

    /// Whether sent frames wait for an acknowledgement.
    pub fn is_asking(&self) -> bool {
        !self.unacknowledged.is_empty()
    }

    /// Frames that were not sent yet.
    pub fn waiting(&self) -> usize {
        self.ahead.len() + self.waiting.len()
    }

    /// Frames that were not acknowledged, or not even sent.
    pub fn outstanding(&self) -> usize {
        self.unacknowledged.len() + self.waiting()
    }

    /// The number of the last frame that is queued or sent.
    pub fn last(&self) -> u32 {
        self.acknowledged.wrapping_add(self.outstanding() as u32)
    }

    /// Drops frames of ended transfers (`wanted`: all others), once many have gathered, so that a
    /// peer that reads nothing does not cost more and more memory.
    pub fn sweep(&mut self, wanted: impl Fn(OpId) -> bool) {
        if self.waiting.len() >= LONG.max(2 * self.wanted) {
            self.forget(wanted);
        }
    }

    /// Drops unsent frames of ended transfers (`wanted`: all others). Returns the number of their
    /// last frame that was sent and is not acknowledged.
    pub fn end(&mut self, wanted: impl Fn(OpId) -> bool) -> Option<u32> {
        self.forget(&wanted);
        let sent = self.unacknowledged.iter().chain(self.waiting.iter().take_while(|out| out.again));
        let theirs = |out: &Out| {
            // Only the last of a transfer's frames carries its id.
            out.kind.announces().is_some() && !out.done.is_some_and(&wanted)
        };
        let last = sent.enumerate().filter(|(_, out)| theirs(out)).map(|(at, _)| at as u32).last();
        last.map(|at| self.acknowledged.wrapping_add(at).wrapping_add(1))
    }

    /// Drops the unsent frames of an operation; true if any of its frames was sent.
    pub fn has_sent(&mut self, id: OpId) -> bool {
        self.forget(|one| one != id);
        let again = self.waiting.iter().take_while(|out| out.again);
        self.unacknowledged.iter().chain(again).any(|out| out.done == Some(id))
    }

    /// Whether a sent number is acknowledged.
    pub fn has_acknowledged(&self, number: u32) -> bool {
        self.acknowledged.wrapping_sub(number) < u32::MAX / 2
    }

    fn forget(&mut self, wanted: impl Fn(OpId) -> bool) {
        let mut kept = VecDeque::new();
        let mut keep = true;
        // Go backwards: only the last frame of a transfer carries its id.
        for out in self.waiting.drain(..).rev() {
            keep = match (out.kind.announces(), out.done) {
                _ if out.again => true,
                (Some(_), Some(id)) => wanted(id),
                (None, Some(id)) if out.kind == Kind::Flush => wanted(id),
                (Some(Kind::Count | Kind::Raise), None) => keep,
                _ => true,
            };
            if keep {
                kept.push_front(out);
            }
        }
        self.wanted = kept.len();
        self.waiting = kept;
    }

    /// Frees some of an ended channel's frames. True once all are freed.
    pub fn shed(&mut self, most: usize) -> bool {
        [&mut self.ahead, &mut self.waiting, &mut self.unacknowledged].into_iter().all(|frames| {
            frames.truncate(frames.len().saturating_sub(most));
            frames.is_empty()
        })
    }

    /// The next frame to send and its number, if the window is open.
    pub fn next(&self) -> Option<(u32, &Out)> {
        let sent = self.unacknowledged.len() as u32;
        (sent < WINDOW).then_some(())?;
        let number = self.acknowledged.wrapping_add(sent).wrapping_add(1);
        let out = if self.goes_ahead() { self.ahead.front() } else { self.waiting.front() };
        out.map(|out| (number, out))
    }

    fn goes_ahead(&self) -> bool {
        let first = self.waiting.is_empty() || self.before > 0;
        first && !self.ahead.is_empty() && !self.goes_again()
    }

    /// Whether the next frame already has a number: nothing may precede it, or use that number.
    fn goes_again(&self) -> bool {
        self.waiting.front().is_some_and(|out| out.again)
    }

    /// The frame that `next` returned was posted, together with an acknowledgement.
    pub fn sent(&mut self, now: u64) {
        self.answers |= now.saturating_sub(self.alone_ns) < ANSWER_NS;
        if self.goes_ahead() {
            self.before = self.before.saturating_sub(1);
            self.unacknowledged.extend(self.ahead.pop_front());
        } else {
            self.unacknowledged.extend(self.waiting.pop_front());
            self.before = self.ahead.len();
        }
        if self.refused.is_empty() {
            self.acknowledgement_sent();
        }
    }

    fn acknowledgement_sent(&mut self) {
        self.owed = 0;
        self.urgent = false;
    }

    /// A separate acknowledgement was sent.
    pub fn acknowledgement_sent_alone(&mut self, now: u64) {
        if self.urgent {
            (self.answers, self.alone_ns) = (false, now);
        }
        self.acknowledgement_sent();
    }

    /// The number of the last frame delivered here.
    pub fn delivered(&self) -> u32 {
        self.delivered
    }

    /// The number that the header of a frame acknowledges.
    pub fn acknowledged_in_headers(&self) -> u32 {
        self.refused.front().map_or(self.delivered, |first| first.wrapping_sub(1))
    }

    /// Whether a separate acknowledgement should be sent now. An urgent one is sent at once or,
    /// where answers recently came at once, in the next pass: an answer may carry it.
    pub fn acknowledgement_due(&self, now: u64) -> bool {
        let waited = now.saturating_sub(self.owed_since);
        let urgent = self.urgent && (waited > 0 || !self.answers);
        self.owed > 0 && (urgent || self.owed >= WINDOW / 4 || waited >= ACK_DELAY_NS)
    }

    pub fn owes(&self) -> bool {
        self.owed > 0
    }

    /// The other side has received everything up to `number`; returns the frames that this
    /// acknowledges.
    pub fn acknowledge(&mut self, number: u32) -> impl Iterator<Item = Out> + '_ {
        let newly = number.wrapping_sub(self.acknowledged) as usize;
        // The number was never sent: the frame is malformed.
        let newly = if newly <= self.unacknowledged.len() { newly } else { 0 };
        self.acknowledged = self.acknowledged.wrapping_add(newly as u32);
        self.unacknowledged.drain(..newly)
    }

    /// The other side has refused a frame under a grant: returns the operation that does not succeed.
    pub fn refused(&mut self, number: u32) -> Option<OpId> {
        let at = number.wrapping_sub(self.acknowledged).wrapping_sub(1) as usize;
        let out = self.unacknowledged.get_mut(at).filter(|out| out.kind.is_under_a_grant())?;
        out.or_failure = false;
        out.done.take()
    }

    /// A frame with this number arrived: its sender has an acknowledgement of all up to a window
    /// before, and knows which of them were refused.
    #[inline]
    pub fn arrived(&mut self, number: u32) {
        let known = |refused: &u32| (WINDOW..u32::MAX / 2).contains(&number.wrapping_sub(*refused));
        while self.refused.front().is_some_and(known) {
            self.refused.pop_front();
        }
    }

    /// Accepts a received frame. Numbers outside the sender's window are dropped.
    pub fn receive(&mut self, number: u32, kind: Kind, body: &[u8], now: u64) {
        let ahead = number.wrapping_sub(self.delivered).wrapping_sub(1);
        if ahead < WINDOW {
            self.out_of_order.entry(number).or_insert_with(|| (kind, body.to_vec()));
        } else {
            // A duplicate: its acknowledgement was lost.
            self.owe(now, true);
        }
    }

    /// Whether a received frame is the next in order.
    pub fn is_next(&self, number: u32) -> bool {
        number == self.delivered.wrapping_add(1) && self.out_of_order.is_empty()
    }

    /// The next frame in order, if it has arrived. Call `deliver` once it is taken.
    pub fn deliverable(&self) -> Option<(Kind, &[u8])> {
        let next = self.delivered.wrapping_add(1);
        self.out_of_order.get(&next).map(|(kind, body)| (*kind, body.as_slice()))
    }

    /// Removes the next frame in order; `deliver` or `put_back` follows.
    pub fn take_deliverable(&mut self) -> Option<(Kind, Vec<u8>)> {
        self.out_of_order.remove(&self.delivered.wrapping_add(1))
    }

    pub fn put_back(&mut self, kind: Kind, body: Vec<u8>) {
        self.out_of_order.insert(self.delivered.wrapping_add(1), (kind, body));
    }

    pub fn deliver(&mut self, now: u64, urgent: bool) {
        self.delivered = self.delivered.wrapping_add(1);
        self.out_of_order.remove(&self.delivered);
        self.owe(now, urgent);
    }

    /// The next frame in order is taken, and its operation does not succeed.
    pub fn refuse(&mut self, now: u64) {
        self.refused.push_back(self.delivered.wrapping_add(1));
        self.deliver(now, true);
    }

    fn owe(&mut self, now: u64, urgent: bool) {
        if self.owed == 0 {
            self.owed_since = now;
        }
        self.owed += 1;
        self.urgent |= urgent;
    }
}

/// The body of an acknowledgement: the number of the last delivered frame of each channel, then the
/// refused frames that the sender may not know of. A refused frame has its channel, from 1, in the
/// upper half, so that it cannot be mistaken for a number.
pub fn acknowledgement(channels: &[Channel; CHANNELS]) -> Vec<u64> {
    let delivered = channels.iter().map(|channel| channel.delivered.into());
    delivered.chain(refusals(channels)).collect()
}

pub fn refusals(channels: &[Channel; CHANNELS]) -> impl Iterator<Item = u64> + '_ {
    (1u64..)
        .zip(channels)
        .flat_map(|(at, channel)| channel.refused.iter().map(move |n| at << 32 | u64::from(*n)))
}

/// The channel and the number of a refused frame; `None`: another entry of an acknowledgement.
pub fn read_refusal(entry: u64) -> Option<(usize, u32)> {
    let channel = ((entry >> 32) as usize).checked_sub(1)?;
    (channel < CHANNELS).then_some((channel, entry as u32))
}

/// Frames that have arrived before one that precedes them, as entries behind the refusals.
pub fn held(channels: &[Channel; CHANNELS]) -> impl Iterator<Item = u64> + '_ {
    (HELD..).zip(channels).flat_map(|(at, channel)| {
        channel.out_of_order.keys().map(move |number| at << 32 | u64::from(*number))
    })
}

/// The channel and the number of a frame that is held; `None`: another entry.
pub fn read_held(entry: u64) -> Option<(usize, u32)> {
    let channel = (entry >> 32).checked_sub(HELD)? as usize;
    (channel < CHANNELS).then_some((channel, entry as u32))
}

/// Shows unacknowledged and waiting frames, for the log.
impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.unacknowledged.len(), self.waiting())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::USER;

    fn out(n: u64) -> Out {
        Out { done: OpId::new(n), ..Out::new(Kind::Message, vec![]) }
    }

    #[test]
    fn frames_are_delivered_once_and_in_order() {
        let mut channel = Channel::default();
        for number in [3, 1, 1, 2, 3, WINDOW + 1000] {
            channel.receive(number, Kind::Message, &[number as u8], 0);
        }
        let mut seen = vec![];
        while let Some((_, body)) = channel.deliverable() {
            seen.push(body[0]);
            channel.deliver(0, false);
        }
        assert_eq!((seen, channel.delivered()), (vec![1, 2, 3], 3));
        channel.receive(2, Kind::Message, &[2], 0);
        assert!(channel.deliverable().is_none() && channel.acknowledgement_due(0));
    }

    #[test]
    fn dropped_transfers_wait_only_for_their_sent_frames() {
        let mut channel = Channel::default();
        let raise = |done| Out { done: OpId::new(done), ..Out::new(Kind::Notify, vec![]) };
        (1..=4).for_each(|n| channel.push(raise(n)));
        channel.sent(0);
        channel.sent(0);
        assert_eq!(channel.end(|id| id.get() != 2), Some(2), "2 was sent");
        assert_eq!(channel.end(|_| true), None);
        assert_eq!(channel.waiting(), 2);
        assert!(!channel.has_acknowledged(2));
        assert_eq!(channel.end(|id| id.get() <= 3), None, "4 was not");
        assert_eq!(channel.waiting(), 1);
        channel.rewind();
        assert_eq!(channel.end(|id| id.get() != 1), Some(1), "it goes again, with its number");
        channel.sent(0);
        channel.acknowledge(1).for_each(drop);
        assert!(channel.has_acknowledged(1) && !channel.has_acknowledged(2));
    }

    #[test]
    fn resent_frame_keeps_its_number() {
        let mut channel = Channel::default();
        let next = |channel: &mut Channel| {
            let next = channel.next().map(|(number, out)| (number, out.kind));
            channel.sent(0);
            next
        };
        channel.push(Out::new(Kind::Import, vec![]));
        channel.push(Out::new(Kind::Count, vec![]));
        assert_eq!(next(&mut channel), Some((1, Kind::Import)));
        assert_eq!(next(&mut channel), Some((2, Kind::Count)));
        channel.push_ahead(Out::new(Kind::AtomicDone, vec![]));
        channel.rewind();
        channel.push(Out::new(Kind::Revoke, vec![]));
        channel.push_first(Out::new(Kind::Quiesced, vec![]));
        let sent: Vec<_> = std::iter::from_fn(|| next(&mut channel)).collect();
        let kinds = [Kind::Import, Kind::Count, Kind::Quiesced, Kind::AtomicDone, Kind::Revoke];
        assert_eq!(sent, (1..).zip(kinds).collect::<Vec<_>>());
    }

    #[test]
    fn frame_that_is_not_resent_keeps_its_place() {
        for kind in [Kind::Count, Kind::Raise, Kind::Notify] {
            let mut channel = Channel::default();
            channel.push(Out { speculative: true, done: OpId::new(7), ..Out::new(kind, vec![1]) });
            channel.push(Out::new(kind, vec![2]));
            channel.sent(0);
            assert_eq!(channel.rewind(), [OpId::numbered(7)]);
            let (number, out) = channel.next().unzip();
            let said = out.map(|out| (out.kind.channel() == kind.channel(), out.body.len(), out.done));
            assert_eq!((number, said), (Some(1), Some((true, 0, None))));
        }
    }

    #[test]
    fn frames_before_one_that_the_peer_holds_are_not_taken_back_if_they_are_of_its_operation() {
        let mut sender = Channel::default();
        for id in [7, 8] {
            let frame = |kind, done| Out { speculative: true, done, ..Out::new(kind, vec![1]) };
            sender.push(frame(Kind::Raise, None));
            sender.push(frame(Kind::Notify, OpId::new(id)));
        }
        (0..4).for_each(|_| sender.sent(0));
        sender.is_held(4);
        assert_eq!(sender.rewind(), [OpId::numbered(7)]);
        let next = |_| {
            let next = sender.next().map(|(number, out)| (number, out.body.len()));
            sender.sent(0);
            next
        };
        assert_eq!([(); 4].map(next), [Some((1, 0)), Some((2, 0)), Some((3, 1)), Some((4, 1))]);
    }

    #[test]
    fn frame_that_the_peer_holds_is_not_taken_back() {
        let mut sender = Channel::default();
        for id in [7, 8] {
            sender.push(Out { speculative: true, done: OpId::new(id), ..Out::new(Kind::Notify, vec![1]) });
            sender.sent(0);
        }
        let mut receiver: [Channel; CHANNELS] = Default::default();
        // The first frame is lost with its lane.
        receiver[USER].receive(2, Kind::Notify, &[1], 0);
        let named: Vec<_> = held(&receiver).filter_map(read_held).collect();
        assert_eq!(named, [(USER, 2)]);
        assert!(held(&receiver).all(|entry| read_refusal(entry).is_none()), "an older peer would misread it");
        named.into_iter().for_each(|(_, number)| sender.is_held(number));
        assert_eq!(sender.rewind(), [OpId::numbered(7)]);
    }

    #[test]
    fn endless_answers_do_not_starve_other_frames() {
        let mut channel = Channel::default();
        let next = |channel: &mut Channel| {
            channel.push_ahead(Out::new(Kind::AtomicDone, vec![]));
            let (number, kind) = channel.next().map(|(number, out)| (number, out.kind)).expect("a frame");
            channel.sent(0);
            channel.acknowledge(number).for_each(drop);
            kind
        };
        (0..3).for_each(|_| channel.push_ahead(Out::new(Kind::AtomicDone, vec![])));
        channel.push(Out::new(Kind::Revoke, vec![]));
        channel.push(Out::new(Kind::Import, vec![]));
        let sent: Vec<_> = (0..8).map(|_| next(&mut channel)).collect();
        // It does not precede answers that were already queued.
        assert!(
            sent[..3].iter().all(|kind| *kind == Kind::AtomicDone) && sent[3] == Kind::Revoke,
            "{sent:?}"
        );
        assert_eq!(sent[4..].iter().position(|kind| *kind == Kind::Import), None, "{sent:?}");
        assert!((0..8).any(|_| next(&mut channel) == Kind::Import));
    }

    #[test]
    fn unwanted_frames_do_not_accumulate() {
        let mut channel = Channel::default();
        let frame = |kind, done| Out { done, ..Out::new(kind, vec![]) };
        for id in 1..100_000 {
            channel.push(frame(Kind::Raise, None));
            channel.push(frame(Kind::Notify, OpId::new(id)));
            if id % 1000 == 1 {
                channel.push(frame(Kind::Message, None));
                channel.push(frame(Kind::Message, OpId::new(id)));
            }
            channel.sweep(|id| id.get() % 1000 == 7);
            assert!(channel.waiting() < LONG + 2 * 400 + 2);
        }
        channel.wanted = 0;
        while channel.waiting() < LONG {
            channel.push(frame(Kind::Count, OpId::new(1)));
        }
        channel.sweep(|id| id.get() % 1000 == 7);
        let kinds: Vec<Kind> = channel.waiting.iter().map(|out| out.kind).collect();
        let four = [Kind::Message, Kind::Message, Kind::Raise, Kind::Notify];
        assert!(kinds.len() == 400 && kinds.chunks(4).all(|chunk| chunk == four));
    }

    #[test]
    fn early_answer_carries_the_acknowledgement() {
        let mut channel = Channel::default();
        let arrive = |channel: &mut Channel, number, now| {
            channel.receive(number, Kind::Notify, &[], now);
            channel.deliver(now, true);
        };
        let now = 1_000_000;
        arrive(&mut channel, 1, now);
        assert!(channel.acknowledgement_due(now), "nobody knows of an answer");
        channel.acknowledgement_sent_alone(now);
        channel.push(out(1));
        channel.sent(now + 5000);
        arrive(&mut channel, 2, now + 9000);
        assert!(!channel.acknowledgement_due(now + 9000) && channel.acknowledgement_due(now + 9100));
        channel.acknowledgement_sent_alone(now + 9100);
        arrive(&mut channel, 3, now + 99_000);
        assert!(channel.acknowledgement_due(now + 99_000), "no answer came");
    }

    #[test]
    fn channel_window_limits_frames_in_flight() {
        let mut channel = Channel::default();
        (1..=100).for_each(|n| channel.push(out(n)));
        let mut sent = 0;
        while channel.next().is_some() {
            channel.sent(0);
            sent += 1;
        }
        assert_eq!(sent, WINDOW);
        assert_eq!(channel.acknowledge(WINDOW + 1).count(), 0, "never sent");
        let done: Vec<_> = channel.acknowledge(2).filter_map(|out| out.done).collect();
        assert_eq!(done, [1, 2].map(OpId::numbered));
        assert_eq!(channel.next().map(|(number, _)| number), Some(WINDOW + 1));
    }
}
