"""The destination of Weft's log lines."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import logging
import os
import sys
import types
from typing import Any, Callable, Optional

from . import c
from ._library import lib
from .errors import check

#: Called with the level (`libweft.c.LOG_*`), the part of the library, and the text.
Callback = Callable[[int, str, str], None]

_LEVELS = {
    c.LOG_ERROR: logging.ERROR,
    c.LOG_WARN: logging.WARNING,
    c.LOG_INFO: logging.INFO,
    c.LOG_DEBUG: logging.DEBUG,
    c.LOG_TRACE: logging.DEBUG - 5,
}
_current: Any = None


def _line(callback: Callback, level: int, component: bytes, message: bytes, _: Any) -> None:
    callback(level, component.decode("utf-8", "replace"), message.decode("utf-8", "replace"))


def within() -> bool:
    """Whether this thread is in a log callback, where Weft must not be called. The callback's frame is looked for: a collection, and
    with it a finalizer, may run before its first line."""
    frame: Optional[types.FrameType] = sys._getframe()
    while frame is not None and frame.f_code is not _line.__code__:
        frame = frame.f_back
    return frame is not None


def outside(call: Callable[[], object]) -> None:
    """What a finalizer asks of Weft: at once, or, in a callback, in another thread."""
    if not within():
        call()
        return
    with contextlib.suppress(RuntimeError):  # the interpreter ends
        # `threading` has locks, which what the finalizer has interrupted may hold.
        _thread.start_new_thread(call, ())


def set_log(callback: Optional[Callback], level: int = c.LOG_DEFAULT) -> None:
    """Passes every line up to `level` to a function, in any thread; None: to stderr.
    It must be quick, and must not call Weft. Weft waits for it, and it for the interpreter."""
    global _current
    made = c.LogCallback(functools.partial(_line, callback)) if callback is not None else c.LogCallback()
    check(lib.weft_log_set(level, made, None))
    _current = made  # the former callback is no longer called


def log_to(logger: logging.Logger, level: int = c.LOG_WARN) -> None:
    """Passes the lines to a logger: those of the endpoint to `logger.endpoint`, and so on."""
    set_log(lambda level, component, text: logger.getChild(component).log(_LEVELS.get(level, logging.DEBUG), text),
            level)


_process = os.getpid()


@atexit.register
def _stop() -> None:
    """Threads of Weft must not enter an interpreter that is ending. (A forked child has none.)"""
    if _current is not None and os.getpid() == _process:
        lib.weft_log_set(c.LOG_DEFAULT, c.LogCallback(), None)
