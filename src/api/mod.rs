//! The public interface of the crate `libweft`, in safe Rust over `calls`. Names and semantics
//! are those of `weft.h`.
//!
//! Memory that NICs and peers may touch is never freed too early: a `Memory` owns its bytes, and
//! when it is dropped they are parked until its registration is closed (`parked`).

mod atomic;
mod buffer;
mod completion;
mod counter;
mod endpoint;
#[cfg(feature = "futures")]
pub mod futures;
mod grant;
mod ids;
mod info;
mod memory;
mod message;
mod names;
mod options;
mod pages;
mod parked;
mod peer;
mod queue;
mod remote;
#[doc(hidden)]
pub mod testing;
mod time;
mod transfer;
mod watch;
mod words;

pub use crate::calls::Idle;
pub use crate::status::{Category, Error, Result, Status};
pub use buffer::OwnedBuffer;
pub use completion::{Atomic, Completion, Done, Message, Notification, PeerDown, PeerUp, RailEvent};
pub use counter::Counter;
pub use endpoint::{Endpoint, EndpointConfig};
pub use grant::GrantArgs;
pub use ids::{CounterId, GrantToken, Op, Peer};
pub use info::{
    topology, EndpointInfo, EndpointStatistics, LaneStatistics, MemoryInfo, PeerInfo, RailInfo,
    RailStatistics,
};
pub use memory::{Access, Memory, MemoryArgs, MemoryKind};
pub use message::MESSAGE_MAX;
pub use options::{OpOptions, NOTIFY_DATA_MAX};
pub use pages::{ListEntry, PageSide, Pages, Prepared, LIST_ENTRIES_MAX};
pub use queue::{Queue, QueueEvent};
pub use remote::RemoteMemory;
pub use watch::Watch;

/// The version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
