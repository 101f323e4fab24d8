//! Statuses, and the error type that every floor of the library returns.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt;

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// The result of an operation or call. The numbers are the ABI's.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Status {
    /// Success.
    Ok = 0,
    /// A limit is reached (operations, completions, bytes of messages in flight), or nothing is
    /// there yet. Poll, then try again.
    Again = -1,
    /// The object is in use, by operations or still by a fabric. Poll until they have completed, then try again.
    Busy = -2,
    /// The deadline passed.
    TimedOut = -20,
    /// Canceled by this side: by a cancel, a disconnect, or the shutdown of the endpoint.
    Canceled = -21,
    /// The peer died or can no longer be reached.
    PeerLost = -22,
    /// The address or descriptor names an endpoint that no longer exists, and another one answers there; where none
    /// does, a connect ends with `Unreachable`.
    PeerGone = -23,
    /// The peer disconnected or shut its endpoint down.
    PeerClosed = -24,
    /// No answer from the address within the connect timeout, or it rejected the connection; also where the
    /// endpoint no longer exists, and no other answers there (`PeerGone`).
    Unreachable = -25,
    /// The two libraries have no wire version in common.
    Version = -26,
    /// The two endpoints have no fabric in common.
    NoCommonFabric = -27,
    /// The remote memory was deregistered by its owner, or pages of one side's memory are gone: a mapped
    /// file became shorter.
    MemoryGone = -28,
    /// The target refused the access.
    RemoteAccess = -29,
    /// The two sides do not have the same secret, or only one has one.
    Denied = -30,
    /// The peer broke the protocol or exceeded a bound, and was dropped.
    Protocol = -31,
    /// A rail failed after this operation may already have raised a counter or sent its notification, so that it
    /// cannot be retried safely.
    RailLost = -32,
    /// The grant was revoked by its owner, its time is over, or it does not cover the access.
    Revoked = -33,
    /// A file failed a read or write, or its disk does not answer: `provider_errno` beside it is the system's error
    /// number, like `EIO`, `ENOSPC`, `ENODATA` (past the end of the file), `ETIMEDOUT`.
    File = -34,
    /// An argument is wrong; the message says which and why.
    Invalid = -40,
    /// The object or id is stale, or belongs to another endpoint. A peer's id is stale once its PEER_DOWN was polled.
    Handle = -41,
    /// An access lies outside the memory.
    Range = -42,
    /// This fabric, build or version cannot do that.
    Unsupported = -43,
    /// A documented limit is exceeded.
    Limit = -44,
    /// An address or descriptor is damaged, truncated or something else.
    Format = -45,
    /// The buffer is too small.
    TooSmall = -46,
    /// The endpoint is shut down.
    Closed = -47,
    /// This process was forked after the object was made: only the parent can use it.
    Forked = -48,
    /// libfabric could not be loaded.
    NoLibfabric = -70,
    /// No rail could be opened, or fewer than `min_rails`; in a completion: no rails know both memories.
    NoRails = -71,
    /// libfabric reported an error: see the message, or `provider_errno`.
    Fabric = -72,
    /// Out of memory, of registrations or of another resource of the system.
    NoMemory = -73,
    /// A system call failed.
    System = -74,
    /// A defect of Weft: please report it.
    Internal = -90,
}

/// Status, name and meaning.
const TABLE: &[(Status, &CStr, &CStr)] = &[
    (Status::Ok, c"WEFT_OK", c"success"),
    (Status::Again, c"WEFT_ERR_AGAIN", c"no room at the moment, or nothing there yet: poll, then try again"),
    (Status::Busy, c"WEFT_ERR_BUSY", c"the object is in use: poll until its operations have completed"),
    (Status::TimedOut, c"WEFT_ERR_TIMED_OUT", c"the deadline passed"),
    (Status::Canceled, c"WEFT_ERR_CANCELED", c"canceled on this side"),
    (Status::PeerLost, c"WEFT_ERR_PEER_LOST", c"the peer died or can no longer be reached"),
    (
        Status::PeerGone,
        c"WEFT_ERR_PEER_GONE",
        c"the address or descriptor is of an endpoint that no longer exists",
    ),
    (Status::PeerClosed, c"WEFT_ERR_PEER_CLOSED", c"the peer disconnected or shut its endpoint down"),
    (
        Status::Unreachable,
        c"WEFT_ERR_UNREACHABLE",
        c"nobody answered at the address within the connect timeout, or it refused",
    ),
    (Status::Version, c"WEFT_ERR_VERSION", c"the two libraries speak no common wire version"),
    (Status::NoCommonFabric, c"WEFT_ERR_NO_COMMON_FABRIC", c"the two endpoints have no fabric in common"),
    (
        Status::MemoryGone,
        c"WEFT_ERR_MEMORY_GONE",
        c"the remote memory was deregistered by its owner, or pages of a mapped file are gone",
    ),
    (Status::RemoteAccess, c"WEFT_ERR_REMOTE_ACCESS", c"the target refused the access"),
    (Status::Denied, c"WEFT_ERR_DENIED", c"the peer does not know the secret, or only one of the two sides has one"),
    (Status::Protocol, c"WEFT_ERR_PROTOCOL", c"the peer breaks the rules, or asks for more than a bound allows"),
    (
        Status::RailLost,
        c"WEFT_ERR_RAIL_LOST",
        c"a rail failed after this operation may already have raised a counter or sent its notification; it cannot be retried safely",
    ),
    (Status::Revoked, c"WEFT_ERR_REVOKED", c"the target refused the grant: it was revoked, its time is over, it is not this peer's, or it does not cover the bytes or the direction"),
    (Status::File, c"WEFT_ERR_FILE", c"a file failed a read or write, or its disk does not answer"),
    (Status::Invalid, c"WEFT_ERR_INVALID", c"an argument is wrong"),
    (
        Status::Handle,
        c"WEFT_ERR_HANDLE",
        c"the handle is NULL, stale, closed, of another kind or of another endpoint",
    ),
    (Status::Range, c"WEFT_ERR_RANGE", c"an access lies outside the memory"),
    (Status::Unsupported, c"WEFT_ERR_UNSUPPORTED", c"this fabric, build or library version cannot do that"),
    (Status::Limit, c"WEFT_ERR_LIMIT", c"a documented limit is exceeded"),
    (
        Status::Format,
        c"WEFT_ERR_FORMAT",
        c"the address or descriptor is damaged, truncated, or not one at all",
    ),
    (Status::TooSmall, c"WEFT_ERR_TOO_SMALL", c"the buffer is too small; the length it needs was stored"),
    (Status::Closed, c"WEFT_ERR_CLOSED", c"the endpoint is shut down"),
    (Status::Forked, c"WEFT_ERR_FORKED", c"this is a forked child of a process that uses Weft: only the parent can use it"),
    (Status::NoLibfabric, c"WEFT_ERR_NO_LIBFABRIC", c"libfabric.so.1 could not be loaded"),
    (Status::NoRails, c"WEFT_ERR_NO_RAILS", c"no rail could be opened, or fewer than min_rails; in a completion: no rails that know both memories"),
    (Status::Fabric, c"WEFT_ERR_FABRIC", c"libfabric reported an error"),
    (Status::NoMemory, c"WEFT_ERR_NO_MEMORY", c"out of memory, of registrations, or of another resource"),
    (Status::System, c"WEFT_ERR_SYSTEM", c"a system call failed"),
    (Status::Internal, c"WEFT_ERR_INTERNAL", c"a defect of Weft: please report it"),
];

impl Status {
    fn row(code: i32) -> Option<&'static (Status, &'static CStr, &'static CStr)> {
        TABLE.iter().find(|row| row.0 as i32 == code)
    }

    pub(crate) fn name_of(code: i32) -> &'static CStr {
        Self::row(code.min(0)).map_or(c"WEFT_ERR_UNKNOWN", |row| row.1)
    }

    pub(crate) fn text_of(code: i32) -> &'static CStr {
        if code > 0 {
            return c"success: a positive number is a count, as weft_queue_poll returns it";
        }
        Self::row(code).map_or(c"a status that this version of Weft does not know", |row| row.2)
    }

    /// The status of a code from another process.
    pub(crate) fn from_code(code: i32) -> Status {
        Self::row(code).map_or(Status::Internal, |row| row.0)
    }
}

/// For programs in Rust.
#[cfg(feature = "api")]
impl Status {
    /// The number of the C interface: 0, or negative.
    pub fn code(self) -> i32 {
        self as i32
    }

    /// The C name, like `WEFT_ERR_TIMED_OUT`.
    pub fn name(self) -> &'static str {
        Status::name_of(self as i32).to_str().unwrap_or_default()
    }

    /// Its meaning in one sentence.
    pub fn text(self) -> &'static str {
        Status::text_of(self as i32).to_str().unwrap_or_default()
    }

    /// What a caller can do about it.
    ///
    /// ```
    /// use libweft::{Category, Status};
    /// assert_eq!(Status::PeerLost.category(), Category::Peer);
    /// assert_eq!(Status::Again.category(), Category::Retry);
    /// assert_eq!((Status::Again.code(), Status::Again.name()), (-1, "WEFT_ERR_AGAIN"));
    /// ```
    pub fn category(self) -> Category {
        Category::from_code(self as i32)
    }
}

/// What a caller can do about a status.
///
/// | category | statuses |
/// | --- | --- |
/// | [`Ok`](Category::Ok) | `Ok` |
/// | [`Retry`](Category::Retry) | `Again`, `Busy` |
/// | [`Peer`](Category::Peer) | `TimedOut`, `Canceled`, `PeerLost`, `PeerGone`, `PeerClosed`, `Unreachable`, `Version`, `NoCommonFabric`, `MemoryGone`, `RemoteAccess`, `Denied`, `Protocol`, `RailLost`, `Revoked`, `File` |
/// | [`Usage`](Category::Usage) | `Invalid`, `Handle`, `Range`, `Unsupported`, `Limit`, `Format`, `TooSmall`, `Closed`, `Forked` |
/// | [`System`](Category::System) | `NoLibfabric`, `NoRails`, `Fabric`, `NoMemory`, `System` |
/// | [`Internal`](Category::Internal) | `Internal` |
///
/// A new connection does not help with all of `Peer`. The peer is still there after `MemoryGone` (import the descriptor
/// of what took the memory's place), `RemoteAccess` (its owner registers the memory with this access), `Revoked` (ask for
/// another grant), `RailLost` and `File`. And `Handle` need not be a mistake of the program: once PEER_DOWN was polled, calls
/// that name the peer, as a send, end with it; connect again. Calls that name its memory, as a write, still end with
/// `PeerLost` or `PeerClosed`.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Category {
    /// Nothing failed.
    Ok = 0,
    /// Poll, then try again.
    Retry = 1,
    /// The peer or the path to it failed: reconnect, or use another peer.
    Peer = 2,
    /// The call is wrong: fix the program.
    Usage = 3,
    /// The machine lacks something: install, free or configure it.
    System = 4,
    /// A defect of Weft: report it.
    Internal = 5,
}

impl Category {
    /// Categories are blocks of the numbering.
    pub(crate) fn from_code(code: i32) -> Category {
        let code = code.min(0);
        if Status::row(code).is_none() {
            return Category::Internal;
        }
        match code {
            0 => Category::Ok,
            -19..=-1 => Category::Retry,
            -39..=-20 => Category::Peer,
            -69..=-40 => Category::Usage,
            -89..=-70 => Category::System,
            _ => Category::Internal,
        }
    }
}

/// A status with a message: what was wrong and what to do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Error {
    /// What went wrong.
    pub status: Status,
    /// What was wrong, the values, and what to do.
    pub message: Cow<'static, str>,
    /// The error number of the system or of libfabric, or 0.
    pub provider_errno: i32,
}

impl Error {
    pub(crate) fn new(status: Status, message: impl Into<Cow<'static, str>>) -> Error {
        Error { status, message: message.into(), provider_errno: 0 }
    }

    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Status::Invalid, message)
    }

    pub(crate) fn handle(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Status::Handle, message)
    }

    pub(crate) fn limit(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Status::Limit, message)
    }

    /// The same error, with its subject in front.
    pub(crate) fn about(mut self, what: &str) -> Error {
        self.message = format!("{what}: {}", self.message).into();
        self
    }

    pub(crate) fn closed() -> Error {
        Error::new(Status::Closed, "the endpoint is shut down")
    }

    /// The last OS error, with the action that failed.
    pub(crate) fn system(doing: &str) -> Error {
        let why = std::io::Error::last_os_error();
        let status = match why.raw_os_error() {
            Some(libc::ENOMEM) => Status::NoMemory,
            _ => Status::System,
        };
        Error::new(status, format!("{doing}: {why}"))
    }
}

#[cfg(feature = "api")]
impl Error {
    /// What a caller can do about it.
    ///
    /// ```
    /// # let world = libweft::testing::world()?;
    /// use libweft::{Category, OpOptions};
    /// let beyond = world.local.len();
    /// let error = world.a.write(&world.local, beyond, &world.remote, 0, 1, &OpOptions::new()).unwrap_err();
    /// assert_eq!(error.category(), Category::Usage);
    /// println!("{error}"); // Which range, and how many bytes it has.
    /// # Ok::<(), libweft::Error>(())
    /// ```
    pub fn category(&self) -> Category {
        self.status.category()
    }

    /// The error for a caught panic, which is always a defect.
    pub(crate) fn defect(what: &str) -> Error {
        Error::new(Status::Internal, format!("a defect of Weft: {what}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.status, self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_codes_names_and_categories_agree() {
        for (status, name, _) in TABLE {
            let code = *status as i32;
            assert_eq!(Status::from_code(code), *status);
            assert!(name.to_str().is_ok_and(|n| n.starts_with("WEFT_")));
            assert_ne!((Category::from_code(code), code == 0), (Category::Ok, false));
        }
        assert_eq!(Status::name_of(-12345), c"WEFT_ERR_UNKNOWN");
    }
}
