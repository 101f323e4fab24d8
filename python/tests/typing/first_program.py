"""What a program of a user is to type checkers; nothing of it is run."""

from __future__ import annotations

import array
import ctypes
import mmap
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import libweft
import numpy
from numpy.typing import NDArray

if sys.version_info >= (3, 11):
    from typing import assert_type
else:
    from typing_extensions import assert_type


class Tensor:
    """A tensor of torch, as far as its stubs matter here."""

    def data_ptr(self) -> int:
        return 0

    def numel(self) -> int:
        return 0

    def element_size(self) -> int:
        return 0

    def is_contiguous(self, memory_format: Any = None) -> bool:
        return True


def opens(secret: str, file: Path) -> None:
    with libweft.Endpoint("host,tcp", secret=secret, idle=libweft.Idle.SPIN, timeout=5) as endpoint:
        assert_type(endpoint, libweft.Endpoint)
        assert_type(endpoint.address, bytes)
        assert_type(endpoint.info().rails, int)
        assert_type(endpoint.rail_info(0).fabric, libweft.c.Text)
        fabric: str = endpoint.rail_info(0).fabric
        assert_type(endpoint.metrics(), str)
        assert_type(endpoint.allocate(4096), memoryview)
        libweft.Endpoint(fabric, secret=b"bytes", secret_file=file, trace=file)


def registers(endpoint: libweft.Endpoint, array_: NDArray[numpy.float32], layers: List[NDArray[numpy.float32]], tensor: Tensor) -> None:
    both = libweft.Access.REMOTE_READ | libweft.Access.GRANTED
    for memory in (endpoint.register(array_), endpoint.register(layers, access=both), endpoint.register((array_, tensor)),
                   endpoint.register(b"bytes"), endpoint.register(bytearray(8)), endpoint.register(memoryview(b"")),
                   endpoint.register(array.array("I")), endpoint.register(mmap.mmap(-1, 4096)), endpoint.register((1 << 40, 8)),
                   endpoint.register(ctypes.create_string_buffer(8)), endpoint.register(tensor)):
        assert_type(memory, libweft.Memory)
        assert_type(memory.lengths, List[int])
        assert_type(memory.export(), bytes)


def moves(endpoint: libweft.Endpoint, peer: libweft.Peer, descriptor: bytes, array_: NDArray[numpy.float32], tensor: Tensor) -> None:
    remote = peer.import_memory(descriptor)
    assert_type(remote, libweft.RemoteMemory)
    for operation in (endpoint.write(array_, remote, notify=1), endpoint.read(tensor, remote, 8), endpoint.write(endpoint.register(b""), remote),
                      endpoint.write_pages(array_, remote, 64, local=[1, 2], remote=numpy.array([3, 4])),
                      endpoint.read_pages(tensor, remote, 64, local=libweft.Side([1], range_step=1), remote=range(1)),
                      endpoint.write_list([libweft.Entry(array_, remote, 8), libweft.Entry(peer=peer)], each_peer=True)):
        assert_type(operation, libweft.Operation[libweft.Completion])
        assert_type(operation.wait(5), libweft.Completion)
        assert_type(operation.wait().bytes, int)
        assert_type(operation.done, bool)
        assert_type(operation.completions, List[libweft.Completion])
    with endpoint.prepare_pages(array_, remote, 64, 1) as prepared:
        assert_type(prepared.write(), libweft.Operation[libweft.Completion])
    assert_type(remote.fetch_add(0, 1).wait(), int)
    token = endpoint.grant(endpoint.register(array_), peer, 64, [1, 2], access=libweft.Access.REMOTE_WRITE)
    assert_type(token, bytes)
    assert_type(endpoint.revoke(token).wait(), libweft.Completion)
    for part in libweft.Parts((lambda: endpoint.write(array_, remote)) for _ in range(3)):
        assert_type(part, libweft.Completion)


def counts(endpoint: libweft.Endpoint) -> None:
    with endpoint.create_counter() as counter, endpoint.create_watch() as watch:
        totals: Dict[libweft.Counter, int] = {counter: 3}
        assert_type(endpoint.expect(totals, done=(watch, 1)).wait(), None)
        assert_type(counter.value, int)
        watch.value = 1


def takes(event: Optional[libweft.Event]) -> Tuple[int, str]:
    if isinstance(event, libweft.Message):
        assert_type(event.data, bytes)
        assert_type(event.peer.send(b"answer").wait(), None)
    elif isinstance(event, libweft.Notification):
        assert_type(event.value, int)
        assert_type(event.error, Optional[libweft.WeftError])
    elif isinstance(event, libweft.PeerDown):
        assert_type(event.reason, str)
        assert_type(event.error, Optional[libweft.WeftError])
        return event.status, event.reason
    return 0, ""


async def waits(endpoint: libweft.Endpoint, address: bytes) -> None:
    try:
        async with libweft.Endpoint() as other:
            peer = await other.connect(address, timeout=1)
            assert_type(peer, libweft.Peer)
            assert_type(await peer.fence(), None)
        async for event in endpoint.events():
            takes(event)
    except libweft.ConnectionFailedError as error:
        assert_type(error.status, int)
        assert_type(error.message, str)
        connection: ConnectionError = error
        assert_type(connection.errno, Optional[int])
