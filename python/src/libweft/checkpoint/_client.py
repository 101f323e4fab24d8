"""The side that has the tensors: ranks that save and load."""

from __future__ import annotations

import base64
import contextlib
import json
import operator
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterator, List, NamedTuple, NoReturn, Optional, Sequence, Tuple, Type

from .. import c, weights
from .._buffers import described, synchronize
from .._safetensors import size_of
from ..endpoint import Access, Endpoint
from ..errors import PeerError, UsageError
from ..memory import Memory
from ..peer import Peer
from ..weights import Shard, Target, Tensors, shards_from
from .._calls import Call, Calls
from ._saving import BLOCK, SLOWEST, File, Place, Progress, Saving, Writer, fill, spread
from ._store import FORMAT, PIECE, TAKEN
from ._whole import check

#: Pieces that are wanted in part and read again at once, for their checksums.
EDGES = 8


class ChangedError(ValueError):
    """Bytes that were read are not what was saved, and no store has a copy that is."""


class StoreError(OSError):
    """A store has failed, was lost, or does not answer: "the store of manifests[1]: ...". It is a ConnectionError or a
    TimeoutError, too, where that is what happened; `errno` is the store's own, like ENOSPC, or None."""

    #: Its index in the manifests of `Checkpoints`.
    store: int = -1


class _Lost(StoreError, ConnectionError):
    pass


class _Late(StoreError, TimeoutError):
    pass


def _of_file(error: Exception) -> Exception:
    """Of the memory that a file on a store is: why it is gone."""
    gone = getattr(error, "status", None) == c.ERR_MEMORY_GONE
    return ValueError(f"{TAKEN}, or was cut off: {error}") if gone else error


class _Check(NamedTuple):
    shard: Shard
    offset: int
    length: int
    sum: int

    def run(self) -> None:
        if weights.checksum(self.shard.buffer, self.offset, self.length) != self.sum:
            last = self.offset + self.length - 1
            raise ChangedError(f"{self.shard.name}: bytes {self.offset} to {last} behind row {self.shard.begin} are not what was saved")


class _Edge(NamedTuple):
    """A piece of which bytes `low` to `high` are wanted; it begins at `piece`, and lies in rows `begin` to `end`. All count from
    the tensor's first row."""

    shard: Shard
    begin: int
    end: int
    piece: int
    length: int
    sum: int
    low: int
    high: int


def _checks(shards: Sequence[Shard], offers: Sequence[Dict[str, Any]]) -> Tuple[Dict[Tuple[int, int, int], _Check], List[_Edge]]:
    """How what is read is compared with the save's checksums: pieces of which all is wanted, and the others."""
    wholes: Dict[Tuple[int, int, int], _Check] = {}
    edges: List[_Edge] = []
    saved: Dict[str, Dict[Tuple[int, int], List[int]]] = {}
    for offer in offers:
        for (name, _, _, first, last, _), sums in zip(offer["shards"], offer["sums"]):
            saved.setdefault(name, {})[first, last] = sums  # of copies, the same
    for shard in shards:
        row = shard.row
        for (first, last), sums in saved.get(shard.name, {}).items():
            if max(first, shard.begin) >= min(last, shard.end):
                continue
            begin, end = max(first, shard.begin) * row, min(last, shard.end) * row
            for number in range((begin - first * row) // PIECE, -(-(end - first * row) // PIECE)):
                piece = first * row + number * PIECE
                length = min(PIECE, last * row - piece)
                low, high = max(piece, begin), min(piece + length, end)
                if (low, high) == (piece, piece + length):
                    wholes[id(shard), low - shard.begin * row, length] = _Check(shard, low - shard.begin * row, length, sums[number])
                else:
                    edges.append(_Edge(shard, piece // row, -(-(piece + length) // row), piece, length, sums[number], low, high))
    return wholes, edges


def number_of(step: Any) -> int:
    """The number of a step. Raises TypeError or ValueError for what is none."""
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"a step is a number, and {step!r} is {described(step)}") from None
    if number < 0:
        raise ValueError(f"a step is a number from 0, and this one is {number}")
    return number


class Step(NamedTuple):
    """A step of which some store has a manifest. `files`: their sizes; `missing`: those that no store has that is there;
    `copies`: on how many stores that are there each file is at least."""

    step: int
    number: int
    files: Dict[str, int]
    missing: List[str]
    copies: int = 0


class Checkpoints:
    """Checkpoints on stores, as one rank of some sees them.

        with Checkpoints(manifests, rank=rank, ranks=8, copies=2) as checkpoints:
            saving = checkpoints.save(1000, {"w": w, "b": b})       # copied: training goes on
            parts = gather(saving.wait())                           # by any means
            if rank == 0:
                checkpoints.commit(1000, parts)                     # now it is a checkpoint; before, the last one was

            step = checkpoints.load({"w": w, "b": b})               # the last one that was committed

    The bytes of all ranks are spread over the stores, each on `copies` of them. A step is a checkpoint from the moment at which
    the first store has renamed its manifest; all that it consists of was flushed before, on every store. Any thread may call
    anything. A rank has one save under way at a time: a second one waits for the first.
    """

    def __init__(self, stores: Sequence[bytes], *, rank: int = 0, ranks: int = 1, copies: int = 1, timeout: float = 60,
                 **options: Any) -> None:
        """`stores`: the manifests of all stores. Where some are not reached, loads use the others, and saves fail with a
        `StoreError`, which has the store's index in this list. `ranks`: how many processes save each step together, so that `commit` sees
        whether one is missing; `rank`: which of them this is. A process that only loads needs neither. `timeout`: seconds in
        which a store has to connect, to answer, and to take or give 64 MiB. `options`: those of `Endpoint`. Raises a
        StoreError where no store is reached."""
        if not 1 <= copies <= len(stores):
            raise ValueError(f"{copies} copies on {len(stores)} stores")
        if not 0 <= rank < ranks:
            raise ValueError(f"rank {rank} is not one of {ranks} ranks, which are numbered from 0")
        #: This one's number.
        self.rank = rank
        self._ranks, self._copies, self._timeout = ranks, copies, timeout
        said = weights.said_by(stores, "checkpoints")
        addresses = [base64.b64decode(one["checkpoints"]) for one in said]
        #: Where they were asked for their manifests, as far as that is known.
        self._places: List[Optional[str]] = [one.get("from") for one in said]
        #: Those that cannot do what a save asks for.
        self._older = [store for store, one in enumerate(said) if one.get("format") != FORMAT]
        self._endpoint = Endpoint(**{**weights.DIRECT, **options})
        self._calls = Calls(self._endpoint)
        self._last: Optional[Saving] = None
        self._staging: Optional[memoryview] = None
        self._staged: Optional[Memory] = None
        self._lock = threading.Lock()
        try:
            connecting = [self._endpoint.connect(address, timeout=timeout) for address in addresses]
            self._count = len(connecting)
            #: By their numbers: those that were reached, and why others were not.
            self._stores: Dict[int, Peer] = {}
            self._lost: Dict[int, PeerError] = {}
            for store, operation in enumerate(connecting):
                try:
                    self._stores[store] = operation.wait()
                except PeerError as error:
                    self._lost[store] = error.with_traceback(None)
            if not self._stores:
                self._raise(0, self._lost[0])
        except BaseException:
            self._calls.close()
            raise

    def _call(self, store: int, do: str, load: int = 0, **given: Any) -> Any:
        """`load`: bytes that a disk reads or flushes for it, which may be a slow one."""
        with self._of(store):
            return self._begin_call(store, do, load, **given).wait()

    def _begin_call(self, store: int, do: str, load: int = 0, **given: Any) -> Call:
        return self._calls.begin(self._stores[store], do, self._timeout + load / SLOWEST, **given)

    @contextlib.contextmanager
    def _of(self, store: int) -> Iterator[None]:
        """What fails has failed at this store."""
        if store in self._lost:
            self._raise(store, self._lost[store])
        try:
            yield
        except (OSError, PeerError) as error:
            self._raise(store, _of_file(error))
        except UsageError as error:
            if error.status != c.ERR_HANDLE:
                raise
            self._raise(store, ConnectionError("it has ended"))

    @contextlib.contextmanager
    def _of_peers(self) -> Iterator[None]:
        """A transfer that fails has failed at the store that is its peer."""
        try:
            yield
        except PeerError as error:
            for store, peer in self._stores.items():
                if peer.id == error.peer:
                    self._raise(store, _of_file(error))
            raise

    def _raise(self, store: int, error: Exception) -> NoReturn:
        """The same kind of error, which names the store."""
        kind: Type[StoreError] = _Lost if isinstance(error, ConnectionError) else _Late if isinstance(error, TimeoutError) else StoreError
        number, text = getattr(error, "errno", None), getattr(error, "strerror", None) or str(error)
        text = f"the store of manifests[{store}]{f', {self._places[store]}' if self._places[store] else ''}: {text}"
        named = kind(number, text) if number else kind(text)
        named.store = store
        raise named from error

    # Saving.

    def save(self, step: int, tensors: Tensors, *, copy: bool = True, progress: Optional[Progress] = None) -> Saving:
        """Begins to save this rank's tensors, which must be contiguous, once kernels of their GPUs have ended. `copy`: returns when
        they are copied, and may change; the memory for it is kept for the next save. Else it returns at once, and they must not
        change until the save has ended. `progress` is called, by another thread, with the bytes that are there, and all.

        What an unfinished save of this step has left is used where its checksums agree. With one rank the step is
        committed, too; else `commit` does it."""
        return self._begin(step, tensors, f"rank{self.rank}", copy, progress, self._ranks == 1)

    def _begin(self, step: int, tensors: Tensors, name: str, copy: bool, progress: Optional[Progress], commit: bool) -> Saving:
        count, step = self._count, number_of(step)
        if self._older:
            raise ValueError(f"manifests[{self._older[0]}] is of a store of another version, which can be loaded from, but not saved to")
        shards = shards_from(tensors, once=True)
        synchronize(shard.buffer for shard in shards)
        files = [File(f"{name}-{number}", part, [(self.rank + store + c) % count for c in range(self._copies)])
                 for number, (store, part) in enumerate(spread(shards, count))]
        with self._lock:
            if self._last is not None:
                self._last._thread.join()
            where = self._copy(files) if copy else None

            def run(saving: Saving) -> bytes:
                own, places = ([], where) if where is not None else self._registered(files)
                try:
                    writer = Writer(self, step, files)
                    made = writer.write(places, saving)
                finally:
                    for memory in own:
                        memory.deregister()
                if commit:
                    self._commit(step, [made])
                return made

            self._last = Saving(run, sum(file.size for file in files) * self._copies, progress)
            return self._last

    def _copy(self, files: Sequence[File]) -> List[List[Place]]:
        """Into memory that is kept, as the files will have them."""
        total = sum(size_of(file.tensors) + BLOCK for file in files)
        if self._staging is None or self._staged is None or len(self._staging) < total:
            if self._staged is not None:
                self._staged.deregister()
            self._staging = self._staged = None  # what was deregistered serves nobody where an allocation fails
            self._staging = self._endpoint.allocate(total)
            self._staged = self._endpoint.register(self._staging, access=Access.REMOTE_READ)
        base, where = 0, []
        for file in files:
            where.append([(self._staged, 0, base + tensor.begin) for tensor in file.tensors.values()])
            for number, tensor in enumerate(file.tensors.values()):
                place = self._staging[base + tensor.begin:base + tensor.end]
                fill(place, file.shards[number].buffer)
                file.shards[number] = file.shards[number]._replace(buffer=place)
            base += size_of(file.tensors) + -size_of(file.tensors) % BLOCK
        return where

    def _registered(self, files: Sequence[File]) -> Tuple[List[Memory], List[List[Place]]]:
        """The tensors where they lie."""
        memories, places = weights.register(
            self._endpoint, [s for file in files for s in file.shards if weights.length_of(s.buffer)], Access.REMOTE_READ)
        left = iter(places)
        return memories, [[(memories[0], 0, 0) if t.begin == t.end else (memories[(at := next(left))[0]], at[1], 0)
                           for t in file.tensors.values()] for file in files]

    def commit(self, step: int, parts: Sequence[bytes]) -> None:
        """Makes a checkpoint of what `Saving.wait` returned on every rank; one rank does it. When it returns, all stores have
        the manifest. Raises ValueError, and commits nothing, if these are not the parts of all `ranks`, a file is not there as
        often as it should be, rows of a tensor were saved by no rank, or ranks have saved the same rows with other bytes, or in
        ranges that differ, or a tensor with another dtype or shape. After a `StoreError` or a WeftError, `steps` says whether the step
        was committed; it is all there if it was."""
        given = {name.rpartition("-")[0] for part in parts for name in json.loads(part)}
        wanted = {f"rank{rank}" for rank in range(self._ranks)}
        if given != wanted:
            raise ValueError(f"step {step}: these are parts of {', '.join(sorted(given)) or 'no rank'}, and ranks={self._ranks} of "
                             f"Checkpoints wants those of {', '.join(sorted(wanted))}")
        self._commit(step, parts)

    def _commit(self, step: int, parts: Sequence[bytes]) -> None:
        step = number_of(step)
        files: Dict[str, int] = {}
        for part in parts:
            files.update(json.loads(part))
        everywhere = self._everywhere(needed=True)
        for name, size in files.items():
            has = sum(there.get(step, (None, {}))[1].get(name) == size for there in everywhere.values())
            if has < self._copies:
                other = next((other for there in everywhere.values() for other, (_, its) in there.items() if its.get(name) == size), step)
                its = "" if has or other == step else f": it is a part of step {other}"
                raise ValueError(f"step {step}: {has} stores have {name}, of {self._copies}{its}")
        saved: Dict[str, Tuple[Any, Dict[Tuple[int, int], List[int]]]] = {}
        for store in everywhere:
            offer = self._call(store, "offer", step=step, files=list(files))
            for (tensor, dtype, shape, begin, end, row), sums in zip(offer["shards"], offer["sums"]):
                kind, ranges = saved.setdefault(tensor, ((dtype, shape, row), {}))
                if kind != (dtype, shape, row):
                    raise ValueError(f"step {step}: {tensor} is not the same on all ranks: {self._kinds(step, list(files), tensor)}")
                if begin < end and ranges.setdefault((begin, end), sums) != sums:
                    raise ValueError(f"step {step}: {tensor} was saved twice, with other bytes")
        for tensor, ((_, shape, row), ranges) in saved.items():
            check(f"{tensor} of step {step}", shape[0] if shape else 1, row, ranges)
        number = 1 + max((manifest["number"] for there in everywhere.values() for manifest in [there.get(step, (None, {}))[0]] if manifest), default=0)
        manifest = {"format": 1, "step": step, "number": number, "files": files}
        for store in range(self._count):
            self._call(store, "commit", step=step, manifest=manifest)

    def _kinds(self, step: int, files: Sequence[str], tensor: str) -> str:
        """Which dtypes and shapes ranks have saved of a tensor, with the first rank that has each."""
        kinds: Dict[str, str] = {}
        for name in files:
            for offer in self._answers("offer", step=step, files=[name]).values():
                for other, dtype, shape, *_ in offer["shards"]:
                    if other == tensor:
                        kinds.setdefault(f"{dtype} {tuple(shape)}", name.partition("-")[0].replace("rank", "rank "))
        return ", ".join(f"{rank} says {kind}" for kind, rank in kinds.items())

    # Loading.

    def _answers(self, do: str, stores: Optional[Sequence[int]] = None, failed: Optional[List[StoreError]] = None,
                 **given: Any) -> Dict[int, Any]:
        """Of those stores that answer: one at least, unless it is not needed. `failed`: takes the errors of others."""
        answers, failed = {}, [] if failed is None else failed
        for store in range(self._count) if stores is None else stores:
            try:
                answers[store] = self._call(store, do, **given)
            except StoreError as error:  # another one may have a copy
                failed.append(error)
        if failed and not answers and stores is None:
            raise failed[-1]
        return answers

    def _everywhere(self, needed: bool = False,
                    failed: Optional[List[StoreError]] = None) -> Dict[int, Dict[int, Tuple[Optional[Dict[str, Any]], Dict[str, int]]]]:
        """Of each store that answers, each step's manifest and files. `needed`: all have to answer; `failed`: as of `_answers`."""
        answers = {store: self._call(store, "steps") for store in range(self._count)} if needed else self._answers("steps", failed=failed)
        return {store: {step: (manifest, files) for step, manifest, files in there} for store, there in answers.items()}

    def _absent(self) -> List[StoreError]:
        """Of the stores that do not answer."""
        failed: List[StoreError] = []
        self._everywhere(failed=failed)
        return failed

    def steps(self) -> List[Step]:
        """The checkpoints, the last one last; with those of which a part is on no store that is there (`missing`)."""
        return self._steps(self._everywhere())

    @staticmethod
    def _steps(everywhere: Dict[int, Dict[int, Tuple[Optional[Dict[str, Any]], Dict[str, int]]]]) -> List[Step]:
        steps: Dict[int, Step] = {}
        for there in everywhere.values():
            for step, (manifest, _) in there.items():
                if manifest and (step not in steps or steps[step].number < manifest["number"]):
                    files = manifest["files"]
                    copies = {name: sum(other.get(step, (None, {}))[1].get(name) == files[name] for other in everywhere.values())
                              for name in files}
                    missing = [name for name in files if not copies[name]]
                    steps[step] = Step(step, manifest["number"], files, missing, min(copies.values(), default=0))
        return [steps[step] for step in sorted(steps)]

    def _step(self, step: Optional[int]) -> Step:
        step = None if step is None else number_of(step)
        failed: List[StoreError] = []
        all_ = self._steps(self._everywhere(failed=failed))
        if step is None and failed and all_ and all_[-1].missing:
            # An older one in its place would undo training that was saved.
            *number, text = failed[-1].args
            named = type(failed[-1])(*number, f"{text}; without it step {all_[-1].step}, the last one, is not whole: `step=` takes an older one")
            named.store = failed[-1].store
            raise named from failed[-1]
        steps = [one for one in all_ if not one.missing and step in (None, one.step)]
        if not steps:
            raise FileNotFoundError(f"no store has a whole checkpoint{'' if step is None else f' of step {step}'}")
        return steps[-1]

    def contents(self, step: Optional[int] = None) -> List[Tuple[str, str, Tuple[int, ...], int]]:
        """Name, dtype, shape and bytes of each whole tensor of a step; None: of the last one."""
        found, tensors = self._step(step), {}
        failed: List[StoreError] = []
        offers = self._answers("offer", range(self._count), failed, step=found.step, files=list(found.files))
        if failed and not set(found.files) <= {name for store, files in self._files(found).items() if store in offers for name in files}:
            good = self._good(found)
            if good is None:
                raise failed[-1]
            offers = {store: self._call(store, "offer", step=found.step, files=names) for store, names in good.items()}
        for offer in offers.values():
            for name, dtype, shape, _, _, row in offer["shards"]:
                tensors[name] = (name, dtype, tuple(shape), row * (shape[0] if shape else 1))
        return list(tensors.values())

    def load(self, tensors: Tensors, step: Optional[int] = None, *, verify: bool = True, progress: Optional[Progress] = None) -> int:
        """Reads tensors, or any rows of them, into these buffers or files, however they were sharded when they were saved.
        `step`: None stands for the last checkpoint; returns which it was. `verify`: checksums are compared with those of the
        save; the default is True, unlike that of `Target.pull`, as disks may change what was saved. `progress` is called with the
        bytes that are there, and all. Raises FileNotFoundError without a checkpoint, ValueError for tensors that it does not have
        so, `ChangedError`, which is one, for bytes that are not what was saved; the last store's `StoreError` if none is left, or
        if what the last checkpoint consists of is on none that answers: an older one is loaded where `step` says so."""
        shards = shards_from(tensors)
        own: List[BaseException] = []

        def said(there: int, all_: int) -> None:
            try:
                if progress:
                    progress(there, all_)
            except BaseException as error:
                own.append(error)
                raise

        while True:
            found = self._step(step)
            try:
                self._load(found, shards, verify, said)
                return found.step
            except (OSError, ValueError):
                if own:
                    raise own[0]  # which is no store's error
                # A newer one may have been committed meanwhile, and this one removed.
                if step is not None or self._step(None)[:2] == found[:2]:
                    raise

    def _load(self, found: Step, shards: Sequence[Shard], verify: bool, progress: Optional[Progress]) -> None:
        try:
            self._load_from(dict.fromkeys(range(self._count), list(found.files)), found.step, shards, verify, progress)
        except (ChangedError, StoreError):  # which a damaged file of each store is, too
            good = self._good(found)
            if good is None:
                raise
            self._load_from(good, found.step, shards, verify, progress)

    def _load_from(self, files: Dict[int, List[str]], step: int, shards: Sequence[Shard], verify: bool, progress: Optional[Progress]) -> None:
        """From these files of each store."""
        names = sorted({shard.name for shard in shards})
        offers: Dict[int, Any] = {}
        failed: Optional[StoreError] = None
        try:
            for store, of_store in files.items():
                try:
                    offers[store] = self._call(store, "offer", step=step, files=of_store, names=names)
                except StoreError as error:
                    failed = error
            try:
                self._read(shards, offers, verify, progress)
            except ChangedError as error:
                raise ChangedError(f"step {step}: {error}") from None
            except ValueError as error:
                if failed is None:
                    raise
                raise failed from error  # no other store has what it was to offer
        finally:
            for store, offer in offers.items():
                self._answers("release", [store], name=offer["held"])

    def _files(self, found: Step) -> Dict[int, Dict[str, int]]:
        """The files of a step, and their sizes, on each store that answers."""
        return {store: {name: size for name, size in steps.get(found.step, (None, {}))[1].items() if name in found.files}
                for store, steps in self._everywhere().items()}

    def _good(self, found: Step) -> Optional[Dict[int, List[str]]]:
        """The files on each store that are what was saved: the stores read them again. None: not all are there, or all only once."""
        files = self._files(found)
        there = {store: [name for name, size in of_store.items() if found.files[name] == size] for store, of_store in files.items()}

        def good(store: int) -> List[str]:
            names = []
            try:
                for name in there[store]:
                    if not self._call(store, "check", found.files[name], step=found.step, file=name):
                        names.append(name)
            except StoreError:
                pass  # and of its other files there is no answer, either
            return names

        if {name for names in there.values() for name in names} != set(found.files):
            return None
        if sum(map(len, files.values())) == len(found.files):
            return None
        with ThreadPoolExecutor(8, "weft-checks") as pool:
            checked = dict(zip(there, pool.map(good, there)))
        return checked if {name for names in checked.values() for name in names} == set(found.files) else None

    def _read(self, shards: Sequence[Shard], offers: Dict[int, Dict[str, Any]], verify: bool, progress: Optional[Progress] = None) -> None:
        manifests = [json.dumps(offer).encode() for offer in offers.values()]
        with ThreadPoolExecutor(1, "weft-checksums") as pool, Target(
                shards, manifests, timeout=self._timeout, endpoint=self._endpoint) as target:
            wholes, edges = _checks(shards, list(offers.values())) if verify else ({}, [])  # the target has compared their shapes
            checking = []

            def arrived(*piece: Any) -> None:
                check = wholes.pop((id(piece[0]), *piece[1:]), None)
                if check is not None:
                    checking.append(pool.submit(check.run))

            try:
                target.pull(progress=progress, arrived=arrived)
            except PeerError as error:
                for number, store in enumerate(offers):
                    if target.lost.get(number) is error:
                        self._raise(store, error)
                raise
            for done in checking:
                done.result()
        for check in wholes.values():
            check.run()
        for at in range(0, len(edges), EDGES):
            self._look_at(edges[at:at + EDGES], offers)

    def _look_at(self, edges: Sequence[_Edge], offers: Dict[int, Dict[str, Any]]) -> None:
        """Reads pieces again of which a part is here: all of each has its checksum, and that part is the same."""
        again = [edge.shard._replace(begin=edge.begin, end=edge.end, buffer=bytearray((edge.end - edge.begin) * edge.shard.row))
                 for edge in edges]
        self._read(again, offers, False)
        for whole, edge in zip(again, edges):
            _Check(whole, edge.piece - edge.begin * whole.row, edge.length, edge.sum).run()
            here = edge.low - edge.shard.begin * whole.row, edge.high - edge.low
            _Check(edge.shard, *here, weights.checksum(whole.buffer, edge.low - edge.begin * whole.row, here[1])).run()

    def verify(self, step: Optional[int] = None) -> List[str]:
        """Has the stores read a step again. Returns what is not what was saved: store, file and tensor, as "HOST:PORT: rank0-0....: w"
        where the store's manifest is of `manifest_of`, else "manifests[1]: ...". Of copies all are looked at that are on stores
        which answer."""
        found, bad = self._step(step), []
        everywhere = self._everywhere()
        for store, there in everywhere.items():
            for name, size in there.get(found.step, (None, {}))[1].items():
                if name in found.files:
                    bad += [f"{self._places[store] or f'manifests[{store}]'}: {name}: {key}" for key in self._call(store, "check", size, step=found.step, file=name)]
        return bad

    def close(self) -> None:
        """Waits for a save that is under way, and ends the connections."""
        with self._lock:
            if self._last is not None:
                self._last._thread.join()
            self._calls.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
