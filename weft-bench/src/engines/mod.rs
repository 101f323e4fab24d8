//! The ways to move pages. Each has a sender, at the initiator, and a receiver, at the target;
//! polling drives both.

pub mod bare;
pub mod port;
mod socket;
pub mod throw;
mod weft;

pub use self::port::Rail;
pub use self::weft::{pool, rail, TCP};

use self::throw::{Bare, Game, Side};
use crate::memory::Pool;
use crate::pages::Lists;
use crate::pair::Case;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum Kind {
    /// The bare loop; the options of its completion queue matter.
    Bare {
        wait_fd: bool,
    },
    Weft,
    /// Weft, reading the target's pages into its own pool.
    Reads,
    /// Weft with encryption.
    Encrypted,
    /// Weft with several connections.
    Streams,
    Socket,
    Memcpy,
    /// A few bytes in both directions, by bare libfabric, by a socket and by Weft.
    Throw {
        inject: bool,
        wait_fd: bool,
    },
    SocketThrow,
    WeftThrow(Game),
}

impl Kind {
    pub fn name(self) -> String {
        match self {
            Kind::Bare { .. } => "bare".into(),
            Kind::Weft => "weft".into(),
            Kind::Reads => "weft, reading".into(),
            Kind::Encrypted => "weft, encrypted".into(),
            Kind::Streams => "weft, 4 streams".into(),
            Kind::Socket => "socket".into(),
            Kind::Memcpy => "memcpy".into(),
            Kind::Throw { inject, wait_fd } => {
                let wait = if wait_fd { "FI_WAIT_FD" } else { "FI_WAIT_NONE" };
                format!("bare {}, {wait}", if inject { "fi_inject" } else { "fi_send" })
            }
            Kind::SocketThrow => "socket".into(),
            Kind::WeftThrow(game) => game.name().into(),
        }
    }

    /// Not every provider has a descriptor to wait on.
    pub fn may_be_missing(self) -> bool {
        matches!(self, Kind::Bare { wait_fd: true } | Kind::Throw { wait_fd: true, .. })
    }

    /// Whether it moves the pages of the lists to the target.
    pub fn moves_pages(self) -> bool {
        !matches!(
            self,
            Kind::Memcpy | Kind::Reads | Kind::Throw { .. } | Kind::SocketThrow | Kind::WeftThrow(_)
        )
    }
}

const SETTLE: Duration = Duration::from_micros(50);

/// The initiator's half.
pub trait Sender {
    /// What the receiver needs from the sender, if anything.
    fn answer(&self) -> Result<Value> {
        Ok(Value::Null)
    }

    /// Called once, while the target polls this engine.
    fn connect(&mut self) -> Result<()> {
        Ok(())
    }

    /// Called before a transfer, while the target polls this engine: work left from the last turn
    /// is not counted.
    fn settle(&mut self) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < SETTLE {
            self.poll()?;
        }
        Ok(())
    }

    /// Moves the pages, and returns when every byte is in place.
    fn write(&mut self, lists: &Lists) -> Result<()>;

    /// Makes progress between transfers.
    fn poll(&mut self) -> Result<()> {
        Ok(())
    }

    /// Its tunings: the calibration tries all and takes the fastest.
    fn tunings(&self) -> usize {
        1
    }

    fn tune(&mut self, _tuning: usize) {}

    /// The tuning, as text.
    fn describe(&self) -> String;
}

/// The target's half.
pub trait Receiver {
    /// What the sender needs to reach it.
    fn offer(&self) -> Result<Value> {
        Ok(Value::Null)
    }

    /// Passes on what the sender answered.
    fn accept(&mut self, _answer: &Value) -> Result<()> {
        Ok(())
    }

    fn poll(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The NIC for an engine: the same for all of them.
pub struct Place<'a> {
    pub case: &'a Case,
    pub rail: &'a Rail,
}

pub fn receiver(kind: Kind, place: &Place, pool: &Pool) -> Result<Box<dyn Receiver>> {
    Ok(match kind {
        Kind::Bare { wait_fd } => Box::new(bare::BareReceiver::open(place.rail, wait_fd, pool)?),
        Kind::Weft | Kind::Reads | Kind::Encrypted | Kind::Streams => {
            Box::new(weft::WeftReceiver::open(place.case, kind, pool)?)
        }
        Kind::Socket => Box::new(socket::SocketReceiver::open(pool)?),
        Kind::Memcpy => Box::new(weft::Nothing),
        Kind::Throw { inject, wait_fd } => Side::receiver(Bare::open(place.rail, inject, wait_fd)?),
        Kind::SocketThrow => Side::receiver(throw::Socket::open()?),
        Kind::WeftThrow(game) => Side::receiver(throw::Weft::open(place.case.fabric, game)?),
    })
}

/// The sender that matches a receiver's offer.
pub fn sender(kind: Kind, place: &Place, pool: &Pool, offer: &Value) -> Result<Box<dyn Sender>> {
    Ok(match kind {
        Kind::Bare { wait_fd } => Box::new(bare::BareSender::open(place, wait_fd, pool, offer)?),
        Kind::Weft | Kind::Encrypted | Kind::Streams => {
            Box::new(weft::WeftSender::open(place.case, kind, pool, offer)?)
        }
        Kind::Reads => Box::new(weft::WeftSender::open(place.case, kind, &weft::pool(place.case)?, offer)?),
        Kind::Socket => Box::new(socket::SocketSender::open(pool, offer, place.case.cpu)?),
        Kind::Memcpy => Box::new(weft::Memcpy::open(place.case, pool)?),
        Kind::Throw { inject, wait_fd } => Side::sender(Bare::open(place.rail, inject, wait_fd)?, offer)?,
        Kind::SocketThrow => Side::sender(throw::Socket::open()?, offer)?,
        Kind::WeftThrow(game) => Side::sender(throw::Weft::open(place.case.fabric, game)?, offer)?,
    })
}
