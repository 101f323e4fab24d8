//! What is staged for a peer (`fabric::staged`): our transfers that no lane carries, and its requests.

use crate::device::Device;
use crate::fabric::staged::asking::Asking;
use crate::fabric::staged::serving::Serving;
use crate::fabric::staged::Request;
use crate::ids::{Hold, OpId};
use crate::transfer::geometry::Position;

#[derive(Default)]
pub struct Staged {
    pub transfers: Vec<Carried>,
    pub asking: Asking<Portion>,
    pub serving: Serving,
    /// Its worker goes on with it in every pass.
    pub listed: bool,
    /// The log says that there is such memory.
    pub said: bool,
}

/// A transfer of ours.
pub struct Carried {
    pub hold: Hold,
    /// The next slice, its place, and the bytes of it that were asked for.
    pub next: u64,
    pub at: Position,
    pub within: u64,
    /// Requests that may use its memory.
    pub asked: usize,
}

/// What a request of ours moves.
pub struct Portion {
    pub op: OpId,
    pub request: Request,
    /// Addresses and lengths here.
    pub places: Vec<(u64, u64)>,
    pub device: Option<Device>,
    pub may_fault: bool,
    pub slot: Option<u32>,
    /// The operation's completion waits for a device.
    pub carried: bool,
    pub entry: Option<u64>,
}

impl Staged {
    pub fn is_idle(&self) -> bool {
        self.transfers.is_empty() && self.asking.is_empty() && self.serving.is_empty()
    }

    /// The operations whose requests the peer may still carry out.
    pub fn ops(&self) -> impl Iterator<Item = OpId> + '_ {
        let asked = self.asking.iter().map(|(_, one)| one.what.op);
        self.transfers.iter().map(|one| one.hold.id()).chain(asked)
    }
}
