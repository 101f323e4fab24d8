//! The library's structures that threads share, with loom beneath: a test of these runs in
//! every order that its threads can take, with what weak memory may show them.
//!
//! The files are the library's own. What they meet by is here (`sync`), and as little as they
//! need of the rest. What orders itself by sequentially consistent loads and stores alone (the gate)
//! is left to Miri: loom takes these for acquire and release.

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

// Not all of it is of the models.
#[allow(dead_code)]
#[path = "../../src/ids.rs"]
pub mod ids;

#[path = "../../src/ring.rs"]
pub mod ring;

#[path = "../../src/room.rs"]
pub mod room;

#[path = "../../src/endpoint/mailbox.rs"]
pub mod mailbox;

#[path = "../../src/endpoint/driver.rs"]
pub mod driver;

pub mod transfer;

pub mod prefetch {
    pub fn to_write<T>(_: &T) {}
}
