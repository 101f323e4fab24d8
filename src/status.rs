//! Statuses, and the error type that every floor of the library returns.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt;

pub type Result<T> = std::result::Result<T, Error>;

/// The result of an operation or call. The numbers are the ABI's.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    Ok = 0,
    Again = -1,
    Busy = -2,
    TimedOut = -20,
    Canceled = -21,
    PeerLost = -22,
    PeerGone = -23,
    PeerClosed = -24,
    Unreachable = -25,
    Version = -26,
    NoCommonFabric = -27,
    MemoryGone = -28,
    RemoteAccess = -29,
    Denied = -30,
    Protocol = -31,
    RailLost = -32,
    Revoked = -33,
    Invalid = -40,
    Handle = -41,
    Range = -42,
    Unsupported = -43,
    Limit = -44,
    Format = -45,
    TooSmall = -46,
    Closed = -47,
    Forked = -48,
    NoLibfabric = -70,
    NoRails = -71,
    Fabric = -72,
    NoMemory = -73,
    System = -74,
    Internal = -90,
}

/// Status, name and meaning; the one list of them all.
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
        c"nobody answered at the address within the connect timeout",
    ),
    (Status::Version, c"WEFT_ERR_VERSION", c"the two libraries speak no common wire version"),
    (Status::NoCommonFabric, c"WEFT_ERR_NO_COMMON_FABRIC", c"the two endpoints have no fabric in common"),
    (Status::MemoryGone, c"WEFT_ERR_MEMORY_GONE", c"the remote memory was deregistered by its owner"),
    (Status::RemoteAccess, c"WEFT_ERR_REMOTE_ACCESS", c"the target refused the access"),
    (Status::Denied, c"WEFT_ERR_DENIED", c"the peer does not know the secret, or only one of the two sides has one"),
    (Status::Protocol, c"WEFT_ERR_PROTOCOL", c"the peer breaks the rules, or asks for more than a bound allows"),
    (
        Status::RailLost,
        c"WEFT_ERR_RAIL_LOST",
        c"a rail failed after this operation may already have raised a counter or sent its notification; it cannot be retried safely",
    ),
    (Status::Revoked, c"WEFT_ERR_REVOKED", c"the grant was revoked by its owner, or does not cover the access"),
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
    (Status::Forked, c"WEFT_ERR_FORKED", c"the object was made before a fork: only the parent can use it"),
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

    pub fn name_of(code: i32) -> &'static CStr {
        Self::row(code.min(0)).map_or(c"WEFT_ERR_UNKNOWN", |row| row.1)
    }

    pub fn text_of(code: i32) -> &'static CStr {
        if code > 0 {
            return c"success: a positive number is a count, as weft_queue_poll returns it";
        }
        Self::row(code).map_or(c"a status that this version of Weft does not know", |row| row.2)
    }

    /// For a status that came from another process.
    pub fn from_code(code: i32) -> Status {
        Self::row(code).map_or(Status::Internal, |row| row.0)
    }
}

/// What a caller can do about a status.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Category {
    Ok = 0,
    Retry = 1,
    Peer = 2,
    Usage = 3,
    System = 4,
    Internal = 5,
}

impl Category {
    /// The blocks of the numbering say it.
    pub fn of(code: i32) -> Category {
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

/// A status with a message that says what was wrong and what to do.
#[derive(Clone, Debug)]
pub struct Error {
    pub status: Status,
    pub message: Cow<'static, str>,
    /// libfabric's error number, or 0.
    pub provider_errno: i32,
}

impl Error {
    pub fn new(status: Status, message: impl Into<Cow<'static, str>>) -> Error {
        Error { status, message: message.into(), provider_errno: 0 }
    }

    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Status::Invalid, message)
    }

    pub fn handle(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Status::Handle, message)
    }

    pub fn limit(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(Status::Limit, message)
    }

    /// The same error, with its subject in front.
    pub fn about(mut self, what: &str) -> Error {
        self.message = format!("{what}: {}", self.message).into();
        self
    }

    pub fn closed() -> Error {
        Error::new(Status::Closed, "the endpoint is shut down")
    }

    /// The last OS error, with what was being done.
    pub fn system(doing: &str) -> Error {
        let why = std::io::Error::last_os_error();
        let status = match why.raw_os_error() {
            Some(libc::ENOMEM) => Status::NoMemory,
            _ => Status::System,
        };
        Error::new(status, format!("{doing}: {why}"))
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
    fn numbers_names_and_categories_agree() {
        for (status, name, _) in TABLE {
            let code = *status as i32;
            assert_eq!(Status::from_code(code), *status);
            assert!(name.to_str().is_ok_and(|n| n.starts_with("WEFT_")));
            assert_ne!((Category::of(code), code == 0), (Category::Ok, false));
        }
        assert_eq!(Status::name_of(-12345), c"WEFT_ERR_UNKNOWN");
    }
}
