"""Takes completions from an endpoint's queue, and wakes the threads and tasks that wait for them.

Threads take turns: one, the leader, sleeps in `weft_queue_poll` and hands out completions to itself and to the others,
which sleep in Python. An event loop is woken by the event fd, and leads while it polls.

A signal handler runs in the main thread between any two bytecodes of this file: it may raise (Ctrl-C), and it may call
anything of this package, `close` included. So nothing here is safe for being quick; it is safe by these five rules, and a
compiled module in its place has to keep the first four.

1. What belongs together happens in one call of C, which no handler can divide: a poll, and filling
   `_inbox` with what it took, in `_lead`; an event moves from there to `events`.
2. A completion stays in `_inbox` under a number of its own until all that it causes has been done, and doing that twice
   does no harm. A leader that was interrupted leaves it there, and the next one hands it out before it polls.
3. A leader holds a lock of its own by `with`, which unlocks it however the leader leaves. So leadership cannot be lost: a
   turn whose lock is free is over, and whoever finds it so takes the next. (CPython 3.9 can be interrupted between the
   end of a `with` and its unlock; later ones cannot.)
4. Only the leader polls and hands out, so events keep their order. A handler that interrupts the leader leads in its place,
   with space of its own to poll into; the leader that goes on afterwards finds its work done.
5. Wakes may be lost with their waker. Nobody sleeps for longer than a nap without looking again.

There is no lock of Python's that two threads wait for, so a handler, a finalizer or a forked child cannot meet a held one.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import itertools
import operator
import struct
import threading
import time
from collections import defaultdict
from contextlib import suppress
from itertools import chain, repeat
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from . import c
from ._library import lib, quick
from .errors import WeftError, check, error_of
from .events import Raw
from .operation import Completion, Operation, canceled

_BATCH = 64
#: The limit lets Ctrl-C take effect while a thread sleeps in C.
_NAP_NS = 100_000_000
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
_Futures = Dict["asyncio.Future[None]", None]


class Progress:
    def __init__(self, handle: int, manual: bool) -> None:
        self.handle = handle
        self._queue: int = quick.weft_endpoint_queue(handle)
        self.manual = manual
        #: Completions without an operation (messages, notifications, peers, rails), by number: a list of the
        #: completion, and of the event that the endpoint makes of it.
        self.events: Dict[int, List[Any]] = {}
        #: The reason why no further completions will come.
        self.over: Optional[WeftError] = None
        self._operations: Dict[int, Operation[Any]] = {}
        self._tokens = itertools.count(1)
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
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._fd = -1
        self._armed = self._watching = False
        self._listeners: _Futures = {}
        # The lock for a queue whose descriptor an event loop waits for: otherwise a poll may drive rails, behind locks.
        self._poll = (lib if manual else quick).weft_queue_poll
        self._arm = (lib if manual else quick).weft_queue_arm

    # Operations.

    def submit(self, operation: Operation[Any], function: Any, args: Tuple[Any, ...], options: Any, made: Any) -> None:
        """Calls `function(*args, options, made)` with a token in the options, which its completions carry."""
        options.user_data = token = next(self._tokens)
        self._operations[token] = operation
        try:
            status = function(*args, options, ctypes.byref(made))
            if status < 0:
                check(status)
        except BaseException:
            if not made.value:  # otherwise it was accepted, and an exception came before the caller could have it
                self._operations.pop(token, None)
            raise

    # Leading.

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

    def _lead(self, wait_ns: int, poll: Any = None, loop: Optional[asyncio.AbstractEventLoop] = None) -> Optional[int]:
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
            counts = map(poll or lib.weft_queue_poll, queues, pointers, _BATCHES, (wait_ns,))
            offsets = _flat(map(self._offset_of, counts))
            inbox.update(zip(self._numbers, map(_unpack, spaces, offsets)))
            status = len(inbox)
            if status:
                self._hand_out(loop)
            elif len(self._offsets) > len(_OFFSETS):
                status = next(reversed(self._offsets))
                self._end(status, loop)
            if turn >= 0:
                self._turn = turn + 1
                turns.pop(turn, None)
        if self._followers:
            for sleeper in list(self._followers.values()):
                with suppress(RuntimeError):  # it is awake
                    sleeper.release()
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
                operation._taken[number] = _make(_places(record))
                if len(operation._taken) >= operation._count:
                    operation._ended = True
                    if operation._futures:
                        _wake(operation._futures, loop)
                    self._operations.pop(token, None)
            inbox.pop(number, None)
        if self.events and self._listeners:
            _wake(self._listeners, loop)

    def _end(self, status: int, loop: Optional[asyncio.AbstractEventLoop]) -> None:
        """The queue stays empty: ends every wait."""
        over = self.over or error_of(status, "the endpoint is shut down" if status == c.ERR_CLOSED
                                     else quick.weft_last_error().decode("utf-8", "replace"))
        for token, operation in list(self._operations.items()):
            operation._fail(canceled() if status == c.ERR_CLOSED else over)
            _wake(operation._futures or (), loop)
            self._operations.pop(token, None)
        self.over = over
        _wake(self._listeners, loop)

    # Threads.

    def until(self, ready: Callable[[], bool], timeout: Optional[float]) -> bool:
        """Sleeps until `ready`; False when `timeout` seconds have passed before."""
        deadline = None if timeout is None else time.monotonic() + timeout
        nap, last = _NAP_NS, False
        while not ready():
            if last or self.over is not None:
                return ready()  # which the end may have made true meanwhile
            if deadline is not None:
                left = int((deadline - time.monotonic()) * 1e9)
                nap, last = min(max(left, 0), _NAP_NS), left <= 0
            if self._lead(nap) is None:
                self._follow(ready, nap / 1e9)
        return True

    def _follow(self, ready: Callable[[], bool], seconds: float) -> None:
        """Sleeps until a leader has handed out something, or has left."""
        sleeper, me = _allocate(), _me()
        sleeper.acquire()
        self._followers[me] = sleeper
        try:
            # In this order: whoever leaves now either is seen to have left, or sees the sleeper.
            if self._led() and not ready():
                sleeper.acquire(True, seconds)
        finally:
            self._followers.pop(me, None)

    def poll(self) -> None:
        """Takes the available completions."""
        if self.over is None:
            self._lead(0)

    # An event loop.

    def future_of(self, operation: Operation[Any]) -> "Optional[asyncio.Future[None]]":
        """A future that is set when the operation has ended; None: it has. The caller removes it."""
        self.attach()
        future = asyncio.get_running_loop().create_future()
        if operation._futures is None:
            operation._futures = {}
        operation._futures[future] = None
        # In this order: whoever ends it now either is seen to have done so, or sees the future.
        if not operation.done:
            return future
        operation._futures.pop(future, None)
        return None

    async def event_arrives(self) -> None:
        """Returns when there may be an event, or will be none."""
        self.attach()
        future = asyncio.get_running_loop().create_future()
        self._listeners[future] = None
        try:
            if not self.events and self.over is None:
                await future
        finally:
            self._listeners.pop(future, None)

    def attach(self) -> None:
        """Lets the running loop watch the event fd."""
        loop = asyncio.get_running_loop()
        if self._loop is loop or self.over is not None:
            if not self._armed:  # an exception has ended a pass, in code of asyncio perhaps, which forgets what it was to run
                loop.call_soon(self._on_ready, loop)
            return
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("the endpoint is used by another event loop already")
        fd = ctypes.c_int32()
        status = lib.weft_queue_arm(self._queue, ctypes.byref(fd))
        if status != c.ERR_AGAIN:
            check(status)
        self._fd = fd.value
        loop.add_reader(self._fd, self._on_ready, loop)
        loop.call_soon(self._on_ready, loop)
        self._loop = loop

    def detach(self) -> None:
        """Stops watching, before the event fd is closed."""
        loop, self._loop = self._loop, None
        if loop is None or loop.is_closed():
            return
        if loop.is_running() and _running() is not loop:
            removed = threading.Event()
            loop.call_soon_threadsafe(loop.remove_reader, self._fd)
            loop.call_soon_threadsafe(removed.set)
            removed.wait(1)
        else:
            loop.remove_reader(self._fd)

    def _on_ready(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            return
        # Arming clears the descriptor: whatever interrupts this code, it runs again.
        self._armed = False
        again = loop.call_soon(self._on_ready, loop)
        for _ in range(16):
            status = self._lead(0, self._poll, loop)
            if not status:
                armed = self._arm(self._queue, None)
                if armed == c.OK:
                    if status is None and not self._watching:
                        # A thread leads; it may be interrupted before it has handed out what it took.
                        loop.call_later(_NAP_NS / 1e9, self._watch, loop)
                        self._watching = True
                    again.cancel()
                    self._armed = True
                    return
                if armed != c.ERR_AGAIN:
                    self._end(armed, loop)
                    status = armed
                elif status is None:
                    return
            if status is not None and status < 0 and status != c.ERR_AGAIN:
                loop.remove_reader(self._fd)
                again.cancel()
                return
        # More remain; other tasks have their turn first.

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watching = False
        self._on_ready(loop)


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


def _running() -> Optional[asyncio.AbstractEventLoop]:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _wake(futures: "Iterable[asyncio.Future[None]]", here: Optional[asyncio.AbstractEventLoop]) -> None:
    """Sets futures, of the loop that runs this code or of another."""
    for future in list(futures):
        loop = future.get_loop()
        if loop is here:
            _settle(future)
        else:
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(_settle, future)
