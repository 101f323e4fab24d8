//! The life of a transfer, from the call to its completion.
//!
//! 1. **Submit** (`calls::submit`, the caller's thread). Pages (`geometry`) or the entries of a
//!    list (`list`, one part for each peer) are checked once against all memories; a `shape` holds
//!    either, owned or prepared. A place in the completion queue is reserved, and a slot of the
//!    `table` is filled. Its id is pushed to the workers that have lanes to the peer. Nothing is
//!    allocated per page. With manual progress the same call posts what the windows allow; a small
//!    transfer even before it is an operation (`calls::inline`).
//! 2. **Claim** (`stripe`, a worker). Each lane that takes part has a stripe, and serves its
//!    stripes in turn (`stripes`). A stripe claims the next run of slices from the slot's cursor by
//!    one atomic add, per pass at most its share: an idle lane claims more, so a slow rail claims
//!    less.
//! 3. **Post** (`stripe` -> `rail`). Slices are computed as they are posted. Neighbours are merged,
//!    and several slices go in one post where the NIC supports it, within the windows of lane and
//!    rail. A post that exceeds a window stays in the stripe and is tried again first.
//! 4. **Reap** (`rail`). A finished operation names its stripe, which counts its slices for itself.
//!    The slices are then at the target (`fabric::Delivery`).
//! 5. **Settle** (`table`). A stripe with nothing left to claim and nothing in flight leaves the
//!    slot, subtracting its slices and itself in one atomic. When the last stripe leaves, the
//!    transfer has arrived.
//! 6. **Notify** (`session::channel`), if asked for, or raise a counter: a sequenced control message
//!    to the target, sent once every byte is there; its acknowledgement ends the transfer. Where a
//!    failed write also fails everything posted after it, and one lane carries all, the message is
//!    speculative: it is sent right behind the last post, which then needs no delivery completion,
//!    since an acknowledged message implies every byte. (A counter of pages is raised by the
//!    immediates of their writes: `counters` has the target's end.)
//! 7. **Publish** (`ending`, `queue`). The last stripe, the acknowledgement, a deadline, a cancel
//!    or the loss of the peer ends the operation. The thread that moves the slot from active to
//!    ended writes the one completion. The slot is free again when every stripe has left it.

pub mod atomic;
pub mod claims;
pub mod completion;
pub mod counters;
pub mod durable;
pub mod ending;
pub mod expect;
mod explain;
pub mod gate;
pub mod geometry;
mod layer;
pub mod list;
pub mod operation;
pub mod options;
pub mod parts;
pub mod queue;
pub mod shape;
pub mod stripe;
pub mod stripes;
pub mod table;
pub mod tally;
pub mod watch;

use crate::ids::GrantToken;
use crate::room::Theirs;
pub use completion::Outcome;
use queue::Queue;
use std::num::NonZeroU64;
use std::sync::Arc;
use watch::Marks;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    Write,
    Read,
}

/// A counter of the peer to raise.
#[derive(Clone, Copy)]
pub struct Count {
    pub counter: u64,
    /// Raised by each page, by its bytes; else once, after the last byte.
    pub pages: bool,
}

/// A notification to send after the last byte.
#[derive(Clone, Copy)]
pub struct Notify<'a> {
    pub value: u64,
    pub data: Theirs<'a, u8>,
    /// Sent also if the transfer fails.
    pub of_failure: bool,
}

/// The options of all operations.
#[derive(Clone, Copy)]
pub struct Common<'a> {
    /// `None`: the endpoint's default.
    pub timeout_ns: Option<NonZeroU64>,
    pub user_data: u64,
    pub queue: &'a Arc<Queue>,
    pub marks: &'a Marks,
    /// The peer's grant under which the operation runs.
    pub grant: Option<GrantToken>,
}

/// The terms of a transfer, for pages and lists alike.
pub struct Terms<'a> {
    pub direction: Direction,
    pub notify: Option<Notify<'a>>,
    pub count: Option<Count>,
    /// A list completes once for each peer.
    pub each_peer: bool,
    /// In the latency class.
    pub urgent: bool,
    /// The owner flushes its files before the rest.
    pub durable: bool,
    pub common: Common<'a>,
}
