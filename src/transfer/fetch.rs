//! What a lane reads by asking the peer for it: a frame lists pieces of the peer's
//! memory, and the peer answers with a bundle of their bytes, in the order in which it
//! was asked (see `pack`).

use super::pack::{Bundle, Gathering, Landed, Say, Word, SLOTS};
use crate::device::Device;
use crate::fabric::Posted;
use crate::ids::MemoryId;
use crate::rail::{Lane, Rail};

/// Where bytes belong: address and length.
pub type Spot = (u64, u32);

/// One question.
#[derive(Default)]
struct Fetch {
    bundle: Bundle,
    /// Where the bytes belong, in order, and the device that is there.
    places: Vec<Spot>,
    device: Option<Device>,
}

pub struct Fetcher {
    fetches: [Fetch; SLOTS as usize],
    /// Bytes that an answer may have.
    most: u64,
    /// Questions so far: made, asked, answered, and at their place.
    made: u32,
    asked: u32,
    answered: u32,
    done: u32,
}

impl Fetcher {
    pub fn new(most: u64) -> Fetcher {
        Fetcher { fetches: Default::default(), most, made: 0, asked: 0, answered: 0, done: 0 }
    }

    /// Begins a question about a memory of the peer's; `None` while too many are open.
    /// `device`: the one that the bytes are for.
    pub fn ask(&mut self, memory: MemoryId, device: Option<Device>) -> Option<Gathering<'_>> {
        if self.made.wrapping_sub(self.done) >= SLOTS {
            return None;
        }
        let fetch = &mut self.fetches[(self.made % SLOTS) as usize];
        fetch.bundle.begin(memory, None);
        fetch.places.clear();
        fetch.device = device;
        Some(Gathering::question(&mut fetch.bundle, &mut fetch.places, self.most, &mut self.made))
    }

    /// Questions wait to be asked.
    pub fn is_behind(&self) -> bool {
        self.asked != self.made
    }

    pub fn is_awaiting(&self) -> bool {
        self.done != self.made
    }

    pub fn advance(&mut self, rail: &mut Rail, lane: &mut Lane, say: Say) -> Result<(), i32> {
        while self.asked != self.made {
            let fetch = &self.fetches[(self.asked % SLOTS) as usize];
            let word = Word::Fetch(self.asked, &fetch.bundle.list);
            match rail.send_frame(lane, |frame| say(&word, frame)) {
                Posted::Yes => self.asked = self.asked.wrapping_add(1),
                Posted::Again => break,
                Posted::Failed(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// The stripe that a question is for; `None`: it is not the next that was asked.
    pub fn stripe_of(&self, number: u32) -> Option<u32> {
        let is_next = number == self.answered && self.answered != self.asked;
        is_next.then(|| self.fetches[(number % SLOTS) as usize].bundle.stripe)
    }

    /// The answer to a question is here: where its bytes belong.
    pub fn answered(&mut self, number: u32) -> Option<(Option<Device>, &[Spot])> {
        self.stripe_of(number)?;
        self.answered = self.answered.wrapping_add(1);
        let fetch = &self.fetches[(number % SLOTS) as usize];
        Some((fetch.device, &fetch.places))
    }

    /// The bytes of the next answer are at their place, or never will be.
    pub fn finish(&mut self) -> Option<Landed> {
        if self.done == self.answered {
            return None;
        }
        let Bundle { stripe, slices, bytes, sampled, .. } = self.fetches[(self.done % SLOTS) as usize].bundle;
        self.done = self.done.wrapping_add(1);
        Some(Landed { stripe, slices, bytes, sampled })
    }
}
