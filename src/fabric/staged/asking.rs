//! What this side asks of the memory of one peer, without I/O.

use super::{Answer, Breach, ASKS};
use crate::status::Status;
use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A device of ours fills the slot with what is written.
    Gathers,
    /// A write waits for the owner's slot.
    Asked,
    /// This many bytes of a write are sent.
    Sends(u64),
    /// All bytes of a write are sent: the owner answers when nothing copies them.
    Lands,
    /// This many bytes of a read have arrived.
    Receives(u64),
    /// A device of ours empties the slot of a read.
    Scatters,
}

pub struct Asked<T> {
    pub len: u64,
    /// Memory of a device is at this end, too: the bytes pass through a slot here.
    pub staged: bool,
    pub step: Step,
    /// Its operation has ended, and nothing of ours is copied for it: its answer, and a read's bytes, are still to come.
    pub left: bool,
    pub what: T,
}

/// What follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    Nothing,
    /// A device empties the slot; then `handle_scattered`.
    Scatter,
    /// It is over: `end` it.
    End(Status, i32),
}

pub struct Asking<T> {
    begun: u64,
    all: BTreeMap<u64, Asked<T>>,
}

impl<T> Default for Asking<T> {
    fn default() -> Asking<T> {
        Asking { begun: 0, all: BTreeMap::new() }
    }
}

impl<T> Asking<T> {
    /// Whether one more may be asked for.
    pub fn has_room(&self) -> bool {
        self.all.len() < ASKS
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Asked<T>)> {
        self.all.iter().map(|(id, asked)| (*id, asked))
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut Asked<T>> {
        self.all.get_mut(&id)
    }

    /// Begins a request, and returns its number. It is to be sent now, unless a device gathers its bytes first.
    pub fn begin(&mut self, read: bool, len: u64, staged: bool, what: T) -> u64 {
        self.begun += 1;
        let step = match (read, staged) {
            (true, _) => Step::Receives(0),
            (false, true) => Step::Gathers,
            (false, false) => Step::Asked,
        };
        self.all.insert(self.begun, Asked { len, staged, step, left: false, what });
        self.begun
    }

    /// A device has filled the slot of a write: it is sent now.
    pub fn handle_gathered(&mut self, id: u64) {
        if let Some(asked) = self.all.get_mut(&id).filter(|asked| asked.step == Step::Gathers) {
            asked.step = Step::Asked;
        }
    }

    pub fn handle_answer(&mut self, id: u64, answer: Answer) -> Result<Next, Breach> {
        let asked = self.all.get_mut(&id).ok_or(Breach)?;
        match (answer, asked.step) {
            (Answer::Ready, Step::Asked) => {
                asked.step = Step::Sends(0);
                Ok(Next::Nothing)
            }
            // A write that succeeds has all of its bytes, and so has a read before its last ones come.
            (Answer::Ended(Status::Ok, _), Step::Lands) => Ok(Next::End(Status::Ok, 0)),
            (Answer::Ended(Status::Ok, _), _) => Err(Breach),
            (Answer::Ready, _) | (_, Step::Gathers | Step::Scatters) => Err(Breach),
            (Answer::Ended(status, errno), _) => Ok(Next::End(status, errno)),
        }
    }

    /// Its operation has ended, and nothing of ours is copied for it any longer. `Some(true)`: the peer is to give it up, too;
    /// `None`: a device of ours copies for it, or it was left before.
    pub fn leave(&mut self, id: u64) -> Option<bool> {
        let asked = self.all.get_mut(&id)?;
        if asked.left || matches!(asked.step, Step::Gathers | Step::Scatters) {
            return None;
        }
        asked.left = true;
        Some(asked.step != Step::Lands)
    }

    /// These bytes of a write were sent.
    pub fn handle_sent(&mut self, id: u64, bytes: u64) {
        if let Some(Asked { len, step, .. }) = self.all.get_mut(&id) {
            if let Step::Sends(sent) = *step {
                *step = if sent + bytes >= *len { Step::Lands } else { Step::Sends(sent + bytes) };
            }
        }
    }

    /// Where the bytes of a read belong that have come.
    pub fn place(&self, id: u64, bytes: u64) -> Result<u64, Breach> {
        match self.all.get(&id) {
            Some(Asked { len, step: Step::Receives(got), .. }) if bytes > 0 && bytes <= *len - *got => {
                Ok(*got)
            }
            _ => Err(Breach),
        }
    }

    /// These bytes of a read are in their place, or discarded.
    pub fn handle_bytes(&mut self, id: u64, bytes: u64) -> Next {
        let Some(Asked { len, staged, step, left, .. }) = self.all.get_mut(&id) else { return Next::Nothing };
        let Step::Receives(got) = *step else { return Next::Nothing };
        *step = Step::Receives(got + bytes);
        match (got + bytes < *len, *staged && !*left) {
            (true, _) => Next::Nothing,
            (false, true) => {
                *step = Step::Scatters;
                Next::Scatter
            }
            (false, false) => Next::End(Status::Ok, 0),
        }
    }

    pub fn end(&mut self, id: u64) -> Option<Asked<T>> {
        self.all.remove(&id)
    }

    /// The peer has ended.
    pub fn take_all(&mut self) -> impl Iterator<Item = Asked<T>> {
        std::mem::take(&mut self.all).into_values()
    }
}
