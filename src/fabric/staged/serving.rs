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

/// What follows when bytes of a write have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    Nothing,
    /// A device empties the slot.
    Land,
    /// The peer has given the write up: `end` it.
    GivenUp,
}

#[derive(Default)]
pub struct Serving {
    all: BTreeMap<u64, Served>,
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
        self.all.insert(id, Served { len: request.len(), request, step: Step::Waits, slot: 0 });
        Ok(())
    }

    /// There is a slot for it: a write's bytes may come, a read's are gathered.
    pub fn handle_slot(&mut self, id: u64, slot: u32) {
        if let Some(served) = self.all.get_mut(&id).filter(|served| served.step == Step::Waits) {
            served.slot = slot;
            served.step = if served.request.read { Step::Gathers } else { Step::Receives(0) };
        }
    }

    /// Where these bytes of a write belong: the slot, and where in it.
    pub fn place(&self, id: u64, bytes: u64) -> Result<(u32, u64), Breach> {
        match self.all.get(&id) {
            Some(Served { len, step: Step::Receives(got), slot, .. }) if bytes <= *len - *got => {
                Ok((*slot, *got))
            }
            _ => Err(Breach),
        }
    }

    /// These bytes of a write are in their slot; none: the peer gives it up.
    pub fn handle_bytes(&mut self, id: u64, bytes: u64) -> Next {
        let Some(Served { len, step, .. }) = self.all.get_mut(&id) else { return Next::Nothing };
        let Step::Receives(got) = *step else { return Next::Nothing };
        if bytes == 0 {
            return Next::GivenUp;
        }
        let all = got + bytes == *len;
        *step = if all { Step::Lands } else { Step::Receives(got + bytes) };
        if all {
            Next::Land
        } else {
            Next::Nothing
        }
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
