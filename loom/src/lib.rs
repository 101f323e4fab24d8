//! The library's shared structures on top of loom: a test runs in every possible order of its
//! threads, with every value that weak memory may show them.
//!
//! The files are the library's own. This crate has the synchronization beneath them (`sync`), and
//! the few other parts that they need. What relies on sequentially consistent loads and stores
//! alone (the gate) is left to Miri: loom treats these as acquire and release.

pub mod sync;

pub mod status {
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Status {
        Ok,
        Again,
        Internal,
        NoMemory,
        Closed,
    }

    #[derive(Debug)]
    pub struct Error(pub Status);

    pub type Result<T> = std::result::Result<T, Error>;

    impl Error {
        pub fn new(status: Status, _: impl AsRef<str>) -> Error {
            Error(status)
        }

        pub fn closed() -> Error {
            Error(Status::Closed)
        }
    }
}

// The models do not use all of it.
#[allow(dead_code)]
#[path = "../../src/ids.rs"]
pub mod ids;

#[path = "../../src/failing.rs"]
pub mod failing;

#[path = "../../src/ring.rs"]
pub mod ring;

#[path = "../../src/room.rs"]
pub mod room;

#[path = "../../src/worker/mailbox.rs"]
pub mod mailbox;

#[path = "../../src/worker/driver.rs"]
pub mod driver;

pub mod transfer;

pub mod prefetch {
    pub fn to_write<T>(_: &T) {}
}
