"""Takes completions from an endpoint's queue, and wakes the threads and tasks that wait for them.

Threads take turns: one sleeps in `weft_queue_poll` and distributes completions to itself and to the others,
which sleep in Python. An event loop is woken by the event fd. Both may go on at once.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import operator
import struct
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from . import c
from ._library import lib, quick
from .errors import WeftError, check, error_of
from .operation import Completion, Operation, canceled

_BATCH = 64
#: The limit lets Ctrl-C take effect while a thread sleeps in C.
_NAP_NS = 100_000_000


class Progress:
    def __init__(self, handle: int, manual: bool) -> None:
        self.handle = handle
        self._queue: int = quick.weft_endpoint_queue(handle)
        self.manual = manual
        #: Completions without an operation: messages, notifications, peers, rails.
        self.events: Deque[c.Completion] = deque()
        #: The reason why no further completions will come.
        self.over: Optional[WeftError] = None
        self._operations: Dict[int, Operation[Any]] = {}
        self._tokens = itertools.count(1)
        self._lock = threading.Lock()
        #: The condition's lock, taken directly where no thread waits for the change: a condition takes longer.
        self._changed = threading.Condition(self._lock)
        self._leading = False
        self._followers = 0
        self._leaders = (c.Completion * _BATCH)()
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._loops = (c.Completion * _BATCH)()
        self._fd = -1
        self._listeners: List["asyncio.Future[None]"] = []
        # The lock for a queue whose descriptor an event loop waits for: otherwise a poll may drive rails, behind locks.
        self._poll = (lib if manual else quick).weft_queue_poll
        self._arm = (lib if manual else quick).weft_queue_arm

    # Operations.

    def submit(self, operation: Operation[Any], function: Any, args: Tuple[Any, ...], options: Any, result: Any) -> None:
        """Calls `function(*args, options, result)` with a token in the options, which its completions carry."""
        options.user_data = token = next(self._tokens)
        # Without the lock: code that goes through all of them has its own list.
        self._operations[token] = operation
        try:
            status = function(*args, options, result)
            if status < 0:
                check(status)
        except BaseException:
            self._operations.pop(token, None)
            raise

    def _hand_out(self, taken: Any, count: int, loop: Optional[asyncio.AbstractEventLoop]) -> None:
        """Call with the lock held."""
        arrived = False
        for i in range(count):
            user_data, fields = _read(taken, i)
            operation = self._operations.get(user_data)
            if operation is None:
                self.events.append(c.Completion.from_buffer_copy(taken[i]))
                arrived = True
            elif operation._settle(fields):
                del self._operations[user_data]
                _wake(operation._futures, loop)
        if arrived:
            _wake(self._listeners, loop)

    def _end(self, status: int, loop: Optional[asyncio.AbstractEventLoop]) -> None:
        """The queue stays empty: ends every wait."""
        with self._lock:
            if self.over is None:
                self.over = error_of(status, "the endpoint is shut down" if status == c.ERR_CLOSED
                                     else quick.weft_last_error().decode("utf-8", "replace"))
            for operation in list(self._operations.values()):
                operation._fail(canceled() if status == c.ERR_CLOSED else self.over)
                _wake(operation._futures, loop)
            self._operations.clear()
            _wake(self._listeners, loop)
            self._changed.notify_all()

    # Threads.

    def until(self, ready: Callable[[], bool], timeout: Optional[float]) -> bool:
        """Sleeps until `ready`; False when `timeout` seconds have passed before."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if ready() or self.over is not None:
                    return ready()
                left = _NAP_NS if deadline is None else int((deadline - time.monotonic()) * 1e9)
                if self._leading:
                    if left <= 0 or not self._follow(left / 1e9) and deadline is not None:
                        return ready()
                    continue
                self._leading = True
            self._lead(_NAP_NS if left > _NAP_NS else max(0, left))
            if ready():
                return True
            if left <= 0:
                return False

    def _follow(self, seconds: float) -> bool:
        self._followers += 1
        try:
            return self._changed.wait(seconds)
        finally:
            self._followers -= 1

    def poll(self) -> None:
        """Takes the available completions."""
        with self._lock:
            if self._leading or self.over is not None:
                return
            self._leading = True
        self._lead(0)

    def _lead(self, wait_ns: int) -> None:
        count = 0
        try:
            count = lib.weft_queue_poll(self._queue, self._leaders, _BATCH, wait_ns)
        finally:
            with self._lock:
                if count > 0:
                    self._hand_out(self._leaders, count, None)
                self._leading = False
                if self._followers:
                    self._changed.notify_all()
        if count < 0:
            self._end(count, None)

    # An event loop.

    def future_of(self, operation: Operation[Any]) -> "Optional[asyncio.Future[None]]":
        """A future that is set when the operation has ended; None: it has."""
        self.attach()
        with self._lock:
            if operation.done:
                return None
            future = asyncio.get_running_loop().create_future()
            operation._futures = operation._futures or []
            operation._futures.append(future)
            return future

    def next_event(self) -> "Optional[asyncio.Future[None]]":
        """A future that is set when an event may have arrived; None: there is one, or there will be none."""
        self.attach()
        with self._lock:
            if self.events or self.over is not None:
                return None
            future = asyncio.get_running_loop().create_future()
            self._listeners.append(future)
            return future

    def attach(self) -> None:
        """Lets the running loop watch the event fd."""
        loop = asyncio.get_running_loop()
        if self._loop is loop or self.over is not None:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError("the endpoint is used by another event loop already")
        fd = ctypes.c_int32()
        status = lib.weft_queue_arm(self._queue, ctypes.byref(fd))
        if status != c.ERR_AGAIN:
            check(status)
        self._loop, self._fd = loop, fd.value
        loop.add_reader(self._fd, self._on_ready, loop)
        self._on_ready(loop)

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
        for _ in range(16):
            count = self._poll(self._queue, self._loops, _BATCH, 0)
            if count > 0:
                with self._lock:
                    self._hand_out(self._loops, count, loop)
                    self._changed.notify_all()
            elif count == 0:
                count = self._arm(self._queue, None)
                if count == c.OK:
                    return
            if count < 0 and count != c.ERR_AGAIN:
                loop.remove_reader(self._fd)
                self._end(count, loop)
                return
        # More remain; other tasks have their turn first.
        loop.call_soon(self._on_ready, loop)


def _reader() -> Callable[[Any, int], Tuple[int, Completion]]:
    """A function that reads a completion from an array: its `user_data`, and the fields of a `Completion`."""
    wanted = {"user_data": "user_data", "kind": "kind", "status": "status", "peer": "peer", "previous": "value",
              "bytes": "bytes", "provider_errno": "provider_errno", "rail": "rail", "entry": "entry",
              "submit_ns": "submit_ns", "first_post_ns": "first_post_ns", "done_ns": "done_ns"}
    codes = {ctypes.c_int32: "i", ctypes.c_uint32: "I", ctypes.c_uint64: "Q", ctypes.c_void_p: "Q"}
    layout, names = "=", []
    for name, kind in (field[:2] for field in c.Completion._fields_):
        if name in wanted:
            layout += codes[kind]
            names.append(wanted[name])
        else:
            layout += f"{ctypes.sizeof(kind)}x"
    unpack, size = struct.Struct(layout).unpack_from, ctypes.sizeof(c.Completion)
    token = names.index("user_data")
    places = operator.itemgetter(*(names.index(name) for name in Completion._fields))
    make = Completion._make

    def read(taken: Any, i: int) -> Tuple[int, Completion]:
        fields = unpack(taken, i * size)
        return fields[token], make(places(fields))

    return read


_read = _reader()


def _running() -> Optional[asyncio.AbstractEventLoop]:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _wake(futures: "Optional[List[asyncio.Future[None]]]", here: Optional[asyncio.AbstractEventLoop]) -> None:
    """Sets futures, of the loop that runs this code or of another."""
    if not futures:
        return
    for future in futures:
        loop = future.get_loop()
        if loop is here:
            _settle(future)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(_settle, future)
    futures.clear()
