"""Operations in flight, and their results."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, Generator, Generic, List, NamedTuple, Optional, TypeVar, Union

from . import c
from ._library import lib, quick, reason_of
from .errors import CanceledError, StillRunningError, WeftError, error_of, is_of_connection

if TYPE_CHECKING:
    from ._progress import Progress

T = TypeVar("T")

#: An operation in words; or a function that makes them on demand.
Words = Union[str, Callable[[], str]]


class Completion(NamedTuple):
    """How an operation ended; the fields are those of `weft_completion`. Times are
    nanoseconds of `time.monotonic_ns()`."""

    kind: int
    status: int
    peer: int
    value: int
    bytes: int
    provider_errno: int
    rail: int
    entry: int
    submit_ns: int
    first_post_ns: int
    done_ns: int

    def error(self, what: str = "", why: Optional[str] = None) -> Optional[WeftError]:
        """The exception that says how it failed; None of a success. what: the operation, why: what became of
        the peer, in words."""
        if self.status >= 0:
            return None
        said = [quick.weft_status_text(self.status).decode()]
        if self.submit_ns and self.done_ns:
            said.append(f"{_duration(self.done_ns - self.submit_ns)} after it was submitted")
        if why:
            said.append(why)
        elif self.peer and f"{self.peer:#x}" not in what:
            said.append(f"peer {self.peer:#x}")
        if self.entry != 0xFFFF_FFFF_FFFF_FFFF:
            said.append(f"entry {self.entry}")
        if self.rail != 0xFFFF_FFFF:
            said.append(f"rail {self.rail}")
        if self.provider_errno:
            said.append(f"the provider's error is {self.provider_errno} ({os.strerror(self.provider_errno)})")
        text = ", ".join(said)
        return error_of(self.status, f"{what}: {text}" if what else text, self.peer, self.provider_errno)

    def __repr__(self) -> str:
        said = [f"{quick.weft_status_name(self.status).decode()}, {self.bytes} bytes"]
        if self.peer:
            said.append(f"peer {self.peer:#x}")
        if self.value:
            said.append(f"value {self.value}")
        if self.submit_ns and self.done_ns:
            said.append(_duration(self.done_ns - self.submit_ns))
        return f"<libweft.Completion {_KINDS.get(self.kind, self.kind)}: {', '.join(said)}>"


_KINDS = {value: name[len("COMPLETION_"):] for name, value in vars(c).items() if name.startswith("COMPLETION_")}


def _duration(nanoseconds: int) -> str:
    for size, unit in ((10**9, "s"), (10**6, "ms")):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds / 1e3:.3g} us"


class Operation(Generic[T]):
    """An operation that was accepted: `await` it, or `wait` for it.

    Both give its result, or raise what it failed with. It proceeds by itself (but see `Progress.MANUAL`),
    with or without a waiting thread, and ends by its deadline. A task that is
    canceled while it awaits one cancels the operation, too, and gets its CancelledError once the
    operation has ended: the memory can be used again then. So `asyncio.wait_for` does with a
    transfer that is late (use `asyncio.shield` if it should go on).
    """

    __slots__ = ("_progress", "_words", "_convert", "_count", "_futures", "_error", "_taken", "_ended", "id", "__weakref__")

    def __init__(self, progress: Progress, what: Words, result: Callable[[Completion], T], count: int = 1) -> None:
        self._progress = progress
        self._words = what
        self._convert = result
        self._count = count
        self._futures: Optional[Dict["asyncio.Future[None]", None]] = None
        self._error: Optional[WeftError] = None
        #: By the number under which each was taken, so that one that is handed out again is no second one.
        self._taken: Dict[int, Completion] = {}
        #: Set once nothing more comes: whoever waits looks at this alone.
        self._ended = False
        #: `weft_op`; 0 of a connect.
        self.id = 0

    @property
    def completions(self) -> List[Completion]:
        """The completions so far: one, or (`each_peer`) one for each peer."""
        return list(self._taken.values())

    @property
    def _what(self) -> str:
        return self._words if isinstance(self._words, str) else self._words()

    def __repr__(self) -> str:
        if not self.done:
            state = "under way"
        else:
            failed = self._failure()
            state = failed.name if failed is not None else "done"
        return f"<libweft.Operation {self._what}: {state}>"

    @property
    def done(self) -> bool:
        """Whether it has ended, as far as `poll`, a wait or the event loop have seen."""
        return self._ended

    def _failure(self) -> Optional[WeftError]:
        if self._error is not None:
            return self._error
        failed = next((done for done in self.completions if done.status < 0), None)
        if failed is None:
            return None
        ended = failed.peer and is_of_connection(failed.status)
        return failed.error(self._what, reason_of(self._progress.handle, failed.peer) if ended else None)

    def result(self) -> T:
        """The result of an operation that is `done`; raises the exception of a failed one."""
        if not self._ended:
            raise RuntimeError("the operation has not ended yet")
        completions = list(self._taken.values())
        if self._error is not None or len(completions) > 1 or completions[0].status < 0:
            error = self._failure()
            if error is not None:
                raise error
        return self._convert(completions[-1])

    def wait(self, timeout: Optional[float] = None) -> T:
        """Waits in this thread; others run meanwhile. After `timeout` seconds it raises
        StillRunningError, and the operation goes on; None: until its own deadline ends it,
        with TimedOutError."""
        if self._progress.until(self._has_ended, timeout):
            return self.result()
        raise StillRunningError(f"{self._what} has not ended within {timeout} s, and goes on")

    def cancel(self) -> None:
        """Ends it early, with CanceledError if it has not ended meanwhile; its memory is in use
        until it is `done`. A connect goes on."""
        if self.id and not self.done:
            # It may have completed just now, which returns WEFT_ERR_HANDLE.
            lib.weft_op_cancel(self._progress.handle, self.id)

    def __await__(self) -> Generator[Any, None, T]:
        canceled: Optional[asyncio.CancelledError] = None
        while not self.done:
            future = self._progress.future_of(self)
            if future is None:
                break
            try:
                yield from future.__await__()
            except asyncio.CancelledError as error:
                canceled = error
                self.cancel()
                if not self.id:
                    break  # a connect, which uses no memory
            finally:
                if self._futures is not None:
                    self._futures.pop(future, None)
        if canceled is not None:
            raise canceled
        return self.result()

    def _has_ended(self) -> bool:
        return self._ended

    def _fail(self, error: WeftError) -> None:
        self._error = error
        self._ended = True


def canceled() -> WeftError:
    return CanceledError(c.ERR_CANCELED, "the endpoint was closed")
