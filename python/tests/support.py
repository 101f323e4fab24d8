"""What the tests share: two endpoints of this process, connected."""

from __future__ import annotations

import os
import unittest
from typing import Any, List, Tuple, Type, TypeVar

import libweft

FABRIC = os.environ.get("WEFT_TEST_FABRIC", "host")
PAGE = 4096

E = TypeVar("E")


def open_endpoint(**options: Any) -> libweft.Endpoint:
    options.setdefault("rails", "lo" if FABRIC == "tcp" else None)
    return libweft.Endpoint(FABRIC, **options)


def pattern(seed: int, length: int = PAGE) -> bytes:
    return bytes((seed * 31 + i * 7) % 251 for i in range(length))


def next_event(endpoint: libweft.Endpoint, kind: Type[E]) -> E:
    """The next event of a kind; others are dropped."""
    while True:
        event = endpoint.wait_event(20)
        assert event is not None, f"no {kind.__name__} came"
        if isinstance(event, kind):
            return event


class Pair(unittest.TestCase):
    """`self.here` is connected to `self.there`."""

    def setUp(self) -> None:
        self.here, self.there = open_endpoint(), open_endpoint()
        self.addCleanup(self.there.close)
        self.addCleanup(self.here.close)
        self.peer = self.here.connect(self.there.address).wait(20)

    def memories(self, source: Any, target: Any) -> Tuple[libweft.Memory, libweft.RemoteMemory]:
        """`source` here, and `target` there as it is seen from here."""
        local = self.here.register(source)
        return local, self.peer.import_memory(self.there.register(target).export())

    def pages(self, count: int) -> Tuple[List[bytes], bytearray]:
        return [pattern(i) for i in range(count)], bytearray(count * PAGE)
