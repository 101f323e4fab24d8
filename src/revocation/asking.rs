//! Asking a peer to quiesce: for fences of our callers, for grants that it may still use, and for keys that it no
//! longer may. Its owner has this, and sends what it says.

use crate::ids::{GrantToken, MemoryId, OpId};
use crate::session::liveness::{Silence, Verdict, LOOKS};
use std::collections::HashMap;

/// A peer that was asked to quiesce, and sends nothing for this long, does not answer. (For this and the times below,
/// only time counts in which this worker received: `session::liveness`.)
const SILENT_NS: u64 = 50_000_000;
/// A peer that sends only other frames for this long does not answer either.
const REST_NS: u64 = 1_000_000_000;
/// For importers that are not idle by then, posts with the old keys are refused.
const ANSWER_NS: u64 = 100_000_000;
/// The most concurrent fences of one peer.
pub const FENCES: usize = 64;

/// What waits for a peer to quiesce.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    Grant {
        token: GrantToken,
        memory: MemoryId,
    },
    /// The memory's old keys, and how long they have waited.
    Keys {
        memory: MemoryId,
        waited_ns: u64,
    },
}

/// A request that the peer has not answered.
struct Asked {
    number: u64,
    silence: Silence,
    /// How long it has been waited for, and up to when that was counted.
    waited_ns: u64,
    counted_ns: u64,
    waits: Vec<Waits>,
}

#[derive(Default)]
pub struct Asking {
    /// Requests so far.
    requests: u64,
    /// Fences of our callers, by the number of their requests.
    fences: HashMap<u64, OpId>,
    asked: Option<Asked>,
    /// What waits for the answer to the next request.
    next: Vec<Waits>,
}

impl Asking {
    fn number(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    /// A caller's fence: the number of its request; `None` if too many wait.
    pub fn handle_fence(&mut self, id: OpId, is_active: impl Fn(OpId) -> bool) -> Option<u64> {
        self.fences.retain(|_, id| is_active(*id));
        if self.fences.len() >= FENCES {
            return None;
        }
        let number = self.number();
        self.fences.insert(number, id);
        Some(number)
    }

    pub fn handle_wait(&mut self, waits: Waits) {
        self.next.push(waits);
    }

    /// The request to send for everything that has begun to wait since the last one, which is answered.
    pub fn poll_request(&mut self, now: u64) -> Option<u64> {
        if self.asked.is_some() || self.next.is_empty() {
            return None;
        }
        let (number, waits) = (self.number(), std::mem::take(&mut self.next));
        self.asked =
            Some(Asked { number, silence: Silence::default(), waited_ns: 0, counted_ns: now, waits });
        Some(number)
    }

    /// The peer has answered the request of this number: what waited for it.
    pub fn handle_answer(&mut self, number: u64) -> (Option<OpId>, Vec<Waits>) {
        let answered = self.asked.take_if(|asked| asked.number == number);
        (self.fences.remove(&number), answered.map_or(Vec::new(), |asked| asked.waits))
    }

    /// Time has passed. `received_ns`: when the peer sent something last; `gives_up`: called for what is not waited for
    /// any longer, and true unless nothing else can be done.
    pub fn handle_time(&mut self, received_ns: u64, now: u64, mut gives_up: impl FnMut(Waits) -> bool) {
        let Some(asked) = &mut self.asked else { return };
        let passed = now.saturating_sub(asked.counted_ns);
        asked.counted_ns = now;
        asked.waited_ns += passed.min(REST_NS / LOOKS);
        let verdict = asked.silence.look(received_ns, now, SILENT_NS);
        let silent = verdict == Verdict::Lost || asked.waited_ns > REST_NS;
        for those in [&mut asked.waits, &mut self.next] {
            those.retain_mut(|one| {
                let over = match one {
                    Waits::Grant { .. } => silent,
                    Waits::Keys { waited_ns, .. } => {
                        *waited_ns += passed.min(ANSWER_NS / LOOKS);
                        silent || *waited_ns > ANSWER_NS
                    }
                };
                !(over && gives_up(*one))
            });
        }
    }

    pub fn is_waiting(&self) -> bool {
        self.asked.is_some()
    }

    /// The peer has ended: what waited for its answers.
    pub fn close(&mut self) -> impl Iterator<Item = Waits> {
        let next = std::mem::take(&mut self.next);
        next.into_iter().chain(self.asked.take().into_iter().flat_map(|asked| asked.waits))
    }
}
