//! What throws: a plain socket or bare libfabric in every way that may be the fastest, and Weft.

use super::{Game, Spec};
use crate::endpoint::{check, completions, sized, Endpoint, Memory, Offer, Opening};
use crate::engines::port::{contexts, entries, Port, Rail, Remote};
use crate::engines::TCP;
use crate::memory::Pool;
use crate::pair::Fabric;
use ::weft::capi::completion::*;
use ::weft::capi::message::*;
use ::weft::capi::peer::weft_peer;
use ::weft::capi::transfer::*;
use anyhow::{bail, Context, Result};
use libfabric_sys::fi_context2;
use serde_json::{to_value, Value};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ptr;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);
/// An operation is done long before so many others were posted: each throw is
/// answered before the next.
const CONTEXTS: usize = 256;
/// Bytes of a message.
const LEN: usize = 64;
/// Receives that are always posted; their buffers come first in the page, behind them lies what goes.
const RECEIVES: usize = 16;

/// Throws a number to its counterpart, which is one of the same kind in the other
/// process.
pub trait Hand {
    fn name(&self) -> String;

    /// What the counterpart needs.
    fn offer(&self) -> Result<Value>;

    /// Learns where the counterpart is; `first`: it is for this side to connect.
    fn join(&mut self, offer: &Value, first: bool) -> Result<()>;

    fn throw(&mut self, number: u64) -> Result<()>;

    /// Makes progress, and looks at what was thrown here last.
    fn look(&mut self) -> Result<u64>;
}

/// The bare ones first.
pub fn open(spec: &Spec) -> Result<Vec<Box<dyn Hand>>> {
    let mut hands: Vec<Box<dyn Hand>> = Vec::new();
    if spec.fabric != Fabric::Host && spec.game == Game::Words {
        hands.push(Box::new(Socket::open()?));
    }
    for wait_fd in [false, true] {
        for way in [Way::Send, Way::InjectMessage].iter().filter(|_| spec.game != Game::Words) {
            match Bare::open(spec.rail.as_ref().context("no rail is named")?, wait_fd, *way) {
                Ok(bare) => hands.push(Box::new(bare)),
                Err(error) if !wait_fd => return Err(error),
                // Not every provider has a descriptor to wait on.
                Err(_) => {}
            }
        }
    }
    hands.push(Box::new(Weft::open(spec)?));
    Ok(hands)
}

/// A page: words come at its begin, what goes lies behind the buffers of receives.
struct Page(Pool);

impl Page {
    const GOING: usize = RECEIVES * LEN;

    fn at(&self, offset: usize) -> *mut u64 {
        self.0.base().wrapping_add(offset).cast()
    }

    #[inline]
    fn came(&self) -> u64 {
        // SAFETY: the page's first word, which the counterpart writes.
        unsafe { self.at(0).read_volatile() }
    }

    #[inline]
    fn set(&self, number: u64) -> *const u64 {
        let word = self.at(Self::GOING);
        // SAFETY: inside the page, and the last throw from here has arrived: it was answered.
        unsafe { word.write_volatile(number) };
        word
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Send,
    InjectMessage,
}

/// Bare libfabric: a message, and nothing but looks at the completion queue until the other side's has come.
struct Bare {
    port: Port,
    page: Page,
    wait_fd: bool,
    way: Way,
    remote: Remote,
    /// Of receives, then of what is thrown.
    contexts: Vec<fi_context2>,
    thrown: usize,
    came: u64,
}

impl Bare {
    fn open(rail: &Rail, wait_fd: bool, way: Way) -> Result<Bare> {
        let page = Page(Pool::new(4096, 1)?);
        let port = Port::open(rail, wait_fd, &page.0)?;
        let (remote, contexts) = (Remote::default(), contexts(RECEIVES + CONTEXTS));
        let mut bare = Bare { port, page, wait_fd, way, remote, contexts, thrown: 0, came: 0 };
        (0..RECEIVES).try_for_each(|at| bare.receive(at))?;
        Ok(bare)
    }

    #[inline]
    fn receive(&mut self, at: usize) -> Result<()> {
        self.port.receive(self.page.at(at * LEN).cast(), LEN, &raw mut self.contexts[at])
    }

    #[inline]
    fn post(&mut self, word: *const u64) -> Result<bool> {
        let context = &raw mut self.contexts[RECEIVES + self.thrown % CONTEXTS];
        self.port.send(&self.remote, word.cast(), LEN, self.way == Way::InjectMessage, context)
    }

    #[inline]
    fn reap(&mut self) -> Result<()> {
        let mut entries = entries::<2>();
        let count = self.port.reap(&mut entries)?;
        let first = self.contexts.as_ptr() as usize;
        for entry in &entries[..count] {
            let at = (entry.op_context as usize).wrapping_sub(first) / size_of::<fi_context2>();
            if at < RECEIVES {
                // SAFETY: a received message of ours begins with its number.
                self.came = unsafe { self.page.at(at * LEN).read() };
                self.receive(at)?;
            }
        }
        Ok(())
    }
}

impl Hand for Bare {
    fn name(&self) -> String {
        let way = match self.way {
            Way::Send => "fi_send",
            Way::InjectMessage => "fi_inject",
        };
        format!("bare {way}, {}", if self.wait_fd { "FI_WAIT_FD" } else { "FI_WAIT_NONE" })
    }

    fn offer(&self) -> Result<Value> {
        Ok(to_value(self.port.offer()?)?)
    }

    fn join(&mut self, offer: &Value, _first: bool) -> Result<()> {
        let offer = serde_json::from_value(offer.clone()).context("the other side's offer")?;
        self.remote = self.port.join(&offer)?;
        Ok(())
    }

    #[inline]
    fn throw(&mut self, number: u64) -> Result<()> {
        let (word, mut since) = (self.page.set(number), None);
        // The first ones connect.
        while !self.post(word)? {
            self.reap()?;
            if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                bail!("{}: nothing could be posted for {PATIENCE:?}", self.name());
            }
        }
        self.thrown += 1;
        Ok(())
    }

    #[inline]
    fn look(&mut self) -> Result<u64> {
        self.reap()?;
        Ok(self.came)
    }
}

/// A plain TCP socket, on which both sides spin.
struct Socket {
    listener: TcpListener,
    stream: Option<TcpStream>,
    came: u64,
}

impl Socket {
    fn open() -> Result<Socket> {
        Ok(Socket { listener: TcpListener::bind(("127.0.0.1", 0))?, stream: None, came: 0 })
    }
}

impl Hand for Socket {
    fn name(&self) -> String {
        "socket".to_owned()
    }

    fn offer(&self) -> Result<Value> {
        Ok(self.listener.local_addr()?.port().into())
    }

    fn join(&mut self, offer: &Value, first: bool) -> Result<()> {
        let stream = match first {
            true => TcpStream::connect(("127.0.0.1", serde_json::from_value(offer.clone())?))?,
            false => self.listener.accept()?.0,
        };
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        self.stream = Some(stream);
        Ok(())
    }

    #[inline]
    fn throw(&mut self, number: u64) -> Result<()> {
        let mut stream = self.stream.as_ref().context("not connected")?;
        Ok(stream.write_all(&number.to_ne_bytes())?)
    }

    #[inline]
    fn look(&mut self) -> Result<u64> {
        let (mut word, mut stream) = ([0; 8], self.stream.as_ref().context("not connected")?);
        match stream.read(&mut word) {
            Ok(8) => self.came = u64::from_ne_bytes(word),
            // The other side has closed: it was the last throw.
            Ok(0) => {}
            Ok(len) => bail!("{len} bytes of a word"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.came)
    }
}

/// Weft, through its C interface, with manual progress.
struct Weft {
    game: Game,
    endpoint: Endpoint,
    page: Page,
    memory: Memory,
    peer: weft_peer,
    /// A write of a word; the remote memory is not there before both have joined.
    args: weft_range_args,
    /// The last number of a message or notification.
    came: u64,
}

impl Weft {
    fn open(spec: &Spec) -> Result<Weft> {
        let page = Page(Pool::new(4096, 1)?);
        let endpoint =
            Endpoint::open(&Opening::manual(if spec.fabric == Fabric::Host { "host" } else { TCP }))?;
        let memory = endpoint.register(page.0.base(), page.0.len())?;
        let mut args = Endpoint::range(memory, ptr::null_mut(), size_of::<u64>());
        args.local_offset = Page::GOING as u64;
        Ok(Weft { game: spec.game, endpoint, page, memory, peer: 0, args, came: 0 })
    }

    #[inline]
    fn send(&mut self, number: u64) -> Result<()> {
        let mut message = [0u64; LEN / size_of::<u64>()];
        message[0] = number;
        let mut args: weft_send_args = sized();
        (args.peer, args.data, args.len) = (self.peer, message.as_ptr().cast(), LEN as u64);
        // SAFETY: the message is copied by the call.
        check("weft_send", unsafe { weft_send(self.endpoint.raw, &args, ptr::null_mut()) })
    }
}

impl Hand for Weft {
    fn name(&self) -> String {
        match self.game {
            Game::Words => "weft",
            Game::Messages => "weft_send",
            Game::Notifications => "weft_write of a word, with a notification",
        }
        .to_owned()
    }

    fn offer(&self) -> Result<Value> {
        Ok(to_value(self.endpoint.offer(self.memory)?)?)
    }

    fn join(&mut self, offer: &Value, first: bool) -> Result<()> {
        let offer: Offer = serde_json::from_value(offer.clone()).context("the other side's offer")?;
        self.peer = match first {
            true => self.endpoint.connect(&offer.address)?,
            false => self.endpoint.take(WEFT_COMPLETION_PEER_UP, 1)?.peer,
        };
        self.args.remote = self.endpoint.import(self.peer, &offer)?;
        Ok(())
    }

    #[inline]
    fn throw(&mut self, number: u64) -> Result<()> {
        if self.game == Game::Messages {
            return self.send(number);
        }
        self.page.set(number);
        if self.game == Game::Notifications {
            (self.args.flags, self.args.notify) = (WEFT_NOTIFY, number);
        }
        self.endpoint.write(&self.args)
    }

    #[inline]
    fn look(&mut self) -> Result<u64> {
        for one in self.endpoint.poll(&mut completions::<2>())? {
            match one.kind {
                WEFT_COMPLETION_NOTIFICATION => self.came = one.value,
                WEFT_COMPLETION_MESSAGE => {
                    // SAFETY: a message of ours begins with its number, and is valid until released.
                    self.came = unsafe { one.data.cast::<u64>().read_unaligned() };
                    // SAFETY: the id of a message that was polled.
                    let released = unsafe { weft_message_release(self.endpoint.raw, one.transfer) };
                    check("weft_message_release", released)?;
                }
                // It was the last to throw.
                WEFT_COMPLETION_PEER_DOWN => continue,
                _ => {}
            }
            check("a completion", one.status)?;
        }
        Ok(if self.game == Game::Words { self.page.came() } else { self.came })
    }
}
