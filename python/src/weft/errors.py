"""Exceptions: one class for each category of statuses."""

from __future__ import annotations

from typing import Dict, Type

from . import c
from ._library import quick


class WeftError(Exception):
    """A call, or an operation, that failed.

    `status` is the number (one of `weft.c.ERR_*`), `name` its name ("WEFT_ERR_RANGE"), `message`
    what was wrong: of a call what `weft_last_error` said, of an operation what its completion
    tells.
    """

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.name: str = quick.weft_status_name(status).decode()
        self.message = message
        super().__init__(f"{self.name}: {message}")

    def __reduce__(self) -> "tuple[Type[WeftError], tuple[int, str]]":
        return type(self), (self.status, self.message)


class RetryError(WeftError):
    """No room at the moment, or in use: let operations complete, then try again."""


class PeerError(WeftError):
    """The other side, or the way to it: reconnect, or use another peer."""


class TimedOutError(PeerError, TimeoutError):
    """The deadline of an operation passed."""


class CanceledError(PeerError):
    """An operation was canceled on this side."""


class UsageError(WeftError):
    """The call is wrong: mend the program."""


class ClosedError(UsageError):
    """The endpoint is shut down."""


class MachineError(WeftError):
    """The machine: install, free or configure something."""


class InternalError(WeftError):
    """A defect of Weft: report it."""


_BY_STATUS: Dict[int, Type[WeftError]] = {
    c.ERR_TIMED_OUT: TimedOutError,
    c.ERR_CANCELED: CanceledError,
    c.ERR_CLOSED: ClosedError,
}
_BY_CATEGORY: Dict[int, Type[WeftError]] = {
    c.CATEGORY_RETRY: RetryError,
    c.CATEGORY_PEER: PeerError,
    c.CATEGORY_USAGE: UsageError,
    c.CATEGORY_SYSTEM: MachineError,
    c.CATEGORY_INTERNAL: InternalError,
}


def error_of(status: int, message: str) -> WeftError:
    """The exception that stands for a negative status."""
    kind = _BY_STATUS.get(status) or _BY_CATEGORY.get(quick.weft_status_category(status), WeftError)
    return kind(status, message)


def check(status: int) -> int:
    """Raises if a call of this thread, the last one, has failed."""
    if status < 0:
        raise error_of(status, quick.weft_last_error().decode("utf-8", "replace"))
    return status
