//! A few bytes in both directions: the sender sends a number, and the receiver returns it on
//! arrival. By bare libfabric in every way that may be the fastest, by a plain socket, and by Weft.

use super::port::{contexts, entries, Patience, Port, Rail, Remote};
use super::{Receiver, Sender, TCP};
use crate::endpoint::{check, completions, Endpoint, Memory, Offer, Opening, RangeRequest};
use crate::memory::Pool;
use crate::pages::Lists;
use crate::pair::Fabric;
use ::weft::capi::completion::*;
use ::weft::capi::message::*;
use ::weft::capi::op::*;
use ::weft::capi::peer::weft_peer;
use anyhow::{bail, Context, Result};
use libfabric_sys::fi_context2;
use serde::{Deserialize, Serialize};
use serde_json::{to_value, Value};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ptr;

/// Untimed round trips at the beginning of a turn, and round trips that are timed together.
const SETTLE: usize = 20;
pub const TIMED: usize = 200;
/// An operation is done long before this many others are posted: each is answered before the next.
const CONTEXTS: usize = 256;
/// Bytes of a message.
const LEN: usize = 64;
/// Receives that are always posted; their buffers come first in the page, followed by what is sent.
const RECEIVES: usize = 16;

/// What is sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Game {
    /// A write of eight bytes, which the other side polls in its memory.
    Words,
    /// A message of 64 bytes.
    Messages,
    /// Weft: a write of eight bytes that notifies; the bare loops: a message.
    Notifications,
}

impl Game {
    pub fn name(self) -> &'static str {
        match self {
            Game::Words => "weft",
            Game::Messages => "weft_send",
            Game::Notifications => "weft_write of a word, with a notification",
        }
    }
}

/// Sends a number to its counterpart, an object of the same type in the other process.
pub trait Hand {
    /// What the counterpart needs.
    fn offer(&self) -> Result<Value>;

    /// Receives the counterpart's address.
    fn join(&mut self, offer: &Value) -> Result<()>;

    fn connect(&mut self) -> Result<()> {
        Ok(())
    }

    fn throw(&mut self, number: u64) -> Result<()>;

    /// Makes progress, and returns the last number received.
    fn look(&mut self) -> Result<u64>;
}

/// Either side, and the last number.
pub struct Side<T: Hand>(T, u64);

impl<T: Hand> Side<T> {
    pub fn receiver(hand: T) -> Box<dyn Receiver>
    where
        T: 'static,
    {
        Box::new(Side(hand, 0))
    }

    pub fn sender(mut hand: T, offer: &Value) -> Result<Box<dyn Sender>>
    where
        T: 'static,
    {
        hand.join(offer)?;
        Ok(Box::new(Side(hand, 0)))
    }

    #[inline]
    fn there_and_back(&mut self) -> Result<()> {
        self.1 += 1;
        self.0.throw(self.1)?;
        let mut patience = Patience::default();
        while self.0.look()? != self.1 {
            patience.turn(|| format!("{} was thrown", self.1))?;
        }
        Ok(())
    }
}

impl<T: Hand> Sender for Side<T> {
    fn answer(&self) -> Result<Value> {
        self.0.offer()
    }

    fn connect(&mut self) -> Result<()> {
        self.0.connect()?;
        self.there_and_back()
    }

    fn settle(&mut self) -> Result<()> {
        (0..SETTLE).try_for_each(|_| self.there_and_back())
    }

    fn write(&mut self, _: &Lists) -> Result<()> {
        (0..TIMED).try_for_each(|_| self.there_and_back())
    }

    fn describe(&self) -> String {
        String::new()
    }
}

impl<T: Hand> Receiver for Side<T> {
    fn offer(&self) -> Result<Value> {
        self.0.offer()
    }

    fn accept(&mut self, answer: &Value) -> Result<()> {
        self.0.join(answer)
    }

    #[inline]
    fn poll(&mut self) -> Result<()> {
        let came = self.0.look()?;
        if came == self.1 {
            return Ok(());
        }
        self.1 = came;
        self.0.throw(came)
    }
}

/// A page: words are received at its beginning; outgoing bytes lie behind the buffers of receives.
struct Page(Pool);

impl Page {
    const GOING: usize = RECEIVES * LEN;

    fn new() -> Result<Page> {
        let page = Page(Pool::new(4096, 1)?);
        // SAFETY: it is the page's first word, which nothing else uses yet.
        unsafe { page.at(0).write(0) };
        Ok(page)
    }

    fn at(&self, offset: usize) -> *mut u64 {
        self.0.base().wrapping_add(offset).cast()
    }

    #[inline]
    fn came(&self) -> u64 {
        // SAFETY: it is the page's first word, which the counterpart writes.
        unsafe { self.at(0).read_volatile() }
    }

    #[inline]
    fn set(&self, number: u64) -> *const u64 {
        let word = self.at(Self::GOING);
        // SAFETY: it lies inside the page, and the last number from here has arrived: it was
        // answered.
        unsafe { word.write_volatile(number) };
        word
    }
}

/// Bare libfabric: sends a message, and polls the completion queue until the other side's has
/// arrived.
pub struct Bare {
    port: Port,
    page: Page,
    inject: bool,
    remote: Remote,
    /// The contexts of receives, then of sends.
    contexts: Vec<fi_context2>,
    thrown: usize,
    came: u64,
}

impl Bare {
    pub fn open(rail: &Rail, inject: bool, wait_fd: bool) -> Result<Bare> {
        let page = Page::new()?;
        let port = Port::open(rail, wait_fd, &page.0)?;
        let (remote, contexts) = (Remote::default(), contexts(RECEIVES + CONTEXTS));
        let mut bare = Bare { port, page, inject, remote, contexts, thrown: 0, came: 0 };
        (0..RECEIVES).try_for_each(|at| bare.receive(at))?;
        Ok(bare)
    }

    #[inline]
    fn receive(&mut self, at: usize) -> Result<()> {
        self.port.receive(self.page.at(at * LEN).cast(), LEN, &raw mut self.contexts[at])
    }
}

impl Hand for Bare {
    fn offer(&self) -> Result<Value> {
        Ok(to_value(self.port.offer()?)?)
    }

    fn join(&mut self, offer: &Value) -> Result<()> {
        let offer = serde_json::from_value(offer.clone()).context("the other side's offer")?;
        self.remote = self.port.join(&offer)?;
        Ok(())
    }

    #[inline]
    fn throw(&mut self, number: u64) -> Result<()> {
        let (word, mut patience) = (self.page.set(number), Patience::default());
        let context = &raw mut self.contexts[RECEIVES + self.thrown % CONTEXTS];
        // The first messages connect.
        while !self.port.send(&self.remote, word.cast(), LEN, self.inject, context)? {
            self.look()?;
            patience.turn(|| "a message could not be posted".to_owned())?;
        }
        self.thrown += 1;
        Ok(())
    }

    #[inline]
    fn look(&mut self) -> Result<u64> {
        let mut entries = entries::<2>();
        let count = self.port.reap(&mut entries)?;
        let first = self.contexts.as_ptr() as usize;
        for entry in &entries[..count] {
            let at = (entry.op_context as usize).wrapping_sub(first) / size_of::<fi_context2>();
            if at < RECEIVES {
                // SAFETY: our messages begin with their number.
                self.came = unsafe { self.page.at(at * LEN).read() };
                self.receive(at)?;
            }
        }
        Ok(self.came)
    }
}

/// A plain TCP socket, on which both sides spin.
pub struct Socket {
    listener: TcpListener,
    port: u16,
    stream: Option<TcpStream>,
    came: u64,
}

impl Socket {
    pub fn open() -> Result<Socket> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        Ok(Socket { listener, port: 0, stream: None, came: 0 })
    }

    fn keep(&mut self, stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        self.stream = Some(stream);
        Ok(())
    }
}

/// `None`: nothing was received yet.
fn now<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        other => other.map(Some),
    }
}

impl Hand for Socket {
    fn offer(&self) -> Result<Value> {
        Ok(self.listener.local_addr()?.port().into())
    }

    fn join(&mut self, offer: &Value) -> Result<()> {
        self.port = serde_json::from_value(offer.clone())?;
        Ok(())
    }

    fn connect(&mut self) -> Result<()> {
        self.keep(TcpStream::connect(("127.0.0.1", self.port))?)
    }

    #[inline]
    fn throw(&mut self, number: u64) -> Result<()> {
        let mut stream = self.stream.as_ref().context("not connected")?;
        Ok(stream.write_all(&number.to_ne_bytes())?)
    }

    #[inline]
    fn look(&mut self) -> Result<u64> {
        let mut word = [0; 8];
        match &self.stream {
            Some(stream) => match now((&*stream).read(&mut word))? {
                Some(8) => self.came = u64::from_ne_bytes(word),
                // The other side reports the end.
                Some(0) | None => {}
                Some(len) => bail!("{len} bytes of a word"),
            },
            None => {
                if let Some((stream, _)) = now(self.listener.accept())? {
                    self.keep(stream)?;
                }
            }
        }
        Ok(self.came)
    }
}

/// Weft, through its C interface, with manual progress.
pub struct Weft {
    game: Game,
    endpoint: Endpoint,
    page: Page,
    memory: Memory,
    peer: weft_peer,
    /// The other side; `None` until connected.
    offer: Option<Offer>,
    /// A write of a word.
    args: RangeRequest,
    /// The last number in a message or notification.
    came: u64,
}

impl Weft {
    pub fn open(fabric: Fabric, game: Game) -> Result<Weft> {
        let page = Page::new()?;
        let endpoint = Endpoint::open(&Opening::manual(if fabric == Fabric::Host { "host" } else { TCP }))?;
        let memory = endpoint.register(page.0.base(), page.0.len())?;
        let mut args = Endpoint::range(memory, ptr::null_mut(), size_of::<u64>());
        args.local_offset = Page::GOING as u64;
        Ok(Weft { game, endpoint, page, memory, peer: 0, offer: None, args, came: 0 })
    }

    #[inline]
    fn send(&mut self, number: u64) -> Result<()> {
        let mut message = [0u64; LEN / size_of::<u64>()];
        message[0] = number;
        let (data, len) = (message.as_ptr().cast(), LEN as u64);
        // SAFETY: the call copies the message.
        check("weft_send", unsafe {
            weft_send(self.endpoint.raw, self.peer, data, len, ptr::null(), ptr::null_mut())
        })
    }

    fn import(&mut self, peer: weft_peer) -> Result<()> {
        let offer = self.offer.take().context("a peer that was not expected")?;
        (self.peer, self.args.remote) = (peer, self.endpoint.import(peer, &offer)?);
        Ok(())
    }
}

impl Hand for Weft {
    fn offer(&self) -> Result<Value> {
        Ok(to_value(self.endpoint.offer(self.memory)?)?)
    }

    fn join(&mut self, offer: &Value) -> Result<()> {
        self.offer = Some(serde_json::from_value(offer.clone()).context("the other side's offer")?);
        Ok(())
    }

    fn connect(&mut self) -> Result<()> {
        let peer = self.endpoint.connect(&self.offer.as_ref().context("nobody to connect to")?.address)?;
        self.import(peer)
    }

    #[inline]
    fn throw(&mut self, number: u64) -> Result<()> {
        if self.game == Game::Messages {
            return self.send(number);
        }
        self.page.set(number);
        if self.game == Game::Notifications {
            (self.args.options.flags, self.args.options.notify) = (WEFT_NOTIFY, number);
        }
        self.endpoint.write(&self.args)
    }

    #[inline]
    fn look(&mut self) -> Result<u64> {
        for one in self.endpoint.poll(&mut completions::<2>())? {
            match one.kind {
                WEFT_COMPLETION_NOTIFICATION => self.came = one.notify,
                WEFT_COMPLETION_MESSAGE => {
                    // SAFETY: our messages begin with their number, and are valid until released.
                    self.came = unsafe { one.data.cast::<u64>().read_unaligned() };
                    // SAFETY: the id belongs to a message that was polled.
                    let released = unsafe { weft_message_release(self.endpoint.raw, one.op) };
                    check("weft_message_release", released)?;
                }
                WEFT_COMPLETION_PEER_UP => self.import(one.peer)?,
                // It was the last to send.
                WEFT_COMPLETION_PEER_DOWN => continue,
                _ => {}
            }
            check("a completion", one.status)?;
        }
        // A word may arrive before the completion which reports that its writer is up.
        Ok(if self.game == Game::Words && self.peer != 0 { self.page.came() } else { self.came })
    }
}
