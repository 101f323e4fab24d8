//! When a session must be called again: one table of all its timers.

use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timer {
    /// The connect fails.
    Connect,
    /// The next fabric is tried, or one is selected without its missing lanes.
    Approach,
    /// The next step of a closing, or its next attempt to send.
    Close,
    /// A keep-alive must be sent.
    KeepAlive,
    /// The silence of the peer is checked.
    Silence,
    /// A failed lane starts its handshake again.
    Return,
    /// The next step of a resume.
    Resume,
    /// Lanes that have not come up beside others are reported.
    Missing,
}

const TIMERS: [Timer; 8] = [
    Timer::Connect,
    Timer::Approach,
    Timer::Close,
    Timer::KeepAlive,
    Timer::Silence,
    Timer::Return,
    Timer::Resume,
    Timer::Missing,
];

/// The time of a timer that does not run. An `Option` would be compared before its tag is looked at:
/// to valgrind, a use of uninitialized memory.
const NEVER: u64 = u64::MAX;

pub struct Timers([u64; TIMERS.len()]);

impl Default for Timers {
    fn default() -> Timers {
        Timers([NEVER; TIMERS.len()])
    }
}

impl Timers {
    /// Sets a timer to `due`, or stops it.
    pub fn set(&mut self, timer: Timer, due: impl Into<Option<u64>>) {
        self.0[timer as usize] = due.into().unwrap_or(NEVER);
    }

    /// Sets a timer that does not run.
    pub fn start(&mut self, timer: Timer, due: u64) {
        let known = &mut self.0[timer as usize];
        if *known == NEVER {
            *known = due;
        }
    }

    pub fn stop_all(&mut self) {
        *self = Timers::default();
    }

    pub fn next(&self) -> Option<u64> {
        self.0.iter().min().copied().filter(|due| *due != NEVER)
    }

    /// Removes a timer that is due.
    pub fn take_due(&mut self, now: u64) -> Option<Timer> {
        let timer = TIMERS.into_iter().find(|timer| self.0[*timer as usize] <= now.min(NEVER - 1))?;
        self.0[timer as usize] = NEVER;
        Some(timer)
    }
}

/// Shows the running timers, with their times.
impl fmt::Display for Timers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = |(_, due): &(Timer, u64)| *due != NEVER;
        for (timer, due) in TIMERS.into_iter().map(|timer| (timer, self.0[timer as usize])).filter(runs) {
            write!(f, " {timer:?}@{due}")?;
        }
        Ok(())
    }
}
