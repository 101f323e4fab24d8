"""The addresses of Python objects' bytes."""

from __future__ import annotations

import array
import ctypes
import importlib
import numbers
from typing import TYPE_CHECKING, Any, Iterable, Optional, Protocol, Sequence, Tuple, Union

if TYPE_CHECKING:
    from typing_extensions import TypeGuard


class SupportsBuffer(Protocol):
    """An object with the buffer protocol."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


class Array(Protocol):
    """An array of numpy, which says only to type checkers for Python 3.12 and later that it has the buffer protocol."""

    @property
    def __array_interface__(self) -> Any: ...


class Tensor(Protocol):
    """A tensor of torch, or of what has the same methods."""

    def data_ptr(self) -> int: ...

    def numel(self) -> int: ...

    def element_size(self) -> int: ...

    def is_contiguous(self) -> bool: ...


#: What can be registered: an object with the buffer protocol (bytearray, array.array, mmap, numpy arrays), a tensor
#: with `data_ptr()` (torch), or an address and a length in bytes. It must be contiguous.
Buffer = Union[SupportsBuffer, Array, Tensor, Tuple[int, int]]

#: Page indexes: numpy arrays, torch tensors and other buffers of 32 or 64-bit integers, which are used without a copy,
#: or any sequence of int. GPU tensors are copied to the host first.
Indexes = Union[Sequence[int], SupportsBuffer, Array, Tensor]


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
    """The bytes of an object, which do not move until `release`: while it is held, a
    bytearray cannot be resized, nor an mmap closed."""

    def __init__(self, buffer: Buffer, name: str = "a buffer") -> None:
        self._view: Optional[_View] = None
        self._keep: Any = buffer
        self.readonly = False
        if isinstance(buffer, tuple):
            self.address, self.length = _pair(buffer, name)
        elif is_tensor(buffer):
            if not buffer.is_contiguous():
                raise BufferError(f"{name} is a tensor that is not contiguous: register it in parts, or call contiguous()")
            if any(getattr(buffer, lazy, bool)() for lazy in ("is_conj", "is_neg")):
                raise BufferError(f"{name} is a tensor whose bytes are not its values: call resolve_conj() or resolve_neg()")
            self.address = int(buffer.data_ptr())
            self.length = int(buffer.numel()) * int(buffer.element_size())
        else:
            view = _View()
            try:
                _get(buffer, ctypes.byref(view), 0)
            except (BufferError, ValueError) as error:
                raise type(error)(f"{name}: {error}") from None
            except TypeError:
                raise TypeError(f"{name} is {described(buffer)}, which has no bytes: "
                                f"{'encode it' if isinstance(buffer, str) else _WANTED}") from None
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


_WANTED = ("it must have the buffer protocol (bytes, bytearray, numpy arrays), be a tensor with data_ptr(), or an address and a length "
           "in bytes")


def is_tensor(buffer: Any) -> "TypeGuard[Tensor]":
    return hasattr(buffer, "data_ptr")


def lasting(buffer: Any) -> Any:
    """What holds a buffer's bytes for longer than a call. A tensor may get another storage while it lives (`p.data = other`,
    `module.half()`), which frees the former one: it stays with a second tensor."""
    return buffer.detach() if is_tensor(buffer) and hasattr(buffer, "detach") else buffer


def synchronize(buffers: Iterable[Any]) -> None:
    """Returns when no kernel works on any of them that is a tensor of a GPU: Weft copies in streams of its own, which wait for none
    of torch's."""
    for device in {buffer.device for buffer in buffers if getattr(buffer, "is_cuda", False)}:
        importlib.import_module("torch").cuda.synchronize(device)


def described(given: Any) -> str:
    """What a caller has given in the place of something else."""
    kind = type(given)
    return f"of type {kind.__name__ if kind.__module__ == 'builtins' else f'{kind.__module__}.{kind.__qualname__}'}"


def is_pair(buffer: Any) -> bool:
    """Whether it is an address and a length."""
    return isinstance(buffer, tuple) and len(buffer) == 2 and all(isinstance(n, numbers.Integral) for n in buffer)


def _pair(buffer: Tuple[Any, ...], name: str) -> Tuple[int, int]:
    if not is_pair(buffer) or not all(0 <= n < 1 << 64 for n in buffer):
        raise TypeError(f"{name} is {buffer!r}, which is not an address and a length in bytes")
    return int(buffer[0]), int(buffer[1])


def indexes(pages: Indexes, name: str) -> Tuple[Any, int, Any]:
    """A pointer to page indexes, their number, and the object that keeps them alive. Arrays of 32 bits
    are used as they are; those of 64 bits are narrowed without an object for each index."""
    narrow = _narrow(_viewed(pages, name), name)
    held = Held(narrow)
    return ctypes.cast(held.address, ctypes.POINTER(ctypes.c_uint32)), held.length // 4, held


def _viewed(pages: Any, name: str) -> memoryview:
    """The elements of a buffer, a tensor or a sequence."""
    if hasattr(pages, "data_ptr"):
        pages = pages.detach().cpu().contiguous()  # itself, if it is contiguous on the CPU
        kind = {"torch.int32": "i", "torch.uint32": "I", "torch.int64": "q", "torch.uint64": "Q"}.get(str(pages.dtype))
        if kind is not None and pages.dim() == 1:
            return _of_tensor(pages, kind)
        pages = pages.tolist()
    try:
        view = memoryview(pages)
    except TypeError:
        view = None
    if view is not None and view.format in _FORMATS and view.ndim == 1:
        return view
    if view is not None and (view.format == "?" or view.ndim != 1):
        raise TypeError(f"{name}: indexes are integers in one dimension, not {view.ndim} of format {view.format!r}")
    try:
        return memoryview(array.array("I", iter(pages)))
    except OverflowError:
        raise _outside(name) from None


#: Formats of the struct module, as in numpy, by size.
_FORMATS = {"i": 4, "I": 4, "l": 8, "L": 8, "q": 8, "Q": 8}


def _of_tensor(tensor: Any, kind: Any) -> memoryview:
    count = int(tensor.numel())
    if not count:
        return memoryview(b"")
    block = (ctypes.c_char * (count * _FORMATS[kind])).from_address(int(tensor.data_ptr()))
    setattr(block, "tensor", tensor)  # which owns these bytes
    view: memoryview = memoryview(block).cast("B").cast(kind)
    return view


def _narrow(view: memoryview, name: str) -> Any:
    """The same numbers, as contiguous unsigned 32-bit integers."""
    size, kind = view.itemsize, view.format
    if not len(view) or kind == "I" and view.c_contiguous:
        return view
    words = (view if view.c_contiguous else memoryview(view.tobytes())).cast("B")
    if kind in ("i", "l", "q") and not words[size - 1::size].tobytes().isascii():  # a sign
        raise _outside(name)
    if size == 4:
        return words
    high = words.cast("I")[1::2].tobytes()
    if high != bytes(len(high)):
        raise _outside(name)
    return words.cast("I")[::2].tobytes()


def _outside(name: str) -> ValueError:
    return ValueError(f"{name}: an index is not in 0 to 2^32 - 1")
