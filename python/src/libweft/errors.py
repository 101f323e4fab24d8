"""Exceptions: a class for each category of statuses, below built-in ones where they mean the same."""

from __future__ import annotations

import time
from typing import Callable, Dict, Type

from . import c
from ._library import quick
from ._plain import Plain


#: Numbers from here on are libfabric's own; the others are the system's.
_OF_LIBFABRIC = 256


class WeftError(Exception, metaclass=Plain):
    """A call, or an operation, that failed.

    `status` is the number (one of `libweft.c.ERR_*`), `name` its name ("WEFT_ERR_RANGE"). `message` is the
    text of `weft_last_error` for a call; for an operation it names the operation, and how it ended. An operation's
    has `peer` (its `id`; 0: of none) and `provider_errno` (0: none), which is `errno`, too, of a ConnectionError and a
    TimeoutError.
    """

    def __init__(self, status: int, message: str, peer: int = 0, provider_errno: int = 0) -> None:
        self.status = status
        self.name: str = quick.weft_status_name(status).decode()
        self.message = message
        self.peer = peer
        self.provider_errno = provider_errno
        super().__init__(f"{self.name}: {message}")
        if isinstance(self, OSError) and 0 < provider_errno < _OF_LIBFABRIC:
            setattr(self, "errno", provider_errno)

    def __reduce__(self) -> "tuple[Type[WeftError], tuple[int, str, int, int]]":
        return type(self), (self.status, self.message, self.peer, self.provider_errno)


class RetryError(WeftError):
    """A limit is reached at the moment: let operations complete, then try again."""


class BusyError(RetryError, BufferError):
    """The object is in use by operations: let them complete, then try again."""


class PeerError(WeftError):
    """The other side, or the path to it, failed: reconnect, or use another peer."""


class ConnectionFailedError(PeerError, ConnectionError):
    """There is no connection: it could not be made, or the peer ended or was lost."""


class TimedOutError(PeerError, TimeoutError):
    """The deadline of an operation passed. The operation has ended."""


class RevokedError(PeerError):
    """The peer has revoked the operation's grant, or the grant does not cover the operation's bytes."""


class FileError(PeerError, OSError):
    """A file of one side failed a read or write, or its disk does not answer: `errno` is the system's
    error number, like ENOSPC, or ENODATA past the end."""


class CanceledError(PeerError):
    """An operation was canceled on this side."""


class UsageError(WeftError, ValueError):
    """The call is wrong: correct the program."""


class ClosedError(UsageError):
    """The endpoint is shut down."""


class MachineError(WeftError):
    """The machine lacks something: install, free or configure it."""


class InternalError(WeftError):
    """An internal error of Weft: report it."""


class StillRunningError(TimeoutError, metaclass=Plain):
    """`Operation.wait` gave up. The operation is still running, and its memory still in use."""


_BY_STATUS: Dict[int, Type[WeftError]] = {
    c.ERR_BUSY: BusyError,
    c.ERR_TIMED_OUT: TimedOutError,
    c.ERR_CANCELED: CanceledError,
    c.ERR_REVOKED: RevokedError,
    c.ERR_FILE: FileError,
    c.ERR_PEER_LOST: ConnectionFailedError,
    c.ERR_PEER_GONE: ConnectionFailedError,
    c.ERR_PEER_CLOSED: ConnectionFailedError,
    c.ERR_UNREACHABLE: ConnectionFailedError,
    c.ERR_VERSION: ConnectionFailedError,
    c.ERR_NO_COMMON_FABRIC: ConnectionFailedError,
    c.ERR_DENIED: ConnectionFailedError,
    c.ERR_PROTOCOL: ConnectionFailedError,
    c.ERR_CLOSED: ClosedError,
}
_BY_CATEGORY: Dict[int, Type[WeftError]] = {
    c.CATEGORY_RETRY: RetryError,
    c.CATEGORY_PEER: PeerError,
    c.CATEGORY_USAGE: UsageError,
    c.CATEGORY_SYSTEM: MachineError,
    c.CATEGORY_INTERNAL: InternalError,
}


def is_of_connection(status: int) -> bool:
    """Whether a status says that there is no connection."""
    return _BY_STATUS.get(status) is ConnectionFailedError


def error_of(status: int, message: str, peer: int = 0, provider_errno: int = 0) -> WeftError:
    """The exception that stands for a negative status."""
    kind = _BY_STATUS.get(status) or _BY_CATEGORY.get(quick.weft_status_category(status), WeftError)
    return kind(status, message, peer, provider_errno)


def check(status: int) -> int:
    """Raises if this thread's last call has failed."""
    if status < 0:
        raise error_of(status, quick.weft_last_error().decode("utf-8", "replace"))
    return status


def taken_back(call: Callable[[], int], poll: Callable[[], None]) -> int:
    """The status of a call that releases an object. A completion can arrive a moment before the worker has
    released the operation's objects; this waits for that."""
    for pause in (0.0002, 0.001, 0.005, 0.02):
        status = call()
        if status != c.ERR_BUSY:
            return status
        poll()
        time.sleep(pause)
    return call()
