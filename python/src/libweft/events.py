"""Events of an endpoint that belong to no operation: from peers, and about peers and rails."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, NamedTuple, Optional, Union

from . import c
from ._library import quick
from .errors import WeftError, error_of

if TYPE_CHECKING:
    from .peer import Peer


@dataclass(frozen=True)
class Message:
    """A peer's `send`. In the order in which the peer sent."""

    peer: Peer
    data: bytes


@dataclass(frozen=True)
class Notification:
    """A peer's transfer with `notify` has arrived, every byte of it. Or (`status` is not 0, but a
    `libweft.c.ERR_*`, see `error`) one with `notify_failure` has failed, or a grant with `notify` has expired."""

    peer: Peer
    value: int
    data: bytes
    status: int = 0

    @property
    def error(self) -> Optional[WeftError]:
        """The status as an exception, with `name` and `message`; None of 0."""
        return error_of(self.status, str(quick.weft_status_text(self.status).decode()), self.peer.id) if self.status < 0 else None


@dataclass(frozen=True)
class PeerUp:
    """A peer has connected to us. (A connect of ours is answered by its operation.)"""

    peer: Peer


@dataclass(frozen=True)
class PeerDown:
    """A peer has ended; `status` says why: 0 (we disconnected), or a `libweft.c.ERR_*`."""

    peer: Peer
    status: int

    @property
    def reason(self) -> str:
        """What is known of the cause: the addresses and what each answered; behind the status as text, where that is an error."""
        status = str(quick.weft_status_text(self.status).decode())
        try:
            why = self.peer.reason()
        except WeftError:
            return status  # 256 others have ended since, or the endpoint is closed
        return why if self.status == 0 or status in why else f"{status}: {why}"

    @property
    def error(self) -> Optional[WeftError]:
        """The status and the reason as an exception, with `name` and `message`; None of 0."""
        return error_of(self.status, self.reason, self.peer.id) if self.status < 0 else None

    def __repr__(self) -> str:
        return f"PeerDown({self.peer!r}, {quick.weft_status_name(self.status).decode()}: {self.reason})"


@dataclass(frozen=True)
class RailDown:
    """A rail of ours reaches no peer; the others take over. No action is needed. `Endpoint.rail_info(rail)` has its NIC's name."""

    rail: int
    provider_errno: int


@dataclass(frozen=True)
class RailUp:
    """A rail that was down is used again."""

    rail: int


@dataclass(frozen=True)
class Other:
    """An event of a kind that this package does not know, from a newer library."""

    kind: int
    status: int
    value: int


#: What `Endpoint.events`, `event` and `wait_event` give.
Event = Union[Message, Notification, PeerUp, PeerDown, RailDown, RailUp, Other]


class Raw(NamedTuple):
    """The fields of `weft_completion`."""

    kind: int
    status: int
    op: int
    user_data: int
    peer: int
    notify: int
    bytes: int
    data: int
    provider_errno: int
    rail: int
    entry: int
    submit_ns: int
    first_post_ns: int
    done_ns: int
    previous: int
    accepted: int


def data_of(raw: Raw) -> bytes:
    """Copies the data of a message or a notification, which is to be released then: `has_data`."""
    return ctypes.string_at(raw.data, raw.bytes) if raw.data and raw.bytes else b""


def has_data(raw: Raw) -> bool:
    return raw.kind in (c.COMPLETION_MESSAGE, c.COMPLETION_NOTIFICATION) and raw.op != 0


def event_of(raw: Raw, peer_of: Callable[[int], Peer]) -> Event:
    """The event for a completion."""
    if raw.kind == c.COMPLETION_MESSAGE:
        return Message(peer_of(raw.peer), data_of(raw))
    if raw.kind == c.COMPLETION_NOTIFICATION:
        return Notification(peer_of(raw.peer), raw.notify, data_of(raw), raw.status)
    if raw.kind == c.COMPLETION_PEER_UP:
        return PeerUp(peer_of(raw.peer))
    if raw.kind == c.COMPLETION_PEER_DOWN:
        return PeerDown(peer_of(raw.peer), raw.status)
    if raw.kind == c.COMPLETION_RAIL_DOWN:
        return RailDown(raw.rail, raw.provider_errno)
    if raw.kind == c.COMPLETION_RAIL_UP:
        return RailUp(raw.rail)
    return Other(raw.kind, raw.status, raw.notify)
