"""Weft moves memory between processes over every NIC of a machine.

    import libweft

    with libweft.Endpoint() as endpoint:                 # every NIC near this process
        kv = endpoint.register([layer0, layer1])         # numpy, torch, bytearray, ...
        peer = endpoint.connect(address).wait()          # its address came by any means
        remote = peer.import_memory(descriptor)          # so did its memory's descriptor
        pages = libweft.Side(pages=[4, 7], range_step=1)  # each layer is a range
        endpoint.write_pages(kv, remote, 65536, layers=2, local=pages, remote=pages,
                             notify=request).wait()      # every byte is there, and the peer knows

or, in asyncio, where the endpoint's event fd wakes the loop:

    async with libweft.Endpoint() as endpoint:
        peer = await endpoint.connect(address)
        await endpoint.write(kv, remote, timeout=5.0)
        async for event in endpoint.events():            # what peers send and notify
            ...

An operation is accepted when the call returns; `await` it, or `wait` for it, or do neither: it proceeds by
itself. It ends exactly once, by its deadline: with a result, when every byte is there, or with
an exception of one of the classes below `WeftError`. Timeouts are seconds. No call holds the
interpreter's lock while it waits.

The library keeps no progress of a single transfer. Long ones are moved as `Parts`, or the peer's
`Counter` counts their pages (`count_pages=True`).

`Endpoint` has most of what a program calls: begin with `python -m pydoc libweft.Endpoint`. `connect` gives a `Peer`, `register` a
`Memory`, `import_memory` a `RemoteMemory`, transfers an `Operation`. All of it with links: docs/python.md.

The C functions are in `libweft.c`, with weft.h as their manual, for what the classes leave out
(further completion queues): `libweft.lib`.
"""

from . import c
from ._buffers import Buffer
from ._library import lib, quick
from .completion import Completion
from .counters import Counter
from .endpoint import Access, Endpoint, Idle, Progress, topology
from .errors import (BusyError, CanceledError, ClosedError, ConnectionFailedError, FileError, InternalError, MachineError,
                     PeerError, RetryError, RevokedError, StillRunningError, TimedOutError, UsageError, WeftError)
from .events import Event, Message, Notification, Other, PeerDown, PeerUp, RailDown, RailUp
from .log import log_to, set_log
from .memory import Memory, RemoteMemory
from .operation import Operation
from .parts import Parts
from .peer import Peer
from .transfers import Entry, Prepared, Side
from .watch import Watch

__version__ = c.VERSION


def library_version() -> str:
    """The version of libweft.so that is loaded."""
    version: int = quick.weft_version()
    return f"{version >> 16}.{version >> 8 & 255}.{version & 255}"


__all__ = [
    "Access", "Buffer", "BusyError", "CanceledError", "ClosedError", "Completion", "ConnectionFailedError",
    "Counter", "Endpoint", "Entry", "Event", "FileError", "Idle", "InternalError", "MachineError", "Memory", "Message",
    "Notification", "Operation", "Other", "Parts", "Peer", "PeerDown", "PeerError", "PeerUp",
    "Prepared", "Progress", "RailDown", "RailUp", "RemoteMemory", "RetryError", "RevokedError", "Side",
    "StillRunningError", "TimedOutError", "UsageError", "Watch", "WeftError", "c", "lib", "library_version", "log_to", "set_log",
    "topology",
]
