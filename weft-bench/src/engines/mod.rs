//! The ways to move pages. Each has a sender, at the initiator, and a receiver,
//! at the target; each is driven by polling.

mod bare;
mod packed;
pub mod port;
mod socket;
mod steps;
mod weft;

pub use self::port::Rail;
pub use self::steps::Step;
pub use self::weft::{pool, rail, TCP};

use crate::memory::Pool;
use crate::pages::Lists;
use crate::pair::Case;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum Kind {
    /// The bare loop; what its completion queue is opened with matters.
    Bare {
        wait_fd: bool,
    },
    /// The bare loop with several pages a write: the provider's vectors.
    Vectors,
    /// Pages gathered, sent as one and scattered.
    Packed,
    /// A step of the ablation.
    Step(Step),
    Weft,
    /// Weft, which reads the target's pages into a pool of its own.
    Reads,
    Socket,
    Memcpy,
}

/// Segments of a write that tcp and shm take.
const SEGMENTS: usize = 4;

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Bare { .. } => "bare",
            Kind::Vectors => "vectors",
            Kind::Packed => "packed",
            Kind::Step(step) => step.name(),
            Kind::Weft => "weft",
            Kind::Reads => "weft, reading",
            Kind::Socket => "socket",
            Kind::Memcpy => "memcpy",
        }
    }
}

/// The initiator's half.
pub trait Sender {
    /// What the receiver needs of it, if anything.
    fn answer(&self) -> Result<Value> {
        Ok(Value::Null)
    }

    /// Called once, while the target polls this engine.
    fn connect(&mut self) -> Result<()> {
        Ok(())
    }

    /// Moves the pages, and returns when every byte is in its place.
    fn write(&mut self, lists: &Lists) -> Result<()>;

    /// Makes progress between transfers.
    fn poll(&mut self) -> Result<()> {
        Ok(())
    }

    /// Ways to run it: the calibration tries all and takes the fastest.
    fn tunings(&self) -> usize {
        1
    }

    fn tune(&mut self, _tuning: usize) {}

    /// The tuning, for people.
    fn describe(&self) -> String;
}

/// The target's half.
pub trait Receiver {
    /// What the sender needs to reach it.
    fn offer(&self) -> Result<Value> {
        Ok(Value::Null)
    }

    /// What the sender answered.
    fn accept(&mut self, _answer: &Value) -> Result<()> {
        Ok(())
    }

    fn poll(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Which NIC an engine uses: the same for all of them.
pub struct Place<'a> {
    pub case: &'a Case,
    pub rail: &'a Rail,
}

pub fn receiver(kind: Kind, place: &Place, pool: &Pool) -> Result<Box<dyn Receiver>> {
    Ok(match kind {
        Kind::Bare { wait_fd } => Box::new(bare::BareReceiver::open(place.rail, wait_fd, pool)?),
        Kind::Vectors => Box::new(bare::BareReceiver::open(place.rail, false, pool)?),
        Kind::Packed => Box::new(packed::PackedReceiver::open(place.rail, pool)?),
        Kind::Step(_) => Box::new(steps::StepReceiver::open(place, pool)?),
        Kind::Weft | Kind::Reads => Box::new(weft::WeftReceiver::open(place.case, pool)?),
        Kind::Socket => Box::new(socket::SocketReceiver::open(pool)?),
        Kind::Memcpy => Box::new(weft::Nothing),
    })
}

/// The sender for a receiver's offer.
pub fn sender(kind: Kind, place: &Place, pool: &Pool, offer: &Value) -> Result<Box<dyn Sender>> {
    Ok(match kind {
        Kind::Bare { wait_fd } => Box::new(bare::BareSender::<1>::open(place, wait_fd, pool, offer)?),
        Kind::Vectors => Box::new(bare::BareSender::<SEGMENTS>::open(place, false, pool, offer)?),
        Kind::Packed => Box::new(packed::PackedSender::open(place, pool, offer)?),
        Kind::Step(step) => Box::new(steps::StepSender::open(step, place, pool, offer)?),
        Kind::Weft => Box::new(weft::WeftSender::open(place.case, pool, offer, false)?),
        Kind::Reads => Box::new(weft::WeftSender::open(place.case, &weft::pool(place.case)?, offer, true)?),
        Kind::Socket => Box::new(socket::SocketSender::open(pool, offer, place.case.cpu)?),
        Kind::Memcpy => Box::new(weft::Memcpy::open(place.case, pool)?),
    })
}
