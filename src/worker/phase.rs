//! How far an endpoint is in its life: open, shutting down, ready to close its rails, or stopped by a defect.

use crate::status::{Error, Result, Status};
use once_cell::sync::OnceCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, AtomicUsize, Ordering};
use std::sync::Arc;

const OPEN: u8 = 0;
/// Shutting down: no new operations are accepted.
const CLOSING: u8 = 1;
/// All operations have ended: workers close their peers.
const ENDING: u8 = 2;
/// Every peer is notified: the rails can be closed.
const STOPPING: u8 = 3;

pub struct Phase {
    /// SeqCst, together with the states of slots (`Slot::state`), where operations begin and where
    /// the endpoint closes.
    now: AtomicU8,
    workers: usize,
    /// Workers whose peers know that the endpoint ends, one bit each.
    closed: AtomicUsize,
    /// Workers that have ended with a NIC that did not close, one bit each.
    unclosed: AtomicU64,
    poisoned: AtomicBool,
    poison: OnceCell<String>,
    alive: Arc<()>,
}

impl Phase {
    pub fn new(workers: usize) -> Phase {
        Phase {
            now: AtomicU8::new(OPEN),
            workers,
            closed: AtomicUsize::new(0),
            unclosed: AtomicU64::new(0),
            poisoned: AtomicBool::new(false),
            poison: OnceCell::new(),
            alive: Arc::default(),
        }
    }

    /// Lives as long as anything of the endpoint may be open.
    pub fn alive(&self) -> Arc<()> {
        self.alive.clone()
    }

    #[inline]
    pub fn is_open(&self) -> bool {
        self.now.load(Ordering::SeqCst) == OPEN
    }

    pub fn check_open(&self) -> Result<()> {
        if !self.is_open() {
            return Err(Error::closed());
        }
        Ok(())
    }

    pub fn begin_closing(&self) {
        self.now.compare_exchange(OPEN, CLOSING, Ordering::SeqCst, Ordering::SeqCst).ok();
    }

    /// All operations have ended: workers, once woken, close their peers.
    pub fn end(&self) {
        self.now.fetch_max(ENDING, Ordering::SeqCst);
    }

    #[inline]
    pub fn is_ending(&self) -> bool {
        self.now.load(Ordering::Acquire) >= ENDING
    }

    /// The rails can be closed.
    pub fn stop(&self) {
        self.now.store(STOPPING, Ordering::Release);
    }

    pub fn is_stopping(&self) -> bool {
        self.now.load(Ordering::Acquire) == STOPPING
    }

    /// All peers of a worker know that the endpoint ends; after the last worker, rails may close.
    pub fn count_closed(&self, worker: usize) {
        let bit = 1usize << worker;
        let before = self.closed.fetch_or(bit, Ordering::AcqRel);
        let all = (1u128 << self.workers) - 1;
        if (before | bit) as u128 == all {
            self.stop();
        }
    }

    /// Notes whether all NICs of a worker that ends are closed.
    pub fn note_closed(&self, worker: usize, all: bool) {
        match all {
            true => self.unclosed.fetch_and(!(1 << worker), Ordering::AcqRel),
            false => self.unclosed.fetch_or(1 << worker, Ordering::AcqRel),
        };
    }

    /// Workers that have ended answer that nothing is registered any longer, which does not hold for
    /// a NIC that is still open.
    pub fn check_closed(&self) -> Result<()> {
        match self.unclosed.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(Error::new(
                Status::TimedOut,
                "a NIC does not close, and may still use the memory: keep it, and call weft_endpoint_shutdown again",
            )),
        }
    }

    #[cold]
    pub fn poison(&self, message: &str) {
        let _ = self.poison.set(message.to_owned());
        self.poisoned.store(true, Ordering::Release);
        log::error!("a defect of Weft: {message}");
    }

    #[inline]
    pub fn check_poison(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) {
            let why = self.poison.get().map_or("?", String::as_str);
            return Err(Error::new(
                Status::Internal,
                format!("a defect of Weft stopped this endpoint: {why}"),
            ));
        }
        Ok(())
    }
}
