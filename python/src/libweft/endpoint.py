"""What a process opens: rails, and an address that others connect to."""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import math
import os
import threading
import warnings
import weakref
from enum import IntEnum, IntFlag
from types import TracebackType
from typing import IO, Any, AsyncGenerator, Callable, ClassVar, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Type, TypeVar, Union, cast

from . import c, log
from ._buffers import Buffer, is_pair
from ._library import blob, fill, lib, nanoseconds, octets, text
from ._plain import PlainEnum
from ._progress import Progress as Completions
from ._registrations import Registrations
from .counters import Counter, expect
from .errors import WeftError, check
from .events import Event, Raw, event_of, has_data
from .memory import Memory, allocate
from .completion import Completion
from .operation import Operation, Words
from .peer import Peer
from .transfers import Transfers
from .watch import Watch

T = TypeVar("T")


class Progress(IntEnum, metaclass=PlainEnum):
    """The threads that drive the rails: Weft's (the default), or the caller's, in `poll` and waits: then
    asyncio does not work, and nothing moves unless a thread polls or waits."""

    THREADS = c.PROGRESS_THREADS
    MANUAL = c.PROGRESS_MANUAL


class Idle(IntEnum, metaclass=PlainEnum):
    """How idle threads of Weft wait: spin briefly and sleep (the default), never sleep,
    or sleep at once."""

    ADAPTIVE = c.IDLE_ADAPTIVE
    SPIN = c.IDLE_SPIN
    SLEEP = c.IDLE_SLEEP


class Access(IntFlag, metaclass=PlainEnum):
    """The allowed uses of memory. LOCAL, which excludes the others: only this process. GRANTED: only under grants, for what is added:
    REMOTE_WRITE or REMOTE_READ; neither: both."""

    DEFAULT = 0
    REMOTE_WRITE = c.ACCESS_REMOTE_WRITE
    REMOTE_READ = c.ACCESS_REMOTE_READ
    LOCAL = c.ACCESS_LOCAL
    GRANTED = c.ACCESS_GRANTED


class Endpoint(Transfers):
    """Opens rails over NICs. A process usually has one for each GPU or rank.

    All parameters but these are fields of `weft_endpoint_config`; 0 and None are its defaults.

    fabric: which fabrics, as "host,tcp"; None: the best that this machine has.
    rails: which NICs, as "eth*,!eth3"; None: those near what this process may use.
    timeout, connect_timeout: seconds, of operations that name none.
    secret: 16 to 1,024 bytes (a str stands for its UTF-8), shared by all endpoints that may connect to each other.
    other_secret: one that is accepted, too, while secrets are replaced.
    secret_file: a file with one or two secrets, in their place.
    encrypt: nothing is sent over a network unencrypted (fabric "tcp", with a secret).
    tcp_ports: where tcp listens, as "7000-7099".
    tcp_address: where peers reach tcp behind a network that translates, as "203.0.113.7" or "203.0.113.7:30000".
    tcp_streams: connections between a NIC of tcp and one of a peer, 1 to 16; 0: by the line and the CPUs.
    tcp_dscp: the DSCP class of tcp's packets, 1 to 63.
    liveness: seconds, 1 to 86,400, of silence after which a peer is lost; math.inf: never for that.
    trace: a file for a trace of this process, which `close` writes for Perfetto.

    Its methods may be called from any thread, but `await` only in one event loop at a time.
    Use it as a context manager (`with` or `async with`), or `close` it.
    """

    #: Open endpoints of this process, by their handles.
    opened: "ClassVar[Dict[int, weakref.ref[Endpoint]]]" = {}
    #: What a NIC may still use, because a shutdown failed: memories, and operations by what takes their completions.
    _stuck: ClassVar[List[Any]] = []

    def __init__(self, fabric: Optional[str] = None, *, rails: Optional[str] = None, rail_count: int = 0,
                 min_rails: int = 0, progress: Progress = Progress.THREADS, workers: int = 0,
                 max_transfers: int = 0, queue_depth: int = 0, max_peers: int = 0, idle: Idle = Idle.ADAPTIVE,
                 timeout: Optional[float] = None, connect_timeout: Optional[float] = None,
                 message_bytes: int = 0, max_counters: int = 0,
                 secret: Union[str, bytes, None] = None, liveness: Optional[float] = None,
                 other_secret: Union[str, bytes, None] = None,
                 secret_file: "Union[str, os.PathLike[str], None]" = None,
                 encrypt: bool = False, tcp_dscp: int = 0, tcp_ports: Optional[str] = None,
                 tcp_address: Optional[str] = None, tcp_streams: int = 0, trace: "Union[str, os.PathLike[str], None]" = None) -> None:
        hidden: List[Any] = []  # until the call has copied them

        def hide(secret: Union[str, bytes, None], name: str) -> Dict[str, int]:
            if secret is None:
                return {}
            said = secret.encode() if isinstance(secret, str) else octets(secret, name, "or a str")
            hidden.append(ctypes.create_string_buffer(said, len(said)))
            return {name: ctypes.addressof(hidden[-1]), f"{name}_len": len(said)}

        config = fill(
            c.EndpointConfig, fabric=text(fabric, "fabric"), rails=text(rails, "rails"), rail_count=rail_count, min_rails=min_rails,
            progress=progress, workers=workers, max_transfers=max_transfers, queue_depth=queue_depth,
            max_peers=max_peers, idle=idle, timeout_ns=nanoseconds(timeout),
            connect_timeout_ns=nanoseconds(connect_timeout, "connect_timeout"), message_bytes=message_bytes,
            max_counters=max_counters,
            liveness_ns=c.LIVENESS_OFF if liveness == math.inf else nanoseconds(liveness, "liveness"),
            **hide(secret, "secret"), **hide(other_secret, "other_secret"),
            secret_file=None if secret_file is None else os.fsencode(secret_file),
            encrypt=int(encrypt), tcp_dscp=tcp_dscp,
            tcp_ports=text(tcp_ports, "tcp_ports"), tcp_address=text(tcp_address, "tcp_address"), tcp_streams=tcp_streams,
            trace=None if trace is None else os.fsencode(trace))
        handle = ctypes.c_void_p()
        check(lib.weft_endpoint_create(config, ctypes.byref(handle)))
        self._open = handle.value or 0
        self._completions = Completions(self._open, progress == Progress.MANUAL)
        self._memories: Set[Memory] = set()
        self._registrations = Registrations()
        self._peers: Dict[int, Peer] = {}
        #: Messages that were copied and are to be released.
        self._copied: Dict[int, None] = {}
        #: Held by users of messages' data, or of the set above: `close` waits for it, but for its own thread's, which it has
        #: interrupted as a signal handler.
        self._using = threading.RLock()
        #: What `close` has still to destroy.
        self._ending = 0
        Endpoint.opened[self._open] = weakref.ref(self)

    def __repr__(self) -> str:
        if self.closed:
            return "<libweft.Endpoint, closed>"
        info = self.info()
        rails = [self.rail_info(i) for i in range(info.rails)]
        names = ", ".join(f"{rail.name} ({rail.fabric})" for rail in rails)
        return f"<libweft.Endpoint {names}: {info.peers} peers>"

    # Its properties.

    @property
    def address(self) -> bytes:
        """The address that peers pass to `connect`; send it to them by any means."""
        return blob(lib.weft_endpoint_address, self.handle)

    def info(self) -> c.EndpointProperties:
        """Its properties."""
        properties = c.EndpointProperties()
        check(lib.weft_endpoint_info(self.handle, properties, None))
        return properties

    def rail_info(self, index: int) -> c.RailProperties:
        """The properties of a rail, from 0 to `info().rails - 1`."""
        properties = c.RailProperties()
        check(lib.weft_rail_info(self.handle, index, properties, None))
        return properties

    def statistics(self) -> c.EndpointStatistics:
        """Its statistics since it was opened."""
        statistics = c.EndpointStatistics()
        check(lib.weft_endpoint_info(self.handle, None, statistics))
        return statistics

    def rail_statistics(self, index: int) -> c.RailStatistics:
        """The statistics of a rail. For a long transfer they show its progress
        (`bytes_written`), if nothing else goes on; the library has no call for one transfer."""
        statistics = c.RailStatistics()
        check(lib.weft_rail_info(self.handle, index, None, statistics))
        return statistics

    def metrics(self) -> str:
        """All metrics, as text for Prometheus: see `weft_endpoint_metrics`."""
        return blob(lib.weft_endpoint_metrics, self.handle).decode()

    # Peers and memory.

    def connect(self, address: bytes, *, timeout: Optional[float] = None) -> Operation[Peer]:
        """Connects to the endpoint with that address; its result is the peer."""
        address = octets(address, "address", "as Endpoint.address of the other side has them")
        options = fill(c.OpOptions, timeout_ns=nanoseconds(timeout))
        operation: Operation[Peer] = Operation(self._completions, "connect", lambda done: self._peer(done.peer))
        self._completions.submit(operation, lib.weft_peer_connect, (self.handle, address, len(address)), options)
        return operation

    def register(self, buffers: Union[Buffer, Sequence[Buffer]], *, access: Access = Access.DEFAULT,
                 rails: int = 0) -> Memory:
        """Registers one buffer, or a list or tuple of them as ranges 0, 1, 2, ...: see `libweft.Buffer`.

        By default peers may write to it and read from it; of a buffer that is read-only (bytes),
        read. rails: a bit for each rail that registers the memory; 0: all. Blocks while the
        NICs learn the pages: before traffic.
        """
        several = isinstance(buffers, (list, tuple)) and not is_pair(buffers)
        return Memory(self, cast(Sequence[Buffer], buffers) if several else [cast(Buffer, buffers)], access, rails)

    def register_file(self, file: "int | str | os.PathLike[str] | IO[Any]", ranges: Sequence[Tuple[int, int]], *,
                      access: Access = Access.DEFAULT, rails: int = 0) -> Memory:
        """Registers ranges of a file (or block device) as ranges 0, 1, 2, ...: pairs of an offset and a
        length, which may lie past the end. file: a path, a file object, or a descriptor; it is opened again,
        so it may be closed afterwards. Peers may write to it if it is open for writing (a path: unless
        access is REMOTE_READ), and read from it. A file that fails gives FileError."""
        if isinstance(file, (str, os.PathLike)):
            opened = os.open(file, os.O_CLOEXEC | (os.O_RDONLY if access == Access.REMOTE_READ else os.O_RDWR))
            try:
                return Memory(self, [], access, rails, (opened, ranges))
            finally:
                os.close(opened)
        if not isinstance(file, int):
            file.flush()
            file = file.fileno()
        return Memory(self, [], access, rails, (file, ranges))

    def allocate(self, length: int, *, node: Optional[int] = None) -> memoryview:
        """Memory that is fastest to move: zeroed, on huge pages, on a NUMA node. It is freed with
        its last view (`numpy.frombuffer` makes one) if an endpoint is open then, and else by the next `allocate`."""
        return allocate(self, length, node)

    def create_counter(self) -> Counter:
        """A counter, of value 0, which transfers of peers raise."""
        return Counter(self)

    def create_watch(self) -> Watch:
        """A number, of value 0, by which transfers wait for streams of GPUs, and streams for
        transfers. (Load CUDA first.)"""
        return Watch(self)

    def expect(self, totals: Mapping[Counter, int], *, timeout: Optional[float] = None,
               done: Optional[Tuple[Watch, int]] = None) -> Operation[None]:
        """Ends when every counter has reached its total; `done`: a watch that is set then, and its value."""
        return expect(self, totals, timeout, done)

    def _peer(self, id: int) -> Peer:
        return self._peers.setdefault(id, Peer(self, id))

    def _submit(self, what: Words, function: Any, args: Tuple[Any, ...], options: c.OpOptions,
                result: Optional[Callable[[Completion], T]]) -> Operation[T]:
        operation: Operation[T] = Operation(self._completions, what, result)
        operation.id = self._completions.submit(operation, function, (self.handle, *args), options)
        return operation

    # Events.

    def poll(self) -> None:
        """Takes the available completions; with manual progress it also drives the rails."""
        self._completions.poll()

    def wait_event(self, timeout: Optional[float] = None) -> Optional[Event]:
        """The next event; None when `timeout` seconds have passed (None: waits for ever). Raises
        ClosedError once the endpoint is shut down and all events are taken."""
        while True:
            event = self._take_event()
            if event is not None:
                return event
            if not self._completions.until(lambda: bool(self._completions.events), timeout):
                return self._take_event()

    async def event(self) -> Event:
        """The next event: a `Message`, a `Notification`, `PeerUp`, `PeerDown`, ..."""
        while True:
            await self._completions.event_arrives()
            event = self._take_event()
            if event is not None:
                return event

    async def events(self) -> AsyncGenerator[Event, None]:
        """All events, until the endpoint is shut down. A peer that sends messages has to wait while the
        program does not take them."""
        while True:
            try:
                event = await self.event()
            except WeftError as error:
                if error.status == c.ERR_CLOSED:
                    return
                raise
            yield event

    def _take_event(self) -> Optional[Event]:
        events = self._completions.events
        while True:
            outermost = not self._using._is_owned()  # type: ignore[attr-defined]
            try:
                with self._using:
                    number = _first(events)
                    cell = events.get(number)
                    if cell is None:
                        if self._completions.over is not None and not events:
                            raise self._completions.over from None
                        if not events:
                            return None
                        continue
                    event = self._event(cell)
                    if outermost:
                        self._release()
            finally:
                if outermost and self._ending:  # a signal handler has closed the endpoint meanwhile
                    self._finish()
            # Nothing can come between this and the return, so that it is either there or taken.
            try:
                del events[number]
            except KeyError:
                continue  # another thread was first
            return event

    def _event(self, cell: List[Any]) -> Event:
        """The event of a completion: made once, but it may be asked for again."""
        raw = Raw._make(cell[0])
        if cell[1] is None:
            cell[1] = event_of(raw, self._peer)
        if has_data(raw):
            self._copied[raw.op] = None
        if raw.kind == c.COMPLETION_PEER_DOWN:
            self._peers.pop(raw.peer, None)
        return cast(Event, cell[1])

    def _release(self) -> None:
        """Releases messages. Not in a signal handler that has interrupted a copy: it may be of such a one."""
        for op in list(self._copied):
            lib.weft_message_release(self._open, op)
            self._copied.pop(op, None)

    # The end.

    def close(self, drain: float = 0) -> None:
        """Refuses new operations, lets the running ones go on for `drain` seconds, cancels the
        rest, notifies the peers, and releases everything. When it has returned, nothing touches the memory
        any longer, every operation has ended, and events can still be taken. Repeating the call is
        harmless; any thread (in asyncio: `async with`, or `asyncio.to_thread`)."""
        handle = self._open
        if handle:
            status = lib.weft_endpoint_shutdown(handle, nanoseconds(drain, "drain") if drain else 0)
            if status == c.ERR_FORKED:
                check(status)  # before anything that another thread of the parent may have held
            if status != c.OK and not self.closed:
                with self._using:
                    # A NIC may still use it, so it must outlive this object.
                    Endpoint._stuck += [*self._memories, self._registrations, self._completions]
                check(status)
            self._completions.until(lambda: False, None)
            self._completions.detach()
        outermost = not self._using._is_owned()  # type: ignore[attr-defined]
        with self._using:
            for cell in list(self._completions.events.values()):
                self._event(cell)
            if self._open:
                self._ending, self._open = self._open, 0
        if outermost and self._ending:
            self._finish()

    def _finish(self) -> None:
        """The end of a close. Another thread may do the same."""
        handle = self._ending
        Endpoint.opened.pop(handle, None)
        status = lib.weft_endpoint_destroy(handle)
        if status != c.ERR_HANDLE:
            check(status)
        for memory in list(self._memories):
            memory._let_go()
        self._memories.clear()
        self._registrations.clear()
        self._ending = 0

    def _keep(self, memory: Memory) -> None:
        """Until the endpoint is closed, if it is not."""
        with self._using:
            if not self.closed:
                self._memories.add(memory)
                return
        memory._let_go()

    def _forget(self, memory: Memory) -> None:
        with self._using:
            self._memories.discard(memory)

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                        trace: Optional[TracebackType]) -> None:
        import asyncio

        closing = asyncio.get_running_loop().run_in_executor(None, self.close)
        canceled: Optional[asyncio.CancelledError] = None
        while not closing.done():
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError as late:
                canceled = late  # memory is in use until it is closed
        if canceled is not None:
            raise canceled

    def __del__(self) -> None:
        opened = getattr(self, "_open", 0)  # `__init__` may have failed
        if opened:
            warnings.warn("a libweft.Endpoint was not closed", ResourceWarning, source=self)
        if opened or getattr(self, "_ending", 0):
            log.outside(functools.partial(_close_quietly, self))


def _close_quietly(endpoint: Endpoint) -> None:
    try:
        endpoint.close()
    except WeftError:
        pass  # in a forked child, say


@atexit.register
def _close_all() -> None:
    """Closes endpoints before the interpreter ends, and with it the memory that NICs write to."""
    for opened in list(Endpoint.opened.values()):
        endpoint = opened()
        if endpoint is not None:
            _close_quietly(endpoint)


# A child has none of its parent's.
os.register_at_fork(after_in_child=Endpoint.opened.clear)


def _first(events: Dict[int, Any]) -> int:
    """The oldest; 0: there is none."""
    while True:
        try:
            return next(iter(events), 0)
        except RuntimeError:
            pass  # another thread has added one between the two calls


def topology() -> Any:
    """This machine's topology, and the rails that an endpoint would open: see `weft_topology`."""

    def call(_: int, buffer: Any, capacity: int, length: Any) -> int:
        # If a NIC appears meanwhile, the loop provides the space.
        status: int = lib.weft_topology(buffer, capacity, length)
        return status

    return json.loads(blob(call, 0))
