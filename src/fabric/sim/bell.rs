//! Wakes the thread that sleeps on a NIC's descriptor.

use crate::event::Event;
use once_cell::sync::OnceCell;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};
use std::sync::atomic::{fence, AtomicBool};

#[derive(Default)]
pub struct Bell {
    event: OnceCell<Event>,
    armed: AtomicBool,
}

impl Bell {
    /// The descriptor; `None` if the system has none left.
    pub fn descriptor(&self) -> Option<RawFd> {
        self.event.get_or_try_init(Event::new).ok().map(Event::descriptor)
    }

    /// Whether pushes ring the bell; earlier pushes must be polled for.
    pub fn arm(&self) {
        if let Some(event) = self.event.get() {
            event.clear();
        }
        self.armed.store(true, Relaxed);
        // Pairs with the fence in `ring`: either this thread sees the push, or the pusher sees that
        // the bell is armed.
        fence(SeqCst);
    }

    pub fn disarm(&self) {
        self.armed.store(false, Relaxed);
    }

    /// Call after a push.
    #[inline]
    pub fn ring(&self) {
        fence(SeqCst);
        if self.armed.load(Relaxed) && self.armed.swap(false, AcqRel) {
            if let Some(event) = self.event.get() {
                event.set();
            }
        }
    }
}
