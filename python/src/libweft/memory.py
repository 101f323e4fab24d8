"""Memory of this process, and memory of peers."""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import threading
import weakref
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

from . import c, log
from ._buffers import Buffer, Held, lasting
from ._library import blob, fill, lib, nanoseconds, number, octets, token
from .errors import check, taken_back
from .completion import Completion
from .operation import Operation

if TYPE_CHECKING:
    from .endpoint import Endpoint
    from .peer import Peer


class Memory:
    """Ranges of this process's memory, registered with the rails; made by `Endpoint.register`. Or of a
    file, by `Endpoint.register_file`.

    The objects they are of stay alive, and cannot be resized, until `deregister` or the
    endpoint's `close`. Also a context manager.
    """

    def __init__(self, endpoint: Endpoint, buffers: Sequence[Buffer], access: int, rails: int,
                 file: Optional[Tuple[int, Sequence[Tuple[int, int]]]] = None) -> None:
        self._endpoint = endpoint
        self._held: List[Held] = []
        #: A signal handler's close may interrupt a deregister.
        self._lock = threading.RLock()
        made = ctypes.c_void_p()
        try:
            for at, buffer in enumerate(buffers):
                self._held.append(Held(lasting(buffer), f"buffer {at}"))
            readonly = next((i for i, held in enumerate(self._held) if held.readonly), None)
            if readonly is not None:
                access = access or c.ACCESS_REMOTE_READ
                if access & c.ACCESS_REMOTE_WRITE:
                    raise BufferError(f"buffer {readonly} is read-only: peers cannot be allowed to write to it")
            #: Whether it can be the destination of a read.
            self.writable: bool = readonly is None
            places = [(held.address, held.length) for held in self._held]
            if file is not None:
                places = [(number("offset", offset), number("length", length)) for offset, length in file[1]]
                self.writable = fcntl.fcntl(file[0], fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
                access = access or (0 if self.writable else c.ACCESS_REMOTE_READ)
            #: Bytes of each range.
            self.lengths: List[int] = [length for _, length in places]
            self._register(places, access, rails, made, None if file is None else file[0])
            self.handle: int = made.value or 0
            self._keep()
        except BaseException:
            if made.value:  # an exception came after the registration
                lib.weft_memory_deregister(made)
                endpoint._forget(self)
            self._let_go()
            raise

    def _register(self, places: Sequence[Tuple[int, int]], access: int, rails: int, made: ctypes.c_void_p,
                  fd: Optional[int]) -> None:
        ranges = (c.MemoryRange * len(places))()
        for place, (address, length) in zip(ranges, places):
            place.address, place.len = address, length
        args = fill(c.MemoryArgs, access=access, rails=rails)
        if fd is not None:
            args.kind, args.fd = c.MEMORY_FILE, fd
        check(lib.weft_memory_register(self._endpoint.handle, ranges, len(ranges), args, ctypes.byref(made)))

    def _keep(self) -> None:
        self._endpoint._keep(self)

    def __repr__(self) -> str:
        ranges = f"{len(self.lengths)} ranges, " if len(self.lengths) != 1 else ""
        return f"<libweft.Memory {ranges}{sum(self.lengths)} bytes{'' if self.handle else ', deregistered'}>"

    def export(self) -> bytes:
        """The descriptor that a peer passes to `Peer.import_memory`. It gives access to the memory: treat
        it as a key."""
        return blob(lib.weft_memory_export, self.handle)

    def deregister(self) -> None:
        """Deregisters the memory: when this has returned, no late write lands. Blocks for a round
        trip to the peers that imported it, at most 2 s (in asyncio: `asyncio.to_thread`). Raises BusyError
        while own transfers use it, or it has grants: revoke these first. Repeating the call is harmless."""
        with self._lock:
            if not self.handle:
                return
            status = taken_back(lambda: int(lib.weft_memory_deregister(self.handle)), self._endpoint.poll)
            # The endpoint's close may have come first, or a deregister that was interrupted.
            if status != c.ERR_HANDLE:
                check(status)
            self.handle = 0
        self._endpoint._forget(self)
        self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            self.handle = 0
            held, self._held = self._held, []
        for one in held:
            one.release()

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        self.deregister()


class RemoteMemory:
    """Memory of a peer; made by `Peer.import_memory`. Also a context manager."""

    def __init__(self, peer: Peer, descriptor: bytes) -> None:
        descriptor = octets(descriptor, "descriptor", "as Memory.export of the other side gives them")
        self.peer = peer
        self._endpoint = peer._endpoint
        handle = ctypes.c_void_p()
        check(lib.weft_remote_memory_import(self._endpoint.handle, peer.id, descriptor, len(descriptor),
                                            ctypes.byref(handle)))
        self.handle: int = handle.value or 0

    def __repr__(self) -> str:
        return f"<libweft.RemoteMemory of peer {self.peer.id:#x}{'' if self.handle else ', released'}>"

    def release(self) -> None:
        """Releases it. Raises BusyError while operations or prepared geometries use it. Repeating the call
        is harmless, and so is omitting it: the endpoint's `close` releases it."""
        if self.handle and not self._endpoint.closed:
            check(taken_back(lambda: int(lib.weft_remote_memory_release(self.handle)), self._endpoint.poll))
        self.handle = 0

    def __enter__(self) -> RemoteMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def fetch_add(self, offset: int, operand: int, *, timeout: Optional[float] = None,
                  grant: bytes = b"") -> Operation[int]:
        """Adds `operand` to the 8 bytes at `offset` (around 2^64); its result is what they were
        before. See `weft_fetch_add` of what is and is not atomic."""
        args = (number("offset", offset), number("operand", operand))
        return self._atomic("fetch_add", args, timeout, grant)

    def compare_swap(self, offset: int, expected: int, desired: int, *,
                     timeout: Optional[float] = None, grant: bytes = b"") -> Operation[int]:
        """Replaces the 8 bytes at `offset` by `desired` if they are `expected`; its result is what
        they were before, so `expected` if it did."""
        args = (number("offset", offset), number("expected", expected), number("desired", desired))
        return self._atomic("compare_swap", args, timeout, grant)

    def _atomic(self, name: str, args: Tuple[int, ...], timeout: Optional[float], grant: bytes) -> Operation[int]:
        options = fill(c.OpOptions, timeout_ns=nanoseconds(timeout))
        if grant:
            options.grant = token(grant)
        return self._endpoint._submit(f"{name}, peer {self.peer.id:#x}", getattr(lib, f"weft_{name}"), (self.handle, *args), options, _value)


def _value(completion: Completion) -> int:
    return completion.value


#: Memory whose last view has gone, and that no endpoint was open to free.
_left: List[int] = []


def allocate(endpoint: Endpoint, length: int, node: Optional[int]) -> memoryview:
    """See `Endpoint.allocate`."""
    for first in list(_left):
        try:
            _left.remove(first)
        except ValueError:
            continue  # another thread frees it
        _free(endpoint.opened, first)
    address = ctypes.c_void_p()
    check(lib.weft_memory_alloc(endpoint.handle, length, c.NUMA_ANY if node is None else node, ctypes.byref(address)))
    first = address.value or 0
    block = (ctypes.c_ubyte * length).from_address(first)
    # The views of it keep `block` alive.
    weakref.finalize(block, log.outside, functools.partial(_free, endpoint.opened, first)).atexit = False
    return memoryview(block).cast("B")


def _free(opened: "Dict[int, weakref.ref[Endpoint]]", address: int) -> None:
    """By any open endpoint; without one by the next `allocate`."""
    for handle in list(opened):
        if lib.weft_memory_free(handle, address) == c.OK:
            return
    _left.append(address)
