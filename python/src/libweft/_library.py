"""Finds libweft.so, gives its functions their types, and fills in its structs."""

from __future__ import annotations

import ctypes
import operator
import os
from functools import lru_cache
from typing import Any, Callable, Dict, Optional, Type, TypeVar

from . import c

DAY_NS = 24 * 3600 * 10**9

S = TypeVar("S", bound=ctypes.Structure)


def _path() -> str:
    """The path in WEFT_LIBRARY, else the library in this package, else the one that the system finds."""
    named = os.environ.get("WEFT_LIBRARY")
    if named:
        return named
    packaged = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "libweft.so.0")
    return packaged if os.path.exists(packaged) else "libweft.so.0"


class Library:
    """The functions of libweft.so, which is loaded when the first one is used: `import libweft` and
    pydoc need no library."""

    #: The loaded file; None before the first call.
    path: Optional[str] = None

    def __init__(self, kind: Callable[[str], ctypes.CDLL]) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        if name not in c.FUNCTIONS:
            raise AttributeError(f"weft.h has no function {name}")
        path = _path()
        try:
            loaded = self._kind(path)
        except OSError as error:
            raise ImportError(
                f"{path} cannot be loaded ({error}): install the wheel, or name a libweft.so in WEFT_LIBRARY"
            ) from error
        for function, (result, parameters) in c.FUNCTIONS.items():
            try:
                found = getattr(loaded, function)
            except AttributeError:
                raise ImportError(f"{path} has no {function}: it is older than this package") from None
            found.restype, found.argtypes = result, parameters
            setattr(self, function, found)
        self.path = path
        return getattr(self, name)

    def __repr__(self) -> str:
        return f"<libweft.lib {self.path or 'not loaded yet'}>"


#: Lets other threads of Python run during a call.
lib: Library = Library(ctypes.CDLL)

#: Keeps the interpreter's lock during a call, for calls that neither wait nor take a lock. Such calls are shorter, and
#: do not lose their turn: beside a thread that computes, a poll that releases the lock gets it back only after some
#: milliseconds (0.2 ms on average, against 0.4 us). All other calls must release it: a thread of Weft that logs a line
#: waits for the interpreter, and may hold what the call waits for.
quick: Library = Library(ctypes.PyDLL)


def reason_of(endpoint: int, peer: int) -> Optional[str]:
    """Why a peer ended or could not be reached; None if nothing is known of it."""
    text, length = ctypes.create_string_buffer(4096), ctypes.c_size_t()
    status = lib.weft_peer_reason(endpoint, peer, text, len(text), length)
    if status == c.ERR_TOO_SMALL:
        text = ctypes.create_string_buffer(length.value)
        status = lib.weft_peer_reason(endpoint, peer, text, len(text), length)
    return text.raw[:length.value].decode("utf-8", "replace") if status == c.OK else None


@lru_cache(maxsize=None)
def _limits(struct: Type[ctypes.Structure]) -> Dict[str, int]:
    """The first unsigned field whose value does not fit."""
    bits = {ctypes.c_uint32: 32, ctypes.c_uint64: 64}
    return {field[0]: 1 << bits[field[1]] for field in struct._fields_ if field[1] in bits}


def octets(value: Any, name: str, comes_from: str = "") -> bytes:
    """An argument that is bytes."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{name} is of type {type(value).__name__}: it must be bytes{comes_from and f', {comes_from}'}")


def text(value: Optional[str], name: str) -> Optional[bytes]:
    """An argument that is a str, or None, for C."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{name} is of type {type(value).__name__}: it must be a str")
    if "\0" in value:
        raise ValueError(f"{name} is {value!r}: it must have no null characters")
    return value.encode()


def token(grant: bytes) -> c.GrantToken:
    """A grant's 16 bytes as a struct."""
    grant = octets(grant, "grant", "as Endpoint.grant returns it")
    if len(grant) != 16:
        raise ValueError(f"a grant has 16 bytes, not {len(grant)}")
    return c.GrantToken.from_buffer_copy(grant)


def fill(struct: Type[S], **fields: Any) -> S:
    """A struct with these fields; a value that does not fit is an error, which ctypes itself would truncate."""
    limits = _limits(struct)
    for name, value in fields.items():
        limit = limits.get(name)
        if limit is not None:
            value = fields[name] = operator.index(value)
            if not 0 <= value < limit:
                raise ValueError(f"{name} is {value}: it must be 0 to {limit - 1}")
    return struct(**fields)


def number(name: str, value: Any, bits: int = 64) -> int:
    """An argument of a call; a value that does not fit is an error, which ctypes itself would truncate."""
    whole = operator.index(value)
    if whole >> bits:  # true for negative numbers, too
        raise ValueError(f"{name} is {whole}: it must be 0 to 2^{bits} - 1")
    return whole


def nanoseconds(seconds: Optional[float], name: str = "timeout") -> int:
    """Converts a timeout in seconds to nanoseconds. None: 0, which means the default."""
    if seconds is None:
        return 0
    if not 0 <= seconds <= DAY_NS / 1e9:
        raise ValueError(f"{name} is {seconds} s: it must be 0 to 24 hours")
    # 0 would mean the default.
    return max(1, int(seconds * 1e9))


def blob(function: Callable[..., int], handle: int) -> bytes:
    """An address or a descriptor: queries the length, then the bytes."""
    from .errors import check

    length = ctypes.c_size_t()
    check(function(handle, None, 0, ctypes.byref(length)))
    while True:
        buffer = ctypes.create_string_buffer(max(1, length.value))
        status = function(handle, buffer, length.value, ctypes.byref(length))
        if status != c.ERR_TOO_SMALL:
            check(status)
            return buffer.raw[: length.value]
