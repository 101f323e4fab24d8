//! What an error number of a NIC says: of an operation, its lane, or a connection that is being made.

/// The error number for freed memory, or memory that a device could not copy: it fails the
/// operation, but not its lane.
pub const GONE: i32 = libc::ESTALE;

/// The error number for local memory whose pages became unreachable: it fails the operation, but not
/// its lane.
pub const FAULT: i32 = libc::EFAULT;

/// The error number for a key that the target's NIC refused: on NICs without connections, it fails
/// only the operation, too.
pub const REFUSED: i32 = libc::EREMOTEIO;

/// The error numbers above this one: a disk could not copy, for the system's error number that is above it. It
/// fails the operation, but not its lane.
pub const ON_DISK: i32 = 2048;

/// The error number for an address at which another endpoint of Weft lives now.
pub const ANOTHER: i32 = libc::EADDRINUSE;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// `GONE`, `FAULT`, `REFUSED`.
    Gone,
    Fault,
    Key,
    /// Above `ON_DISK`.
    Disk,
    /// Nothing moved in time.
    Silence,
    /// The other side has closed the connection, or (`Absent`) nothing listens there.
    Closed,
    Absent,
    /// The connection has ended: the other side closed it, or an operation was the cause.
    Ended,
    /// The network does not lead there, or the NIC has no link.
    Network,
    /// This side lacks something: ports, or descriptors.
    Local,
    /// `ANOTHER`.
    Another,
    /// The other side knows another secret, or none.
    Denied,
    /// This side may not connect.
    Forbidden,
    /// The operation: it would fail over any lane.
    Operation,
}

impl Cause {
    pub fn from_errno(errno: i32) -> Cause {
        use libc::*;
        match errno {
            GONE => Cause::Gone,
            FAULT => Cause::Fault,
            REFUSED => Cause::Key,
            _ if errno > ON_DISK => Cause::Disk,
            ETIMEDOUT => Cause::Silence,
            ECONNRESET | ECONNABORTED | EPIPE | ENOTCONN | ESHUTDOWN | ECANCELED => Cause::Closed,
            ECONNREFUSED => Cause::Absent,
            EIO => Cause::Ended,
            EHOSTUNREACH | EHOSTDOWN | ENETUNREACH | ENETDOWN | ENETRESET | ENODEV => Cause::Network,
            EADDRNOTAVAIL | EMFILE | ENFILE => Cause::Local,
            ANOTHER => Cause::Another,
            EKEYREJECTED => Cause::Denied,
            EACCES | EPERM => Cause::Forbidden,
            _ => Cause::Operation,
        }
    }

    /// Only the operation fails, and not its lane.
    pub fn is_of_memory(self) -> bool {
        matches!(self, Cause::Gone | Cause::Fault | Cause::Disk)
    }

    /// Whether the other side has closed the connection.
    pub fn is_closed(self) -> bool {
        matches!(self, Cause::Closed | Cause::Absent | Cause::Ended)
    }

    /// Whether it belongs to a connection, so that a new one may succeed.
    pub fn may_pass(self) -> bool {
        self.is_closed() || matches!(self, Cause::Silence | Cause::Network | Cause::Local)
    }

    /// Whether an operation of this side may be why a lane failed. (A peer whose operations expire closes it for each.)
    pub fn may_be_an_operation(self) -> bool {
        self == Cause::Ended || !self.may_pass()
    }

    /// Whether no further attempt to connect helps.
    pub fn is_final(self) -> bool {
        matches!(self, Cause::Another | Cause::Denied | Cause::Forbidden)
    }
}
