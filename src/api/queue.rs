//! Completion queues.

use super::completion::Completion;
use super::parked::Shared;
use super::time::ns;
use crate::status::Result;
use crate::transfer::queue::{self, Arm};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// Completions that one step of polling takes from the ring.
const BATCH: usize = 64;

/// A completion queue: the endpoint's own ([`Endpoint::queue`](crate::Endpoint::queue)), or one more
/// ([`Endpoint::create_queue`](crate::Endpoint::create_queue)), so that threads need not share one.
///
/// Clones are the same queue, and several threads may poll it. A queue that was made and is dropped takes its
/// completions with it.
///
/// ```
/// # let world = libweft::testing::world()?;
/// # let (a, b, peer) = (&world.a, &world.b, world.a_to_b);
/// use libweft::{Completion, OpOptions};
/// use std::time::Duration;
///
/// a.send(peer, b"hello", &OpOptions::new())?;
/// let queue = b.queue();
/// loop {
///     match queue.wait(Duration::from_secs(10))?.expect("it arrives") {
///         Completion::Message(message) => break assert_eq!(&message[..], b"hello"),
///         _ => continue, // A peer came up.
///     }
/// }
/// # Ok::<(), libweft::Error>(())
/// ```
#[derive(Clone)]
pub struct Queue {
    pub(super) shared: Arc<Shared>,
    pub(super) queue: Arc<queue::Queue>,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("capacity", &self.queue.capacity()).finish()
    }
}

impl Queue {
    pub(super) fn new(shared: Arc<Shared>, queue: Arc<queue::Queue>) -> Queue {
        Queue { shared, queue }
    }

    /// Takes up to `places` completions, waiting up to `timeout_ns` for the first.
    fn take<const N: usize>(
        &self,
        most: usize,
        timeout_ns: u64,
        mut each: impl FnMut(Completion),
    ) -> Result<usize> {
        let mut places = [const { MaybeUninit::uninit() }; N];
        let room = &mut places[..most.min(N)];
        let taken = self.shared.call(|ep| match timeout_ns {
            0 => ep.poll(&self.queue, room),
            _ => ep.wait(&self.queue, room, timeout_ns),
        })? as usize;
        for place in &places[..taken.min(N)] {
            // SAFETY: polling has filled this many places.
            each(Completion::new(&self.shared, unsafe { place.assume_init_ref() }));
        }
        Ok(taken)
    }

    /// Takes the next completion, if there is one. Does not block. With manual progress this drives the rails.
    ///
    /// # Errors
    /// [`Closed`](crate::Status::Closed) once the endpoint is shut down and the queue is empty.
    pub fn poll(&self) -> Result<Option<Completion>> {
        let mut next = None;
        self.take::<1>(1, 0, |completion| next = Some(completion))?;
        Ok(next)
    }

    /// Takes the next completion, and waits up to `timeout` for it; [`Duration::MAX`]: for ever. `None`: the time
    /// passed.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// use std::time::Duration;
    /// let idle = world.a.create_queue(16)?;
    /// assert!(idle.wait(Duration::from_millis(1))?.is_none());
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`poll`](Queue::poll).
    pub fn wait(&self, timeout: Duration) -> Result<Option<Completion>> {
        let mut next = None;
        self.take::<1>(1, ns(timeout), |completion| next = Some(completion))?;
        Ok(next)
    }

    /// Appends up to `max` completions to `into`; how many. Does not block. For many completions this is cheaper
    /// than [`poll`](Queue::poll).
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let a = &world.a;
    /// use libweft::OpOptions;
    ///
    /// let (queue, mut done) = (a.create_queue(64)?, Vec::new());
    /// for _ in 0..8 {
    ///     a.send(world.a_to_b, b"one of 8", &OpOptions::new().queue(&queue))?;
    /// }
    /// while done.len() < 8 {
    ///     queue.poll_into(&mut done, 8)?;
    /// }
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`poll`](Queue::poll), if nothing was taken.
    pub fn poll_into(&self, into: &mut Vec<Completion>, max: usize) -> Result<usize> {
        let mut all = 0;
        while all < max {
            match self.take::<BATCH>(max - all, 0, |completion| into.push(completion)) {
                Ok(0) => break,
                Ok(taken) => all += taken,
                Err(error) if all == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(all)
    }

    /// The event fd of this queue, for epoll and the like.
    ///
    /// # Errors
    /// [`Unsupported`](crate::Status::Unsupported) with manual progress; [`System`](crate::Status::System).
    pub fn event(&self) -> Result<QueueEvent> {
        let fd = self.shared.call(|ep| ep.event_fd(&self.queue))?;
        Ok(QueueEvent { queue: self.clone(), fd })
    }
}

/// The event fd of a queue: readable (`POLLIN`), once, with the next completion after it was
/// [armed](QueueEvent::arm).
///
/// Poll the queue until it is empty, arm, and sleep only if that returned true. Do not read, write or close the
/// descriptor. It stays readable until the next arm; edge-triggered epoll is fine.
///
/// ```
/// # let world = libweft::testing::world()?;
/// # let a = &world.a;
/// use libweft::OpOptions;
/// use std::os::fd::AsRawFd;
///
/// let queue = a.create_queue(64)?;
/// let event = queue.event()?;
/// assert!(event.arm()?); // The queue is empty: the descriptor can be waited for.
/// a.send(world.a_to_b, b"hello", &OpOptions::new().queue(&queue))?;
/// let mut fd = libc::pollfd { fd: event.as_raw_fd(), events: libc::POLLIN, revents: 0 };
/// // SAFETY: `fd` is one descriptor to poll, and lives for the call.
/// assert_eq!(unsafe { libc::poll(&mut fd, 1, 10_000) }, 1);
/// assert!(queue.poll()?.is_some());
/// # Ok::<(), libweft::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct QueueEvent {
    /// Keeps the descriptor open.
    queue: Queue,
    fd: RawFd,
}

impl QueueEvent {
    /// Arms the event fd. False: there are completions, poll them first.
    ///
    /// # Errors
    /// [`Closed`](crate::Status::Closed) once the endpoint is shut down and the queue is empty.
    pub fn arm(&self) -> Result<bool> {
        self.queue.shared.call(|ep| Ok(ep.arm(&self.queue.queue)? == Arm::Armed))
    }

    /// The queue that it is of.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }
}

impl AsFd for QueueEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the queue keeps it open.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

impl AsRawFd for QueueEvent {
    fn as_raw_fd(&self) -> RawFd {
        self.fd
    }
}
