//! A stand-in for `src/transfer`. The end of an operation (`ending`) relies on sequentially
//! consistent loads while NICs use it; the rest is here, in short.

#[path = "../../src/transfer/queue.rs"]
pub mod queue;
// The models do not use all of it.
#[allow(dead_code)]
#[path = "../../src/transfer/table.rs"]
pub mod table;
#[path = "../../src/transfer/tally.rs"]
pub mod tally;

#[derive(PartialEq, Eq, Debug)]
pub struct Outcome;

pub mod completion {
    #[derive(Clone, Copy, Debug)]
    pub struct Completion(pub u32);

    impl Completion {
        pub fn trace(&self) {}
    }

    pub const KIND_WRITE: i32 = 1;
    pub const KIND_READ: i32 = 2;
    pub const KIND_SEND: i32 = 3;
    pub const KIND_ATOMIC: i32 = 4;
    pub const KIND_COUNTER: i32 = 5;
    pub const KIND_FENCE: i32 = 6;
}

pub mod operation {
    use super::completion::KIND_WRITE;
    use crate::ids::PeerId;
    use super::queue::Queue;
    use std::sync::Arc;

    pub struct Notice;

    pub struct Move;

    impl Move {
        pub fn is_announced(&self) -> bool {
            false
        }
    }

    pub enum To {
        Own,
        Queue(Arc<Queue>),
    }

    pub struct Body {
        pub kind: i32,
        pub peer: Option<PeerId>,
    }

    impl Body {
        pub fn new(peer: u64) -> Body {
            Body { kind: KIND_WRITE, peer: PeerId::new(peer) }
        }

        pub fn transfer(&self) -> Option<&Move> {
            None
        }

        pub(super) fn completes(&self) -> bool {
            true
        }
    }
}

mod ending {
    use super::table::Table;
    use crate::ids::OpId;

    pub struct Ending;

    #[derive(Default)]
    pub struct Expiring;

    impl Table {
        /// Ends an operation; false if it ended before.
        pub fn end(&self, id: OpId) -> bool {
            let Some(slot) = self.take_end(id) else { return false };
            self.release(slot);
            self.tally.over();
            true
        }
    }
}

mod parts {
    pub enum PartOf {
        Nothing,
    }

    pub struct Whole;

    impl Whole {
        pub fn new() -> Whole {
            Whole
        }

        pub fn belong(&self, _: PartOf) {}
    }
}

mod gate {
    pub struct Gate;

    impl Gate {
        pub fn new() -> Gate {
            Gate
        }
    }
}
