//! Operations: their ids, and the options that all of them take.

use super::ids::{CounterId, GrantToken, Op};
use super::names::in_rust;
use super::parked::Shared;
use super::queue::Queue;
use super::time::ns_not_0;
use super::watch::Watch;
use crate::calls;
use crate::ids::OpId;
use crate::status::{Error, Result};
pub use crate::transfer::options::NOTIFY_DATA_MAX;
use crate::transfer::options::{
    absent, Options, Takes, COUNT_PAGES, DURABLE, EACH_PEER, LATENCY, NOTIFY, NOTIFY_FAILURE,
};
use crate::transfer::watch::Marks;
use crate::transfer::{Common, Direction, Terms};
use std::sync::Arc;
use std::time::Duration;

/// Options of an operation. Every operation has [`timeout`](OpOptions::timeout),
/// [`user_data`](OpOptions::user_data) and [`queue`](OpOptions::queue). An option that an operation does not have is
/// refused.
///
/// ```
/// # let world = libweft::testing::world()?;
/// # let (a, local, remote) = (&world.a, &world.local, &world.remote);
/// use libweft::OpOptions;
/// use std::time::Duration;
///
/// let options = OpOptions::new().timeout(Duration::from_secs(5)).user_data(42).notify(1).notify_data(b"layer 0");
/// let op = a.write(local, 0, remote, 0, 4096, &options)?;
/// let notification = world.notification_b()?;
/// assert_eq!((notification.notify, notification.data()), (1, &b"layer 0"[..]));
/// # world.wait_a(op)?;
/// # Ok::<(), libweft::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct OpOptions<'a> {
    flags: u32,
    timeout: Option<Duration>,
    user_data: u64,
    queue: Option<&'a Queue>,
    notify: u64,
    notify_data: &'a [u8],
    /// A future takes the completion.
    for_future: bool,
    counter: u64,
    start: Option<(&'a Watch, u64)>,
    done: Option<(&'a Watch, u64)>,
    grant: Option<GrantToken>,
}

impl<'a> OpOptions<'a> {
    /// All defaults.
    pub fn new() -> OpOptions<'a> {
        OpOptions::default()
    }

    /// From the call to the deadline, up to 24 hours. Default: the endpoint's `timeout` (of a connect:
    /// `connect_timeout`).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Returned in the completion.
    pub fn user_data(mut self, user_data: u64) -> Self {
        self.user_data = user_data;
        self
    }

    /// The queue that gets the completion. Default: the endpoint's own.
    pub fn queue(mut self, queue: &'a Queue) -> Self {
        self.queue = Some(queue);
        self
    }

    /// Of transfers: when the last byte has arrived, the peer gets one
    /// [`Completion::Notification`](crate::Completion::Notification) with this value; the transfer completes when
    /// that has arrived, too.
    pub fn notify(mut self, value: u64) -> Self {
        (self.flags, self.notify) = (self.flags | NOTIFY, value);
        self
    }

    /// Data of the notification, up to [`NOTIFY_DATA_MAX`] bytes.
    pub fn notify_data(mut self, data: &'a [u8]) -> Self {
        self.notify_data = data;
        self
    }

    /// With `notify`: of a failure, too, with its status instead of the data.
    pub fn notify_failure(mut self) -> Self {
        self.flags |= NOTIFY_FAILURE;
        self
    }

    /// Of transfers and atomics: latency class, posted before bulk transfers. For small transfers that somebody
    /// waits for.
    pub fn latency(mut self) -> Self {
        self.flags |= LATENCY;
        self
    }

    /// Of transfers: a counter of the peer, raised by 1, exactly once, after the last byte, also where there are no
    /// bytes; the transfer completes when it was raised. Increments to a counter that the peer has destroyed are
    /// discarded silently; another endpoint's is [`Handle`](crate::Status::Handle). Not of lists, whose entries name
    /// counters.
    pub fn counter(mut self, counter: CounterId) -> Self {
        self.counter = counter.0;
        self
    }

    /// Of writes with a `counter`: raises it by 1 for each page that has arrived, not once at the end.
    pub fn count_pages(mut self) -> Self {
        self.flags |= COUNT_PAGES;
        self
    }

    /// Of writes into files ([`Endpoint::register_file`](crate::Endpoint::register_file)) of a peer with
    /// [`PeerInfo::durable`](crate::PeerInfo::durable): the bytes, and all that was written to these files before, survive
    /// a power cut of the peer before completion, notification and counter. One flush serves all writes that wait for
    /// it. Where it fails, they end with [`Status::File`](crate::Status::File), and so does all that uses the memory
    /// later, until the file is registered anew. Not of reads, nor of other memory
    /// ([`Unsupported`](crate::Status::Unsupported)), nor with `count_pages`.
    pub fn durable(mut self) -> Self {
        self.flags |= DURABLE;
        self
    }

    /// Of lists: one completion for each peer instead of one for all.
    pub fn complete_each_peer(mut self) -> Self {
        self.flags |= EACH_PEER;
        self
    }

    /// The transfer starts when this watch has reached `value`; its deadline counts from the call.
    pub fn start_watch(mut self, watch: &'a Watch, value: u64) -> Self {
        self.start = Some((watch, value));
        self
    }

    /// Set to `value` when the operation has ended, with whatever status, just before its completion.
    pub fn done_watch(mut self, watch: &'a Watch, value: u64) -> Self {
        self.done = Some((watch, value));
        self
    }

    /// Of transfers and atomics: the grant of the peer that it is under. What it does not cover, and all after its revoke, ends
    /// with [`Status::Revoked`](crate::Status::Revoked).
    pub fn grant(mut self, grant: GrantToken) -> Self {
        self.grant = Some(grant);
        self
    }

    /// For an operation whose one completion a future takes.
    #[cfg(feature = "futures")]
    pub(super) fn for_future(mut self) -> Self {
        self.for_future = true;
        self
    }

    /// The timeout as the library takes it, and the user data, of what has these two alone.
    pub(super) fn connect(&self) -> Result<(u64, u64)> {
        let options = self.checked(Takes::NOTHING)?;
        absent(self.queue.is_some(), "queue")?;
        Ok((options.timeout_ns, options.user_data))
    }

    fn given(&self) -> Options<'a> {
        Options {
            flags: self.flags,
            timeout_ns: self.timeout.map_or(0, ns_not_0),
            user_data: self.user_data,
            notify: self.notify,
            notify_data: self.notify_data.into(),
            counter: self.counter,
            grant: self.grant.map(|grant| grant.0),
        }
    }

    fn checked(&self, takes: Takes) -> Result<Options<'a>> {
        if self.for_future && self.flags & EACH_PEER != 0 {
            let text =
                "complete_each_peer is set, but a future takes one completion: submit the list without \
                        Dispatcher::submit, and take its completions from Dispatcher::completions";
            return Err(Error::invalid(text));
        }
        let options = self.given();
        options.check(takes, (self.start.is_some(), self.done.is_some())).map_err(in_rust)?;
        Ok(options)
    }

    pub(super) fn submit(
        &self,
        shared: &Arc<Shared>,
        takes: Takes,
        submit: impl FnOnce(&Arc<calls::Endpoint>, Common) -> Result<OpId>,
    ) -> Result<Op> {
        let options = self.checked(takes)?;
        let mark = |named: Option<(&Watch, u64)>| {
            named.map(|(watch, value)| {
                shared.check(&watch.shared, "Watch").map(|()| (watch.watch.clone(), value))
            })
        };
        let marks = Marks { start: mark(self.start).transpose()?, done: mark(self.done).transpose()? };
        let queue = match self.queue {
            None => shared.endpoint().queue(),
            Some(queue) => shared.check(&queue.shared, "Queue").map(|()| &queue.queue)?,
        };
        let common = options.common(queue, &marks);
        shared.call(|ep| submit(ep, common)).map(|id| Op(id.get()))
    }

    /// Like `submit`, for a transfer.
    pub(super) fn transfer(
        &self,
        shared: &Arc<Shared>,
        takes: Takes,
        direction: Direction,
        submit: impl FnOnce(&Arc<calls::Endpoint>, &Terms) -> Result<OpId>,
    ) -> Result<Op> {
        self.submit(shared, takes, |ep, common| submit(ep, &self.given().terms(direction, common)))
    }

    /// The flags of how pages are cut.
    pub(super) fn cuts(&self) -> u32 {
        self.flags & (LATENCY | COUNT_PAGES)
    }

    pub(super) fn is_latency(&self) -> bool {
        self.flags & LATENCY != 0
    }
}
