//! What a counter may say: it is raised by what has arrived, and by nothing else.

use crate::arena::Arena;
use crate::case::Who;
use crate::model::{Model, Operation, Outcome};
use weft::capi::status::*;

pub struct Counter {
    pub id: u64,
    pub alive: bool,
    /// The largest value that was read: it never falls.
    pub seen: u64,
}

/// How an operation raises a counter of the other side.
#[derive(Clone, Debug)]
pub struct Raise {
    /// By its index there.
    pub counter: usize,
    /// So often when all has arrived.
    pub at_end: u64,
    /// Once with each of these segments.
    pub with: Vec<usize>,
}

/// A counter's value lies between `least` and `most`, and comes to `eventually`; what
/// failed may have been counted or not.
pub struct Bounds {
    pub least: u64,
    pub eventually: u64,
    pub most: u64,
}

impl Operation {
    /// How often it raises a counter of the other side in the end, and with which segments.
    fn raises(&self, owner: usize, counter: usize) -> (u64, Vec<usize>) {
        let of = |raise: &&Raise| self.who != owner && raise.counter == counter;
        let raises: Vec<_> = self.raises.iter().filter(of).collect();
        let with = raises.iter().flat_map(|raise| raise.with.iter().copied()).collect();
        (raises.iter().map(|raise| raise.at_end).sum(), with)
    }
}

impl Model {
    pub fn bounds(&self, owner: usize, counter: usize) -> Bounds {
        let mut bounds = Bounds { least: 0, eventually: 0, most: 0 };
        for op in &self.operations {
            let (at_end, with) = op.raises(owner, counter);
            let all = at_end + with.len() as u64;
            bounds.most += all;
            if op.status == Some(WEFT_OK) {
                bounds.least += at_end;
                bounds.eventually += all;
            }
        }
        bounds
    }

    /// A counter is gone: who waits for it is told, unless it may have reached what was waited for.
    pub fn deserted(&mut self, owner: usize, counter: usize) {
        let most = self.bounds(owner, counter).most;
        for op in self.operations.iter_mut().filter(|op| op.who == owner && op.status.is_none()) {
            let goals = op.expects.iter().filter(|(index, _)| *index == counter);
            for goal in goals.map(|(_, goal)| *goal) {
                op.may.push(WEFT_ERR_CANCELED);
                op.deserted |= goal > most;
            }
        }
    }

    /// A counter was read.
    pub fn counted(&mut self, owner: usize, counter: usize, value: u64, arenas: &[Arena; 2]) -> Outcome {
        let Bounds { least, most, .. } = self.bounds(owner, counter);
        let counters = &mut self.parts[owner].counters[counter];
        let least = least.max(counters.seen);
        let name = format!("counter {:#x} of {}", counters.id, Who(owner));
        counters.seen = value;
        if value < least || value > most {
            return Err(format!("{name} has {value}, which is not between {least} and {most}"));
        }
        for index in 0..self.operations.len() {
            self.check_counted((owner, counter), index, most - value, arenas)
                .map_err(|why| format!("{name}: {why}"))?;
        }
        Ok(())
    }

    /// So much of what was submitted is not counted: the rest has arrived.
    fn check_counted(
        &self,
        (owner, counter): (usize, usize),
        index: usize,
        missing: u64,
        arenas: &[Arena; 2],
    ) -> Outcome {
        let op = &self.operations[index];
        let (at_end, with) = op.raises(owner, counter);
        let arrived = (at_end + with.len() as u64).saturating_sub(missing);
        if arrived == 0 || op.fenced {
            return Ok(());
        }
        if arrived > with.len() as u64 || missing == 0 && at_end > 0 {
            return match self.differs(index, false, arenas) {
                Some(bad) => Err(format!("it counts {}, but {bad}", self.name(index))),
                None => Ok(()),
            };
        }
        let there = with.iter().filter(|segment| self.has_arrived(index, **segment, arenas)).count() as u64;
        if there + at_end < arrived && !self.is_overlapping(index) {
            return Err(format!(
                "it counts {arrived} pages of {}, of which {there} are there",
                self.name(index)
            ));
        }
        Ok(())
    }
}
