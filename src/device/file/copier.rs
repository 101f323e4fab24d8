//! The copier of files: each launch is a job.

use super::jobs::{Ends, Job, Moved, Queue, Work};
use super::plan::Piece;
use super::spans::{find, Found};
use crate::device::{Copied, Copier};
use crate::status::Result;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

pub struct Jobs {
    added: Vec<Moved>,
    /// A piece of this launch is in no registered file.
    gone: bool,
    tickets: u64,
    ends: Arc<Ends>,
    /// That of the files which were added last.
    queue: Weak<Queue>,
}

impl Jobs {
    pub fn new() -> Result<Jobs> {
        let ends = Arc::new(Ends::new()?);
        Ok(Jobs { added: Vec::new(), gone: false, tickets: 0, ends, queue: Weak::new() })
    }

    /// What has not begun will not.
    fn drop_waiting(&self) {
        self.ends.drop_waiting(self.tickets);
        if let Some(queue) = self.queue.upgrade() {
            queue.nudge();
        }
    }
}

impl Copier for Jobs {
    unsafe fn add(&mut self, from: u64, to: u64, len: u64) {
        if len == 0 {
            return;
        }
        let read = find(from, len).map(|found| (found, to, false));
        let part = read.or_else(|| Some((find(to, len)?, from, true)));
        let Some((Found { file, offset, queue }, memory, write)) = part else {
            self.gone = true;
            return;
        };
        self.queue = queue;
        let piece = Piece { memory, offset, len };
        let continues = |last: &mut Moved| {
            Arc::ptr_eq(&last.file, &file) && last.write == write && last.piece.join(&piece)
        };
        if !self.added.last_mut().is_some_and(continues) {
            self.added.push(Moved { file, write, piece });
        }
    }

    fn launch(&mut self) -> u64 {
        self.tickets += 1;
        let (parts, ticket) = (std::mem::take(&mut self.added), self.tickets);
        let (queue, gone) = (self.queue.upgrade(), std::mem::take(&mut self.gone));
        self.ends.expect();
        match (parts.first().map(|part| part.file.patience), queue) {
            _ if gone => self.ends.put(ticket, Copied::Gone),
            (None, _) => self.ends.put(ticket, Copied::Done),
            (Some(_), None) => self.ends.put(ticket, Copied::Gone),
            (Some(patience), Some(queue)) => {
                let (ends, deadline) = (self.ends.clone(), Instant::now() + patience);
                queue.push(Work::Job(Job { parts, ticket, ends, deadline }));
            }
        }
        ticket
    }

    fn poll(&mut self, ticket: u64) -> Copied {
        self.ends.take(ticket)
    }

    fn wakes(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ends.wakes())
    }

    fn heard(&mut self) {
        self.ends.heard();
    }

    fn wait(&mut self) -> bool {
        self.drop_waiting();
        self.ends.wait()
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        self.drop_waiting();
    }
}
