//! Operations as futures, and what arrives as a stream. No runtime is needed, and any can be used: it waits for the
//! event fd of a queue, and calls [`Dispatcher::dispatch`] when that is readable.
//!
//! With tokio, a separate task (`AsyncFd`, of tokio's feature `net`, watches a descriptor; the crate's examples have a whole
//! program, and one on smol):
//!
//! ```
//! # fn main() -> Result<(), libweft::Error> {
//! # let world = libweft::testing::world()?;
//! # let (a, local, remote) = (&world.a, &world.local, &world.remote);
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
//! # runtime.block_on(async {
//! use libweft::{futures::Dispatcher, OpOptions};
//! use tokio::io::unix::AsyncFd;
//!
//! let dispatcher = Dispatcher::new(&a.create_queue(0)?)?;
//! // SAFETY: the dispatcher keeps its event fd open. (`AsyncFd::new` before tokio 1.54.)
//! let fd = unsafe { AsyncFd::register(dispatcher.clone()) }.expect("a runtime with I/O");
//! tokio::spawn(async move {
//!     while fd.get_ref().dispatch().is_ok() {
//!         match fd.readable().await {
//!             Ok(mut ready) => ready.clear_ready(),
//!             Err(_) => break, // The runtime ends.
//!         }
//!     }
//! });
//! let write = dispatcher.submit(OpOptions::new(), |options| a.write(local, 0, remote, 0, 4096, options))?;
//! assert_eq!(write.await?.done().expect("of an operation").bytes, 4096);
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! Without a runtime, a thread does the same with `poll(2)`, or a loop calls [`Dispatcher::turn`], as
//! [`Dispatcher::block_on`] does.
//!
//! **What blocks.** Submitting, [`Dispatcher::dispatch`] and dropping a [`Memory`](crate::Memory) do not. These do; call
//! them where the runtime allows it, as in tokio's `spawn_blocking`:
//!
//! | call | blocks |
//! | --- | --- |
//! | [`Endpoint::open`] | some ms to some seconds |
//! | [`Endpoint::register`] and the like | while the NICs register the pages |
//! | [`Memory::deregister`](crate::Memory::deregister) | a round trip to the slowest importer, up to 2 s |
//! | [`Endpoint::shutdown`], the drop of the last clone of an [`Endpoint`] | the drain time (a drop: none) and some ms; up to 1.2 s more while a peer does not answer |
//!
//! A task that is aborted drops what it owns on a thread of the runtime: keep a clone of the endpoint outside of tasks that
//! may be.
//!
//! **To give up.** Dropping an [`OpFuture`] does not end its operation, and its completion is discarded: nothing then says
//! when the buffer is free. So cancel the operation, and await its end:
//!
//! ```
//! # fn main() -> Result<(), libweft::Error> {
//! # let world = libweft::testing::world()?;
//! # let a = &world.a;
//! # let dispatcher = libweft::futures::Dispatcher::new(&a.create_queue(0)?)?;
//! # let counter = a.create_counter()?; // Nobody raises it.
//! # let time = std::time::Duration::from_millis(10);
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
//! # let looping = dispatcher.clone();
//! # let thread = std::thread::spawn(move || while looping.turn(std::time::Duration::from_millis(5)).is_ok() {});
//! # runtime.block_on(async {
//! use libweft::{OpOptions, Status};
//! use tokio::time::timeout;
//!
//! let mut future = dispatcher.submit(OpOptions::new(), |options| a.expect(&[(counter.id(), 1)], options))?;
//! let ended = match timeout(time, &mut future).await {
//!     Ok(ended) => ended,
//!     Err(_) => {
//!         // Fails if it has just completed.
//!         let _ = future.op().map(|op| a.cancel(op));
//!         future.await
//!     }
//! };
//! assert_eq!(ended.unwrap_err().status, Status::Canceled);
//! # Ok::<(), libweft::Error>(())
//! # })?;
//! # a.shutdown(std::time::Duration::ZERO)?;
//! # thread.join().expect("it ends");
//! # Ok(())
//! # }
//! ```
//!
//! A deadline ([`OpOptions::timeout`]) needs none of that: the operation ends by it.
//!
//! **The end.** After [`Endpoint::shutdown`] the dispatcher's task takes what is left in the queue, and ends:
//! [`Dispatcher::dispatch`] then fails with [`Closed`](crate::Status::Closed), futures end, and
//! [`Dispatcher::completions`] has no next item.

use super::completion::Completion;
use super::endpoint::Endpoint;
use super::ids::{Op, Peer};
use super::names::in_rust;
use super::options::OpOptions;
use super::queue::{Queue, QueueEvent};
use crate::fork;
use crate::status::{Error, Result, Status};
use futures_core::Stream;
use parking_lot::Mutex;
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Completions taken from the queue at once.
const BATCH: usize = 64;
/// User data of operations that are futures.
const FUTURE: u64 = 1 << 63;
/// How often a future that runs without a runtime is polled at least.
const TURN: Duration = Duration::from_millis(20);

enum Waiting {
    Pending(Option<Waker>),
    Done(Completion),
}

#[derive(Default)]
struct State {
    next: u64,
    waiting: HashMap<u64, Waiting>,
    /// Completions that belong to no future.
    arrived: VecDeque<Completion>,
    listener: Option<Waker>,
    /// Threads that may have completions which are not sorted in.
    taking: usize,
    /// Why nothing comes any longer.
    over: Option<Error>,
}

struct Inner {
    event: QueueEvent,
    /// No code of a waker runs under the lock (its clone, wake and drop): a task that is dropped with its last waker may
    /// own futures of this dispatcher.
    state: Mutex<State>,
}

/// Wakers to call. One that panics keeps none of the others from being called.
#[derive(Default)]
struct Woken {
    wakers: Vec<Waker>,
    panic: Option<Box<dyn Any + Send>>,
}

impl Woken {
    fn wake(&mut self) {
        for waker in self.wakers.drain(..) {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
                self.panic.get_or_insert(panic);
            }
        }
    }

    /// Goes on with the first panic.
    fn end(self) {
        if let Some(panic) = self.panic {
            resume_unwind(panic)
        }
    }
}

/// Takes completions from a queue, and completes futures with them. Clones are the same dispatcher.
///
/// It must be the only one that polls its queue: a queue has one at a time. Operations on that queue which are not its
/// futures are items of [`completions`](Dispatcher::completions); bit 63 of their user data must be 0.
///
/// ```
/// # let world = libweft::testing::world()?;
/// # let (a, local, remote) = (&world.a, &world.local, &world.remote);
/// use libweft::{futures::Dispatcher, OpOptions};
///
/// let dispatcher = Dispatcher::new(&a.create_queue(0)?)?;
/// let work = async {
///     let first = dispatcher.submit(OpOptions::new(), |options| a.write(local, 0, remote, 0, 4096, options))?;
///     let second = dispatcher.submit(OpOptions::new(), |options| a.read(local, 0, remote, 0, 4096, options))?;
///     first.await?;
///     second.await?;
///     Ok::<(), libweft::Error>(())
/// };
/// dispatcher.block_on(work)?;
/// # Ok::<(), libweft::Error>(())
/// ```
#[derive(Clone)]
pub struct Dispatcher(Arc<Inner>);

impl Drop for Inner {
    fn drop(&mut self) {
        if fork::check().is_err() {
            return;
        }
        let queue = self.event.queue();
        queue.shared.dispatched.lock().retain(|other| !Arc::ptr_eq(other, &queue.queue));
    }
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher").field("queue", self.0.event.queue()).finish()
    }
}

impl AsFd for Dispatcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

impl AsRawFd for Dispatcher {
    fn as_raw_fd(&self) -> RawFd {
        self.0.event.as_raw_fd()
    }
}

impl State {
    /// Sorts a completion in, and adds whom it wakes.
    fn take(&mut self, completion: Completion, woken: &mut Woken) {
        let key = match &completion {
            Completion::PeerUp(up) if !up.accepted => up.user_data,
            other => other.done().map_or(0, |done| done.user_data),
        };
        match self.waiting.get_mut(&key) {
            Some(waiting) => {
                if let Waiting::Pending(Some(waker)) = std::mem::replace(waiting, Waiting::Done(completion)) {
                    woken.wakers.push(waker);
                }
            }
            // Its future was dropped.
            None if key & FUTURE != 0 => {}
            None => {
                self.arrived.push_back(completion);
                woken.wakers.extend(self.listener.take());
            }
        }
    }

    fn end(&mut self, why: Error, woken: &mut Woken) {
        self.over = Some(why);
        woken.wakers.extend(self.listener.take());
        for waiting in self.waiting.values_mut() {
            if let Waiting::Pending(waker) = waiting {
                woken.wakers.extend(waker.take());
            }
        }
    }

    /// What has become of a future; while nothing has, `waker` becomes the one before.
    fn poll(&mut self, key: u64, waker: &mut Option<Waker>) -> Poll<Result<Completion>> {
        match self.waiting.get_mut(&key) {
            Some(Waiting::Pending(held)) if self.over.is_none() => {
                std::mem::swap(held, waker);
                return Poll::Pending;
            }
            _ => {}
        }
        if let Some(Waiting::Done(completion)) = self.waiting.remove(&key) {
            let result = match &completion {
                Completion::PeerUp(up) => up.result(),
                other => other.done().map_or(Ok(()), |done| done.result()),
            };
            return Poll::Ready(result.map(|()| completion));
        }
        // The queue has ended, or the future was polled after it was ready.
        let over = self.over.clone();
        Poll::Ready(Err(over.unwrap_or_else(|| Error::handle("the operation has completed already"))))
    }

    /// The next completion of no future; while there is none, `waker` becomes the one before.
    fn next(&mut self, waker: &mut Option<Waker>) -> Poll<Option<Completion>> {
        match self.arrived.pop_front() {
            Some(completion) => Poll::Ready(Some(completion)),
            None if self.over.is_some() => Poll::Ready(None),
            None => {
                std::mem::swap(&mut self.listener, waker);
                Poll::Pending
            }
        }
    }
}

impl Dispatcher {
    /// Takes over the polling of a queue.
    ///
    /// # Errors
    /// Those of [`Queue::event`]; [`Busy`](crate::Status::Busy) (the queue has a dispatcher, or the futures of one).
    pub fn new(queue: &Queue) -> Result<Dispatcher> {
        let event = queue.event()?;
        let mut dispatched = queue.shared.dispatched.lock();
        if dispatched.iter().any(|other| Arc::ptr_eq(other, &queue.queue)) {
            let text = "the queue has a dispatcher: clone that, or make a queue with Endpoint::create_queue";
            return Err(Error::new(Status::Busy, text));
        }
        dispatched.push(queue.queue.clone());
        Ok(Dispatcher(Arc::new(Inner { event, state: Mutex::default() })))
    }

    /// Takes all completions that are there, wakes whom they are for, and arms the event fd: it is readable when
    /// there is more to do. Does not block. If a waker panics, so does this, once all of that is done.
    ///
    /// # Errors
    /// [`Closed`](crate::Status::Closed) once the endpoint is shut down and the queue is empty; futures that still
    /// wait end with it, too.
    pub fn dispatch(&self) -> Result<()> {
        self.dispatch_after(Woken::default())
    }

    /// Waits up to `timeout` for a completion, and then does what [`dispatch`](Dispatcher::dispatch) does: for a
    /// thread without a reactor.
    ///
    /// # Errors
    /// The same as `dispatch`.
    pub fn turn(&self, timeout: Duration) -> Result<()> {
        let mut woken = Woken::default();
        // What fails here fails below, too.
        let _ = self.take(&mut woken, |event, taken| {
            taken.extend(event.queue().wait(timeout).ok().flatten());
            Ok(true)
        });
        self.dispatch_after(woken)
    }

    /// Runs a future on this thread, which dispatches meanwhile: for a program without a runtime. Where the future waits
    /// for something else, too, it is polled every 20 ms.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        let (mut work, mut cx) = (std::pin::pin!(work), Context::from_waker(Waker::noop()));
        loop {
            if let Poll::Ready(output) = work.as_mut().poll(&mut cx) {
                return output;
            }
            if self.turn(TURN).is_err() {
                std::thread::sleep(TURN); // The queue has ended, and so have all that wait for it.
            }
        }
    }

    fn dispatch_after(&self, mut woken: Woken) -> Result<()> {
        let dispatched = loop {
            woken.wake();
            let more = self.take(&mut woken, |event, taken| match event.queue().poll_into(taken, BATCH)? {
                0 => event.arm().map(|armed| !armed),
                _ => Ok(true),
            });
            match more {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        woken.wake();
        woken.end();
        dispatched
    }

    /// Sorts in what `from` takes from the queue.
    fn take(
        &self,
        woken: &mut Woken,
        from: impl FnOnce(&QueueEvent, &mut Vec<Completion>) -> Result<bool>,
    ) -> Result<bool> {
        fork::check().map_err(in_rust)?;
        self.0.state.lock().taking += 1;
        let mut taken = Vec::new();
        let more = from(&self.0.event, &mut taken);
        let mut state = self.0.state.lock();
        state.taking -= 1;
        taken.into_iter().for_each(|completion| state.take(completion, woken));
        if let Err(error) = &more {
            // Another thread that has the last completions finds the queue closed after it has sorted them in.
            if error.status != Status::Closed || state.taking == 0 {
                state.end(error.clone(), woken);
            }
        }
        more
    }

    /// Submits an operation whose completion the future gets. `submit` is called once, with `options` that name the
    /// queue and the user data of the future, and submits with them. A list with
    /// [`complete_each_peer`](OpOptions::complete_each_peer) has more completions than a future takes, and is refused:
    /// submitted without a future, its completions are items of [`completions`](Dispatcher::completions).
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// # let (a, local, remote) = (&world.a, &world.local, &world.remote);
    /// # let dispatcher = libweft::futures::Dispatcher::new(&a.create_queue(0)?)?;
    /// use libweft::{OpOptions, Status};
    /// // What is refused is no future.
    /// let beyond = local.len();
    /// let refused = dispatcher.submit(OpOptions::new(), |options| a.write(local, beyond, remote, 0, 1, options));
    /// assert_eq!(refused.unwrap_err().status, Status::Range);
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `submit`; [`Invalid`](crate::Status::Invalid) (`complete_each_peer`).
    pub fn submit(
        &self,
        options: OpOptions,
        submit: impl FnOnce(&OpOptions) -> Result<Op>,
    ) -> Result<OpFuture> {
        fork::check().map_err(in_rust)?;
        // Before the call: if it fails or panics, nothing waits for the future.
        let mut future = OpFuture { ticket: self.ticket(), op: None };
        let options = options.queue(self.0.event.queue()).user_data(future.ticket.key).for_future();
        future.op = Some(submit(&options)?);
        Ok(future)
    }

    /// Connects to the endpoint whose address this is, as [`Endpoint::connect_with`] does, with the `timeout` of the
    /// options. The future's output is the peer once it is up, or why it is not: the message has what each address
    /// answered ([`Endpoint::peer_reason`]). The dispatcher must be that of the endpoint's own
    /// queue, where the answers to connects arrive; peers that connect to us are items of
    /// [`completions`](Dispatcher::completions).
    ///
    /// ```
    /// use libweft::{futures::Dispatcher, Endpoint, EndpointConfig, OpOptions, Status};
    ///
    /// let config = EndpointConfig::new().fabric("host");
    /// let (a, b) = (Endpoint::open(&config)?, Endpoint::open(&config)?);
    /// let dispatcher = Dispatcher::new(&a.queue())?;
    /// let connect = |address| dispatcher.connect(&a, address, OpOptions::new());
    /// let peer = dispatcher.block_on(connect(b.address())?)?;
    /// a.send(peer, b"hello", &OpOptions::new())?;
    ///
    /// let gone = Endpoint::open(&config)?.address().to_vec(); // Closed at once.
    /// let error = dispatcher.block_on(connect(&gone)?).unwrap_err();
    /// assert_eq!((error.status, error.provider_errno), (Status::Unreachable, 111)); // ECONNREFUSED
    /// println!("{error}"); // With what each address answered.
    /// # Ok::<(), libweft::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Endpoint::connect`]; [`Invalid`](crate::Status::Invalid) (the dispatcher is of another queue).
    pub fn connect(&self, endpoint: &Endpoint, address: &[u8], options: OpOptions) -> Result<ConnectFuture> {
        if !Arc::ptr_eq(&self.0.event.queue().queue, &endpoint.queue().queue) {
            return Err(Error::invalid(
                "the dispatcher is not of the endpoint's own queue, where answers to connects arrive: make it with \
                 Dispatcher::new(&endpoint.queue())",
            ));
        }
        fork::check().map_err(in_rust)?;
        let ticket = self.ticket();
        let peer = endpoint.connect_with(address, &options.user_data(ticket.key))?;
        Ok(ConnectFuture { ticket, peer })
    }

    fn ticket(&self) -> Ticket {
        let mut state = self.0.state.lock();
        state.next += 1;
        let key = FUTURE | state.next;
        state.waiting.insert(key, Waiting::Pending(None));
        Ticket { inner: self.0.clone(), key }
    }

    /// Completions in the queue that belong to no future: messages, notifications, events of peers
    /// and rails, and operations that were submitted directly. One stream at a time is woken.
    ///
    /// A peer's id is stale once [`Dispatcher::dispatch`] has taken its PeerDown, which may be before the stream gives
    /// that: [`Handle`](crate::Status::Handle) for such a peer means that it has ended.
    pub fn completions(&self) -> Completions {
        Completions(self.0.clone())
    }
}

/// Where a future's completion arrives.
struct Ticket {
    inner: Arc<Inner>,
    key: u64,
}

impl Ticket {
    fn poll(&self, cx: &Context<'_>) -> Poll<Result<Completion>> {
        if let Err(error) = fork::check() {
            return Poll::Ready(Err(in_rust(error)));
        }
        let mut waker = Some(cx.waker().clone());
        let polled = self.inner.state.lock().poll(self.key, &mut waker);
        polled
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // In a forked child the parent's lock may stay locked.
        if fork::check().is_err() {
            return;
        }
        let dropped = self.inner.state.lock().waiting.remove(&self.key);
        drop(dropped); // Dropped without a lock.
    }
}

/// An operation that was submitted by [`Dispatcher::submit`]. Dropping it does not cancel the operation, whose
/// completion is then discarded.
///
/// Its output is the completion of a success, and the error of a failure.
#[must_use = "the operation is under way, but nobody waits for it"]
pub struct OpFuture {
    ticket: Ticket,
    op: Option<Op>,
}

impl fmt::Debug for OpFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpFuture").field("op", &self.op).finish()
    }
}

impl OpFuture {
    /// The operation, for example to cancel it.
    pub fn op(&self) -> Option<Op> {
        self.op
    }
}

impl Future for OpFuture {
    type Output = Result<Completion>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.ticket.poll(cx)
    }
}

/// A connect of [`Dispatcher::connect`]. Dropping it does not disconnect the peer.
///
/// Its output is the peer, which is up, or why the connect failed.
#[must_use = "the connect is under way, but nobody waits for it"]
pub struct ConnectFuture {
    ticket: Ticket,
    peer: Peer,
}

impl fmt::Debug for ConnectFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectFuture").field("peer", &self.peer).finish()
    }
}

impl ConnectFuture {
    /// The peer, which can be used before it is up: operations wait until it is.
    pub fn peer(&self) -> Peer {
        self.peer
    }
}

impl Future for ConnectFuture {
    type Output = Result<Peer>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let why = |error: Error| match self
            .ticket
            .inner
            .event
            .queue()
            .shared
            .call(|ep| ep.peer_reason(self.peer.id()))
        {
            Ok(reason) => Error { message: format!("{}: {reason}", error.message).into(), ..error },
            Err(_) => error,
        };
        self.ticket.poll(cx).map_ok(|_| self.peer).map_err(why)
    }
}

/// Completions in a queue that belong to no future. Ends when the endpoint is shut down.
///
/// ```
/// # let world = libweft::testing::world()?;
/// # let (a, b, peer) = (&world.a, &world.b, world.a_to_b);
/// use libweft::{futures::Dispatcher, Completion, OpOptions};
///
/// let dispatcher = Dispatcher::new(&b.queue())?;
/// let mut arrivals = dispatcher.completions();
/// a.send(peer, b"hello", &OpOptions::new())?;
/// loop {
///     match dispatcher.block_on(arrivals.next()) {
///         Some(Completion::Message(message)) => break assert_eq!(&message[..], b"hello"),
///         Some(_) => continue, // A peer came up.
///         None => panic!("the endpoint is shut down"),
///     }
/// }
/// # Ok::<(), libweft::Error>(())
/// ```
pub struct Completions(Arc<Inner>);

impl fmt::Debug for Completions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completions").field("queue", self.0.event.queue()).finish()
    }
}

impl Completions {
    /// The next one; `None`: the endpoint is shut down. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Completion> {
        std::future::poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl Stream for Completions {
    type Item = Completion;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Completion>> {
        if fork::is_child() {
            return Poll::Ready(None);
        }
        let mut waker = Some(cx.waker().clone());
        let next = self.0.state.lock().next(&mut waker);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forked_child_waits_for_no_lock_of_the_parent() {
        let world = crate::api::testing::world().expect("a world");
        let dispatcher = Dispatcher::new(&world.a.queue()).expect("a dispatcher");
        let write = |options: &OpOptions| world.a.write(&world.local, 0, &world.remote, 0, 64, options);
        let mut future = dispatcher.submit(OpOptions::new(), write).expect("accepted");
        let mut completions = dispatcher.completions();
        let (queue, mut status) = (dispatcher.0.event.queue().clone(), 0);
        let shared = queue.shared.clone();
        let held = (dispatcher.0.state.lock(), shared.dispatched.lock(), shared.hold_lot());
        let mut cx = Context::from_waker(Waker::noop());
        // SAFETY: the child only calls what is refused there, drops the dispatcher, and ends without unwinding; the alarm
        // ends one that waits.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(5);
                let forked = |error: &Error| error.status == Status::Forked;
                let refused = [
                    dispatcher.submit(OpOptions::new(), write).is_err_and(|error| forked(&error)),
                    dispatcher
                        .connect(&world.a, world.b.address(), OpOptions::new())
                        .is_err_and(|error| forked(&error)),
                    dispatcher.dispatch().is_err_and(|error| forked(&error)),
                    dispatcher.turn(Duration::ZERO).is_err_and(|error| forked(&error)),
                    matches!(Pin::new(&mut future).poll(&mut cx), Poll::Ready(Err(error)) if forked(&error)),
                    matches!(Pin::new(&mut completions).poll_next(&mut cx), Poll::Ready(None)),
                    world.a.reclaim().is_err_and(|error| forked(&error)),
                    !shared.is_over(),
                ];
                drop(future);
                drop(std::ptr::read(&*dispatcher.0));
                libc::_exit(refused.iter().position(|refused| !refused).map_or(0, |at| 1 + at as i32));
            }
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
        }
        drop(held);
        assert_eq!(status, 0);
    }

    /// While one thread has taken the last completion, another finds the queue closed.
    #[test]
    fn future_gets_its_completion_although_the_queue_is_closed() {
        let world = crate::api::testing::world().expect("a world");
        let dispatcher = Dispatcher::new(&world.a.create_queue(0).expect("a queue")).expect("a dispatcher");
        let write = |options: &OpOptions| world.a.write(&world.local, 0, &world.remote, 0, 64, options);
        let mut future = dispatcher.submit(OpOptions::new(), write).expect("accepted");
        let (mut cx, mut woken) = (Context::from_waker(Waker::noop()), Woken::default());
        let closed = |result: Result<()>| result.is_err_and(|error| error.status == Status::Closed);
        let taken = dispatcher.take(&mut woken, |event, taken| {
            taken.extend(event.queue().wait(Duration::from_secs(30))?);
            world.a.shutdown(Duration::ZERO)?;
            assert!(closed(dispatcher.dispatch()));
            assert!(Pin::new(&mut future).poll(&mut cx).is_pending(), "its completion is there");
            Ok(true)
        });
        assert!(taken.is_ok() && closed(dispatcher.dispatch()));
        assert!(matches!(Pin::new(&mut future).poll(&mut cx), Poll::Ready(Ok(_))));
    }
}
