"""Weights from any number of sources to targets that are sharded in another way, over every NIC at once.

    source = Source([Shard("w", "F32", (4096, 1024), 0, 2048, array)])       # rows 0 to 2047 of a tensor
    send_somehow(source.manifest())

    target = Target([Shard("w", "F32", (4096, 1024), 1024, 3072, mine)], manifests)
    target.pull(verify=True)                                                 # again for the next version of the weights

Tensors are sharded by their first dimension. Targets read; what several sources have is shared among them, and read from
the others when one dies. On the command line, with safetensors files:

    python -m libweft.weights serve --listen HOST:PORT [--version TEXT] [--direct] FILE...
    python -m libweft.weights pull --from HOST:PORT [--from HOST:PORT]... --out FILE [--shard 0/2] [--verify] [--timeout SECONDS] [--direct]

`manifest_of` asks such a `serve` for its manifest.

A shard may lie in a file (`FileRange`), on either side: then its bytes go between the disk and the peer, and neither memory nor
the page cache holds them (`--direct`; see docs/files.md).

A process that can connect to the port gets everything needed to read the memory: keep it inside, or give the endpoints a secret
(`secret_file`, or the variable `WEFT_SECRET_FILE`).
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import ctypes
import errno
import fcntl
import glob
import importlib
import itertools
import json
import math
import mmap
import os
import shutil
import signal
import socket
import sys
import threading
import time
import zlib
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, TextIO, Tuple, Union

from ._buffers import Buffer, Held, described, synchronize
from ._safetensors import Tensor, dtype_and_shape, dtype_of, header_for, header_of, parsed, placed, row_of, size_of
from .endpoint import Access, Endpoint
from .errors import ClosedError, RetryError, WeftError
from .events import Message, PeerDown
from .memory import Memory, RemoteMemory
from .operation import Operation
from .peer import Peer
from .transfers import Entry

__all__ = ["Source", "Target", "Shard", "FileRange", "manifest_of", "shards_of", "create"]

#: What is read from one source at a time is cut into pieces of this many bytes, and is lost at most when it dies.
PIECE = 8 << 20
#: Files move over these.
DIRECT: Dict[str, Any] = {"fabric": os.environ.get("WEFT_FABRIC") or "host,tcp"}
#: Of manifests.
FORMAT = 2
#: Reads of one source that are under way at once, and pieces in each.
DEPTH, BATCH = 2, 8
#: Bytes in the middle of a tensor or a piece that sources are compared by.
SAMPLE = 4096
#: Checksums that are asked for at once: an endpoint keeps a limited number of messages that were not taken.
QUESTIONS = 64
LOOPBACK = "127.0.0.1"
#: By the key that has its address, which no other's manifest has: what a manifest is of.
KINDS = {"address": "Source", "checkpoints": "Store", "slab": "Slab"}
#: Those of all targets, which may share an endpoint: each takes the answers to its own.
_questions = itertools.count()
#: Seconds in which a source has to say what it has.
PATIENCE = 10.0


class FileRange(NamedTuple):
    """Bytes of a file, in the place of a buffer."""

    path: str
    offset: int
    length: int


class Shard(NamedTuple):
    """Rows `begin` to `end` of a tensor, without row `end`, in a contiguous buffer, a tensor, or a `FileRange`. `dtype` and
    `shape` are the whole tensor's; one without dimensions has one row.

    `dtype` is one of safetensors: BOOL, U8, I8, U16, I16, U32, I32, U64, I64, F16, BF16, F32, F64, C64, F8_E4M3, F8_E5M2,
    F8_E8M0, F8_E4M3FNUZ, F8_E5M2FNUZ, F6_E2M3, F6_E3M2, F4. It is that of the buffer, which may also be bytes: whatever has no
    dtype, or has unsigned 8-bit integers (`view("uint8")`). What takes shards raises ValueError for another one, for rows that the
    shape does not have, and for a buffer that has not the size of the rows."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    begin: int
    end: int
    buffer: Any

    @property
    def row(self) -> int:
        """Bytes of a row."""
        return row_of(self.name, self.dtype, self.shape)

    @property
    def rows(self) -> int:
        """How many the whole tensor has."""
        return self.shape[0] if self.shape else 1


#: Whole tensors by their names (numpy, torch, or any bytes), or rows of some.
Tensors = Union[Mapping[str, Buffer], Sequence[Shard]]


def shards_from(tensors: Tensors, once: bool = False) -> List[Shard]:
    """All as shards. Raises ValueError for what cannot be one; `once`: also for rows that are in two of them."""
    if isinstance(tensors, Mapping):
        whole = [(name, *dtype_and_shape(name, tensor, length_of(tensor, name)), tensor) for name, tensor in tensors.items()]
        tensors = [Shard(name, dtype, shape, 0, shape[0] if shape else 1, tensor) for name, dtype, shape, tensor in whole]
    shards = list(tensors)
    for shard in shards:
        if not isinstance(shard, Shard):
            raise TypeError(f"a list is of Shards, and one is {described(shard)}")
        name, dtype, shape, begin, end, buffer = shard
        if not 0 <= begin <= end <= shard.rows:
            raise ValueError(f"{name}: rows {begin} to {end} are none of {dtype} {tuple(shape)}, which has {shard.rows}")
        wanted, own, length = (end - begin) * shard.row, dtype_of(name, buffer), length_of(buffer, name)
        if own not in (None, "U8", dtype):
            raise ValueError(f"{name} is {dtype}, the buffer is {own}")
        if length != wanted:
            raise ValueError(f"{name}: rows {begin} to {end} of {dtype} {tuple(shape)} are {wanted} bytes, the buffer has {length}")
    ordered = sorted((s for s in shards if once and s.begin < s.end), key=lambda s: (s.name, s.begin))
    for first, second in zip(ordered, ordered[1:]):
        if first.name == second.name and (first.dtype, tuple(first.shape)) != (second.dtype, tuple(second.shape)):
            raise ValueError(f"{first.name} is {first.dtype} {tuple(first.shape)}, and {second.dtype} {tuple(second.shape)}")
        if first.name == second.name and second.begin < first.end:
            raise ValueError(f"{first.name}: rows {second.begin} to {min(first.end, second.end)} are given twice")
    return shards


def length_of(buffer: Any, name: str = "a buffer") -> int:
    """Bytes of a buffer, a tensor or a range of a file."""
    if isinstance(buffer, FileRange):
        return buffer.length
    with Held(buffer, name) as held:
        return held.length


def bytes_of(tensor: Any) -> Any:
    """A torch tensor as one of its bytes, in the same memory."""
    return tensor.detach().reshape(-1).view(importlib.import_module("torch").uint8)


def checksum(buffer: Any, offset: int, length: int, before: int = 0) -> int:
    """The CRC-32 of some bytes, behind those whose CRC-32 is `before`. Memory of a GPU is copied to the host."""
    if isinstance(buffer, FileRange):
        with open(buffer.path, "rb", buffering=0) as file:
            # What is on the disk counts.
            os.posix_fadvise(file.fileno(), buffer.offset + offset, length, os.POSIX_FADV_DONTNEED)
            for at in range(buffer.offset + offset, buffer.offset + offset + length, 1 << 20):
                part = os.pread(file.fileno(), min(1 << 20, buffer.offset + offset + length - at), at)
                before = zlib.crc32(part, before)
            os.posix_fadvise(file.fileno(), buffer.offset + offset, length, os.POSIX_FADV_DONTNEED)
        return before
    if not getattr(buffer, "is_cpu", True):
        buffer, offset = bytes_of(buffer)[offset:offset + length].cpu(), 0
    with Held(buffer) as held:
        return zlib.crc32((ctypes.c_char * length).from_address(held.address + offset), before)


def middle(length: int) -> Tuple[int, int]:
    """Where the sample of bytes of this length begins, and its own length."""
    of_sample = min(SAMPLE, length)
    return (length - of_sample) // 2, of_sample


def register(endpoint: Endpoint, shards: Sequence[Shard], access: Access) -> Tuple[List[Memory], List[Tuple[int, int]]]:
    """Memories that have all shards, and where each lies: which memory, which range. Buffers are in one, each file is one."""
    buffers: List[Any] = []
    files: Dict[str, List[Tuple[int, int]]] = {}
    for shard in shards:
        if isinstance(shard.buffer, FileRange):
            files.setdefault(shard.buffer.path, []).append(shard.buffer[1:])
        else:
            buffers.append(shard.buffer)
    memories: List[Memory] = []
    try:
        if buffers or not files:
            memories.append(endpoint.register(buffers or [bytearray(1)], access=access))
        numbers = {}
        for path, ranges in files.items():
            numbers[path] = len(memories)
            memories.append(endpoint.register_file(path, ranges, access=access))
    except BaseException:
        for memory in memories:
            memory.deregister()
        raise
    used = [0] * len(memories)
    places = []
    for shard in shards:
        number = numbers[shard.buffer.path] if isinstance(shard.buffer, FileRange) else 0
        places.append((number, used[number]))
        used[number] += 1
    return memories, places


def offer(endpoint: Endpoint, shards: Sequence[Shard], memories: Sequence[Memory], places: Sequence[Tuple[int, int]]) -> Dict[str, Any]:
    """What targets need to know of registered shards."""
    return {
        "format": FORMAT,
        "address": base64.b64encode(endpoint.address).decode(),
        "descriptors": [base64.b64encode(memory.export()).decode() for memory in memories],
        "shards": [[s.name, s.dtype, list(s.shape), s.begin, s.end, s.row] for s in shards],
        "places": places,
    }


def said_by(manifests: Sequence[bytes], needs: str) -> List[Dict[str, Any]]:
    """What manifests say. Raises ValueError for one that is cut off or of another kind, and for two of the same endpoint."""
    all_: List[Dict[str, Any]] = []
    for number, manifest in enumerate(manifests):
        try:
            said = json.loads(manifest)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"manifests[{number}] is cut off, or no manifest: {error}") from None
        if not isinstance(said, dict) or needs not in said:
            kind = next((f"a {KINDS[key]}" for key in KINDS if isinstance(said, dict) and key in said), "something else")
            raise ValueError(f"manifests[{number}] is of {kind}, and one of a {KINDS[needs]} is wanted")
        same = next((other for other, before in enumerate(all_) if before[needs] == said[needs]), None)
        if same is not None:
            raise ValueError(f"manifests[{same}] and [{number}] are of the same {KINDS[needs]}")
        all_.append(said)
    return all_


class _WrongError(ValueError):
    """What was read from a source is not what it has."""


class Piece(NamedTuple):
    """Bytes to read: `source` is one of those in `sources` that have them, each with its range and offset."""

    shard: int
    offset: int
    length: int
    sources: Tuple[Tuple[int, int, int], ...]


class Source:
    """Offers shards until it is closed. They must not change while targets pull. After kernels that write to shards on a GPU, later than
    `manifest`, call `torch.cuda.synchronize()` before targets pull."""

    def __init__(self, shards: Tensors, *, version: Optional[str] = None, **options: Any) -> None:
        """`shards`: also whole tensors, by their names. No row may be given twice. `version`: of these weights, as "step 7": a
        `Target` is not made of manifests with different ones. `options`: those of `Endpoint`."""
        #: What the next `manifest` says.
        self.version: Optional[str] = version
        self._shards = [s for s in shards_from(shards, once=True) if s.end > s.begin and s.row]
        self._endpoint = Endpoint(**options)
        self._files = contextlib.ExitStack()
        try:
            self._memories, self._places = register(self._endpoint, self._shards, Access.REMOTE_READ)
            # What is registered stays the same file when its name stands for another one, or for none.
            opened = {path: self._files.enter_context(open(path, "rb")).fileno()
                      for path in dict.fromkeys(s.buffer.path for s in self._shards if isinstance(s.buffer, FileRange))}
            self._shards = [s._replace(buffer=s.buffer._replace(path=f"/proc/self/fd/{opened[s.buffer.path]}"))
                            if isinstance(s.buffer, FileRange) else s for s in self._shards]
        except BaseException:
            self._files.close()
            self._endpoint.close()
            raise
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def manifest(self) -> bytes:
        """What targets need to know; it may travel by any means. Returns once kernels of the shards' GPUs have ended."""
        synchronize(shard.buffer for shard in self._shards)
        said = {} if self.version is None else {"version": self.version}
        return json.dumps({**offer(self._endpoint, self._shards, self._memories, self._places), **said}).encode()

    def samples(self) -> List[int]:
        """Of each shard of the manifest, the checksum of some bytes as they are now."""
        return [checksum(shard.buffer, *middle(length_of(shard.buffer))) for shard in self._shards]

    def _answer(self) -> None:
        """Checksums of ranges, for targets that ask."""
        while True:
            try:
                event = self._endpoint.wait_event()
            except WeftError:
                return
            if not isinstance(event, Message):
                continue
            try:
                number, shard, offset, length = question = json.loads(event.data)
                buffer = self._shards[shard].buffer
                if not all(type(one) is int and one >= 0 for one in question) or offset + length > length_of(buffer):
                    continue
                sum_ = checksum(buffer, offset, length)
                event.peer.send(json.dumps([number, sum_]).encode())
            except ClosedError:
                return
            except (WeftError, OSError, ValueError, TypeError, LookupError, RecursionError):
                continue  # this target gets no answer, which it notices; the others go on

    def close(self) -> None:
        """Ends it: targets that read from it go on with other sources. The buffers can be used again."""
        self._endpoint.close()
        self._thread.join()
        self._files.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Target:
    """A plan of what to read from where, made once, for any number of pulls."""

    def __init__(self, shards: Tensors, manifests: Sequence[bytes], *, timeout: float = 60,
                 endpoint: Optional[Endpoint] = None, **options: Any) -> None:
        """`shards`: also whole tensors, by their names. `manifests`: one of each source; sources that have the same rows must have
        the same bytes there, as any of them is read. `timeout`: seconds in which a source has to connect, to answer, and to
        send up to 64 MiB. `endpoint`: one whose events nothing else takes while a pull verifies, and that `close` leaves open;
        else `options` are those of a new one. Raises ValueError for rows that no source has, or has with another dtype or shape,
        and for manifests of different versions: those that a `Source` was given; of the command `serve` also by 4 KiB of
        each tensor."""
        self._timeout = timeout
        self._shards = [s for s in shards_from(shards) if s.end > s.begin and s.row]
        self._sources = said_by(manifests, "address")
        for source in self._sources:
            if source.get("format") != FORMAT:
                raise ValueError(f"a manifest is of format {source.get('format')}, another version's: {FORMAT} is wanted")
        self._compare()
        #: What is read, in this order.
        self.pieces: List[Piece] = list(self._plan())
        #: Bytes of a pull.
        self.total: int = sum(p.length for p in self.pieces)
        #: Sources that pulls have lost, by their place in `manifests`, and why.
        self.lost: Dict[int, Exception] = {}
        self._endpoint, self._own = endpoint or Endpoint(**options), endpoint is None
        try:
            self._memories, self._places = register(self._endpoint, self._shards, Access.LOCAL)
        except BaseException:
            if self._own:
                self._endpoint.close()
            raise
        self._peers: Dict[int, Peer] = {}
        self._remotes: Dict[int, List[RemoteMemory]] = {}
        self._connecting: Dict[int, Operation[Peer]] = {}
        self._came_from: Dict[int, int] = {}

    def _name(self, source: int) -> str:
        return str(self._sources[source].get("from", f"manifests[{source}]"))

    def _compare(self) -> None:
        """Raises ValueError for sources that say that they are of different versions."""
        versions: Dict[str, int] = {}
        samples: Dict[Tuple[str, int, int], Tuple[int, int]] = {}
        for number, source in enumerate(self._sources):
            if "version" in source:
                versions.setdefault(str(source["version"]), number)
            for (name, _, _, begin, end, _), sample in zip(source["shards"], source.get("samples", ())):
                first, other = samples.setdefault((name, begin, end), (sample, number))
                if first != sample:
                    raise ValueError(f"{name}: {self._name(other)} and {self._name(number)} have different bytes: they are of different versions")
        if len(versions) > 1:
            (first_, one), (second, another), *_ = versions.items()
            raise ValueError(f"{self._name(one)} is of version {first_}, and {self._name(another)} of version {second}")

    def _plan(self) -> Iterator[Piece]:
        held: Dict[str, List[Tuple[int, int, Any]]] = {}
        for number, source in enumerate(self._sources):
            for place, offered in enumerate(source["shards"]):
                held.setdefault(offered[0], []).append((number, place, offered))
        for number, shard in enumerate(self._shards):
            holders = held.get(shard.name, [])
            if not holders:
                raise ValueError(f"no source has a tensor {shard.name}")
            for _, _, (_, dtype, shape, _, _, row) in holders:
                if (dtype, tuple(shape), row) != (shard.dtype, tuple(shard.shape), shard.row):
                    raise ValueError(f"{shard.name}: {shard.dtype} {tuple(shard.shape)} is wanted, with {shard.row} bytes in a row, "
                                     f"{dtype} {tuple(shape)} is offered, with {row}")
            # Between these rows always the same sources have them.
            edges = {shard.begin, shard.end} | {e for _, _, o in holders for e in o[3:5] if shard.begin < e < shard.end}
            rows = sorted(edges)
            for begin, end in zip(rows, rows[1:]):
                have = [(s, place, (begin - o[3]) * o[5]) for s, place, o in holders if o[3] <= begin and end <= o[4]]
                if not have:
                    raise ValueError(f"{shard.name}: no source has rows {begin} to {end}")
                start, length = (begin - shard.begin) * shard.row, (end - begin) * shard.row
                for at in range(0, length, PIECE):
                    yield Piece(number, start + at, min(PIECE, length - at), tuple((s, r, o + at) for s, r, o in have))

    def pull(self, *, verify: bool = False, progress: Optional[Callable[[int, int], None]] = None,
             arrived: Optional[Callable[[Shard, int, int], None]] = None) -> List[int]:
        """Reads everything, once kernels of the shards' GPUs have ended, and returns how many bytes came from each source. Raises
        the last source's error when none is left that has what is missing. `verify`: each piece is compared with a checksum that
        the source which sent it computes; a source of which one differs is `lost`, and all that it sent is read again from others.
        4 KiB of each piece are compared with the other sources that have it, too: a ValueError names two that have different bytes.
        The default is False, as both sides read all bytes once more for it; that of `Checkpoints.load` is True, as disks may change
        what was saved. Without it, a pull from sources that have different bytes in the same rows mixes them.

        A pull that raises leaves what it has read, of any rows, in the buffers beside what was there before; a ValueError, of
        bytes that differ, leaves wrong ones. The buffers are whole when a pull has returned. `sent` says what came from
        whom.

        `progress` is called with the bytes that were read, and all; `arrived` with each piece of a shard, by its offset and
        length. With `verify`, `progress` is also called for each checksum that came, and the bytes can become fewer: what a source
        sent that is lost before its checksums came is read again. Both are called in the thread that pulls. An exception that they
        raise cancels the reads under way and leaves the pull when these have ended; the target can pull again.

        A pull blocks: `await asyncio.to_thread(target.pull)`. To cancel it, or at a deadline of the whole, raise in `progress`;
        it is not called for up to `timeout` seconds while a source is silent.

        A source that is `lost` is out for the rest of the pull. The next one connects to it again, and waits for it where no
        other has what it has; elsewhere it is used by the first pull that finds it connected."""
        synchronize(shard.buffer for shard in self._shards)
        for source in list(self.lost):
            if source in self._connecting and self._connecting[source].done:
                self._use_again(source)
            if source in self.lost and source not in self._connecting:
                with contextlib.suppress(WeftError):
                    self._connect(source)
        todo = list(range(len(self.pieces)))
        came_from = self._came_from = {}
        there = 0

        def moved(batch: Sequence[int]) -> None:
            nonlocal there
            for piece in map(self.pieces.__getitem__, batch):
                there += piece.length
                if arrived:
                    arrived(self._shards[piece.shard], piece.offset, piece.length)
            if progress:
                progress(there, self.total)

        while todo:
            self._read(todo, moved)
            if verify:
                open_ = self._unconfirmed(todo, moved)
                todo = [number for number, source in came_from.items()
                        if number in open_ or isinstance(self.lost.get(source), _WrongError)]
            else:
                todo = []
            for number in todo:
                there -= self.pieces[number].length
                del came_from[number]
        return self.sent

    @property
    def sent(self) -> List[int]:
        """Bytes that the last pull has from each source, also if it has failed."""
        sent = [0] * len(self._sources)
        for number, source in self._came_from.items():
            sent[source] += self.pieces[number].length
        return sent

    def _connect(self, source: int) -> None:
        """Begins it."""
        for remote in self._remotes.pop(source, ()):
            with contextlib.suppress(WeftError):
                remote.release()
        self._connecting[source] = self._endpoint.connect(base64.b64decode(self._sources[source]["address"]), timeout=self._timeout)

    def _connected(self, source: int) -> List[RemoteMemory]:
        if source not in self._remotes:
            if source not in self._connecting:
                self._connect(source)
            peer = self._peers[source] = self._connecting.pop(source).wait()
            self._remotes[source] = [peer.import_memory(base64.b64decode(d)) for d in self._sources[source]["descriptors"]]
        return self._remotes[source]

    def _use_again(self, source: int) -> None:
        """Waits until a lost source is connected, or is not."""
        try:
            self._connected(source)
        except WeftError as error:
            self.lost.pop(source, None)  # the last one in the order is the last error
            self.lost[source] = error.with_traceback(None)
        else:
            self.lost.pop(source, None)

    def _assign(self, pieces: Sequence[int], queues: Dict[int, Deque[int]]) -> None:
        """To the source that has least to send."""
        for number in pieces:
            sources = [s for s, _, _ in self.pieces[number].sources]
            if all(s in self.lost for s in sources):
                # Those that are done first: one is enough.
                for source in sorted(self._connecting.keys() & set(sources), key=lambda s: not self._connecting[s].done):
                    self._use_again(source)
                    if source not in self.lost:
                        break
            have = [s for s in sources if s not in self.lost]
            if not have:
                raise next(why for source, why in reversed(list(self.lost.items())) if source in sources)
            queues.setdefault(min(have, key=lambda s: len(queues.get(s, ()))), deque()).append(number)

    def _read(self, pieces: Sequence[int], moved: Callable[[Sequence[int]], None]) -> None:
        """Notes of each the source that it came from."""
        queues: Dict[int, Deque[int]] = {}
        self._assign(pieces, queues)
        under_way: Deque[Tuple[int, List[int], Operation[Any]]] = deque()
        try:
            while any(queues.values()) or under_way:
                for source in list(queues):
                    while queues.get(source) and sum(s == source for s, _, _ in under_way) < DEPTH:
                        batch = [queues[source].popleft() for _ in range(min(BATCH, len(queues[source])))]
                        try:
                            under_way.append((source, batch, self._start(source, batch)))
                        except RetryError:  # there is no room here, which is no fault of the source
                            if not under_way:
                                raise
                            queues[source].extendleft(reversed(batch))
                            break
                        except WeftError as error:
                            self._lose(source, batch, queues, error)
                if not under_way:
                    continue
                # It stays there until it has ended, so that whatever interrupts the wait has it stopped below.
                source, batch, operation = under_way[0]
                try:
                    operation.wait()
                except WeftError as error:
                    self._lose(source, batch, queues, error)
                else:
                    self._came_from.update((number, source) for number in batch)
                    moved(batch)
                under_way.popleft()
        finally:
            self._stop([operation for _, _, operation in under_way])

    def _start(self, source: int, batch: Sequence[int]) -> Operation[Any]:
        remotes, entries = self._connected(source), []
        for number in batch:
            piece = self.pieces[number]
            shard, offset = next((r, o) for s, r, o in piece.sources if s == source)
            here, there = self._places[piece.shard], self._sources[source]["places"][shard]
            entries.append(Entry(self._memories[here[0]], remotes[there[0]], piece.length, here[1], there[1], piece.offset, offset))
        return self._endpoint.read_list(entries, timeout=self._timeout)

    def _lose(self, source: int, batch: Sequence[int], queues: Dict[int, Deque[int]], why: WeftError) -> None:
        self.lost.pop(source, None)
        self.lost[source] = why.with_traceback(None)  # its frames would hold the buffers
        self._assign([*batch, *queues.pop(source, ())], queues)

    @staticmethod
    def _stop(operations: Sequence[Operation[Any]]) -> None:
        for operation in operations:
            operation.cancel()
        for operation in operations:
            with contextlib.suppress(WeftError):
                operation.wait()

    def _unconfirmed(self, pieces: Sequence[int], moved: Callable[[Sequence[int]], None]) -> Set[int]:
        """Of these pieces, those whose source has not confirmed them: it was lost before, or is now, as it has other bytes. Raises
        ValueError if two sources differ. `moved` is called with none after each answer: an exception of `progress` ends this, too."""
        came_from = self._came_from
        #: Of each question: the piece, the source that was asked, and whether it was for the whole piece or a sample.
        asked: Dict[int, Tuple[int, int, bool]] = {}
        left = deque((number, source, source == came_from[number]) for number in pieces for source, _, _ in self.pieces[number].sources
                     if source == came_from[number] or source in self._remotes)
        sends: Deque[Operation[None]] = deque()

        def part(number: int, whole: bool) -> Tuple[int, int]:
            return (0, self.pieces[number].length) if whole else middle(self.pieces[number].length)

        def ask() -> None:
            while left and len(asked) < QUESTIONS:
                number, source, whole = left[0]
                if source not in self.lost:
                    place, offset = next((r, o) for s, r, o in self.pieces[number].sources if s == source)
                    begin, length = part(number, whole)
                    # Of this question alone: a source that was lost may still answer an earlier one.
                    question = next(_questions)
                    try:
                        sends.append(self._peers[source].send(json.dumps([question, place, offset + begin, length]).encode(), timeout=self._timeout))
                    except RetryError:  # there is no room here until one has ended
                        if not sends:
                            raise
                        with contextlib.suppress(WeftError):
                            sends[0].wait()
                        sends.popleft()
                        continue
                    except WeftError as error:
                        self.lost.setdefault(source, error.with_traceback(None))
                    else:
                        asked[question] = number, source, whole
                while sends and sends[0].done:
                    sends.popleft()
                left.popleft()

        open_, differing = set(pieces), []
        until = time.monotonic() + self._timeout
        while True:
            # No answer of a lost one is waited for.
            for question in [q for q, (_, source, _) in asked.items() if source in self.lost]:
                del asked[question]
            ask()
            if not asked:
                break
            event = self._endpoint.wait_event(max(until - time.monotonic(), 0))
            if event is None:  # silent: read from others
                for _, source, _ in asked.values():
                    self.lost.setdefault(source, TimeoutError(f"the source has sent no checksum for {self._timeout} s"))
                until = time.monotonic() + self._timeout
                continue
            if isinstance(event, PeerDown):
                for source, peer in self._peers.items():
                    if peer == event.peer:
                        self.lost.setdefault(source, ConnectionError(event.reason))
            elif isinstance(event, Message):
                try:
                    question, theirs = json.loads(event.data)
                    known = question in asked
                except (ValueError, TypeError, RecursionError):
                    for source, peer in self._peers.items():
                        if peer == event.peer:  # others of a shared endpoint may say what they like
                            self.lost.setdefault(source, ConnectionError(f"{self._name(source)} has sent no checksum, but something else"))
                    continue
                if not known or self._peers[asked[question][1]] != event.peer:
                    continue  # too late: it is read from another source
                number, source, whole = asked.pop(question)
                piece, (begin, length) = self.pieces[number], part(number, whole)
                shard = self._shards[piece.shard]
                until = time.monotonic() + self._timeout
                if checksum(shard.buffer, piece.offset + begin, length) != theirs:
                    if whole:
                        self.lost[source] = _WrongError(f"{shard.name}: what was read from {self._name(source)} is not what it has")
                        continue
                    differing.append((number, source))
                elif whole:
                    open_.discard(number)
                moved(())
        for number, source in differing:
            # What a wrong one has sent is read again.
            if not any(isinstance(self.lost.get(one), _WrongError) for one in (source, came_from[number])):
                raise ValueError(f"{self._shards[self.pieces[number].shard].name}: {self._name(came_from[number])} and {self._name(source)} "
                                 "have different bytes: they are of different versions")
        return open_

    def close(self) -> None:
        """Releases everything, and closes the endpoint if it is its own."""
        if self._own:
            self._endpoint.close()
            return
        for memory in self._memories:
            memory.deregister()
        for remotes in self._remotes.values():
            for remote in remotes:
                remote.release()

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _shards(path: str, header: bytes, access: int) -> List[Shard]:
    """A file's tensors; `access`: of a mapping that they lie in, 0: they stay in the file."""
    tensors, _ = parsed(path, header)
    if os.stat(path).st_size < len(header) + size_of(tensors):
        raise ValueError(f"{path} ends before its tensors do")
    buffers: Any = None
    if access and size_of(tensors):
        with open(path, "r+b" if access & mmap.PROT_WRITE else "rb") as file:
            buffers = memoryview(mmap.mmap(file.fileno(), 0, prot=access))[len(header):]
    return [Shard(name, t.dtype, t.shape, 0, t.rows, FileRange(path, len(header) + t.begin, t.end - t.begin) if not access
                  else buffers[t.begin:t.end] if buffers else b"")
            for name, t in tensors.items()]


def shards_of(path: str, direct: bool = False) -> List[Shard]:
    """All tensors of a safetensors file, which stays mapped; `direct`: as ranges of the file."""
    return _shards(path, header_of(path), 0 if direct else mmap.PROT_READ)


def create(path: str, header: bytes, direct: bool = False) -> List[Shard]:
    """A safetensors file, and room for its tensors, which are returned: mapped, or (`direct`) as ranges of the file. `header`:
    all that precedes the tensors' bytes in the file: 8 bytes, little-endian, with the length of the JSON, and the JSON."""
    tensors, _ = parsed(path, header)
    with open(path, "wb") as file:
        file.write(header)
        # Also behind a mapping, where a full disk would be a SIGBUS.
        os.posix_fallocate(file.fileno(), 0, len(header) + size_of(tensors))
    return _shards(path, header, 0 if direct else mmap.PROT_READ | mmap.PROT_WRITE)


def _locked(unfinished: str, path: str) -> int:
    """A descriptor of that file, which is made if it is not there, with its lock."""
    while True:
        # Nothing is cut off: it may be another process's, of another host or container.
        lock = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BlockingIOError(errno.EAGAIN, f"another process pulls into {path}") from None
            except OSError:
                return lock  # a file system without locks: nothing is removed there
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), os.stat(unfinished)):
                    return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # one that succeeded has removed it meanwhile


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """The name to write a file under, in the same folder. When all is well the file gets its own name, and takes the place of an
    older one; otherwise it is removed. Those that killed processes have left go when all is well."""
    path = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path} is not a file that can be replaced")
    unfinished = f"{path}.{os.getpid()}.unfinished"
    lock = _locked(unfinished, path)
    try:
        yield unfinished
        with contextlib.suppress(OSError):  # there is none yet, or the file system has no modes
            shutil.copymode(path, unfinished)
        os.fsync(lock)  # a power cut leaves one of both, whole
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)
        raise
    finally:
        os.close(lock)
    for left in glob.glob(f"{glob.escape(path)}.[0-9]*.unfinished"):
        # Its process, which may be one of another host, has the lock while it lives.
        with contextlib.suppress(OSError), open(left, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(left)


@contextlib.contextmanager
def shown(then: str = "") -> Iterator[Callable[[int, int], None]]:
    """A `progress` that overwrites a line of stderr, if that is a terminal; the line goes at the end. `then`: what follows the
    last byte."""
    clear, began = ("\r\x1b[K" if sys.stderr.isatty() else ""), time.monotonic()
    last = 0.0

    def show(there: int, all_: int) -> None:
        nonlocal last
        now = time.monotonic()
        if clear and (now - last >= 0.1 or there == all_):
            rate = there / max(now - began, math.ulp(1)) / 1e9
            print(f"{clear}{there / all_:.0%} of {all_ / 1e9:.2f} GB, {rate:.2f} GB/s{then if there == all_ else ''}", end="",
                  file=sys.stderr, flush=True)
            last = now

    try:
        yield show
    finally:
        print(clear, end="", file=sys.stderr, flush=True)


def place_of(text: str) -> Tuple[str, int]:
    """HOST:PORT of a command line; PORT alone is this host's, which no other host reaches."""
    host, _, port = text.rpartition(":")
    return host.strip("[]") or LOOPBACK, int(port)


def seconds_of(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise ValueError(text)
    return seconds


def answer_at(listen: Tuple[str, int], doing: str, answer: Callable[[], bytes]) -> None:
    """Gives every process that connects an answer, for ever."""
    with socket.create_server(listen, family=socket.AF_INET6 if ":" in listen[0] else socket.AF_INET) as server:
        host, port = server.getsockname()[:2]
        every = " for every host, at each address of this one,"
        reached = {LOOPBACK: " for this host alone (--listen 0.0.0.0:PORT: for every host), though the endpoint listens on its rails,", "0.0.0.0": every, "::": every}
        print(f"{doing}{reached.get(host, '')} at {host}:{port}", flush=True)
        while True:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(PATIENCE)
                try:
                    try:
                        said = answer()
                    except OSError as error:
                        connection.sendall(json.dumps({"error": str(error)}).encode())
                        raise
                    connection.sendall(said)
                except OSError as error:
                    print(f"a process that asked got nothing: {error}", file=sys.stderr)


def text_of(place: Tuple[str, int]) -> str:
    return f"[{place[0]}]:{place[1]}" if ":" in place[0] else f"{place[0]}:{place[1]}"


def answer_of(place: Tuple[str, int], *needs: str) -> bytes:
    """What is answered there: JSON with one of these keys. Errors name the source or store by where it was asked."""
    with socket.create_connection(place, timeout=PATIENCE) as connection:
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    try:
        said = json.loads(answer)
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict) and "error" in said:
        raise OSError(said["error"])
    if not isinstance(said, dict) or not any(key in said for key in needs):
        raise ValueError(f"it has no {' or '.join(needs)}: it is something else, or of another version")
    return json.dumps({**said, "from": text_of(place)}).encode()


def manifest_of(place: str) -> bytes:
    """The manifest of the `Source`, `Store` or `Slab` of a command that listens at `place`, "HOST:PORT". Errors of what is made of it
    name it so. Raises OSError where nothing answers within 10 s, ValueError where something else does."""
    return answer_of(place_of(place), *KINDS)


def _serve(listen: Tuple[str, int], files: Sequence[str], direct: bool, version: Optional[str]) -> None:
    shards = [shard for path in files for shard in shards_of(path, direct)]
    names = [shard.name for shard in shards]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is in several of the files")
    headers = [base64.b64encode(header_of(path)).decode() for path in files]
    with Source(shards, version=version, **(DIRECT if direct else {})) as source:
        served = {path: os.stat(path) for path in files}
        written: Dict[str, int] = {}
        samples: List[int] = []

        def answer() -> bytes:
            nonlocal samples
            before = dict(written)
            for path, first in served.items():
                with contextlib.suppress(FileNotFoundError):
                    now = os.stat(path)
                    if os.path.samestat(now, first):  # else what is served has no name any longer
                        if now.st_size < first.st_size:
                            raise OSError(f"{path} has become shorter")
                        written[path] = now.st_mtime_ns
            if written != before:
                samples = source.samples()
            return json.dumps({**json.loads(source.manifest()), "headers": headers, "samples": samples}).encode()

        answer()
        answer_at(listen, "serving", answer)


def part_of(tensors: Dict[str, Tensor], part: int, parts: int) -> Dict[str, Tuple[Tensor, int, int]]:
    """Rows of part `part` of `parts` of each tensor: as a file has them, and which they are. What has no rows to share is in
    each part."""
    cut = {name: (t.rows * part // parts, t.rows * (part + 1) // parts) if t.shape else (0, 1) for name, t in tensors.items()}
    files = placed((name, t.dtype, (cut[name][1] - cut[name][0], *t.shape[1:]) if t.shape else (),
                    (t.end - t.begin) // max(t.rows, 1) * (cut[name][1] - cut[name][0])) for name, t in tensors.items())
    return {name: (files[name], *cut[name]) for name in tensors}


def _pull(sources: Sequence[Tuple[str, int]], out: str, part: int, parts: int, verify: bool, direct: bool, timeout: float = 60) -> None:
    manifests, headers, failed, places = [], [], None, []
    for place in sources:
        try:
            manifests.append(answer_of(place, "headers"))
        except (OSError, ValueError) as error:
            failed = f"{text_of(place)} offers nothing: {error}"
            print(failed, file=sys.stderr)
            continue
        places.append(text_of(place))
        headers += [h for h in json.loads(manifests[-1])["headers"] if h not in headers]
    if not manifests:
        raise ConnectionError(f"no source is left; {failed}")
    # A file alone comes out as it is; what is of several, or a part, has a header of its own.
    texts = [base64.b64decode(header) for header in headers]
    whole: Dict[str, Tensor] = {}
    metadata: Dict[str, str] = {}
    for text in texts:
        tensors, more = parsed("a source's file", text)
        whole.update(tensors)
        metadata.update(more)
    cut = part_of(whole, part, parts)

    def came_from_each(out: Optional[TextIO] = None) -> None:
        for number, name in enumerate(places):
            print(f"{name}: {target.sent[number]} bytes{f', then lost: {target.lost[number]}' if number in target.lost else ''}", file=out)

    header = texts[0] if len(texts) == 1 and parts == 1 else header_for({name: t for name, (t, _, _) in cut.items()}, metadata)
    with replacing(out) as unfinished:
        shards = [shard._replace(shape=whole[shard.name].shape, begin=cut[shard.name][1], end=cut[shard.name][2])
                  for shard in create(unfinished, header, direct)]
        with Target(shards, manifests, timeout=timeout, **(DIRECT if direct else {})) as target, shown(", comparing checksums" if verify else "") as progress:
            began = time.monotonic()
            try:
                target.pull(verify=verify, progress=progress)
            except (OSError, ValueError, WeftError):
                came_from_each(sys.stderr)
                raise
            seconds = time.monotonic() - began
    print(f"{len(shards)} tensors, {target.total} bytes, {seconds:.2f} s, {target.total / max(seconds, math.ulp(1)) / 1e9:.2f} GB/s")
    if len(sources) == 1:
        return
    came_from_each()
    lost = len(sources) - len(places) + len(target.lost)
    if lost:
        print(f"{lost} of {len(sources)} sources {'was' if lost == 1 else 'were'} lost", file=sys.stderr)


def undo_at_signals() -> None:
    """A process that is to end undoes what it has begun."""
    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, end)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m libweft.weights", description="Moves weights between processes.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="offers safetensors files")
    serve.add_argument("--listen", type=place_of, default=(LOOPBACK, 0), metavar="[HOST:]PORT",
                       help="0.0.0.0 is every address of this host; without HOST, this host alone reaches it")
    serve.add_argument("--direct", action="store_true", help="read the files for each target, and hold none of them in memory")
    serve.add_argument("--version", metavar="TEXT", help="of the files, as any text: a pull from sources with different ones is refused")
    serve.add_argument("files", nargs="+", metavar="FILE")
    pull = commands.add_parser("pull", help="writes what sources have, or a part of it, into a file")
    pull.add_argument("--from", dest="sources", type=place_of, action="append", required=True, metavar="HOST:PORT",
                      help="a source; give it again for each further one: what several have is shared among them, and what one that dies "
                           "has not sent is read from the others")
    pull.add_argument("--out", required=True, metavar="FILE", help="is replaced when everything is there; until then FILE.PID.unfinished")
    pull.add_argument("--shard", default="0/1", metavar="I/N", help="rows of part I of N of each tensor")
    pull.add_argument("--verify", action="store_true", help="compare checksums of all bytes with the sources that sent them, and 4 KiB of each 8 MiB with the others; without it, sources are "
                           "compared by --version and 4 KiB of each tensor when the pull begins")
    pull.add_argument("--timeout", type=seconds_of, default=60.0, metavar="SECONDS",
                      help="in which a source has to connect, to answer, and to send up to 64 MiB, else it is lost (default: 60)")
    pull.add_argument("--direct", action="store_true", help="write the file past the page cache")
    given = parser.parse_args()
    undo_at_signals()
    try:
        if given.command == "serve":
            _serve(given.listen, given.files, given.direct, given.version)
        else:
            part, parts = map(int, given.shard.split("/"))
            _pull(given.sources, given.out, part, parts, given.verify, given.direct, given.timeout)
    except (OSError, ValueError, WeftError) as error:
        sys.exit(f"{given.command}: {error}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
