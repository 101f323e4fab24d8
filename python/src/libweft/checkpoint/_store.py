"""The side that has the disk: a folder for each step, files of safetensors in it, and a manifest that says which of them count."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import functools
import hashlib
import itertools
import json
import os
import re
import shutil
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from .. import weights
from .._safetensors import Tensor, header_of, parsed, pieces
from ..endpoint import Access, Endpoint
from ..errors import BusyError, CanceledError, WeftError
from ..memory import Memory, RemoteMemory
from ..operation import Operation
from ..peer import Peer
from ..transfers import Entry
from ..weights import FileRange, Shard
from .._calls import Calls

#: Of the manifests of stores: those of 1 do not fill files.
FORMAT = 2
#: Bytes of which a file keeps one checksum.
PIECE = 8 << 20
#: The file that makes a step a checkpoint, and one that is being written.
MANIFEST, UNFINISHED = "manifest.json", ".tmp"
#: Of our own, in the metadata of a file.
KEY = "weft"
#: Lists of runs that are read at once, of all peers; others wait.
FILLS = 64
#: Seconds in which a peer has to give back what a store no longer reads, and a connection has to end.
DRAIN, END = 1.0, 10.0
#: Why a process may no longer write a file.
TAKEN = "the file is being saved by another process, which began later"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Saved(NamedTuple):
    """A file of a step: the tensors in the order of their bytes. `whole`: each tensor's name, the shape of all of it, and the
    first row that is here; `sums`: of each piece, in their order."""

    header: int
    tensors: Dict[str, Tensor]
    whole: Dict[str, Tuple[str, Tuple[int, ...], int]]
    sums: List[int]


class _Ends:
    """The ends of a file's use, in order: one that raises is left, with those behind it, for the next call."""

    def __init__(self, *ends: Callable[[], None]) -> None:
        self._left, self._lock = list(ends), threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            while self._left:
                self._left[0]()
                self._left.pop(0)


class _Filled:
    """An unfinished file, which its peer writes into, or has this process fill with bytes of the peer's memory. It has a descriptor
    from before the first of them, which the kernel tells of every write that failed."""

    def __init__(self, endpoint: Endpoint, peer: Peer, path: str, file: int, memory: Memory, sources: Sequence[RemoteMemory]) -> None:
        self._endpoint, self._peer, self.file, self._sources = endpoint, peer, memory, list(sources)
        self._path, self._file = path, file
        self._reading: Set[Operation[Any]] = set()
        self._ended = False
        self._lock = threading.Lock()

    def fill(self, runs: Sequence[Sequence[int]], timeout: float) -> None:
        """Returns when these runs are in the file."""
        entries = [Entry(self.file, self._sources[source], length, 0, range_, there, here) for source, range_, here, there, length in runs]
        with self._lock:
            if self._ended:
                raise ValueError(TAKEN)
            reading = self._endpoint.read_list(entries, timeout=timeout)
            self._reading.add(reading)
        try:
            reading.wait()
        except CanceledError:
            raise ValueError(TAKEN) from None
        finally:
            with self._lock:
                self._reading.discard(reading)

    def flush(self) -> None:
        """What it has is on the disk when this returns. If that fails it is removed: what can be read of it may not be there."""
        with self._lock:
            try:
                if self._file >= 0:
                    os.fdatasync(self._file)
            except OSError:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path)
                raise

    def end(self) -> None:
        """Nothing changes the file from here on. If it raises, it is to be repeated."""
        with self._lock:
            self._ended, reading = True, list(self._reading)
        for one in reading:
            one.cancel()
        for one in reading:
            with contextlib.suppress(WeftError):
                one.wait()
        began = time.monotonic()
        while True:
            try:
                self.file.deregister()
                break
            except BusyError:  # what a process that is stopped was to send may be written until its connection has ended
                if time.monotonic() > began + END:
                    raise
                if time.monotonic() > began + DRAIN:
                    with contextlib.suppress(WeftError):
                        self._peer.disconnect()
                time.sleep(0.05)
        while self._sources:
            with contextlib.suppress(WeftError):  # the peer has ended
                self._sources.pop().release()
        with contextlib.suppress(OSError):
            self.flush()
        with self._lock:
            file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def hash_of(header: bytes) -> str:
    return hashlib.sha256(header).hexdigest()[:16]


def saved(path: str) -> Saved:
    """What a file of a checkpoint says of itself; its name has the hash of that."""
    header = header_of(path)
    if hash_of(header) != path.split(".")[-2]:
        raise ValueError(f"the header of {path} is not what was saved")
    tensors, metadata = parsed(path, header)
    said = json.loads(metadata.get(KEY, "null"))
    if said is None or said["piece"] != PIECE:
        raise ValueError(f"{path} is of another version, or no file of a checkpoint")
    tensors = dict(sorted(tensors.items(), key=lambda item: item[1][2:]))
    whole = {key: (name, tuple(shape), begin) for key, (name, shape, begin) in said["shards"].items()}
    sums = [int(said["sums"][at:at + 8], 16) for at in range(0, len(said["sums"]), 8)]
    return Saved(len(header), tensors, whole, sums)


def sync(path: str) -> None:
    """Flushes a folder."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _known(name: str) -> str:
    """A name out of a request, which may not leave the folder."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a file")
    return name


class Store:
    """Keeps checkpoints in a folder of this host, for ranks anywhere. It has one process: a second one is refused.

        with Store("/nvme/checkpoints", keep=3) as store:
            send_somehow(store.manifest())
            ...

    The process reads the ranks' memory into its files, without holding the bytes itself, and ranks read the files as memory.
    Every process that has the manifest (and the secret, if `options` name one) may read and replace all of it.
    """

    def __init__(self, folder: "str | os.PathLike[str]", *, keep: int = 0, **options: Any) -> None:
        """`keep`: a commit removes all steps but the `keep` that were committed last; 0: none. Of steps that are not committed it
        removes those that are older than these and that no connected process has saved into: ranks keep their `Checkpoints` open
        until the commit. `options`: those of `Endpoint`. Raises OSError where the folder cannot be used, BlockingIOError where
        another store has it."""
        #: Where it keeps them.
        self.folder: str = os.path.abspath(folder)
        self._keep = keep
        os.makedirs(self.folder, exist_ok=True)
        sync(os.path.dirname(self.folder))
        self._lock_file = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BlockingIOError(error.errno, f"another store has {self.folder}") from None
            self._endpoint = Endpoint(**{**weights.DIRECT, **options})
        except BaseException:
            os.close(self._lock_file)
            raise
        self._lock = threading.RLock()
        #: What a peer writes, has written for a checkpoint that is not committed yet, or reads: which peer, and what ends it.
        self._held: Dict[str, Tuple[int, _Ends]] = {}
        #: Peers that have ended, and hold something yet: its disk did not answer, say.
        self._gone: Set[int] = set()
        #: Files that are being written.
        self._filled: Dict[str, _Filled] = {}
        #: Files that are being read, and by how many.
        self._read: Dict[str, Tuple[Memory, int]] = {}
        self._numbers = itertools.count()
        self._fills = ThreadPoolExecutor(FILLS, "weft-fills")
        self._calls = Calls(self._endpoint, self._serve, self._ended)

    def manifest(self) -> bytes:
        """What ranks need to know; it may travel by any means."""
        return json.dumps({"format": FORMAT, "checkpoints": base64.b64encode(self._endpoint.address).decode()}).encode()

    def close(self) -> None:
        """What is committed stays; a save that is under way fails. Repeating it is harmless."""
        if self._lock_file >= 0:
            self._calls.close()
            self._fills.shutdown()
            os.close(self._lock_file)
            self._lock_file = -1

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Requests.

    def _serve(self, peer: Peer, given: Dict[str, Any]) -> Any:
        do = given.pop("do")
        if do not in ("find", "use", "open", "sums", "fill", "seal", "commit", "steps", "offer", "release", "check"):
            raise ValueError(f"{do!r} is no request: it is of another version")
        try:
            return getattr(self, "_" + do)(peer.id, **given)
        finally:
            try:
                peer.info()
            except WeftError:
                self._ended(peer.id)  # what it has taken since its end, too

    def _path(self, step: int, *name: str) -> str:
        if not isinstance(step, int) or step < 0:
            raise ValueError(f"{step!r} is no number of a step")
        return os.path.join(self.folder, f"{step}", *map(_known, name))

    def _hold(self, peer: int, name: str, *ends: Callable[[], None]) -> None:
        """Takes a file for a peer; another one's registration of it has ended when this returns."""
        with self._lock:
            before = self._held.get(name, (peer, _Ends()))[1]
            mine = self._held[name] = peer, _Ends(before, *ends)
            self._filled.pop(name, None)
        before()
        with self._lock:
            if self._held.get(name) is mine:
                self._held[name] = peer, _Ends(*ends)

    def _must_hold(self, peer: int, name: str) -> None:
        """With the lock."""
        if self._held.get(name, (None,))[0] != peer:
            raise ValueError(f"{name} is being saved by another process, which began later")

    def _release(self, peer: int, name: str) -> None:
        with self._lock:
            if self._held.get(name, (None,))[0] != peer:
                return
            held = self._held[name]
            self._filled.pop(name, None)
        held[1]()
        with self._lock:
            if self._held.get(name) is held:
                del self._held[name]

    def _reads(self, path: str, has: Saved) -> Memory:
        """A file's tensors, registered once for all that read them, until each of them has called `_read_no_more`."""
        with self._lock:
            if path not in self._read:
                ranges = [(has.header + t.begin, t.end - t.begin) for t in has.tensors.values() if t.end > t.begin]
                self._read[path] = self._endpoint.register_file(path, ranges, access=Access.REMOTE_READ), 0
            memory, users = self._read[path]
            self._read[path] = memory, users + 1
            return memory

    def _read_no_more(self, path: str, last: List[Memory]) -> None:
        """`last`: of one reader, empty at first. It takes the registration if there is no other reader, so that a repeated call
        deregisters that one, and not a later one of the same path."""
        with self._lock:
            if not last:
                memory, users = self._read.pop(path)
                if users > 1:
                    self._read[path] = memory, users - 1
                    return
                last.append(memory)
        last[0].deregister()

    def _ended(self, peer: int) -> None:
        for name in [name for name, (holder, _) in list(self._held.items()) if holder == peer]:
            try:
                self._release(peer, name)
            except WeftError:
                self._gone.add(peer)

    def _find(self, peer: int, step: int, name: str, size: int) -> Dict[str, Any]:
        """What an earlier save has left of a file, of that size: an unfinished one, and finished ones."""
        unfinished, finished = self._path(step, name + UNFINISHED), []
        with self._lock:
            for other in os.listdir(self._path(step)) if os.path.isdir(self._path(step)) else ():
                if other.startswith(name + ".") and other != name + UNFINISHED and os.stat(self._path(step, other)).st_size == size:
                    finished.append(other)
            is_there = os.path.exists(unfinished) and os.stat(unfinished).st_size == size
        return {"unfinished": name + UNFINISHED if is_there else "", "finished": finished}

    def _use(self, peer: int, step: int, name: str) -> bool:
        """A finished file, as it is, for the checkpoint that is to be. False: it is not what was saved, or was removed by the commit
        of another process, and is to be written."""
        with self._lock:
            if not os.path.exists(self._path(step, name)):
                return False
            self._hold(peer, f"{step}/{name}")
        self._sync(step)  # a store that was killed may have renamed it only
        return not self._check(peer, step, name)

    def _sync(self, step: int) -> None:
        """The names in a step's folder, and its own, are on the disk when this returns."""
        sync(self._path(step))
        sync(self.folder)

    def _sums(self, peer: int, step: int, name: str, places: List[List[int]]) -> List[int]:
        """Of an unfinished file, which no other peer writes from here on. None: another process has finished it meanwhile."""
        path = self._path(step, name)
        self._hold(peer, f"{step}/{name}")
        if not os.path.exists(path):
            return []
        whole = FileRange(path, 0, os.stat(path).st_size)
        return [weights.checksum(whole, at, length) for at, length in places]

    def _open(self, peer: int, step: int, name: str, size: int, memories: Sequence[str] = (), summed: bool = False) -> str:
        """An unfinished file, with its size and its blocks; a peer that had it before has it no longer. `memories`: those of the
        peer that `fill` reads. `summed`: what the file has is used, as `sums` has found it."""
        path = self._path(step, name + UNFINISHED)
        held = f"{step}/{name}{UNFINISHED}"
        if not summed:
            self._hold(peer, held)
        with self._lock:
            self._must_hold(peer, held)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        sources: List[RemoteMemory] = []
        try:
            writer = self._endpoint._peer(peer)
            sources += [writer.import_memory(base64.b64decode(memory)) for memory in memories]
            os.ftruncate(file, size)
            os.posix_fallocate(file, 0, size)
            memory = self._endpoint.register_file(file, [(0, size)], access=Access.REMOTE_WRITE)
            filled = _Filled(self._endpoint, writer, path, file, memory, sources)
        except BaseException:
            os.close(file)
            with self._lock:
                if self._held.get(held, (None,))[0] == peer:
                    os.unlink(path)  # its blocks may be all that the disk has
                    self._release(peer, held)
            for source in sources:
                source.release()
            raise
        try:
            with self._lock:
                self._must_hold(peer, held)
                self._held[held] = peer, _Ends(self._held[held][1], filled.end)
                self._filled[held] = filled
        except ValueError:
            filled.end()
            raise
        return base64.b64encode(memory.export()).decode()

    def _fill(self, peer: int, step: int, name: str, runs: Sequence[Sequence[int]], seconds: float) -> "Future[None]":
        """Reads runs of the peer's memory into a file that it has open: of which memory, range and offset, where they belong in the
        file, and how many bytes they are."""
        held = f"{step}/{name}{UNFINISHED}"
        with self._lock:
            self._must_hold(peer, held)
            filled = self._filled.get(held)
        if filled is None:
            raise ValueError(f"{name} is not open")
        return self._fills.submit(filled.fill, runs, seconds)

    def _seal(self, peer: int, step: int, name: str, final: str) -> None:
        """Ends the writing of a file that was flushed. It has its name on the disk when this returns."""
        held = f"{step}/{name}{UNFINISHED}"
        with self._lock:
            self._must_hold(peer, held)
            filled = self._filled.get(held)
        if filled is not None:
            filled.flush()
        with self._lock:
            self._must_hold(peer, held)
            self._hold(peer, f"{step}/{final}")
            os.rename(self._path(step, name + UNFINISHED), self._path(step, final))
        self._release(peer, held)
        self._sync(step)

    def _commit(self, peer: int, step: int, manifest: Dict[str, Any]) -> None:
        """Every file is on the disk of its stores before the first of them is asked for this. `manifest` names them all; those
        that are here are looked at."""
        for gone in list(self._gone):  # not under the lock, for which an end that is under way may wait
            self._gone.discard(gone)
            self._ended(gone)
        with self._lock:
            folder, path = self._path(step), self._path(step, MANIFEST)
            for name, size in manifest["files"].items():
                if os.path.exists(self._path(step, name)) and os.stat(self._path(step, name)).st_size != size:
                    raise ValueError(f"{name} of step {step} has not its size of {size} bytes")
            present = dict(self._all()).get(step)
            if present is not None and present["number"] >= manifest["number"] and present != manifest:
                raise ValueError(f"another process has committed step {step} meanwhile")
            os.makedirs(folder, exist_ok=True)
            with open(path + UNFINISHED, "w", encoding="utf-8") as file:
                json.dump(manifest, file)
                file.flush()
                # The newest, also where the clock was set back.
                others = [os.stat(self._path(number, MANIFEST)).st_mtime_ns for number, found in self._all() if found is not None]
                now = max([time.time_ns()] + [1 + other for other in others])
                os.utime(path + UNFINISHED, ns=(now, now))
                os.fsync(file.fileno())
            os.rename(path + UNFINISHED, path)
            self._sync(step)
            for name in manifest["files"]:
                self._held.pop(f"{step}/{name}", None)
            self._clean(step, set(manifest["files"]))

    def _clean(self, step: int, files: Set[str]) -> None:
        """Removes what a step's manifest does not name and no peer writes, and steps that are not kept."""
        for name in os.listdir(self._path(step)):
            if name not in files and name != MANIFEST and f"{step}/{name}" not in self._held:
                os.unlink(os.path.join(self._path(step), name))
        if not self._keep:
            return
        # Of a step that is no checkpoint, the folder has a time, too.
        ages = {number: (os.stat(self._path(number, *[MANIFEST] * (manifest is not None))).st_mtime_ns, number)
                for number, manifest in self._all()}
        committed = sorted(ages[number] for number, manifest in self._all() if manifest is not None)
        for number, manifest in self._all():
            held = any(name.startswith(f"{number}/") for name in self._held)
            if ages[number] < committed[-self._keep:][0] and not held and len(committed) > self._keep:
                if manifest is not None:  # it is no checkpoint from here on
                    os.unlink(self._path(number, MANIFEST))
                    sync(self._path(number))
                shutil.rmtree(self._path(number))

    def _all(self) -> List[Tuple[int, Optional[Dict[str, Any]]]]:
        """The steps that have a folder, and their manifests."""
        found: List[Tuple[int, Optional[Dict[str, Any]]]] = []
        for number in sorted(int(name) for name in os.listdir(self.folder) if name.isdecimal()):
            try:
                with open(self._path(number, MANIFEST), encoding="utf-8") as file:
                    found.append((number, json.load(file)))
            except FileNotFoundError:
                found.append((number, None))
        return found

    def _steps(self, peer: int) -> List[Tuple[int, Optional[Dict[str, Any]], Dict[str, int]]]:
        """Each step, its manifest if it has one, and the finished files that are here."""
        with self._lock:
            return [(number, manifest, {
                entry.name: entry.stat().st_size for entry in os.scandir(self._path(number))
                if entry.name != MANIFEST and not entry.name.endswith(UNFINISHED)
            }) for number, manifest in self._all()]

    def _offer(self, peer: int, step: int, files: List[str], names: Optional[List[str]] = None) -> Dict[str, Any]:
        """The tensors with these names that are in files of a step, to be read until `held` is released. Without names: what
        tensors there are."""
        shards, sums, places = [], [], []
        used: Dict[str, Saved] = {}
        for file in files:
            path = self._path(step, file)
            if not os.path.exists(path):
                continue
            has, at, number = saved(path), 0, 0
            for key, tensor in has.tensors.items():
                named, shape, begin = has.whole[key]
                count = len(pieces({key: tensor}, PIECE))
                if names is None or named in names and count:
                    used[path] = has
                    shards.append(Shard(named, tensor.dtype, shape, begin, begin + tensor.rows, FileRange(path, 0, tensor.end - tensor.begin)))
                    sums.append(has.sums[at:at + count])
                    places.append((len(used) - 1, number))
                at, number = at + count, number + (count > 0)
        if names is None:
            return {"shards": [[s.name, s.dtype, s.shape, s.begin, s.end, s.row] for s in shards], "sums": sums}
        held = f"{step}/ read {next(self._numbers)}"
        memories: List[Memory] = []
        ends: List[Callable[[], None]] = []
        try:
            for path, has in used.items():
                memories.append(self._reads(path, has))
                ends.append(functools.partial(self._read_no_more, path, []))
        finally:
            self._hold(peer, held, *ends)
        return {**weights.offer(self._endpoint, shards, memories, places), "sums": sums, "held": held}

    def _check(self, peer: int, step: int, file: str) -> List[str]:
        """The tensors of a file that are not what was saved."""
        bad: List[str] = []
        path = self._path(step, file)
        try:
            has = saved(path)
            sums = iter(has.sums)
            for key, tensor in has.tensors.items():
                for at, length in pieces({key: tensor}, PIECE):
                    if weights.checksum(FileRange(path, has.header, 0), at, length) != next(sums) and key not in bad:
                        bad.append(key)
        except (OSError, ValueError) as error:
            bad.append(str(error))
        return bad
