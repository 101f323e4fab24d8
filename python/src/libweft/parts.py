"""Long transfers as many short ones, whose progress is seen."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import AsyncIterator, Callable, Deque, Generic, Iterable, Iterator, Optional, TypeVar

from .errors import RetryError, WeftError
from .operation import Operation

T = TypeVar("T")


class Parts(Generic[T]):
    """Operations of which a few are in flight at a time. Iterate over it, in asyncio with `async with` and `async for`: each
    step waits for the next part, in their order, and gives what it ended in.

        size = 64 << 20
        parts = libweft.Parts(lambda at=at: endpoint.write(kv, remote, size, local_offset=at, remote_offset=at)
                           for at in range(0, total, size))
        for part in parts:
            moved += part.bytes

        async with parts:                       # in asyncio
            async for part in parts:
                moved += part.bytes

    `begin` has what begins each part; `in_flight` is how many are under way: enough of them that
    the rails never rest. When one fails, or the loop is left, those under way are canceled, and
    have ended when the exception comes. An `async for` that is left cannot wait: the end of the
    `async with` around it does, without which parts are under way afterwards. What the peer is to learn
    after the last part, tell it then.
    """

    def __init__(self, begin: Iterable[Callable[[], Operation[T]]], *, in_flight: int = 4) -> None:
        if in_flight < 1:
            raise ValueError("in_flight must be 1 or more")
        self._begin = iter(begin)
        self._in_flight = in_flight
        self._held: Optional[Callable[[], Operation[T]]] = None
        self._under_way: Deque[Operation[T]] = deque()

    def _oldest(self) -> Optional[Operation[T]]:
        """Begins as many as there is room for."""
        while len(self._under_way) < self._in_flight:
            begin = self._held or next(self._begin, None)
            if begin is None:
                break
            try:
                self._held = None
                self._under_way.append(begin())
            except RetryError:
                if not self._under_way:
                    raise
                self._held = begin
                break
        return self._under_way[0] if self._under_way else None

    def _cancel(self) -> None:
        for operation in self._under_way:
            operation.cancel()

    def __iter__(self) -> Iterator[T]:
        try:
            operation = self._oldest()
            while operation is not None:
                yield operation.wait()
                self._under_way.popleft()
                operation = self._oldest()
        finally:
            self._cancel()
            for operation in self._under_way:
                with suppress(WeftError):
                    operation.wait()

    async def __aiter__(self) -> AsyncIterator[T]:
        try:
            operation = self._oldest()
            while operation is not None:
                yield await operation
                self._under_way.popleft()
                operation = self._oldest()
        finally:
            await self.__aexit__()

    async def __aenter__(self) -> Parts[T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._cancel()
        # All of them, also where one's wait, or this one, is canceled.
        await asyncio.gather(*map(_ended, self._under_way), return_exceptions=True)
        self._under_way.clear()


async def _ended(operation: Operation[T]) -> None:
    with suppress(WeftError):
        await operation
