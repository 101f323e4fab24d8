//! Counters: made, read, expected and destroyed, and what the model has to know.

use crate::case::{flawed, queue, timeout, Who};
use crate::driver::{Driver, Refusal, DAY_NS};
use crate::model::{status_name, Counter, Outcome};
use crate::side::{check, sized};
use std::ffi::c_void;
use std::fmt::{self, Display, Formatter};
use std::ptr;
use weft::capi::completion::WEFT_COMPLETION_COUNTER;
use weft::capi::counter::*;
use weft::capi::status::*;

/// Counters that a side can name at once.
pub const COUNTERS: usize = 3;
const EXPECT_MAX: usize = 65_536;

/// A value to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    Zero,
    /// What it has now.
    Now,
    /// When all that was submitted has arrived.
    All,
    /// When so much more has.
    More(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountFlaw {
    Null,
    Zero,
    OfOther,
    NextGeneration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpectFlaw {
    NoArgs,
    NoCounters,
    ManyCounters,
    NullCounters,
    NullValues,
    LargeValue,
    OfOther,
    UnknownFlag,
    Reserved,
    LongTimeout,
    QueueOfOther,
    NoSize,
}

#[derive(Clone, Debug)]
pub enum CountOp {
    Create { slot: usize },
    Destroy { slot: usize },
    Read { slot: usize, flaw: Option<CountFlaw> },
    Expect { goals: Vec<(usize, Goal)>, timeout_ns: u64, second_queue: bool, flaw: Option<ExpectFlaw> },
}

impl Display for CountOp {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match self {
            CountOp::Create { slot } => write!(f, "makes counter {slot}"),
            CountOp::Destroy { slot } => write!(f, "destroys counter {slot}"),
            CountOp::Read { slot, flaw } => write!(f, "reads counter {slot}{}", flawed(flaw)),
            CountOp::Expect { goals, timeout_ns, second_queue, flaw } => {
                let rest = (timeout(*timeout_ns), queue(*second_queue), flawed(flaw));
                write!(f, "expects of counters {goals:?}{}{}{}", rest.0, rest.1, rest.2)
            }
        }
    }
}

impl Driver {
    pub fn count(&mut self, who: Who, op: &CountOp) -> Outcome<String> {
        match op {
            CountOp::Create { slot } => self.create_counter(who, *slot),
            CountOp::Destroy { slot } => self.destroy_counter(who, *slot),
            CountOp::Read { slot, flaw } => match (self.model.parts[who.0].counter_slots[*slot], flaw) {
                (Some(counter), Some(flaw)) => self.read_wrongly(who, counter, *flaw),
                (Some(counter), None) => self.read_counter(who, counter),
                (None, _) => Ok("no such counter".into()),
            },
            CountOp::Expect { goals, timeout_ns, second_queue, flaw } => {
                self.expect(who, goals, (*timeout_ns, *second_queue), *flaw)
            }
        }
    }

    /// The counter of the other side in a slot, if there is one.
    pub fn counter_of_other(&self, who: Who, slot: Option<usize>) -> Option<(usize, u64)> {
        let other = &self.model.parts[1 - who.0];
        let counter = other.counter_slots[slot?]?;
        Some((counter, other.counters[counter].id))
    }

    fn create_counter(&mut self, who: Who, slot: usize) -> Outcome<String> {
        let mut id = 0;
        // SAFETY: an open endpoint, and a place for the id.
        check("weft_counter_create", unsafe { weft_counter_create(self.sides[who.0].endpoint, &mut id) })?;
        let part = &mut self.model.parts[who.0];
        if id == 0 || part.counters.iter().any(|counter| counter.id == id) {
            return Err(format!("counter {id:#x} was made before"));
        }
        part.counter_slots[slot] = Some(part.counters.len());
        part.counters.push(Counter { id, alive: true, seen: 0 });
        self.read_counter(who, self.model.parts[who.0].counters.len() - 1)
    }

    fn destroy_counter(&mut self, who: Who, slot: usize) -> Outcome<String> {
        let Some(index) = self.model.parts[who.0].counter_slots[slot] else { return Ok(String::new()) };
        let counter = &mut self.model.parts[who.0].counters[index];
        let mut refusal = Refusal::default();
        if !counter.alive {
            refusal.must(WEFT_ERR_HANDLE);
        }
        // SAFETY: an open endpoint.
        let status = unsafe { weft_counter_destroy(self.sides[who.0].endpoint, counter.id) };
        if refusal.judge("weft_counter_destroy", status)? {
            counter.alive = false;
            self.model.deserted(who.0, index);
        }
        Ok(status_name(status))
    }

    fn value_of(&self, who: Who, id: u64) -> (i32, u64) {
        let mut value = 0;
        // SAFETY: an open endpoint, and a place for the value.
        let status = unsafe { weft_counter_read(self.sides[who.0].endpoint, id, &mut value) };
        (status, value)
    }

    /// Reads it, and compares what that says of bytes, too.
    pub fn read_counter(&mut self, who: Who, index: usize) -> Outcome<String> {
        let Counter { id, alive, .. } = self.model.parts[who.0].counters[index];
        let (status, value) = self.value_of(who, id);
        let mut refusal = Refusal::default();
        if !alive {
            refusal.must(WEFT_ERR_HANDLE);
        }
        if !refusal.judge("weft_counter_read", status)? {
            return Ok(status_name(status));
        }
        self.model.counted(who.0, index, value, &self.arenas)?;
        Ok(format!("{value}"))
    }

    fn read_wrongly(&self, who: Who, index: usize, flaw: CountFlaw) -> Outcome<String> {
        let part = &self.model.parts[who.0];
        let id = match flaw {
            CountFlaw::Null => part.counters[index].id,
            CountFlaw::Zero => 0,
            CountFlaw::OfOther => match self.counter_of_other(who, Some(0)) {
                Some((_, id)) => id,
                None => return Ok(String::new()),
            },
            CountFlaw::NextGeneration => part.counters[index].id ^ 1 << 31,
        };
        let mut value = 0;
        let place = if flaw == CountFlaw::Null { ptr::null_mut() } else { &raw mut value };
        // SAFETY: an open endpoint; NULL is checked.
        let status = unsafe { weft_counter_read(self.sides[who.0].endpoint, id, place) };
        let mut refusal = Refusal::default();
        refusal.must(if flaw == CountFlaw::Null { WEFT_ERR_INVALID } else { WEFT_ERR_HANDLE });
        refusal.judge("weft_counter_read", status).map(|_| status_name(status))
    }

    fn goal(&self, who: Who, index: usize, goal: Goal) -> u64 {
        let most = self.model.bounds(who.0, index).most;
        match goal {
            Goal::Zero => 0,
            Goal::Now => self.model.parts[who.0].counters[index].seen,
            Goal::All => most,
            Goal::More(more) => most + more,
        }
    }

    fn expect(
        &mut self,
        who: Who,
        goals: &[(usize, Goal)],
        (timeout_ns, second): (u64, bool),
        flaw: Option<ExpectFlaw>,
    ) -> Outcome<String> {
        let part = &self.model.parts[who.0];
        let known = |(slot, goal): &(usize, Goal)| part.counter_slots[*slot].map(|index| (index, *goal));
        let expects: Vec<(usize, u64)> = goals
            .iter()
            .filter_map(known)
            .map(|(index, goal)| (index, self.goal(who, index, goal)))
            .collect();
        if expects.is_empty() {
            return Ok("no such counter".into());
        }
        let mut ids: Vec<u64> = expects.iter().map(|(index, _)| part.counters[*index].id).collect();
        let mut values: Vec<u64> = expects.iter().map(|(_, value)| *value).collect();
        let mut refusal = self.refusal(who, second);
        refusal.statuses.retain(|status| *status == WEFT_ERR_AGAIN);
        if expects.iter().any(|(index, _)| !part.counters[*index].alive) {
            refusal.must(WEFT_ERR_HANDLE);
        }
        let mut args = sized!(weft_expect_args);
        (args.timeout_ns, args.user_data) = (timeout_ns, (self.model.operations.len() + 1) as *mut c_void);
        args.queue = if second { self.sides[who.0].queue } else { ptr::null() };
        if let Some(flaw) = flaw {
            let other = self.counter_of_other(who, Some(0)).map(|(_, id)| id);
            refusal.must(spoil(flaw, &mut args, (&mut ids, &mut values), other));
            if flaw == ExpectFlaw::QueueOfOther {
                args.queue = self.sides[1 - who.0].queue;
            }
        }
        args.count = ids.len() as u32;
        args.counters = if flaw == Some(ExpectFlaw::NullCounters) { ptr::null() } else { ids.as_ptr() };
        args.values = if flaw == Some(ExpectFlaw::NullValues) { ptr::null() } else { values.as_ptr() };
        let given = if flaw == Some(ExpectFlaw::NoArgs) { ptr::null() } else { &raw const args };
        let mut transfer = 0;
        // SAFETY: valid arguments, but for what a flaw made of them, which is checked.
        let status = unsafe { weft_counter_expect(self.sides[who.0].endpoint, given, &mut transfer) };
        if refusal.judge("weft_counter_expect", status)? {
            let mut begun = self.begun(who, WEFT_COMPLETION_COUNTER, transfer, second);
            (begun.peer, begun.timeout_ns, begun.expects) = (0, timeout_ns, expects.clone());
            begun.may.clear();
            // Virtual time that nobody needs passes at once.
            if self.is_virtual() {
                begun.may.push(WEFT_ERR_TIMED_OUT);
            }
            self.model.operations.push(begun);
        }
        Ok(format!("{}: {expects:?}", status_name(status)))
    }

    /// What an operation waited for is there.
    pub fn check_expected(&mut self, who: Who, expects: &[(usize, u64)]) -> Outcome {
        for (index, value) in expects {
            let Counter { id, alive, .. } = self.model.parts[who.0].counters[*index];
            if !alive {
                continue;
            }
            self.read_counter(who, *index)?;
            let seen = self.model.parts[who.0].counters[*index].seen;
            if seen < *value {
                return Err(format!(
                    "{who} was told that counter {id:#x} has reached {value}: it has {seen}"
                ));
            }
        }
        Ok(())
    }

    /// All that was counted well is there, and who waits for it knows.
    pub fn counters_settled(&self) -> bool {
        let value =
            |who: usize, index: usize| self.value_of(Who(who), self.model.parts[who].counters[index].id).1;
        let alive = |who: usize, index: usize| self.model.parts[who].counters[index].alive;
        let reached = |who: usize| {
            let mut counters = (0..self.model.parts[who].counters.len()).filter(|index| alive(who, *index));
            counters.all(|index| value(who, index) >= self.model.bounds(who, index).eventually)
        };
        let waits = |op: &&crate::model::Operation| op.status.is_none() && !op.expects.is_empty();
        let due = |op: &crate::model::Operation| {
            let reached = |index: usize, goal: u64| !alive(op.who, index) || value(op.who, index) >= goal;
            op.deserted || op.expects.iter().all(|(index, goal)| reached(*index, *goal))
        };
        reached(0) && reached(1) && !self.model.operations.iter().filter(waits).any(due)
    }

    /// Every counter has a value that it may have.
    pub fn check_counters(&mut self) -> Outcome {
        for who in [Who(0), Who(1)] {
            for index in 0..self.model.parts[who.0].counters.len() {
                self.read_counter(who, index)?;
            }
        }
        Ok(())
    }
}

fn spoil(
    flaw: ExpectFlaw,
    args: &mut weft_expect_args,
    (ids, values): (&mut Vec<u64>, &mut Vec<u64>),
    other: Option<u64>,
) -> i32 {
    match flaw {
        ExpectFlaw::NoCounters => {
            ids.clear();
            values.clear();
            return WEFT_ERR_LIMIT;
        }
        ExpectFlaw::ManyCounters => {
            ids.resize(EXPECT_MAX + 1, ids[0]);
            values.resize(EXPECT_MAX + 1, 0);
            return WEFT_ERR_LIMIT;
        }
        ExpectFlaw::LargeValue => {
            values[0] = 1 << 48;
            return WEFT_ERR_LIMIT;
        }
        ExpectFlaw::OfOther => {
            ids[0] = other.unwrap_or(ids[0] ^ 1 << 63);
            return WEFT_ERR_HANDLE;
        }
        ExpectFlaw::UnknownFlag => args.flags = 1 << 31,
        ExpectFlaw::Reserved => args.reserved = 1,
        ExpectFlaw::LongTimeout => {
            args.timeout_ns = DAY_NS + 1;
            return WEFT_ERR_LIMIT;
        }
        ExpectFlaw::QueueOfOther => return WEFT_ERR_HANDLE,
        ExpectFlaw::NoSize => {
            args.size = 0;
            return WEFT_ERR_INVALID;
        }
        ExpectFlaw::NoArgs | ExpectFlaw::NullCounters | ExpectFlaw::NullValues => return WEFT_ERR_INVALID,
    }
    WEFT_ERR_UNSUPPORTED
}
