//! When a session wants to be asked again: one table of all its timers.

use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timer {
    /// The connect has failed by then.
    Connect,
    /// The next fabric is tried, or one is selected without its missing lanes.
    Approach,
    /// The next step of a closing, or its next attempt to send.
    Close,
    /// The peer is to get something at least.
    KeepAlive,
    /// How long the peer has been silent is looked at.
    Silence,
    /// A failed lane starts its handshake again.
    Return,
    /// The next step of a resume.
    Resume,
}

const TIMERS: [Timer; 7] = [
    Timer::Connect,
    Timer::Approach,
    Timer::Close,
    Timer::KeepAlive,
    Timer::Silence,
    Timer::Return,
    Timer::Resume,
];

#[derive(Default)]
pub struct Timers([Option<u64>; TIMERS.len()]);

impl Timers {
    /// Sets a timer to `due`, or stops it.
    pub fn set(&mut self, timer: Timer, due: impl Into<Option<u64>>) {
        self.0[timer as usize] = due.into();
    }

    pub fn stop_all(&mut self) {
        *self = Timers::default();
    }

    pub fn next(&self) -> Option<u64> {
        self.0.iter().flatten().min().copied()
    }

    /// Takes a timer that is due.
    pub fn take_due(&mut self, now: u64) -> Option<Timer> {
        let due = |timer: &Timer| self.0[*timer as usize].is_some_and(|due| due <= now);
        let timer = TIMERS.into_iter().find(due)?;
        self.0[timer as usize] = None;
        Some(timer)
    }
}

/// The timers that run, with the times when they are due.
impl fmt::Display for Timers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let due = TIMERS.into_iter().filter_map(|timer| Some((timer, self.0[timer as usize]?)));
        for (timer, due) in due {
            write!(f, " {timer:?}@{due}")?;
        }
        Ok(())
    }
}
