//! I/O by io_uring. The thread that drives it sleeps in io_uring_enter; the ring polls its inbox.

use super::jobs::{Disk, Ended, Io, What};
use crate::descriptor::{Shared, FIRST};
use crate::event::Event;
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{opcode, squeue, IoUring};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// I/Os that the kernel has at once. The ring has room for one more: the poll of the inbox.
const DEPTH: usize = 128;
const ENTRIES: u32 = 256;
/// The poll of the inbox.
const INBOX: u64 = u64::MAX;

pub struct Ring {
    /// Dropped first, while the descriptor is the ring's.
    _shared: Shared,
    ring: IoUring,
    /// The inbox is being polled.
    polled: bool,
}

impl Ring {
    /// An error: io_uring is refused, or too old here.
    pub fn new() -> io::Result<Ring> {
        // A standard descriptor that the program has closed is not the ring's: the ring that got it goes again.
        let mut standard = Vec::new();
        let ring = loop {
            let ring = Self::build()?;
            match ring.as_raw_fd() {
                0..FIRST => standard.push(ring),
                _ => break ring,
            }
        };
        // What waits in the kernel while it begins has a thread of the kernel's; too few, and the I/O of
        // one disk that hangs would hold up another's. Before Linux 5.15 their number is fixed.
        let _ = ring.submitter().register_iowq_max_workers(&mut [DEPTH as u32, 0]);
        match ring.params().is_feature_ext_arg() {
            true => Ok(Ring { _shared: Shared::new(ring.as_raw_fd()), ring, polled: false }),
            false => Err(io::Error::from_raw_os_error(libc::ENOSYS)),
        }
    }

    fn build() -> io::Result<IoUring> {
        // Forked children have neither its memory (dontfork) nor its descriptor (`Shared`).
        let mut quiet = IoUring::builder();
        // Only this thread submits, and completions are looked at when it asks: nothing interrupts it.
        quiet.dontfork().setup_single_issuer().setup_defer_taskrun();
        match quiet.build(ENTRIES) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                IoUring::builder().dontfork().build(ENTRIES)
            }
            made => made,
        }
    }

    fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the memory and the descriptor of an I/O stay valid until it has ended, which
        // `Disk::begin` asks for.
        unsafe { self.ring.submission().push(entry).is_ok() }
    }
}

impl Disk for Ring {
    fn depth(&self) -> usize {
        DEPTH
    }

    unsafe fn begin(&mut self, io: Io) {
        let (fd, memory) = (Fd(io.fd), io.memory as *mut u8);
        let entry = match io.what {
            What::Read => opcode::Read::new(fd, memory, io.len).offset(io.offset).build(),
            What::Write => opcode::Write::new(fd, memory, io.len).offset(io.offset).build(),
            What::Flush => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        };
        let flags = if io.waits { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        // There is room: the ring has twice as many entries as the kernel gets I/Os.
        let _ = self.push(&entry.flags(flags).user_data(io.token.into()));
    }

    fn wait(&mut self, inbox: &Event, at_most: Option<Duration>, ended: &mut Vec<Ended>) {
        if !self.polled {
            let fd: RawFd = inbox.descriptor();
            let poll = opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).build().user_data(INBOX);
            self.polled = self.push(&poll);
        }
        let until = at_most.map(Timespec::from);
        let mut args = SubmitArgs::new();
        if let Some(until) = &until {
            args = args.timespec(until);
        }
        // Times out, is interrupted, or is out of memory for a moment: then the next call goes on.
        let waited = self.ring.submitter().submit_with_args(1, &args);
        if waited.is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        for entry in self.ring.completion() {
            if entry.user_data() == INBOX {
                self.polled = false;
                inbox.clear();
            } else {
                ended.push((entry.user_data() as u32, entry.result()));
            }
        }
    }
}
