"""Words that streams of GPUs and transfers write for each other."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Dict, Optional, Tuple

from ._library import lib
from .errors import check, taken_back

if TYPE_CHECKING:
    from .endpoint import Endpoint


class Watch:
    """A number, 0 at first, that orders transfers with streams; made by `Endpoint.create_watch`.

    A transfer with `start=(watch, 1)` begins when the number has come to 1, and one with
    `done=(watch, 1)` sets it to 1 when it has ended, whatever its outcome. Streams write it and
    wait for it at `address`: docs/gpu.md. Also a context manager.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        handle, word = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_uint64)()
        check(lib.weft_watch_create(endpoint.handle, ctypes.byref(handle), ctypes.byref(word)))
        self._handle = handle.value or 0
        #: Of the word of 8 bytes, for the CPU and for GPUs.
        self.address: int = ctypes.addressof(word.contents)

    @property
    def handle(self) -> int:
        """`weft_watch *`; raises ValueError once it is freed."""
        self._must_exist()
        return self._handle

    @property
    def value(self) -> int:
        """Its value, 0 to 2^64 - 1, which may be set as well."""
        return self._word().value

    @value.setter
    def value(self, value: int) -> None:
        if not 0 <= value < 1 << 64:
            raise ValueError(f"value is {value}: it must be 0 to 2^64 - 1")
        self._word().value = value

    def __repr__(self) -> str:
        if not self._handle or self._endpoint.closed:
            return "<libweft.Watch, freed>"
        return f"<libweft.Watch {self.value} at {self.address:#x}>"

    def _word(self) -> ctypes.c_uint64:
        self._must_exist()
        return ctypes.c_uint64.from_address(self.address)

    def _must_exist(self) -> None:
        if not self._handle or self._endpoint.closed:
            raise ValueError("the watch was freed, or its endpoint is closed")

    def free(self) -> None:
        """Destroys it; no stream may wait for it any longer. Raises BusyError while transfers
        that have not ended name it. Again is harmless, and so is never: the endpoint's `close`
        does it."""
        if self._handle and not self._endpoint.closed:
            check(taken_back(lambda: int(lib.weft_watch_destroy(self._handle)), self._endpoint.poll))
        self._handle = 0

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


def mark(name: str, named: Optional[Tuple[Watch, int]]) -> Dict[str, int]:
    """The fields of an operation that name a watch and a value of it."""
    return {} if named is None else {f"{name}_watch": named[0].handle, f"{name}_value": named[1]}
