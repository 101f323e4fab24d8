"""A save of one rank: which file has which bytes, what of it earlier saves have left, and the writes."""

from __future__ import annotations

import base64
import ctypes
import functools
import itertools
import json
import threading
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from .. import weights
from .._buffers import Buffer, Held
from .._safetensors import header_for, pieces, placed, size_of
from .._calls import Call
from ..endpoint import Access
from ..memory import Memory, RemoteMemory
from ..operation import Operation
from ..parts import Parts
from ..transfers import Entry
from ..weights import FileRange, Shard
from ._store import KEY, PIECE, hash_of

if TYPE_CHECKING:
    from ._client import Checkpoints

#: Tensors' bytes begin in a file at a multiple of this, so that they pass the page cache by.
BLOCK = 4096
#: Lists of runs that each store reads at once of a copy, and pieces that are as long as one of them, with one rank, and at least;
#: runs in each.
DEPTH, BATCH, LEAST, RUNS = 4, 8, 2, 256
#: Tensors in a file: each is a range of the memory that a load registers of it, and those have a limit.
MOST = 32_768
#: Bytes per second that any disk reads or flushes.
SLOWEST = 50e6

Progress = Callable[[int, int], None]
#: Where a tensor lies here: a memory, a range of it, and an offset.
Place = Tuple[Memory, int, int]
#: Bytes that a store reads: of which memory, range and offset; where they belong in the file; and how many they are.
Run = Tuple[int, int, int, int, int]


class File:
    """One file of a rank: what is in it, and on which stores."""

    def __init__(self, name: str, shards: Sequence[Shard], stores: Sequence[int]) -> None:
        self.name, self.stores = name, stores
        if any(s.name == "__metadata__" for s in shards):
            raise ValueError("no tensor can be called __metadata__: in a file of safetensors that is no tensor")
        # Those whose bytes end at a block are first, so that few begin elsewhere.
        self.shards = sorted(shards, key=lambda s: weights.length_of(s.buffer) % BLOCK != 0)
        keys = [s.name if s.begin == 0 and s.end >= (s.shape[0] if s.shape else 1) else f"{s.name}[{s.begin}:{s.end}]" for s in self.shards]
        if len(set(keys)) < len(keys):
            raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)} is there twice")
        self.tensors = placed((key, s.dtype, (s.end - s.begin, *s.shape[1:]) if s.shape else (), weights.length_of(s.buffer))
                              for key, s in zip(keys, self.shards))
        self.places = pieces(self.tensors, PIECE)
        self.sums: List[Optional[int]] = [None] * len(self.places)
        self.header = bytearray(self.made(["0" * 8] * len(self.places)))
        self.size = len(self.header) + size_of(self.tensors)

    def sum(self) -> None:
        """Its checksums, as far as they are not there."""
        numbers = itertools.count()
        for shard, (key, tensor) in zip(self.shards, self.tensors.items()):
            for at, length in pieces({key: tensor}, PIECE):
                number = next(numbers)
                if self.sums[number] is None:
                    self.sums[number] = weights.checksum(shard.buffer, at - tensor.begin, length)

    def made(self, sums: Sequence[str]) -> bytes:
        """Its header, whose length does not depend on the checksums."""
        whole = {key: (s.name, s.shape, s.begin) for key, s in zip(self.tensors, self.shards)}
        said = {"piece": PIECE, "shards": whole, "sums": "".join(sums)}
        return header_for(self.tensors, {KEY: json.dumps(said, separators=(",", ":"))}, BLOCK)

    def finish(self) -> str:
        """Its header with the checksums; and its name, which no other contents have."""
        self.header[:] = self.made([f"{sum_:08x}" for sum_ in self.sums])
        return f"{self.name}.{hash_of(bytes(self.header))}.safetensors"


def spread(shards: Sequence[Shard], count: int) -> List[Tuple[int, List[Shard]]]:
    """Files, each with the first of its `count` stores, for which they have about as many bytes. Tensors are cut between rows;
    small ones are not cut at all."""
    room = share = max(-(-sum(weights.length_of(s.buffer) for s in shards) // count), PIECE)
    files: List[List[Shard]] = [[]]
    for shard in shards:
        begin, row = shard.begin, shard.row
        while True:
            if room <= 0 and len(files) < count:
                files.append([])
                room = share
            rows = shard.end - begin
            if len(files) < count and row and rows * row > room + PIECE:
                rows = max(room // row, 1)
            files[-1].append(shard._replace(begin=begin, end=begin + rows, buffer=part(shard.buffer, (begin - shard.begin) * row, rows * row)))
            room -= rows * row
            begin += rows
            if begin >= shard.end:
                break
    return [(store, of_store[at:at + MOST]) for store, of_store in enumerate(files) for at in range(0, max(len(of_store), 1), MOST)]


def part(buffer: Any, offset: int, length: int) -> Any:
    """Some bytes of a buffer, a tensor or a range of a file."""
    if offset == 0 and length == weights.length_of(buffer):
        return buffer
    if isinstance(buffer, FileRange):
        return FileRange(buffer.path, buffer.offset + offset, length)
    if hasattr(buffer, "data_ptr"):
        return weights.bytes_of(buffer)[offset:offset + length]
    return _view(buffer)[offset:offset + length]


def fill(place: memoryview, buffer: Any) -> None:
    """Copies a tensor's bytes, of a GPU's or a file's, too."""
    if isinstance(buffer, FileRange):
        with open(buffer.path, "rb", buffering=0) as file:
            file.seek(buffer.offset)
            while place:
                place = place[file.readinto(place) or _cut_off(buffer.path):]
    elif not getattr(buffer, "is_cpu", True):
        place[:] = _view(weights.bytes_of(buffer).cpu())
    elif place:
        place[:] = _view(buffer)


def _cut_off(path: str) -> int:
    raise ValueError(f"{path} is shorter than it was")


def _view(buffer: Buffer) -> memoryview:
    """The bytes of an object of whatever format."""
    with Held(buffer) as held:
        block = (ctypes.c_char * held.length).from_address(held.address)
    setattr(block, "owner", buffer)
    return memoryview(block).cast("B")


class Saving:
    """A save that is under way, in a thread of its own."""

    def __init__(self, run: Callable[[Saving], bytes], total: int, progress: Optional[Progress]) -> None:
        #: Bytes that are written or need not be.
        self.there: int = 0
        #: Those of them that an earlier save had written.
        self.skipped: int = 0
        #: All bytes.
        self.total: int = total
        self._progress = progress
        self._part = b""
        self._error: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._main, args=(run,), daemon=True)
        self._thread.start()

    def _main(self, run: Callable[[Saving], bytes]) -> None:
        try:
            self._part = run(self)
        except BaseException as error:
            self._error = error

    def moved(self, length: int) -> None:
        """Counts bytes that are there."""
        self.there += length
        if self._progress:
            self._progress(self.there, self.total)

    @property
    def done(self) -> bool:
        """Whether `wait` returns, or raises, at once."""
        return not self._thread.is_alive()

    def wait(self, timeout: Optional[float] = None) -> bytes:
        """What `Checkpoints.commit` needs of this rank: its bytes are on stable storage. (With one rank, the step is committed.)
        Raises what the save failed with, a `StoreError` where a store did; a TimeoutError after `timeout` seconds, and it goes on."""
        self._thread.join(timeout)
        if not self.done:
            raise TimeoutError(f"the save has not ended within {timeout} s, and goes on")
        if self._error is not None:
            raise self._error
        return self._part


class Copy:
    """A file on one of its stores. `found`, `sums`: what is there; `left`: its pieces that are to be written."""

    def __init__(self, file: File, store: int) -> None:
        self.file, self.store = file, store
        self.left: List[bool] = []
        self.found: Dict[str, Any] = {}
        self.sums: List[int] = []
        self.whole = False
        self.remote: Optional[RemoteMemory] = None
        #: What its tensors lie in, which the store reads.
        self.memories: List[Memory] = []


class Writer:
    """Writes files of one rank for a step. `where`: of each file, where its tensors lie."""

    def __init__(self, owner: Checkpoints, step: int, files: Sequence[File]) -> None:
        self._owner, self._call, self._step = owner, owner._call, step
        self._files = files
        self._copies = [Copy(file, store) for file in files for store in file.stores]
        #: Pieces of a list; and the bytes that a disk may have to write, or to read again, before it is done with a list or a file,
        #: as all ranks save at once.
        self._batch = max(BATCH // owner._ranks, LEAST)
        at_once = owner._ranks * max(owner._copies, *Counter(copy.store for copy in self._copies).values())
        self._load = at_once * DEPTH * self._batch * PIECE
        self._again = at_once * max(file.size for file in files)

    def write(self, where: Sequence[Sequence[Place]], saving: Saving) -> bytes:
        """Returns what `Checkpoints.commit` needs: everything is on stable storage then."""
        endpoint, placed = self._owner._endpoint, dict(zip(self._files, where))
        headers = endpoint.register([file.header for file in self._files], access=Access.LOCAL)
        try:
            with ThreadPoolExecutor(8, "weft-save") as pool:
                self._find(pool, saving)
                summing = pool.submit(self._sum)
                list(pool.map(lambda copy: self._open(copy, placed[copy.file]), self._copies))
                opened = [copy for copy in self._copies if copy.remote is not None]
                self._fill([self._lists(copy, self._runs(copy, placed[copy.file])) for copy in opened], saving)
                summing.result()
                finals = {file.name: file.finish() for file in self._files}
                with self._owner._of_peers():
                    for done in Parts(self._headers(headers, opened), in_flight=len(self._copies)):
                        saving.moved(done.bytes)
                list(pool.map(lambda copy: self._call(copy.store, "seal", step=self._step, name=copy.file.name,
                                                      final=finals[copy.file.name]), opened))
            return json.dumps({finals[file.name]: file.size for file in self._files}).encode()
        finally:
            for copy in self._copies:
                if copy.remote is not None:
                    copy.remote.release()
            headers.deregister()

    def _sum(self) -> None:
        for file in self._files:
            file.sum()

    def _find(self, pool: ThreadPoolExecutor, saving: Saving) -> None:
        """What need not be written."""

        def find(copy: Copy) -> None:
            copy.found = self._call(copy.store, "find", step=self._step, name=copy.file.name, size=copy.file.size)

        def take(copy: Copy) -> None:
            file = copy.file
            copy.whole = named[file.name] in copy.found["finished"] and self._call(
                copy.store, "use", self._again, step=self._step, name=named[file.name])
            if copy.found["unfinished"] and not copy.whole:
                places = [(len(file.header) + at, length) for at, length in file.places]
                copy.sums = self._call(copy.store, "sums", self._again, step=self._step, name=copy.found["unfinished"], places=places)

        list(pool.map(find, self._copies))
        left = {copy.file for copy in self._copies if copy.found["finished"] or copy.found["unfinished"]}
        for file in left:
            file.sum()
        named = {file.name: file.finish() if file in left else "" for file in self._files}
        list(pool.map(take, self._copies))
        for copy in self._copies:
            file = copy.file
            copy.left = [not copy.whole and (not copy.sums or ours != theirs) for ours, theirs in itertools.zip_longest(file.sums, copy.sums)]
            there = sum(length for (_, length), left in zip(file.places, copy.left) if not left) + copy.whole * len(file.header)
            if there:
                saving.skipped += there
                saving.moved(there)

    def _open(self, copy: Copy, places: Sequence[Place]) -> None:
        if not copy.whole:
            summed = {"summed": True} if copy.sums else {}
            copy.memories = list(dict.fromkeys(memory for memory, _, _ in places))
            descriptor = self._call(copy.store, "open", step=self._step, name=copy.file.name, size=copy.file.size,
                                    memories=[base64.b64encode(memory.export()).decode() for memory in copy.memories], **summed)
            with self._owner._of(copy.store):
                copy.remote = self._owner._stores[copy.store].import_memory(base64.b64decode(descriptor))

    def _runs(self, copy: Copy, places: Sequence[Place]) -> Iterator[Run]:
        """Neighbours in memory and file are together, and cut where the pieces of a first, long tensor are."""
        runs: List[Run] = []
        numbers = itertools.count()
        for tensor, (memory, range_, offset) in zip(copy.file.tensors.values(), places):
            number = copy.memories.index(memory)
            for at, length in pieces({"": tensor}, PIECE):
                if not copy.left[next(numbers)]:
                    continue
                here, there = offset + at - tensor.begin, at
                if runs and runs[-1][:2] == (number, range_) and runs[-1][2] + runs[-1][4] == here and runs[-1][3] + runs[-1][4] == there:
                    here, there, length = *runs[-1][2:4], runs.pop()[4] + length
                runs.append((number, range_, here, there, length))
        for number, range_, here, there, length in runs:
            while length:
                now = min(length, PIECE - there % PIECE)
                yield number, range_, here, len(copy.file.header) + there, now
                here, there, length = here + now, there + now, length - now

    def _lists(self, copy: Copy, runs: Iterator[Run]) -> Iterator[Tuple[Copy, List[Run]]]:
        batch: List[Run] = []
        for run in runs:
            batch.append(run)
            if len(batch) == RUNS or sum(run[-1] for run in batch) > (self._batch - 1) * PIECE:
                yield copy, batch
                batch = []
        if batch:
            yield copy, batch

    def _fill(self, lists: Sequence[Iterator[Tuple[Copy, List[Run]]]], saving: Saving) -> None:
        """Has the stores read all, of all copies in turn, so that all disks are busy."""
        under_way: Deque[Tuple[Copy, int, Call]] = deque()

        def oldest() -> None:
            copy, length, call = under_way.popleft()
            with self._owner._of(copy.store):
                call.wait()
            saving.moved(length)

        try:
            for copy, batch in (one for turn in itertools.zip_longest(*lists) for one in turn if one is not None):
                if len(under_way) == DEPTH * len(lists):
                    oldest()
                with self._owner._of(copy.store):
                    call = self._owner._begin_call(copy.store, "fill", self._load, step=self._step, name=copy.file.name, runs=batch,
                                                   seconds=self._owner._timeout + self._load / SLOWEST)
                under_way.append((copy, sum(run[-1] for run in batch), call))
            while under_way:
                oldest()
        finally:
            for _, _, call in under_way:
                call.forget()

    def _headers(self, headers: Memory, opened: Sequence[Copy]) -> Iterator[Callable[[], Operation[Any]]]:
        """A header is the last that is written, and flushes its file. Each list is of one store, so that its error is."""
        timeout = self._owner._timeout + max(file.size for file in self._files) / SLOWEST
        for store in dict.fromkeys(copy.store for copy in opened):
            entries = [Entry(headers, copy.remote, len(copy.file.header), self._files.index(copy.file))
                       for copy in opened if copy.store == store and copy.remote is not None]
            yield functools.partial(self._write, store, entries, timeout)

    def _write(self, store: int, entries: Sequence[Entry], timeout: float) -> Operation[Any]:
        with self._owner._of(store):
            return self._owner._endpoint.write_list(entries, timeout=timeout, durable=True)
