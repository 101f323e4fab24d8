"""Writes and reads: of a range, of pages, of lists, and of geometries that are kept."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, TypeVar

from . import c
from ._buffers import Indexes, indexes
from ._library import fill, lib, nanoseconds
from .counters import Counter
from .errors import check
from .memory import Memory, RemoteMemory
from .operation import Completion, Operation
from .peer import Peer
from .watch import Watch, mark

T = TypeVar("T")


class Side(NamedTuple):
    """One side of a transfer of pages. Page `pages[i]` of layer `l` lies in range
    `first_range + l * range_step`, at `offset + pages[i] * page_stride + l * layer_stride`.

    pages: None stands for 0, 1, 2, ...; page_stride: 0 for the length of a page.
    """

    pages: Optional[Indexes] = None
    page_stride: int = 0
    offset: int = 0
    first_range: int = 0
    range_step: int = 0
    layer_stride: int = 0


@dataclass
class Entry:
    """One entry of a list: `length` bytes between a local and a remote range. With 0 bytes it
    needs no memories, only a peer, which it notifies or whose counter it raises."""

    local: Optional[Memory] = None
    remote: Optional[RemoteMemory] = None
    length: int = 0
    local_range: int = 0
    remote_range: int = 0
    local_offset: int = 0
    remote_offset: int = 0
    peer: Optional[Peer] = None
    #: The `Counter.id` of a counter of the peer, or 0.
    counter: int = 0


def _itself(completion: Completion) -> Completion:
    return completion


def _handle(thing: Any) -> int:
    return thing.handle if thing is not None else 0


def _writable(local: Optional[Memory]) -> None:
    if local is not None and not local.writable:
        raise BufferError("the local memory is of a read-only buffer: it cannot be the destination of a read")


class Transfers:
    """The transfers of an `Endpoint`, of which this is a part.

    All of them take these, by keyword:

    notify: the peer gets a `Notification` with this value when all bytes have arrived;
    notify_data: up to 256 bytes that go with it;
    counter: the `Counter.id` of a counter of the peer that is raised by 1 after the last byte, or
    (count_pages=True) with each page;
    latency: goes before other transfers, for small ones that somebody waits for;
    timeout: seconds until it ends with TimedOutError; None: the endpoint's;
    start, done: a `Watch` and the value at which it begins, and that it sets when it has ended.

    The bytes must not change until it has ended. They raise RetryError when there is no room:
    let some end first.
    """

    handle: int

    def _submit(self, function: Any, args: Any, result: Callable[[Completion], T], count: int = 1) -> Operation[T]:
        raise NotImplementedError

    # One range.

    def write(self, local: Memory, remote: RemoteMemory, length: Optional[int] = None, *, local_range: int = 0,
              remote_range: int = 0, local_offset: int = 0, remote_offset: int = 0,
              **common: Any) -> Operation[Completion]:
        """Writes bytes of local memory into remote memory. length: None stands for all from
        `local_offset` to the end of the local range."""
        args = self._range(local, remote, length, local_range, remote_range, local_offset, remote_offset, common)
        return self._transfer(lib.weft_write, args)

    def read(self, local: Memory, remote: RemoteMemory, length: Optional[int] = None, *, local_range: int = 0,
             remote_range: int = 0, local_offset: int = 0, remote_offset: int = 0,
             **common: Any) -> Operation[Completion]:
        """Reads bytes of remote memory into local memory; otherwise as `write`."""
        _writable(local)
        args = self._range(local, remote, length, local_range, remote_range, local_offset, remote_offset, common)
        return self._transfer(lib.weft_read, args)

    def _range(self, local: Memory, remote: RemoteMemory, length: Optional[int], local_range: int,
               remote_range: int, local_offset: int, remote_offset: int, common: Any) -> c.RangeArgs:
        if length is None:
            if not 0 <= local_range < len(local.lengths) or not 0 <= local_offset <= local.lengths[local_range]:
                raise ValueError(f"range {local_range} has no offset {local_offset}")
            length = local.lengths[local_range] - local_offset
        return fill(c.RangeArgs, local=_handle(local), remote=_handle(remote), local_range=local_range,
                    remote_range=remote_range, local_offset=local_offset, remote_offset=remote_offset,
                    len=length, **_common(**common))

    # Pages.

    def write_pages(self, local: Memory, remote: RemoteMemory, page_length: int, page_count: int, *,
                    layers: int = 1, here: Side = Side(), there: Side = Side(),
                    **common: Any) -> Operation[Completion]:
        """Writes pages x layers of local memory (`here` says where they lie) into pages of remote
        memory (`there`)."""
        args = _pages(local, remote, page_length, page_count, layers, here, there, common)
        return self._transfer(lib.weft_write_pages, args)

    def read_pages(self, local: Memory, remote: RemoteMemory, page_length: int, page_count: int, *,
                   layers: int = 1, here: Side = Side(), there: Side = Side(),
                   **common: Any) -> Operation[Completion]:
        """Reads pages of remote memory into pages of local memory; otherwise as `write_pages`."""
        _writable(local)
        args = _pages(local, remote, page_length, page_count, layers, here, there, common)
        return self._transfer(lib.weft_read_pages, args)

    def keep_pages(self, local: Memory, remote: RemoteMemory, page_length: int, page_count: int, *,
                   layers: int = 1, here: Side = Side(), there: Side = Side(), count_pages: bool = False,
                   latency: bool = False) -> Kept:
        """Checks and copies a geometry once, for any number of transfers."""
        common = {"count_pages": count_pages, "latency": latency}
        args = _pages(local, remote, page_length, page_count, layers, here, there, common)
        return Kept(self, lib.weft_pages_keep, args, [local], 1)

    # Lists.

    def write_list(self, entries: Sequence[Entry], *, each_peer: bool = False, **common: Any) -> Operation[Completion]:
        """Writes the entries of a list, of any memories and peers.

        It ends once, when all peers have everything or have failed; with `each_peer` its
        `completions` has one for each peer, and it raises what the first failed with.
        """
        args, peers = _list(entries, each_peer, common)
        return self._transfer(lib.weft_write_list, args, peers)

    def read_list(self, entries: Sequence[Entry], *, each_peer: bool = False, **common: Any) -> Operation[Completion]:
        """Reads the entries of a list; otherwise as `write_list`."""
        for entry in entries:
            _writable(entry.local)
        args, peers = _list(entries, each_peer, common)
        return self._transfer(lib.weft_read_list, args, peers)

    def keep_list(self, entries: Sequence[Entry]) -> Kept:
        """Checks and copies a list once, for any number of transfers."""
        args, _ = _list(entries, False, {})
        local = [entry.local for entry in entries if entry.local is not None]
        return Kept(self, lib.weft_list_keep, args, local, _peers(entries))

    def _transfer(self, function: Any, args: Any, count: int = 1) -> Operation[Completion]:
        return self._submit(function, args, _itself, count)


class Kept:
    """A geometry that was checked once; made by `Endpoint.keep_pages` and `keep_list`. Its
    memories are in use until it is released. Also a context manager."""

    def __init__(self, endpoint: Transfers, keep: Any, args: Any, local: Sequence[Memory], peers: int) -> None:
        self._endpoint, self._local, self._peers = endpoint, local, peers
        handle = ctypes.c_void_p()
        check(keep(endpoint.handle, args, ctypes.byref(handle)))
        self.handle = handle.value or 0

    def write(self, *, each_peer: bool = False, **common: Any) -> Operation[Completion]:
        """Writes it, as `Endpoint.write_pages` or `write_list` would."""
        return self._use(lib.weft_write_kept, each_peer, common)

    def read(self, *, each_peer: bool = False, **common: Any) -> Operation[Completion]:
        """Reads it, as `Endpoint.read_pages` or `read_list` would."""
        for local in self._local:
            _writable(local)
        return self._use(lib.weft_read_kept, each_peer, common)

    def _use(self, function: Any, each_peer: bool, common: Any) -> Operation[Completion]:
        args = fill(c.KeptArgs, **_common(each_peer=each_peer, **common))
        kept = self.handle

        def call(endpoint: int, args: Any, transfer: Any) -> int:
            status: int = function(endpoint, kept, args, transfer)
            return status

        return self._endpoint._transfer(call, args, self._peers if each_peer else 1)

    def release(self) -> None:
        """Gives it back; transfers that use it go on. Again is harmless."""
        if self.handle and self._endpoint.handle:
            check(lib.weft_kept_release(self.handle))
        self.handle = 0

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _common(notify: Optional[int] = None, notify_data: bytes = b"", counter: int = 0, count_pages: bool = False,
            latency: bool = False, timeout: Optional[float] = None, each_peer: bool = False,
            start: Optional[Tuple[Watch, int]] = None, done: Optional[Tuple[Watch, int]] = None) -> Any:
    """The fields that all transfers have."""
    if isinstance(counter, Counter):
        raise TypeError("counter is the id of a counter of the peer: its Counter.id, which the peer tells")
    fields: Dict[str, Any] = {"timeout_ns": nanoseconds(timeout), "notify": notify or 0, "notify_data_len": len(notify_data)}
    if notify_data:
        fields["notify_data"] = ctypes.cast(ctypes.c_char_p(notify_data), ctypes.c_void_p)
    if counter:
        fields["counter"] = counter
    fields.update(**mark("start", start), **mark("done", done))
    fields["flags"] = (
        (notify is not None) * c.NOTIFY | latency * c.CLASS_LATENCY | count_pages * c.COUNT_PAGES
        | each_peer * c.COMPLETE_EACH_PEER)
    return fields


def _pages(local: Memory, remote: RemoteMemory, page_length: int, page_count: int, layers: int, here: Side,
           there: Side, common: Any) -> c.PagesArgs:
    fields = _common(**common)
    held: List[Any] = []
    for name, side in (("local", here), ("remote", there)):
        pages, count, keep = indexes(side.pages, f"the {name} pages")
        if side.pages is not None and count < page_count:
            raise ValueError(f"page_count is {page_count}, but there are {count} {name} pages")
        held.append(keep)
        fields.update({
            f"{name}_pages": pages, f"{name}_page_stride": side.page_stride, f"{name}_offset": side.offset,
            f"{name}_layer_stride": side.layer_stride, f"{name}_first_range": side.first_range,
            f"{name}_range_step": side.range_step})
    args = fill(c.PagesArgs, local=_handle(local), remote=_handle(remote), page_len=page_length,
                page_count=page_count, layer_count=layers, **fields)
    args.held = held  # until the call has copied them
    return args


def _list(entries: Sequence[Entry], each_peer: bool, common: Any) -> Tuple[c.ListArgs, int]:
    array = (c.ListEntry * len(entries))()
    for place, entry in zip(array, entries):
        place.__init__(*_entry(entry))  # in place
    args = fill(c.ListArgs, entries=array, count=len(entries), **_common(each_peer=each_peer, **common))
    return args, _peers(entries) if each_peer else 1


def _entry(entry: Entry) -> Tuple[int, ...]:
    made = fill(c.ListEntry, local=_handle(entry.local), remote=_handle(entry.remote),
                peer=entry.peer.id if entry.peer is not None else 0, local_range=entry.local_range,
                remote_range=entry.remote_range, local_offset=entry.local_offset,
                remote_offset=entry.remote_offset, len=entry.length, counter=entry.counter)
    return tuple(getattr(made, name) for name, *_ in c.ListEntry._fields_)


def _peers(entries: Sequence[Entry]) -> int:
    ids = {e.peer.id if e.peer is not None else e.remote.peer.id if e.remote is not None else 0 for e in entries}
    return len(ids) or 1
