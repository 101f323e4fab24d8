"""What is done for each operation, by ctypes: where there is no compiled module (`_native.c`, which does the same), or
WEFT_PYTHON_PURE=1.

A signal handler runs between any two bytecodes of this file: see `_progress.py`.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import itertools
import operator
import struct
import threading
from collections import defaultdict
from contextlib import suppress
from itertools import chain, repeat
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from . import c
from ._library import lib, quick
from .completion import Completion
from .errors import WeftError
from .events import Raw

_BATCH = 64
_SIZE = ctypes.sizeof(c.Completion)
#: Where the completions of a poll begin, by their count.
_OFFSETS = {count: tuple(range(0, count * _SIZE, _SIZE)) for count in range(_BATCH + 1)}
_BATCHES = repeat(ctypes.c_uint32(_BATCH))
_flat = chain.from_iterable
_allocate = threading.Lock
_me = threading.get_ident

#: The thread that has a turn, and the lock that it holds meanwhile.
_Turn = Tuple[int, Any]
#: The queue, what a poll writes into, and a pointer to it, again and again.
_Args = Tuple["repeat[ctypes.c_void_p]", "repeat[Any]", "repeat[Any]"]
Futures = Dict["asyncio.Future[None]", None]


class Pending:
    """An operation, and what it has completed with."""

    __slots__ = ("_progress", "_words", "_convert", "_count", "_futures", "_error", "_records", "_ended", "id")

    def __init__(self, progress: Any, words: Any, convert: Optional[Callable[[Completion], Any]], count: int = 1) -> None:
        self._progress = progress
        self._words = words
        #: None: its result is its completion.
        self._convert = convert
        self._count = count
        self._futures: Optional[Futures] = None
        self._error: Optional[WeftError] = None
        #: By the number under which each was taken, so that one that is handed out again is no second one.
        self._records: Dict[int, Completion] = {}
        #: Set once nothing more comes: whoever waits looks at this alone.
        self._ended = False
        #: `weft_op`; 0 of a connect.
        self.id: int = 0

    def _taken(self) -> List[Completion]:
        return list(self._records.values())

    def _wait(self, timeout: Optional[float]) -> Any:
        return self._sleep(timeout, timeout)  # type: ignore[attr-defined]


class Leader:
    """Takes completions from a queue, and hands them out. Threads take turns."""

    def __init__(self, handle: int, queue: int, manual: bool) -> None:
        self.handle = handle
        self._queue = queue
        #: Completions without an operation (messages, notifications, peers, rails), by number: a list of the
        #: completion, and of the event that the endpoint makes of it.
        self.events: Dict[int, List[Any]] = {}
        #: The reason why no further completions will come.
        self.over: Optional[WeftError] = None
        self._operations: Dict[int, Any] = {}
        self._token = itertools.count(1).__next__
        self._numbers = itertools.count(1)
        self._inbox: Dict[int, Tuple[Any, ...]] = {}
        self._args = self._new_args()
        #: A status, which has no completions, is put in when a poll returns it, and is there to be seen.
        self._offsets: Dict[int, Tuple[int, ...]] = defaultdict(tuple, _OFFSETS)
        self._offset_of = self._offsets.__getitem__
        #: The turns that are not known to be over: usually one or none.
        self._turns: Dict[int, _Turn] = {}
        self._turn = 0
        #: What threads sleep by that wait for a leader.
        self._followers: Dict[int, Any] = {}
        self._listeners: Futures = {}
        # The lock for a queue whose descriptor an event loop waits for: otherwise a poll may drive rails, behind locks.
        self._poll = (lib if manual else quick).weft_queue_poll

    def _begin(self, mine: _Turn) -> Optional[int]:
        """The number of the turn that begins; -1: this thread has it already; None: another has it."""
        number = self._turn
        while True:
            holder = self._turns.setdefault(number, mine)
            if holder is mine:
                if self._turn == number:
                    return number
                if self._turn < number:
                    self._turn = number
                    self._turns.pop(number - 1, None)
                    return number
                self._turns.pop(number, None)  # a turn that was over and forgotten
                number = self._turn
            elif not holder[1].locked():
                number += 1
            else:
                return -1 if holder[0] == mine[0] else None

    def _led(self) -> bool:
        holder = self._turns.get(self._turn)
        return holder is not None and bool(holder[1].locked())

    def _lead(self, wait_ns: int, loop: Optional[asyncio.AbstractEventLoop] = None) -> Optional[int]:
        """Polls and hands out. Returns how many completions there were, or a status; None: another thread leads."""
        inside = _allocate()
        with inside:
            mine, turn, turns = (_me(), inside), self._turn, self._turns
            if turns.setdefault(turn, mine) is not mine or self._turn != turn:
                begun = self._begin(mine)
                if begun is None:
                    return None
                turn = begun
            inbox = self._inbox
            if inbox:
                self._hand_out(loop)
                wait_ns = 0
            # This one call polls, and stores all that the poll has taken.
            queues, spaces, pointers = self._args if turn >= 0 else self._new_args()
            counts = map(lib.weft_queue_poll if loop is None else self._poll, queues, pointers, _BATCHES, (wait_ns,))
            offsets = _flat(map(self._offset_of, counts))
            inbox.update(zip(self._numbers, map(_unpack, spaces, offsets)))
            status = len(inbox)
            if status:
                self._hand_out(loop)
            elif len(self._offsets) > len(_OFFSETS):
                status = next(reversed(self._offsets))
                self._end(status, loop)  # type: ignore[attr-defined]
            if turn >= 0:
                self._turn = turn + 1
                turns.pop(turn, None)
        if self._followers:
            self._rouse()  # type: ignore[attr-defined]
        return status

    def _new_args(self) -> _Args:
        """What a poll writes into, by its arguments, which are made once."""
        space = (c.Completion * _BATCH)()
        pointer = ctypes.cast(space, ctypes.POINTER(c.Completion))
        return repeat(ctypes.c_void_p(self._queue)), repeat(space), repeat(pointer)

    def _hand_out(self, loop: Optional[asyncio.AbstractEventLoop]) -> None:
        inbox = self._inbox
        for number, record in list(inbox.items()):
            token = record[_TOKEN]
            if not token:
                with suppress(KeyError):  # a handler has moved it
                    self.events.update(zip((number,), map(list, zip(map(inbox.pop, (number,)), (None,)))))
                continue
            operation = self._operations.get(token)
            if operation is not None:
                operation._records[number] = _make(_places(record))
                if len(operation._records) >= operation._count:
                    operation._ended = True
                    if operation._futures:
                        wake(operation._futures, loop)
                    self._operations.pop(token, None)
            inbox.pop(number, None)
        if self.events and self._listeners:
            wake(self._listeners, loop)


def _layout() -> Tuple[str, List[str]]:
    """The fields of `weft_completion` for `struct`, and their names."""
    codes = {ctypes.c_int32: "i", ctypes.c_uint32: "I", ctypes.c_uint64: "Q", ctypes.c_void_p: "Q"}
    layout, names = "=", []
    for name, kind in (field[:2] for field in c.Completion._fields_):
        if kind in codes:
            layout += codes[kind]
            names.append(name)
        else:
            layout += f"{ctypes.sizeof(kind)}x"
    return layout, names


_LAYOUT, _NAMES = _layout()
assert tuple(_NAMES) == Raw._fields
_unpack = struct.Struct(_LAYOUT).unpack_from
_TOKEN = _NAMES.index("user_data")
_places = operator.itemgetter(*(_NAMES.index("previous" if name == "value" else name) for name in Completion._fields))
#: As `Completion._make`, in one call of C.
_make = functools.partial(tuple.__new__, Completion)


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def wake(futures: "Iterable[asyncio.Future[None]]", here: Optional[asyncio.AbstractEventLoop]) -> None:
    """Sets futures, of the loop that runs this code or of another."""
    for future in list(futures):
        loop = future.get_loop()
        if loop is here:
            _settle(future)
        else:
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(_settle, future)
