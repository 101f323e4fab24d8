"""Where the bytes of Python objects lie."""

from __future__ import annotations

import array
import ctypes
from typing import Any, Optional, Tuple

#: What can be registered: an object with the buffer protocol (bytearray, array.array, mmap, numpy
#: arrays), a tensor with `data_ptr()` (torch), or an address and a length in bytes. Contiguous.
Buffer = Any

#: Page indexes: any sequence of int, or a buffer of 32-bit unsigned ones, which is not copied twice.
Indexes = Any


class _View(ctypes.Structure):
    """Py_buffer, whose members have not changed since Python 2.6."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = [ctypes.py_object, ctypes.POINTER(_View), ctypes.c_int]
_get.restype = ctypes.c_int
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = [ctypes.POINTER(_View)]
_release.restype = None


class Held:
    """The bytes of an object, which stay where they are until `release`: while it is held, a
    bytearray cannot be resized, nor an mmap closed."""

    def __init__(self, buffer: Buffer) -> None:
        self._view: Optional[_View] = None
        self._keep: Any = buffer
        self.readonly = False
        if isinstance(buffer, tuple):
            self.address, self.length = _pair(buffer)
        elif hasattr(buffer, "data_ptr"):
            if not buffer.is_contiguous():
                raise BufferError("a tensor must be contiguous: register it in parts, or call contiguous()")
            self.address = int(buffer.data_ptr())
            self.length = int(buffer.numel()) * int(buffer.element_size())
        else:
            view = _View()
            _get(buffer, ctypes.byref(view), 0)  # raises TypeError or BufferError itself
            self._view = view
            self.address, self.length = view.buf or 0, view.len
            self.readonly = bool(view.readonly)

    def release(self) -> None:
        view, self._view, self._keep = self._view, None, None
        if view is not None:
            _release(ctypes.byref(view))

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_view", None) is not None:
            self.release()


def _pair(buffer: Tuple[Any, ...]) -> Tuple[int, int]:
    if len(buffer) != 2 or not all(isinstance(n, int) and 0 <= n < 1 << 64 for n in buffer):
        raise TypeError(f"{buffer!r} is not an address and a length in bytes")
    return buffer[0], buffer[1]


def indexes(pages: Optional[Indexes], name: str) -> Tuple[Any, int, Any]:
    """A pointer to page indexes, how many there are, and what keeps them alive."""
    if pages is None:
        return None, 0, None
    view: Optional[memoryview]
    try:
        view = memoryview(pages)
    except TypeError:
        view = None
    if view is None or view.format != "I" or view.itemsize != 4 or not view.c_contiguous:
        try:
            pages = array.array("I", pages)
        except OverflowError:
            raise ValueError(f"{name}: an index is not in 0 to 2^32 - 1") from None
    held = Held(pages)
    return ctypes.cast(held.address, ctypes.POINTER(ctypes.c_uint32)), held.length // 4, held
