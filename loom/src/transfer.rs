//! As `src/transfer`.

#[path = "../../src/transfer/queue.rs"]
pub mod queue;

pub mod completion {
    #[derive(Clone, Copy, Debug)]
    pub struct Completion(pub u32);
}
