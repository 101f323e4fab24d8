//! Connections from other processes: accepted within limits, assigned to peers, and closed if they
//! belong to no peer.
//!
//! Every process in the network namespace can connect, so the cost of that is limited. A pass
//! accepts at most `ACCEPTS`. Connections of other users are closed first, and then accepting
//! pauses. At most `UNASSIGNED` connections belong to no peer, each for at most `UNUSED`. Such a
//! connection carries only messages, because a handshake is one. It reaches no memory.

use super::channel::Channel;
use super::incoming::{Incoming, Listened, Serving, WORDS};
use super::socket::{self, Control, Received};
use super::user;
use super::watch::{self, Timer, Watch, Whose};
use crate::descriptor::Descriptor;
use crate::fabric::own::admission::admit;
use crate::fabric::own::pool::Pool;
use crate::fabric::registry::Registry;
use crate::fabric::Connection as Number;
use crate::ids::PeerId;
use crate::logging::seldom::warn_seldom;
use crate::status::Result;
use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Connections accepted in a pass, including those of other users; and excluding them, because each
/// of the others costs a mapping and descriptors.
const ACCEPTS: usize = 32;
const NEW: usize = 4;
/// How long accepting pauses after a connection of another user, or without a free descriptor.
const PAUSE: Duration = Duration::from_millis(4);
const LONG_PAUSE: Duration = Duration::from_millis(100);
/// The most connections that belong to no peer. A new one replaces the oldest of the process that
/// has the most, once that one had time for its handshake.
const UNASSIGNED: usize = 64;
const TIME: Duration = Duration::from_millis(50);
/// How long a connection lives without a peer, or with a peer that has no route; and how often that
/// is checked. Longer pauses of this process do not count.
const UNUSED: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(100);
const LONGEST_LOOK: Duration = Duration::from_millis(200);
/// The most connections of one peer, which needs one.
const OF_PEER: usize = 4;

struct Connection {
    number: Number,
    pid: libc::pid_t,
    process: Option<Descriptor>,
    /// When the connection was accepted; and since when it is unused.
    since: Instant,
    unused: Duration,
    /// It has requests for disks, and the socket of the connection with this number (0: its own).
    beside: Number,
    state: State,
}

enum State {
    /// No channel was passed yet.
    Silent(Descriptor),
    Open(Box<Incoming>),
}

impl Connection {
    fn peer(&self) -> Option<PeerId> {
        match &self.state {
            State::Silent(_) => None,
            State::Open(channel) => channel.peer(),
        }
    }

    fn socket(&self) -> BorrowedFd<'_> {
        match &self.state {
            State::Silent(socket) => socket.as_fd(),
            State::Open(channel) => channel.socket(),
        }
    }

    fn is_over(&self) -> bool {
        matches!(&self.state, State::Open(channel) if channel.is_over())
    }

    /// Whether `sweep` has something to do with it.
    fn is_due(&self) -> bool {
        matches!(&self.state, State::Open(channel) if channel.is_over() || channel.has_passed())
    }

    fn unwatch(&self, watch: &Watch) {
        watch.remove(self.socket());
        if let Some(process) = &self.process {
            watch.remove(process.as_fd());
        }
    }

    fn close(mut self, watch: &Watch, pool: &mut Pool) {
        self.unwatch(watch);
        if let State::Open(channel) = &mut self.state {
            channel.refuse(pool);
        }
        socket::shut(self.socket());
    }
}

pub struct Connections {
    /// `None` once the NIC is closed.
    listener: Option<Descriptor>,
    /// The timer that ends a pause of accepting.
    timer: Timer,
    all: Vec<Connection>,
    last_number: Number,
    turn: usize,
    /// The empty registry, for connections that belong to no peer.
    nothing: Registry,
    looked: Instant,
    /// The log has a line about a lack of descriptors.
    warned: bool,
}

impl Connections {
    pub fn open(name: &str, watch: &Watch) -> Result<Connections> {
        let (listener, timer) = (socket::listen(name)?, Timer::new()?);
        watch.add(listener.as_fd(), Whose::Listener)?;
        watch.add(timer.fd(), Whose::Timer)?;
        Ok(Connections {
            listener: Some(listener),
            timer,
            all: Vec::new(),
            last_number: 0,
            turn: 0,
            nothing: Registry::default(),
            looked: Instant::now(),
            warned: false,
        })
    }

    // Accepting.

    pub fn accept(&mut self, watch: &Watch, pool: &mut Pool) {
        let (mut new, mut refused) = (0, false);
        for _ in 0..ACCEPTS {
            if new == NEW || !self.make_room(watch, pool) {
                return self.pause(PAUSE, watch);
            }
            let Some(listener) = &self.listener else { return };
            match socket::accept(listener.as_fd()) {
                Ok(Some(socket)) => match user::process_of(socket.as_fd()) {
                    Some(pid) => {
                        new += 1;
                        self.add(socket, pid, watch, pool);
                    }
                    None => refused = true,
                },
                Ok(None) if refused => return self.pause(PAUSE, watch),
                Ok(None) => return,
                Err(errno) => {
                    if !std::mem::replace(&mut self.warned, true) {
                        let why = crate::fabric::error_text(errno);
                        log::warn!("connections of peers on this host wait: {why} (ulimit -n)");
                    }
                    return self.pause(LONG_PAUSE, watch);
                }
            }
        }
        self.pause(PAUSE, watch);
    }

    /// Connections wait in the listener meanwhile, without waking this worker.
    fn pause(&self, time: Duration, watch: &Watch) {
        if let Some(listener) = &self.listener {
            watch.remove(listener.as_fd());
        }
        self.timer.set(time);
    }

    pub fn resume(&self, watch: &Watch) {
        self.timer.clear();
        let Some(listener) = &self.listener else { return };
        if watch.add(listener.as_fd(), Whose::Listener).is_err() {
            self.timer.set(LONG_PAUSE);
        }
    }

    fn add(&mut self, socket: Descriptor, pid: libc::pid_t, watch: &Watch, pool: &mut Pool) {
        let number = self.next_number();
        let process = watch::process(pid);
        let watched = watch.add(socket.as_fd(), Whose::Connection(number)).and_then(|()| {
            process.iter().try_for_each(|fd| watch.add(fd.as_fd(), Whose::ConnectionProcess(number)))
        });
        let (since, state) = (Instant::now(), State::Silent(socket));
        let new = Connection { number, pid, process, since, unused: Duration::ZERO, beside: 0, state };
        if let Err(error) = watched {
            warn_seldom!("a connection of a process on this host is closed: {error}");
            return new.close(watch, pool);
        }
        self.all.push(new);
        // The first message has usually arrived.
        self.listen(number, false, &mut { WORDS }, watch, pool);
    }

    fn next_number(&mut self) -> Number {
        self.last_number = self.last_number.wrapping_add(1).max(1);
        self.last_number
    }

    /// Makes space for one more connection without a peer; false if there is none.
    fn make_room(&mut self, watch: &Watch, pool: &mut Pool) -> bool {
        let waiting = self.all.iter().enumerate().filter(|(_, one)| one.peer().is_none());
        let waiting = waiting.map(|(at, one)| (at, one.pid, one.since.elapsed().as_nanos() as u64));
        let admitted = admit(&waiting.collect::<Vec<_>>(), UNASSIGNED, TIME.as_nanos() as u64);
        if let Ok(Some(at)) = admitted {
            log::debug!("process {} connected and became no peer: it makes room", self.all[at].pid);
            self.all.swap_remove(at).close(watch, pool);
        }
        admitted.is_ok()
    }

    // Reading.

    /// Reads the messages in a connection's socket.
    pub fn listen(
        &mut self,
        number: Number,
        process_ended: bool,
        words: &mut u32,
        watch: &Watch,
        pool: &mut Pool,
    ) {
        let Some(at) = self.all.iter().position(|one| one.number == number) else { return };
        let Connection { process, state, pid, since, unused, beside, .. } = self.all.swap_remove(at);
        let mut one = match state {
            State::Silent(socket) => {
                let (state, stays) = meet(socket, number);
                let one = Connection { number, pid, process, since, unused, beside, state };
                if !stays || process_ended {
                    return one.close(watch, pool);
                }
                one
            }
            state => Connection { number, pid, process, since, unused, beside, state },
        };
        if let State::Open(channel) = &mut one.state {
            if channel.listen(words) == Listened::End || process_ended {
                channel.end();
                one.unwatch(watch);
                one.process = None;
            }
        }
        let is_due = one.is_due();
        self.all.push(one);
        if is_due {
            self.sweep(watch, pool);
        }
    }

    /// Serves the peers' requests, beginning with another peer each time.
    #[inline]
    pub fn serve(&mut self, with: &mut Serving, watch: &Watch) {
        let count = self.all.len();
        self.turn = if self.turn + 1 < count { self.turn + 1 } else { 0 };
        let mut over = false;
        for i in 0..count {
            let at = if self.turn + i < count { self.turn + i } else { self.turn + i - count };
            let State::Open(channel) = &mut self.all[at].state else { continue };
            over |= serve(channel, &mut self.nothing, with);
        }
        if over {
            self.sweep(watch, with.pool);
        }
    }

    /// Adds the connections that peers have passed beside others, and closes what has ended.
    #[cold]
    fn sweep(&mut self, watch: &Watch, pool: &mut Pool) {
        for at in 0..self.all.len() {
            if matches!(&self.all[at].state, State::Open(channel) if channel.has_passed()) {
                self.add_beside(at, pool);
            }
        }
        self.close_if(watch, pool, |_, one| one.is_over());
        self.close_if(watch, pool, |all, one| {
            one.beside != 0 && !all.iter().any(|other| other.number == one.beside)
        });
    }

    fn add_beside(&mut self, at: usize, pool: &mut Pool) {
        let (number, beside, pid) = (self.next_number(), self.all[at].number, self.all[at].pid);
        let is_second = self.all.iter().any(|one| one.beside == beside);
        let State::Open(channel) = &mut self.all[at].state else { return };
        let Some(new) = channel.make_beside(number).filter(|_| !is_second) else {
            warn_seldom!("a connection of process {pid} is closed: it has no second one for disks");
            return channel.refuse(pool);
        };
        let (since, unused, state) = (Instant::now(), Duration::ZERO, State::Open(Box::new(new)));
        self.all.push(Connection { number, pid, process: None, since, unused, beside, state });
    }

    fn close_if(
        &mut self,
        watch: &Watch,
        pool: &mut Pool,
        is_it: impl Fn(&[Connection], &Connection) -> bool,
    ) {
        for at in (0..self.all.len()).rev() {
            if is_it(&self.all, &self.all[at]) {
                self.all.swap_remove(at).close(watch, pool);
            }
        }
    }

    // Ownership.

    pub fn assign(&mut self, number: Number, peer: PeerId, watch: &Watch, pool: &mut Pool) {
        let Some(one) = self.all.iter_mut().find(|one| one.number == number) else { return };
        if let State::Open(channel) = &mut one.state {
            channel.assign(peer);
        }
        let is_theirs = |one: &&Connection| one.peer() == Some(peer) && one.beside == 0;
        let theirs = self.all.iter().filter(is_theirs);
        if theirs.clone().count() > OF_PEER {
            let oldest = theirs.min_by_key(|one| one.since).map(|one| one.number);
            self.close_if(watch, pool, |_, one| [one.number, one.beside].map(Some).contains(&oldest));
        }
    }

    /// Ends a peer: its connections reach no memory from here on. `at_once`: they are closed as
    /// well.
    pub fn end_peer(&mut self, peer: PeerId, at_once: bool, watch: &Watch, pool: &mut Pool) {
        for one in self.all.iter_mut().filter(|one| one.peer() == Some(peer)) {
            one.since = Instant::now();
            if let State::Open(channel) = &mut one.state {
                channel.withdraw();
                if at_once {
                    channel.refuse(pool);
                }
            }
        }
        self.sweep(watch, pool);
    }

    /// Serves the requests that an ended peer left; false while some remain.
    pub fn finish(&mut self, peer: PeerId, with: &mut Serving) -> bool {
        let mut all = true;
        for one in self.all.iter_mut().filter(|one| one.peer() == Some(peer)) {
            if let State::Open(channel) = &mut one.state {
                if one.beside == 0 && channel.listen(&mut { WORDS }) == Listened::End {
                    channel.end();
                }
                serve(channel, &mut self.nothing, with);
                all &= channel.rests() || channel.is_over();
            }
        }
        all
    }

    /// Whether it is time for `tend`.
    pub fn are_due(&self) -> bool {
        !self.all.is_empty() && self.looked.elapsed() >= LOOK
    }

    /// Closes connections that were unused for long, and sends again what full sockets did not take. `served`: the peers that have routes.
    pub fn tend(&mut self, served: &HashSet<PeerId>, watch: &Watch, pool: &mut Pool) {
        let passed = self.looked.elapsed();
        self.looked = Instant::now();
        self.channels().for_each(|channel| channel.send_forgotten());
        for one in &mut self.all {
            let used = one.peer().is_some_and(|peer| served.contains(&peer));
            one.unused = if used { Duration::ZERO } else { one.unused + passed.min(LONGEST_LOOK) };
            if one.unused > UNUSED {
                log::debug!("process {} has a connection, and is no peer: it is closed", one.pid);
            }
        }
        self.close_if(watch, pool, |_, one| one.unused > UNUSED);
        self.sweep(watch, pool);
    }

    // All connections.

    fn channels(&mut self) -> impl Iterator<Item = &mut Incoming> {
        self.all.iter_mut().filter_map(|one| match &mut one.state {
            State::Open(channel) => Some(&mut **channel),
            State::Silent(_) => None,
        })
    }

    /// Waits until no device touches our memory for a peer.
    pub fn settle_devices(&mut self) {
        self.channels().for_each(|channel| channel.settle_devices());
    }

    /// Ends a device registration: waits for devices that use it, and asks peers to close it.
    pub fn hide_device(&mut self, key: u64) {
        for channel in self.channels() {
            channel.settle_devices();
            channel.hide_device(key);
        }
    }

    /// Publishes to peers whether this worker sleeps.
    pub fn sleeps(&mut self, sleeping: bool) {
        self.channels().for_each(|channel| channel.sleeps(sleeping));
    }

    pub fn have_work(&mut self, receives: bool) -> bool {
        self.channels().any(|channel| channel.has_work(receives))
    }

    /// Closes all connections, including those in the listener's queue.
    pub fn close(&mut self, watch: &Watch, pool: &mut Pool) {
        self.all.drain(..).for_each(|one| one.close(watch, pool));
        let Some(listener) = self.listener.take() else { return };
        watch.remove(listener.as_fd());
        // Stop accepting. A forked child may hold the listener, and with it the connections in its
        // queue.
        socket::shut(listener.as_fd());
        for _ in 0..=socket::BACKLOG {
            let Ok(Some(socket)) = socket::accept(listener.as_fd()) else { break };
            socket::shut(socket.as_fd());
        }
    }
}

/// Reads a new connection's first message, which passes its channel. False if the connection is to
/// be closed.
fn meet(socket: Descriptor, number: Number) -> (State, bool) {
    match socket::receive(socket.as_fd()) {
        Received::Control(Control::Channel(file)) => match Channel::attach(file.as_fd()) {
            Ok(channel) => (State::Open(Box::new(Incoming::new(socket, number, channel))), true),
            Err(error) => {
                warn_seldom!("a connection of a process on this host is closed: {error}");
                (State::Silent(socket), false)
            }
        },
        Received::Nothing => (State::Silent(socket), true),
        _ => (State::Silent(socket), false),
    }
}

/// Serves one connection; true if it has ended, or `sweep` is to add another.
#[inline]
fn serve(channel: &mut Incoming, nothing: &mut Registry, with: &mut Serving) -> bool {
    let of_nobody = channel.peer().is_none();
    if of_nobody {
        std::mem::swap(with.registry, nothing);
    }
    if !channel.serve(with) {
        warn_seldom!("a process on this host sent an invalid request: its connection is closed");
        channel.refuse(with.pool);
    }
    if of_nobody {
        std::mem::swap(with.registry, nothing);
    }
    channel.is_over() || channel.has_passed()
}
