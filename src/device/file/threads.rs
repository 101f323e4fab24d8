//! I/O by a few threads, where io_uring is refused.

use super::jobs::{Disk, Ended, Io};
use crate::event::Event;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

const THREADS: usize = 8;

struct Shared {
    state: Mutex<State>,
    more: Condvar,
    inbox: Arc<Event>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Io>,
    ended: Vec<Ended>,
    closing: bool,
}

pub struct Threads(Arc<Shared>);

impl Threads {
    pub fn new(name: &str, inbox: &Arc<Event>) -> io::Result<Threads> {
        let (state, more) = (Mutex::default(), Condvar::new());
        let threads = Threads(Arc::new(Shared { state, more, inbox: inbox.clone() }));
        for index in 0..THREADS {
            let shared = threads.0.clone();
            let named = std::thread::Builder::new().name(format!("{name}{index}"));
            named.spawn(move || shared.serve())?;
        }
        Ok(threads)
    }
}

impl Drop for Threads {
    /// Their descriptors and memory are not used any longer, but by one that hangs.
    fn drop(&mut self) {
        self.0.state.lock().closing = true;
        self.0.more.notify_all();
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(io) = state.queue.pop_front() {
                drop(state);
                // SAFETY: `begin` had a valid I/O, which lasts until its end is taken.
                let result = unsafe { io.carry_out() };
                state = self.state.lock();
                state.ended.push((io.token, result));
                self.inbox.set();
            } else if state.closing {
                return;
            } else {
                self.more.wait(&mut state);
            }
        }
    }
}

impl Disk for Threads {
    fn depth(&self) -> usize {
        THREADS
    }

    unsafe fn begin(&mut self, io: Io) {
        self.0.state.lock().queue.push_back(io);
        self.0.more.notify_one();
    }

    fn wait(&mut self, inbox: &Event, at_most: Option<Duration>, ended: &mut Vec<Ended>) {
        let take = |ended: &mut Vec<Ended>| ended.append(&mut self.0.state.lock().ended);
        take(ended);
        if ended.is_empty() {
            inbox.wait(&mut Vec::new(), at_most.unwrap_or(Duration::from_secs(3600)));
            take(ended);
        }
    }
}
