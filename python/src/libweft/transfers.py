"""Writes and reads: of a range, of pages, of lists, and prepared geometries."""

from __future__ import annotations

import ctypes
import functools
import sys
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

from . import c, log
from ._buffers import Buffer, Indexes, described, indexes
from ._hot import native
from ._library import fill, lib, nanoseconds, number, octets, token
from ._progress import Progress
from ._pure import wake
from ._registrations import Local, Registrations, Use
from .completion import Completion
from .counters import Counter
from .errors import ClosedError, check
from .memory import Memory, RemoteMemory
from .operation import Operation, Words
from .peer import Peer
from .watch import Watch, mark

T = TypeVar("T")


class Side(NamedTuple):
    """Where the pages of one side of a transfer lie. Page `pages[i]` of layer `l` lies in range
    `first_range + l * range_step`, at `offset + pages[i] * page_stride + l * layer_stride`.

    pages: None stands for 0, 1, 2, ...; page_stride: 0 for the length of a page.
    """

    pages: Optional[Indexes] = None
    page_stride: int = 0
    offset: int = 0
    first_range: int = 0
    range_step: int = 0
    layer_stride: int = 0


#: One side of a transfer of pages: a `Side`, or indexes alone, as `Side(pages)`; None: 0, 1, 2, ...
PagesOf = Union[Side, Indexes, None]

#: A watch, and a value of it.
At = Tuple[Watch, int]


@dataclass
class Entry:
    """One entry of a list: `length` bytes between a local and a remote range. With 0 bytes it
    needs no memories, only a peer, which it notifies or whose counter it raises."""

    local: Union[Memory, Buffer, None] = None
    remote: Optional[RemoteMemory] = None
    length: int = 0
    local_range: int = 0
    remote_range: int = 0
    local_offset: int = 0
    remote_offset: int = 0
    peer: Optional[Peer] = None
    #: The `Counter.id` of a counter of the peer, or 0.
    counter: int = 0


def _writable(local: Optional[Local]) -> None:
    if local is not None and not local.writable:
        raise BufferError("the local memory is of a read-only buffer: it cannot be the destination of a read")


def _remote(remote: Any) -> RemoteMemory:
    if not isinstance(remote, RemoteMemory):
        raise TypeError(f"the remote memory is {described(remote)}: it must be a RemoteMemory, which Peer.import_memory makes of the "
                        "peer's Memory.export()")
    return remote


class Transfers:
    """The transfers of an `Endpoint`, of which this is a part.

    Keywords that several of them take:

    notify: the peer gets a `Notification` with this value when all bytes have arrived;
    notify_data: up to 256 bytes that go with it;
    notify_failure: it gets one, with `status` set, if the transfer fails, too;
    counter: the `Counter.id` of a counter of the peer that is raised by 1 after the last byte, or
    (count_pages=True) with each page;
    latency: precedes other transfers, for small ones that the program waits for;
    timeout: seconds until it ends with TimedOutError; None: the endpoint's;
    start, done: a `Watch` and the value at which it begins, and that it sets when it has ended;
    grant: the 16 bytes of the peer's grant that it is under (`grant`), which came with its request;
    durable: of writes into a peer's files: they survive a power cut of the peer before it has ended (`WEFT_DURABLE`).

    The bytes must not change until it has ended. Of a GPU's memory: no kernel is waited for without `start`, so call
    `torch.cuda.synchronize()` first, also before a peer may reach it (docs/gpu.md). They raise RetryError when there is no room:
    let some end first.

    local memory is a `Memory`, or what `Endpoint.register` would take: then it is registered for this process alone. Numpy arrays,
    torch tensors and memoryviews stay registered until they go (of the last 1,024 for an endpoint), found by identity, address and
    length. Others (bytes, bytearray, array.array, mmap, an address) are registered for each operation, and held until it has ended and
    its `Operation` has gone: register one that is moved more than once. A torch tensor whose storage moves (`resize_`) is registered
    anew by its next transfer, and must not move while one is under way; one whose storage was freed and is back at its address,
    as FSDP's may be, is not noticed: register that yourself.
    """

    #: 0 before it is opened, and once it is closed.
    _open: int = 0
    _completions: Progress
    _registrations: Registrations

    @property
    def handle(self) -> int:
        """`weft_endpoint *`; raises ClosedError once the endpoint is closed."""
        if self._open:
            return self._open
        raise ClosedError(c.ERR_CLOSED, "the endpoint is closed")

    @property
    def closed(self) -> bool:
        """Whether `close` has succeeded."""
        return not self._open

    def _submit(self, what: Words, function: Any, args: Tuple[Any, ...], options: c.OpOptions,
                result: Optional[Callable[[Completion], T]]) -> Operation[T]:
        raise NotImplementedError

    def _local(self, local: "Memory | Buffer", name: str = "the local memory") -> Local:
        """A buffer is registered."""
        return local if isinstance(local, Memory) else self._registrations.use(self, local, name)

    # One range.

    def write(self, local: Union[Memory, Buffer], remote: RemoteMemory, length: Optional[int] = None, *, local_offset: int = 0,
              remote_offset: int = 0, notify: Optional[int] = None, notify_data: bytes = b"", counter: int = 0,
              count_pages: bool = False, latency: bool = False, timeout: Optional[float] = None,
              start: Optional[At] = None, done: Optional[At] = None, grant: bytes = b"",
              notify_failure: bool = False, durable: bool = False) -> Operation[Completion]:
        """Writes bytes of local memory into remote memory. Offsets count from the start of a
        memory, its ranges one behind the other; the bytes lie in one range. length: None stands
        for all from `local_offset` to the end of its range."""
        used: Any = local
        try:
            here, there = used.handle, remote.handle
        except AttributeError:
            there = _remote(remote).handle
            used = self._local(local)
            here = used.handle
        if length is None:
            length = _rest(used, local_offset)
        args = (self._open or self.handle, here, local_offset, there, remote_offset, length)
        return submit(self._completions, "weft_write", (_range_words, "write", length, remote, notify, used), args, 1, notify, notify_data,
                      counter, count_pages, latency, timeout, start, done, grant, notify_failure, False, durable)

    def read(self, local: Union[Memory, Buffer], remote: RemoteMemory, length: Optional[int] = None, *, local_offset: int = 0,
             remote_offset: int = 0, notify: Optional[int] = None, notify_data: bytes = b"", counter: int = 0,
             count_pages: bool = False, latency: bool = False, timeout: Optional[float] = None,
             start: Optional[At] = None, done: Optional[At] = None, grant: bytes = b"",
             notify_failure: bool = False) -> Operation[Completion]:
        """Reads bytes of remote memory into local memory; otherwise as `write`."""
        used: Any = local
        try:
            here, there = used.handle, remote.handle
        except AttributeError:
            there = _remote(remote).handle
            used = self._local(local)
            here = used.handle
        _writable(used)
        if length is None:
            length = _rest(used, local_offset)
        args = (self._open or self.handle, here, local_offset, there, remote_offset, length)
        return submit(self._completions, "weft_read", (_range_words, "read", length, remote, notify, used), args, 1, notify, notify_data,
                      counter, count_pages, latency, timeout, start, done, grant, notify_failure, False, False)

    # Pages.

    def write_pages(self, local_memory: Union[Memory, Buffer], remote_memory: RemoteMemory, page_length: int,
                    page_count: Optional[int] = None, *, layers: int = 1, local: PagesOf = None,
                    remote: PagesOf = None, notify: Optional[int] = None, notify_data: bytes = b"", counter: int = 0,
                    count_pages: bool = False, latency: bool = False, timeout: Optional[float] = None,
                    start: Optional[At] = None, done: Optional[At] = None, grant: bytes = b"",
                    notify_failure: bool = False, durable: bool = False) -> Operation[Completion]:
        """Writes pages of local memory into pages of remote memory, of each layer.

        local, remote: which pages, and where they lie: a `Side`, or indexes alone (a list, a numpy
        array, a torch tensor). page_count: None stands for as many as the indexes are."""
        used = self._local(local_memory)
        args, what = _pages("write", used, remote_memory, page_length, page_count, layers, local, remote)
        return submit(self._completions, "weft_write_pages", (_notifying, what, notify, used), (self.handle, *args), 1, notify,
                      notify_data, counter, count_pages, latency, timeout, start, done, grant, notify_failure, False, durable)

    def read_pages(self, local_memory: Union[Memory, Buffer], remote_memory: RemoteMemory, page_length: int,
                   page_count: Optional[int] = None, *, layers: int = 1, local: PagesOf = None,
                   remote: PagesOf = None, notify: Optional[int] = None, notify_data: bytes = b"", counter: int = 0,
                   count_pages: bool = False, latency: bool = False, timeout: Optional[float] = None,
                   start: Optional[At] = None, done: Optional[At] = None, grant: bytes = b"",
                   notify_failure: bool = False) -> Operation[Completion]:
        """Reads pages of remote memory into pages of local memory; otherwise as `write_pages`."""
        used = self._local(local_memory)
        _writable(used)
        args, what = _pages("read", used, remote_memory, page_length, page_count, layers, local, remote)
        return submit(self._completions, "weft_read_pages", (_notifying, what, notify, used), (self.handle, *args), 1, notify,
                      notify_data, counter, count_pages, latency, timeout, start, done, grant, notify_failure, False, False)

    def prepare_pages(self, local_memory: Union[Memory, Buffer], remote_memory: RemoteMemory, page_length: int,
                      page_count: Optional[int] = None, *, layers: int = 1, local: PagesOf = None,
                      remote: PagesOf = None, count_pages: bool = False, latency: bool = False) -> Prepared:
        """Checks and copies a geometry once, for any number of transfers. Arguments as of `write_pages`."""
        used = self._local(local_memory)
        args, what = _pages("", used, remote_memory, page_length, page_count, layers, local, remote)
        flags = count_pages * c.COUNT_PAGES | latency * c.CLASS_LATENCY
        return Prepared(self, what, lib.weft_pages_prepare, (*args, flags), [used], 1)

    # Lists.

    def write_list(self, entries: Sequence[Entry], *, each_peer: bool = False, notify: Optional[int] = None,
                   notify_data: bytes = b"", latency: bool = False, timeout: Optional[float] = None,
                   start: Optional[At] = None, done: Optional[At] = None, grant: bytes = b"",
                   notify_failure: bool = False, durable: bool = False) -> Operation[Completion]:
        """Writes the entries of a list, of any memories and peers, each of which gets the notification.

        It ends once, when all peers have everything or have failed; with `each_peer` its
        `completions` has one for each peer, and it raises what the first failed with.
        """
        entries, used = self._used(entries)
        return submit(self._completions, "weft_write_list", (_notifying, _entries("write", entries), notify, used),
                      (self.handle, *_list(entries)), _peers(entries) if each_peer else 1, notify, notify_data, 0, False, latency,
                      timeout, start, done, grant, notify_failure, each_peer, durable)

    def read_list(self, entries: Sequence[Entry], *, each_peer: bool = False, notify: Optional[int] = None,
                  notify_data: bytes = b"", latency: bool = False, timeout: Optional[float] = None,
                  start: Optional[At] = None, done: Optional[At] = None, grant: bytes = b"",
                  notify_failure: bool = False) -> Operation[Completion]:
        """Reads the entries of a list; otherwise as `write_list`."""
        entries, used = self._used(entries)
        for local in used:
            _writable(local)
        return submit(self._completions, "weft_read_list", (_notifying, _entries("read", entries), notify, used),
                      (self.handle, *_list(entries)), _peers(entries) if each_peer else 1, notify, notify_data, 0, False, latency,
                      timeout, start, done, grant, notify_failure, each_peer, False)

    def prepare_list(self, entries: Sequence[Entry]) -> Prepared:
        """Checks and copies a list once, for any number of transfers."""
        entries, used = self._used(entries)
        return Prepared(self, _entries("", entries), lib.weft_list_prepare, (*_list(entries), 0), used, _peers(entries))

    def _used(self, entries: Sequence[Entry]) -> Tuple[List[Entry], List[Local]]:
        """The entries with memories in the place of buffers, and these memories."""
        made, used = list(entries), []
        for at, entry in enumerate(entries):
            if entry.local is not None:
                local: Any = self._local(entry.local, f"the local memory of entry {at}")
                if local is not entry.local:
                    made[at] = replace(entry, local=local)
                used.append(local)
        return made, used

    # Grants.

    def grant(self, memory: Memory, peer: Peer, page_length: int = 0, pages: PagesOf = None, *,
              page_count: Optional[int] = None, layers: int = 1, access: int = 0, timeout: Optional[float] = None,
              notify: Optional[int] = None) -> bytes:
        """Lets a peer reach a memory, or some pages of it (as its `remote` side has them), until `revoke`.

        Returns 16 bytes that go to the peer with a request, and that it passes as `grant` to its
        transfers. access: `Access.REMOTE_*`, 0: what the memory has. Memory that is registered with
        `Access.GRANTED` is reached under grants alone. timeout: seconds after which the grant ends as by
        a revoke (revoke it all the same); notify: the value of one `Notification`, with `status` set, if
        the peer ends before, or the time is over."""
        if not isinstance(memory, Memory):
            raise TypeError(f"memory is {described(memory)}: a grant is of a Memory of Endpoint.register, whose export() the peer imports")
        held: List[Any] = []
        fields: Dict[str, Any] = {}
        if notify is not None:
            fields.update(flags=c.NOTIFY_FAILURE, notify=notify)
        if page_length:
            side, count = _side("granted", pages, held)
            if page_count is None:
                page_count = count or 0
            if count is not None and count < page_count:
                raise ValueError(f"{page_count} pages are to be granted, but there are {count} granted pages")
            fields.update(pages=ctypes.pointer(side), page_len=number("page_length", page_length), page_count=number("page_count", page_count),
                          layer_count=number("layers", layers, 32))
        elif pages is not None or page_count is not None or layers != 1:
            raise ValueError("page_length is needed with pages, page_count or layers: a grant without it is of the whole memory")
        args, made = fill(c.GrantArgs, access=access, timeout_ns=nanoseconds(timeout), **fields), c.GrantToken()
        check(lib.weft_grant_create(memory.handle, peer.id, args, ctypes.byref(made)))
        return bytes(made.bytes)

    def revoke(self, grant: bytes, *, timeout: Optional[float] = None) -> Operation[Completion]:
        """Revokes a grant. When it has ended, nothing arrives under the grant any longer: its pages can
        be used again. What the peer has under it ends there with RevokedError."""
        options = fill(c.OpOptions, timeout_ns=nanoseconds(timeout))
        return self._submit("a revoke", lib.weft_grant_revoke, (token(grant),), options, None)


class Prepared:
    """A geometry that was checked once; made by `Endpoint.prepare_pages` and `prepare_list`. Its
    memories are in use until it is released. Also a context manager."""

    def __init__(self, endpoint: Transfers, what: str, prepare: Any, args: Tuple[Any, ...], local: Sequence[Local],
                 peers: int) -> None:
        self._endpoint, self._what, self._local, self._peers = endpoint, what, local, peers
        handle = ctypes.c_void_p()
        check(prepare(endpoint.handle, *args, ctypes.byref(handle)))
        self.handle: int = handle.value or 0

    def __repr__(self) -> str:
        return f"<libweft.Prepared {self._what}{'' if self.handle else ', released'}>"

    def write(self, *, each_peer: bool = False, notify: Optional[int] = None, notify_data: bytes = b"", counter: int = 0,
              count_pages: bool = False, latency: bool = False, timeout: Optional[float] = None,
              start: Optional[At] = None, done: Optional[At] = None, grant: bytes = b"",
              notify_failure: bool = False, durable: bool = False) -> Operation[Completion]:
        """Writes it, as `Endpoint.write_pages` or `write_list` would."""
        return submit(self._endpoint._completions, "weft_write_prepared", (_notifying, f"write of {self._what}", notify, self._local),
                      (self._endpoint.handle, self.handle), self._peers if each_peer else 1, notify, notify_data, counter,
                      count_pages, latency, timeout, start, done, grant, notify_failure, each_peer, durable)

    def read(self, *, each_peer: bool = False, notify: Optional[int] = None, notify_data: bytes = b"", counter: int = 0,
             count_pages: bool = False, latency: bool = False, timeout: Optional[float] = None,
             start: Optional[At] = None, done: Optional[At] = None, grant: bytes = b"",
             notify_failure: bool = False) -> Operation[Completion]:
        """Reads it, as `Endpoint.read_pages` or `read_list` would."""
        for local in self._local:
            _writable(local)
        return submit(self._endpoint._completions, "weft_read_prepared", (_notifying, f"read of {self._what}", notify, self._local),
                      (self._endpoint.handle, self.handle), self._peers if each_peer else 1, notify, notify_data, counter,
                      count_pages, latency, timeout, start, done, grant, notify_failure, each_peer, False)

    def release(self) -> None:
        """Gives it back; transfers that use it go on. Again is harmless."""
        if self.handle and not self._endpoint.closed:
            check(lib.weft_prepared_destroy(self.handle))
        self.handle = 0

    def __del__(self) -> None:
        if getattr(self, "handle", 0) and not self._endpoint.closed:
            log.outside(functools.partial(lib.weft_prepared_destroy, self.handle))  # or its memories are in use until the endpoint is closed

    def __enter__(self) -> Prepared:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def submit(progress: Progress, function: str, words: Words, args: Tuple[Any, ...], count: int, *options: Any) -> Operation[Completion]:
    """Calls the library's `function(*args, ...)`, a transfer's, with options as `_options` has them. `count`: its completions."""
    operation: Operation[Completion] = Operation(progress, words, None, count)
    operation.id = progress.submit(operation, getattr(lib, function), _checked(args) if len(args) == 6 else args, _options(*options))
    return operation


#: Options without any.
_PLAIN = bytes(c.OpOptions())


def _options(notify: Optional[int], notify_data: bytes, counter: int, count_pages: bool, latency: bool,
             timeout: Optional[float], start: Optional[At], done: Optional[At], grant: bytes,
             notify_failure: bool, each_peer: bool = False, durable: bool = False) -> c.OpOptions:
    """The options that transfers have."""
    if not (counter or count_pages or latency or each_peer or durable or notify_data or grant) and (
            notify is None and timeout is None and start is None and done is None):
        return c.OpOptions.from_buffer_copy(_PLAIN)
    if isinstance(counter, Counter):
        raise TypeError("counter is the id of a counter of the peer: its Counter.id, which the peer sends")
    notify_data = octets(notify_data, "notify_data")
    fields: Dict[str, Any] = {"timeout_ns": nanoseconds(timeout), "notify": notify or 0,
                              "notify_data_len": len(notify_data)}
    if notify_data:
        fields["notify_data"] = ctypes.cast(ctypes.c_char_p(notify_data), ctypes.c_void_p)
    if counter:
        fields["counter"] = counter
    if grant:
        fields["grant"] = token(grant)
    fields.update(**mark("start", start), **mark("done", done))
    fields["flags"] = (
        (notify is not None) * c.NOTIFY | notify_failure * c.NOTIFY_FAILURE | latency * c.CLASS_LATENCY | count_pages * c.COUNT_PAGES
        | each_peer * c.COMPLETE_EACH_PEER | durable * c.DURABLE)
    return fill(c.OpOptions, **fields)


def _rest(local: Local, offset: int) -> int:
    """From an offset to the end of its range."""
    offset = number("local_offset", offset)
    for length in local.lengths:
        if offset < length:
            return length - offset
        offset -= length
    raise ValueError(f"the local memory has no offset {sum(local.lengths) + offset}")


def _checked(args: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """A range's, which fit."""
    endpoint, local, local_offset, remote, remote_offset, length = args
    if type(local_offset) is type(remote_offset) is type(length) is int and not (local_offset | remote_offset | length) >> 64:
        return args
    return (endpoint, local, number("local_offset", local_offset), remote, number("remote_offset", remote_offset),
            number("length", length))


def _range_words(verb: str, length: int, remote: RemoteMemory, notify: Optional[int], _: Local) -> str:
    return _notifying(f"{verb} of {length} bytes{_with(remote)}", notify)


def _notifying(what: str, notify: Optional[int], _: Any = None) -> str:
    return what if notify is None else f"{what}, notify {notify}"


def _pages(verb: str, local_memory: Local, remote_memory: RemoteMemory, page_length: int, page_count: Optional[int],
           layers: int, local: PagesOf, remote: PagesOf) -> Tuple[Tuple[Any, ...], str]:
    remote_handle = _remote(remote_memory).handle
    held: List[Any] = []
    sides: Dict[str, Any] = {}
    counts: Dict[str, int] = {}
    for name, pages in (("local", local), ("remote", remote)):
        sides[name], count = _side(name, pages, held)
        if count is not None:
            counts[name] = count
    if page_count is None:
        if not counts:
            raise ValueError("page_count is needed where neither local nor remote has indexes")
        page_count = max(counts.values())
    for name, count in counts.items():
        if count < page_count:
            raise ValueError(f"{page_count} pages are to move, but there are {count} {name} pages")
    made = fill(c.Pages, page_len=page_length, page_count=page_count, layer_count=layers, **sides)
    made.held = held  # until the call has copied them
    what = f"{page_count} pages of {page_length} bytes{f' x {layers} layers' if layers > 1 else ''}{_with(remote_memory)}"
    return (local_memory.handle, remote_handle, made), f"{verb} of {what}" if verb else what


def _side(name: str, pages: PagesOf, held: List[Any]) -> Tuple[c.PageSide, Optional[int]]:
    """A side and how many indexes it has, if any; what they lie in is held."""
    side = pages if isinstance(pages, Side) else Side(pages)
    pages, count = None, None
    if side.pages is not None:
        pages, count, keep = indexes(side.pages, f"the {name} pages")
        held.append(keep)
    made = fill(c.PageSide, pages=pages, page_stride=side.page_stride, offset=side.offset,
                layer_stride=side.layer_stride, first_range=side.first_range, range_step=side.range_step)
    return made, count


def _with(remote: RemoteMemory) -> str:
    return f", peer {remote.peer.id:#x}"


def _entries(verb: str, entries: Sequence[Entry]) -> str:
    what = f"a list of {len(entries)} entries"
    return f"{verb} of {what}" if verb else what


def _list(entries: Sequence[Entry]) -> Tuple[Any, int]:
    array = (c.ListEntry * len(entries))()
    for place, entry in zip(array, entries):
        place.__init__(*_entry(entry))  # in place
    return array, len(entries)


def _entry(entry: Entry) -> Tuple[int, ...]:
    local: Any = entry.local
    made = fill(c.ListEntry, local=0 if local is None else local.handle,
                remote=0 if entry.remote is None else _remote(entry.remote).handle,
                peer=entry.peer.id if entry.peer is not None else 0, local_range=entry.local_range,
                remote_range=entry.remote_range, local_offset=entry.local_offset,
                remote_offset=entry.remote_offset, len=entry.length, counter=entry.counter)
    return tuple(getattr(made, name) for name, *_ in c.ListEntry._fields_)


def _peers(entries: Sequence[Entry]) -> int:
    ids = {e.peer.id if e.peer is not None else e.remote.peer.id if e.remote is not None else 0 for e in entries}
    return len(ids) or 1


if native is not None:
    # From 3.14, tuples keep their hash, where only `tuple.__new__` knows of it.
    made_by: Any = functools.partial(tuple.__new__, Completion) if sys.version_info >= (3, 14) else None
    native.configure(Operation, Completion, made_by, check, wake, submit)
    submit = native.submit
