"""Registrations of buffers that transfers were given in the place of a `Memory`.

They are for this process's own transfers alone (`Access.LOCAL`): no peer can reach one. An array or a tensor is registered once,
and found again by its identity, address and length; nothing here keeps it alive, and its registration goes with it. Other
buffers cannot say when they go, or may move their bytes while they live: they are registered for one operation.

An operation holds what it uses. So a registration whose buffer goes is used by none, and a finalizer, of which nobody knows when it
runs, can give it back without a lock of Python's.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple, Union

from . import c, log
from ._buffers import Buffer, Held, is_tensor, lasting
from ._library import lib
from .errors import taken_back
from .memory import Memory

if TYPE_CHECKING:
    from .endpoint import Endpoint

#: Registrations that are kept for an endpoint; the oldest goes for one more.
LIMIT = 1024

#: Address, length, and whether it is read-only.
_Place = Tuple[int, int, bool]


class Registration(Memory):
    """What is given back with the last reference to it, while its bytes are still there."""

    handle = 0

    def __init__(self, endpoint: Endpoint, buffer: Buffer, keep: Optional[Held]) -> None:
        super().__init__(endpoint, [buffer], c.ACCESS_LOCAL, 0)
        if keep is not None:
            self._held.append(keep)

    def _keep(self) -> None:
        """Its users do, and no set of the endpoint's."""

    def __del__(self) -> None:
        given_back = False
        try:
            given_back = not log.within() and self.give_back()
        finally:
            if not given_back:  # a NIC may still use it, a signal handler has raised, or a log callback runs
                self._endpoint._registrations.late.append(self)

    def give_back(self, wait: bool = True) -> bool:
        """Whether that could be done."""
        if self.handle and not self._endpoint.closed:
            def deregister() -> int:
                return int(lib.weft_memory_deregister(self.handle))
            status = taken_back(deregister, self._endpoint.poll) if wait else deregister()
            if status not in (c.OK, c.ERR_HANDLE, c.ERR_FORKED):
                return False
        self._let_go()
        return True


class Use:
    """A registration and its buffer, for one operation; the buffer goes last."""

    __slots__ = ("handle", "lengths", "writable", "_registration", "_buffer")

    def __init__(self, registration: Registration, writable: bool, buffer: Any) -> None:
        self.handle, self.lengths, self.writable = registration.handle, registration.lengths, writable
        self._registration: Optional[Registration] = registration
        self._buffer = buffer

    def __del__(self) -> None:
        self._registration = None


#: The local side of a transfer, as it is submitted.
Local = Union[Memory, Use]


class Registrations:
    """Those of an endpoint."""

    def __init__(self) -> None:
        #: By the `id` of a buffer, which is another's once the buffer has gone, and the entry with it.
        self._entries: Dict[int, Tuple["weakref.ref[Any]", _Place, Registration]] = {}
        #: Those that could not be given back.
        self.late: List[Registration] = []
        self._trying = threading.Lock()
        self._next_try = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def use(self, endpoint: Any, buffer: Any, name: str) -> Use:
        """A registration of the buffer; raises TypeError if it has no bytes."""
        if self.late:
            self._give_back_late()
        with Held(buffer, name) as held:
            place = held.address, held.length, held.readonly
            key, entries = id(buffer), self._entries
            entry = entries.get(key)
            if entry is not None and entry[0]() is buffer and entry[1] == place:
                return Use(entry[2], not held.readonly, buffer)
            lasts, keep = _lasting(buffer)
            if not lasts:
                return Use(Registration(endpoint, buffer, None), not held.readonly, None)
            made = Registration(endpoint, place[:2], keep)
        entries[key] = weakref.ref(buffer, lambda _: _drop(entries, key)), place, made
        while len(entries) > LIMIT:
            self._drop_oldest()
        return Use(made, not place[2], buffer)

    def _give_back_late(self) -> None:
        """Tries once a second: a provider may not return for long."""
        if time.monotonic() < self._next_try or not self._trying.acquire(blocking=False):
            return
        try:
            for late in list(self.late):  # finalizers add to it meanwhile
                if late.give_back(wait=False):
                    self.late.remove(late)
        finally:
            self._next_try = time.monotonic() + 1
            self._trying.release()

    def _drop_oldest(self) -> None:
        try:
            oldest = next(iter(self._entries), None)
        except RuntimeError:
            return  # another thread has added one
        if oldest is not None:
            _drop(self._entries, oldest)

    def clear(self) -> None:
        self._entries.clear()
        self.late.clear()


def _drop(entries: Dict[int, Any], key: int) -> None:
    entries.pop(key, None)


def _lasting(buffer: Any) -> Tuple[bool, Optional[Held]]:
    """Whether its bytes stay in their place until it goes; and what sees to that, if it is not the buffer itself."""
    if sys.implementation.name != "cpython":
        return False, None  # bytes may go before whoever waits for that learns of it
    if is_tensor(buffer):
        other = lasting(buffer)
        return True, Held(other) if other is not buffer else None
    if isinstance(buffer, memoryview):
        # A view may be released while it lives: what it is of is held, and not the view.
        try:
            return True, Held(buffer.obj)
        except (TypeError, ValueError, BufferError):
            return False, None  # a part of something that is not contiguous, say
    numpy = sys.modules.get("numpy")
    # (Not resized while there is a weak reference.)
    return numpy is not None and isinstance(buffer, numpy.ndarray), None

