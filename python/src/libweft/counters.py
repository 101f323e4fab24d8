"""Counters: raised by peers' transfers, expected and read here."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Mapping, Optional, Tuple

from . import c
from ._library import fill, lib, nanoseconds
from .errors import check
from .operation import Operation
from .peer import nothing
from .watch import Watch, mark

if TYPE_CHECKING:
    from .endpoint import Endpoint


class Counter:
    """A number that peers' transfers raise by naming its `id`; made by
    `Endpoint.create_counter`. Also a context manager."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        made = ctypes.c_uint64()
        check(lib.weft_counter_create(endpoint.handle, ctypes.byref(made)))
        #: The id that peers pass as `counter` of a transfer; send it to them by any means.
        self.id: int = made.value

    @property
    def value(self) -> int:
        """The current value: all bytes that it counts can be read."""
        value = ctypes.c_uint64()
        check(lib.weft_counter_read(self._endpoint.handle, self.id, ctypes.byref(value)))
        return value.value

    def expect(self, value: int, *, timeout: Optional[float] = None,
               done: Optional[Tuple[Watch, int]] = None) -> Operation[None]:
        """Ends when the counter has reached `value`, a total; `done`: a watch that is set then, and its value."""
        return expect(self._endpoint, {self: value}, timeout, done)

    def __repr__(self) -> str:
        if not self.id or self._endpoint.closed:
            return "<libweft.Counter, destroyed>"
        return f"<libweft.Counter {self.id:#x}: {self.value}>"

    def destroy(self) -> None:
        """Destroys it; operations that wait for it end with CanceledError. Repeating the call is harmless."""
        if self.id and not self._endpoint.closed:
            check(lib.weft_counter_destroy(self._endpoint.handle, self.id))
        self.id = 0

    def __enter__(self) -> Counter:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()


def expect(endpoint: Endpoint, totals: Mapping[Counter, int], timeout: Optional[float],
           done: Optional[Tuple[Watch, int]]) -> Operation[None]:
    """See `Endpoint.expect`."""
    count = len(totals)
    counters = (ctypes.c_uint64 * count)(*(counter.id for counter in totals))
    for value in totals.values():
        if not 0 <= value < 1 << 48:
            raise ValueError(f"a counter does not get to {value}: it must be 0 to 2^48 - 1")
    values = (ctypes.c_uint64 * count)(*totals.values())
    options = fill(c.OpOptions, timeout_ns=nanoseconds(timeout), **mark("done", done))
    return endpoint._submit(f"expect of {count} counters" if count != 1 else "expect of a counter", lib.weft_counter_expect, (counters, values, count), options, nothing)
