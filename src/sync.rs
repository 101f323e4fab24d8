//! What threads meet by, in the structures that `loom/` models: there loom's take the places
//! of these, and all interleavings are tried.

pub use crate::event::Event;
pub use crossbeam_queue::ArrayQueue;
pub use parking_lot::{Condvar, Mutex};
pub use std::sync::atomic;
