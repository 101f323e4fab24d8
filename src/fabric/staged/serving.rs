//! What a peer asks of our memory, without I/O.

use super::{Breach, Request, ASKS};
use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It waits for a slot.
    Waits,
    /// This many bytes of a write have arrived in its slot.
    Receives(u64),
    /// A device empties the slot of a write.
    Lands,
    /// A device fills the slot for a read.
    Gathers,
    /// This many bytes of a read are sent.
    Sends(u64),
}

pub struct Served {
    pub request: Request,
    pub len: u64,
    pub step: Step,
    /// Unless it waits.
    pub slot: u32,
}

impl Served {
    /// The slot, if it has one.
    pub fn taken(&self) -> Option<u32> {
        (self.step != Step::Waits).then_some(self.slot)
    }
}

#[derive(Default)]
pub struct Serving {
    all: BTreeMap<u64, Served>,
    /// When a request got its slot, or bytes of a write came, or could not come.
    came_ns: u64,
}

impl Serving {
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn ids(&self) -> impl Iterator<Item = u64> + use<> {
        self.all.keys().copied().collect::<Vec<_>>().into_iter()
    }

    pub fn get(&self, id: u64) -> Option<&Served> {
        self.all.get(&id)
    }

    /// A request has come.
    pub fn handle_request(&mut self, id: u64, request: Request) -> Result<(), Breach> {
        if self.all.len() >= ASKS || self.all.contains_key(&id) {
            return Err(Breach);
        }
        let len = request.len();
        self.all.insert(id, Served { len, request, step: Step::Waits, slot: 0 });
        Ok(())
    }

    /// There is a slot for it: a write's bytes may come, a read's are gathered.
    pub fn handle_slot(&mut self, id: u64, slot: u32, now: u64) {
        if let Some(served) = self.all.get_mut(&id).filter(|served| served.step == Step::Waits) {
            served.slot = slot;
            self.came_ns = now;
            served.step = if served.request.read { Step::Gathers } else { Step::Receives(0) };
        }
    }

    /// Where these bytes of a write belong: the slot, and where in it. `None`: the write has ended.
    pub fn place(&self, id: u64, bytes: u64) -> Result<Option<(u32, u64)>, Breach> {
        match self.all.get(&id) {
            None => Ok(None),
            Some(Served { len, step: Step::Receives(got), slot, .. })
                if bytes > 0 && bytes <= *len - *got =>
            {
                Ok(Some((*slot, *got)))
            }
            Some(_) => Err(Breach),
        }
    }

    /// These bytes of a write are in their slot. True after the last one: a device empties it.
    pub fn handle_bytes(&mut self, id: u64, bytes: u64, now: u64) -> bool {
        let Some(Served { len, step, .. }) = self.all.get_mut(&id) else { return false };
        let Step::Receives(got) = *step else { return false };
        let all = got + bytes == *len;
        *step = if all { Step::Lands } else { Step::Receives(got + bytes) };
        self.came_ns = now;
        all
    }

    /// The peer gives a request up: true if it is to be ended. What a device empties lands first.
    pub fn handle_unstage(&self, id: u64) -> bool {
        self.all.get(&id).is_some_and(|served| served.step != Step::Lands)
    }

    /// The session is away: no bytes can come.
    pub fn handle_away(&mut self, now: u64) {
        self.came_ns = now;
    }

    /// Whether a write is to be ended, since no bytes have come for this long: of any write, since those of others go first.
    pub fn is_late(&self, id: u64, now: u64, patience_ns: u64) -> bool {
        let receives = |served: &Served| matches!(served.step, Step::Receives(_));
        self.all.get(&id).is_some_and(receives) && now.saturating_sub(self.came_ns) > patience_ns
    }

    /// A device has filled the slot for a read.
    pub fn handle_gathered(&mut self, id: u64) {
        if let Some(served) = self.all.get_mut(&id).filter(|served| served.step == Step::Gathers) {
            served.step = Step::Sends(0);
        }
    }

    /// These bytes of a read were sent: true after the last one.
    pub fn handle_sent(&mut self, id: u64, bytes: u64) -> bool {
        let Some(Served { len, step: Step::Sends(sent), .. }) = self.all.get_mut(&id) else { return false };
        *sent += bytes;
        *sent >= *len
    }

    pub fn end(&mut self, id: u64) -> Option<Served> {
        self.all.remove(&id)
    }

    /// The peer has ended.
    pub fn take_all(&mut self) -> impl Iterator<Item = Served> {
        std::mem::take(&mut self.all).into_values()
    }
}
