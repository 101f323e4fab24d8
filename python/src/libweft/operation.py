"""Operations in flight, and their results."""

from __future__ import annotations

import asyncio
from typing import Any, Generator, Generic, List, Optional, Tuple, TypeVar, Union

from . import c
from ._hot import Pending
from ._library import lib, reason_of
from .completion import Completion
from .errors import CanceledError, StillRunningError, WeftError, is_of_connection

T = TypeVar("T")

#: An operation in words; or a function that makes them on demand, and its arguments.
Words = Union[str, Tuple[Any, ...]]


class Operation(Pending, Generic[T]):
    """An operation that was accepted: `await` it, or `wait` for it.

    Both give its result, or raise what it failed with. It proceeds by itself (but see `Progress.MANUAL`),
    with or without a waiting thread, and ends by its deadline. A task that is
    canceled while it awaits one cancels the operation, too, and gets its CancelledError once the
    operation has ended: the memory can be used again then. So `asyncio.wait_for` does with a
    transfer that is late (use `asyncio.shield` if it should go on). `asyncio.gather` of several raises when the first of them
    has ended, and the memory of the others is in use: with `return_exceptions=True` it waits for all.
    """

    __slots__ = ("__weakref__",)

    @property
    def completions(self) -> List[Completion]:
        """The completions so far: one, or (`each_peer`) one for each peer."""
        return self._taken()

    @property
    def _what(self) -> str:
        words: str = self._words if isinstance(self._words, str) else self._words[0](*self._words[1:])
        return words

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
        completions = self._taken()
        if self._error is not None or len(completions) > 1 or completions[0].status < 0:
            error = self._failure()
            if error is not None:
                raise error
        done: Any = completions[-1]
        result: T = done if self._convert is None else self._convert(done)
        return result

    def wait(self, timeout: Optional[float] = None) -> T:
        """Waits in this thread; others run meanwhile. After `timeout` seconds it raises
        StillRunningError, and the operation goes on; None: until its own deadline ends it,
        with TimedOutError."""
        result: T = self._wait(timeout)
        return result

    def _sleep(self, left: Optional[float], timeout: Optional[float]) -> T:
        """Waits for `left` seconds of `timeout`."""
        if self._ended or self._progress.until(self._has_ended, left):
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
