"""A remote endpoint."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, List, Optional, cast

from . import c
from ._buffers import Buffer, Held
from ._library import fill, lib, nanoseconds, reason_of
from .errors import WeftError, check
from .memory import RemoteMemory
from .completion import Completion
from .operation import Operation

if TYPE_CHECKING:
    from .endpoint import Endpoint


def nothing(_: Completion) -> None:
    """The result of operations that have none."""


class Peer:
    """A remote endpoint, from `Endpoint.connect`, or of a `PeerUp`; until its `PeerDown`. Those of one connection are
    equal, and hashable: a key of a dictionary. A new connection to the same endpoint is another peer."""

    def __init__(self, endpoint: Endpoint, id: int) -> None:
        self._endpoint = endpoint
        #: `weft_peer`.
        self.id = id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Peer) and (self._endpoint, self.id) == (other._endpoint, other.id)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        try:
            info = self.info()
        except WeftError:
            return f"<libweft.Peer {self.id:#x}>"  # it is down, or was never up
        return f"<libweft.Peer {self.id:#x}: {info.fabric or 'connecting'}>"

    def info(self) -> c.PeerProperties:
        """What is known of it."""
        properties = c.PeerProperties()
        check(lib.weft_peer_info(self._endpoint.handle, self.id, properties))
        return properties

    def lanes(self) -> List[c.LaneStatistics]:
        """Its lanes, each with its rail, its address and what it has done."""
        lanes: List[c.LaneStatistics] = []
        while True:
            lane = c.LaneStatistics()
            status = lib.weft_lane_info(self._endpoint.handle, self.id, len(lanes), lane)
            if status == c.ERR_RANGE:
                return lanes
            check(status)
            lanes.append(lane)

    def reason(self) -> str:
        """Why it ended or could not be reached: the addresses that were tried, and what each answered; while
        it is there, why its fabric serves it."""
        said = reason_of(self._endpoint.handle, self.id)
        if said is None:
            check(lib.weft_peer_info(self._endpoint.handle, self.id, c.PeerProperties()))
        return said or ""

    def import_memory(self, descriptor: bytes) -> RemoteMemory:
        """Makes memory of this peer usable, by its `Memory.export`. Transfers may be submitted at
        once; if it is gone they end with `ERR_MEMORY_GONE`."""
        return RemoteMemory(self, descriptor)

    def send(self, data: Buffer, *, timeout: Optional[float] = None) -> Operation[None]:
        """Sends a message of up to `libweft.c.MESSAGE_MAX` bytes, which is copied; the peer gets a
        `Message`, in order. Ends when it is in the peer's queue."""
        if not getattr(data, "is_cpu", True):  # the library copies them with the CPU
            data = cast(Any, data).detach().cpu()
        with Held(data, "data") as held:
            options = fill(c.OpOptions, timeout_ns=nanoseconds(timeout))
            return self._endpoint._submit(f"send of {held.length} bytes, peer {self.id:#x}", lib.weft_send, (self.id, held.address, held.length), options, nothing)

    def fence(self, *, timeout: Optional[float] = None) -> Operation[None]:
        """Waits until no operation that this peer has accepted so far can change memory here, notify or
        count, whatever its outcome: before memory is used again that its writes may still reach."""
        options = fill(c.OpOptions, timeout_ns=nanoseconds(timeout))
        return self._endpoint._submit(f"fence, peer {self.id:#x}", lib.weft_peer_fence, (self.id,), options, nothing)

    def disconnect(self) -> None:
        """Ends the connection: operations with it end with CanceledError, and a `PeerDown` comes,
        after which none of its writes lands here."""
        check(lib.weft_peer_disconnect(self._endpoint.handle, self.id))
