"""Takes completions from an endpoint's queue, and wakes the threads and tasks that wait for them.

Threads take turns: one, the leader, sleeps in `weft_queue_poll` and hands out completions to itself and to the others,
which sleep in Python. An event loop is woken by the event fd, and leads while it polls.

A signal handler runs in the main thread between any two bytecodes of this file: it may raise (Ctrl-C), and it may call
anything of this package, `close` included. So nothing here is safe for being quick; it is safe by these five rules, which
`_pure.py` keeps so, and `_native.c` by running no bytecode in between.

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
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Callable, Optional, Tuple

from . import c
from ._hot import Leader, native
from ._library import lib, quick
from ._pure import wake
from .errors import WeftError, check, error_of
from .operation import Operation, canceled

#: The limit lets Ctrl-C take effect while a thread sleeps in C.
_NAP_NS = 100_000_000


class Progress(Leader):
    def __init__(self, handle: int, manual: bool) -> None:
        if native is not None:
            _bind()
        super().__init__(handle, quick.weft_endpoint_queue(handle), manual)
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._fd = -1
        self._armed = self._watching = False
        self._arm = (lib if manual else quick).weft_queue_arm

    # Operations.

    def submit(self, operation: Operation[Any], function: Any, args: Tuple[Any, ...], options: Any) -> int:
        """Calls `function(*args, options, id)` with a token in the options, which its completions carry; returns the id."""
        options.user_data = token = self._token()
        self._operations[token] = operation
        made = ctypes.c_uint64()
        try:
            status = function(*args, options, ctypes.byref(made))
            if status < 0:
                check(status)
        except BaseException:
            if not made.value:  # otherwise it was accepted, and an exception came before the caller could have it
                self._operations.pop(token, None)
            raise
        return made.value

    # Leading.

    def _end(self, status: int, loop: Optional[asyncio.AbstractEventLoop]) -> None:
        """The queue stays empty: ends every wait."""
        over = self.over or error_of(status, "the endpoint is shut down" if status == c.ERR_CLOSED
                                     else quick.weft_last_error().decode("utf-8", "replace"))
        for token, operation in list(self._operations.items()):
            operation._fail(canceled() if status == c.ERR_CLOSED else over)
            wake(operation._futures or (), loop)
            self._operations.pop(token, None)
        self.over: Optional[WeftError] = over
        wake(self._listeners, loop)

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
        sleeper, me = threading.Lock(), threading.get_ident()
        sleeper.acquire()
        self._followers[me] = sleeper
        try:
            # In this order: whoever leaves now either is seen to have left, or sees the sleeper.
            if self._led() and not ready():
                sleeper.acquire(True, seconds)
        finally:
            self._followers.pop(me, None)

    def _rouse(self) -> None:
        for sleeper in list(self._followers.values()):
            with suppress(RuntimeError):  # it is awake
                sleeper.release()

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
        self._watching = False  # a loop that was closed has run no watch of it

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
            status = self._lead(0, loop)
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
                if status is None:
                    return  # the thread that leads may have taken what it has not handed out
                if armed != c.ERR_AGAIN:
                    self._end(armed, loop)
                    status = armed
            if status is not None and status < 0 and status != c.ERR_AGAIN:
                loop.remove_reader(self._fd)
                again.cancel()
                return
        # More remain; other tasks have their turn first.

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watching = False
        self._on_ready(loop)


def _running() -> Optional[asyncio.AbstractEventLoop]:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@functools.lru_cache(maxsize=None)
def _bind() -> None:
    """Gives the compiled module the addresses of the library's functions."""
    def address(function: str) -> Optional[int]:
        return ctypes.cast(getattr(lib, function), ctypes.c_void_p).value

    hot = [sys.intern(f"weft_{verb}{what}") for verb in ("write", "read") for what in ("", "_pages", "_list", "_prepared")]
    native.bind(address("weft_queue_poll"), tuple((function, address(function)) for function in hot))
