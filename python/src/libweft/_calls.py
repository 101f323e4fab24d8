"""Requests between endpoints and their answers: JSON of any length, in messages."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import functools
import itertools
import json
import struct
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Dict, Optional, Tuple

from .endpoint import Endpoint
from .errors import UsageError, WeftError
from .events import Message, PeerDown
from .operation import Operation
from .peer import Peer

#: Before each part of a request or an answer: its number, and what it is.
HEAD = struct.Struct("<QB")
IS_ANSWER, IS_LAST = 1, 2
#: Bytes of a part; and what a peer may leave unfinished and ask for at once, in bytes and in wholes, which is more than any does.
PART, MOST, MOST_WHOLES = 512 << 10, 256 << 20, 1024


class Call:
    """A request that was sent."""

    def __init__(self, do: str, timeout: float, future: "Future[Any]", forget: Callable[[], Any]) -> None:
        self._do, self._timeout, self._until = do, timeout, time.monotonic() + timeout
        self._future = future
        #: Ends it: its answer is not waited for.
        self.forget = forget

    def wait(self) -> Any:
        """The answer, once; raises OSError with the other side's reason, or what became of the peer."""
        try:
            answer = self._future.result(max(self._until - time.monotonic(), 0))
        except concurrent.futures.TimeoutError:  # before Python 3.11 it is no TimeoutError of Python's own
            raise TimeoutError(errno.ETIMEDOUT, f"{self._do}: the peer has not answered within {self._timeout:g} s") from None
        finally:
            self.forget()
        if "error" in answer:
            code = answer.get("errno")
            raise OSError(code if type(code) is int else 0, f"{self._do}: {answer['error']}")
        return answer["result"]


class Calls:
    """All events of an endpoint, whose close ends this. `serve` answers peers, in threads; what takes long it returns as a
    future. `ended` learns of their ends."""

    def __init__(self, endpoint: Endpoint, serve: Optional[Callable[[Peer, Dict[str, Any]], Any]] = None,
                 ended: Callable[[int], None] = lambda peer: None) -> None:
        self._endpoint, self._serve, self._ended = endpoint, serve, ended
        self._numbers = itertools.count()
        self._waiting: Dict[Tuple[int, int], Future[Any]] = {}
        #: Of each peer, what has not come to its end: by the number, and whether it is an answer.
        self._parts: Dict[int, Dict[Tuple[int, int], bytearray]] = {}
        #: Of each peer, the requests that were not yet answered, by a number of this side.
        self._requests: Dict[int, Dict[int, bytearray]] = {}
        self._came = itertools.count()
        self._pool = ThreadPoolExecutor(8, "weft-calls")
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def __call__(self, peer: Peer, do: str, timeout: float, **given: Any) -> Any:
        """The answer, as `Call.wait` has it."""
        return self.begin(peer, do, timeout, **given).wait()

    def begin(self, peer: Peer, do: str, timeout: float, **given: Any) -> Call:
        """Sends a request. `timeout`: seconds until the answer."""
        key = peer.id, next(self._numbers)
        call = Call(do, timeout, Future(), functools.partial(self._waiting.pop, key, None))
        self._waiting[key] = call._future
        try:
            self._send(peer, key[1], 0, {"do": do, **given}, timeout).wait()
        except UsageError as error:
            call.forget()
            raise ConnectionError("the peer has ended") from error
        except BaseException:
            call.forget()
            raise
        return call

    def _send(self, peer: Peer, number: int, kind: int, what: Any, timeout: float) -> Operation[None]:
        """Returns when only the last part is under way."""
        data = json.dumps(what).encode()
        for at in range(0, len(data), PART):
            last = IS_LAST * (at + PART >= len(data))
            sending = peer.send(HEAD.pack(number, kind | last) + data[at:at + PART], timeout=timeout)
            if last:
                break
            sending.wait()
        return sending

    def _take(self) -> None:
        while True:
            try:
                event = self._endpoint.wait_event()
            except WeftError as closed:
                for future in list(self._waiting.values()):
                    _fail(future, closed)
                break
            if isinstance(event, Message):
                self._message(event.peer, event.data)
            elif isinstance(event, PeerDown):
                self._down(event)
        self._pool.shutdown()

    def _message(self, peer: Peer, data: bytes) -> None:
        if len(data) < HEAD.size:
            return
        number, kind = HEAD.unpack_from(data)
        key, parts = (number, kind & IS_ANSWER), self._parts.setdefault(peer.id, {})
        whole = parts.setdefault(key, bytearray())
        whole += data[HEAD.size:]
        requests = self._requests.setdefault(peer.id, {})
        all_ = [*parts.values(), *list(requests.values())]  # which other threads answer meanwhile
        if sum(map(len, all_)) > MOST or len(all_) > MOST_WHOLES:
            self._forget(peer.id)
            with contextlib.suppress(WeftError):  # it has ended
                peer.disconnect()
        elif kind & IS_LAST:
            del parts[key]
            if not kind & IS_ANSWER:
                request = next(self._came)
                requests[request] = whole
                # Only the number is queued: the bytes go with the peer.
                self._do(self._answer, peer, number, requests, request)
            else:
                future = self._waiting.get((peer.id, number))  # the thread that waits may give up at any time
                if future is not None and not future.done():
                    try:
                        answer = json.loads(whole)
                        if not isinstance(answer, dict) or not answer.keys() & {"error", "result"}:
                            raise ValueError("it has no result")
                        future.set_result(answer)
                    except (ValueError, RecursionError) as error:
                        _fail(future, ConnectionError(f"the peer's answer is none: {error}"))

    def _do(self, *what: Any) -> None:
        try:
            self._pool.submit(*what)
        except RuntimeError:
            pass  # the interpreter ends

    def _answer(self, peer: Peer, number: int, requests: Dict[int, bytearray], request: int) -> None:
        data = requests.get(request)
        if data is None:
            return
        done: Future[Any] = Future()
        answered = functools.partial(requests.pop, request, None)
        try:
            if self._serve is None:
                raise ValueError("nothing is served here")
            result = self._serve(peer, json.loads(data))
            if isinstance(result, Future):
                result.add_done_callback(lambda done: self._do(self._reply, peer, number, done, answered))
                return
            done.set_result(result)
        except Exception as error:
            done.set_exception(error)
        self._reply(peer, number, done, answered)

    def _reply(self, peer: Peer, number: int, done: "Future[Any]", answered: Callable[[], Any]) -> None:
        try:
            answer = {"result": done.result()}
        except Exception as error:  # whatever it is, it is the answer
            late = errno.ETIMEDOUT if isinstance(error, TimeoutError) else 0
            answer = {"error": str(error) or repr(error), "errno": getattr(error, "errno", None) or late}
        try:
            self._send(peer, number, IS_ANSWER, answer, 60)  # the peer may be stopped: others are not to wait for it
        except WeftError:
            pass  # it has ended
        finally:
            answered()

    def _forget(self, peer: int) -> None:
        self._parts.pop(peer, None)
        self._requests.pop(peer, {}).clear()

    def _down(self, event: PeerDown) -> None:
        for (peer, _), future in list(self._waiting.items()):
            if peer == event.peer.id:
                _fail(future, ConnectionError(f"the peer has ended: {event.reason}"))
        self._forget(event.peer.id)
        self._do(self._ended, event.peer.id)

    def close(self) -> None:
        self._endpoint.close()
        self._thread.join()


def _fail(future: Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
