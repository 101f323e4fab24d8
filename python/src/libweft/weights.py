"""Weights from any number of sources to targets that are sharded in another way, over every NIC at once.

    source = Source([Shard("w", "F32", (4096, 1024), 0, 2048, array)])       # rows 0 to 2047 of a tensor
    send_somehow(source.manifest())

    target = Target([Shard("w", "F32", (4096, 1024), 1024, 3072, mine)], manifests)
    target.pull(verify=True)                                                 # again for the next version of the weights

Tensors are sharded by their first dimension. Targets read; what several sources have is shared among them, and read from
the others when one dies. On the command line, with safetensors files:

    python -m libweft.weights serve --listen HOST:PORT FILE...
    python -m libweft.weights pull --from HOST:PORT --out FILE [--shard 0/2] [--verify]

A process that can connect to the port gets everything needed to read the memory: keep it inside, or give the endpoints a secret
(`secret_file`, or the variable `WEFT_SECRET_FILE`).
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import mmap
import socket
import sys
import threading
import time
import zlib
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from ._buffers import Buffer
from .endpoint import Access, Endpoint
from .errors import ClosedError, WeftError
from .events import Message, PeerDown
from .memory import RemoteMemory
from .operation import Operation
from .peer import Peer
from .transfers import Entry

#: What is read from one source at a time is cut into pieces of this many bytes, and is lost at most when it dies.
PIECE = 8 << 20
#: The longest header of a safetensors file.
HEADER_MAX = 100_000_000
#: Reads of one source that are under way at once, and pieces in each.
DEPTH, BATCH = 2, 8
#: Seconds in which a source has to say what it has.
PATIENCE = 10.0


class Shard(NamedTuple):
    """Rows `begin` to `end` of a tensor, in a contiguous buffer. `dtype` and `shape` are the whole tensor's; one without
    dimensions has one row."""

    name: str
    dtype: str
    shape: Tuple[int, ...]
    begin: int
    end: int
    buffer: Buffer

    @property
    def row(self) -> int:
        """Bytes of a row."""
        return len(memoryview(self.buffer).cast("B")) // max(self.end - self.begin, 1)


class Piece(NamedTuple):
    """Bytes to read: `source` is one of those in `sources` that have them, each with its range and offset."""

    shard: int
    offset: int
    length: int
    sources: Tuple[Tuple[int, int, int], ...]


class Source:
    """Offers shards until it is closed. They must not change while targets pull."""

    def __init__(self, shards: Sequence[Shard], **options: Any) -> None:
        """`options`: those of `Endpoint`."""
        self._shards = [s for s in shards if s.end > s.begin and s.row]
        self._endpoint = Endpoint(**options)
        buffers: List[Buffer] = [s.buffer for s in self._shards] or [bytearray(1)]
        self._memory = self._endpoint.register(buffers, access=Access.REMOTE_READ)
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def manifest(self) -> bytes:
        """What targets need to know; it may travel by any means."""
        return json.dumps({
            "format": 1,
            "address": base64.b64encode(self._endpoint.address).decode(),
            "descriptor": base64.b64encode(self._memory.export()).decode(),
            "shards": [[s.name, s.dtype, list(s.shape), s.begin, s.end, s.row] for s in self._shards],
        }).encode()

    def _answer(self) -> None:
        """Checksums of ranges, for targets that ask."""
        try:
            while True:
                event = self._endpoint.wait_event()
                if isinstance(event, Message):
                    number, shard, offset, length = json.loads(event.data)
                    view = memoryview(self._shards[shard].buffer).cast("B")[offset:offset + length]
                    event.peer.send(json.dumps([number, zlib.crc32(view)]).encode())
        except (ClosedError, WeftError):
            pass

    def close(self) -> None:
        self._endpoint.close()
        self._thread.join()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Target:
    """A plan of what to read from where, made once, for any number of pulls."""

    def __init__(self, shards: Sequence[Shard], manifests: Sequence[bytes], *, timeout: float = 60, **options: Any) -> None:
        """`timeout`: seconds in which a source has to connect, to answer, and to send up to 64 MiB. `options`: those of
        `Endpoint`."""
        self._timeout = timeout
        self._shards = [s for s in shards if s.end > s.begin and s.row]
        self._sources = [json.loads(m) for m in manifests]
        self.pieces = list(self._plan())
        #: Bytes of a pull.
        self.total = sum(p.length for p in self.pieces)
        self._dead: Set[int] = set()
        self._endpoint = Endpoint(**options)
        buffers: List[Buffer] = [s.buffer for s in self._shards] or [bytearray(1)]
        self._memory = self._endpoint.register(buffers, access=Access.LOCAL)
        self._peers: Dict[int, Peer] = {}
        self._remotes: Dict[int, RemoteMemory] = {}

    def _plan(self) -> Iterator[Piece]:
        held: Dict[str, List[Tuple[int, int, Any]]] = {}
        for number, source in enumerate(self._sources):
            for place, offered in enumerate(source["shards"]):
                held.setdefault(offered[0], []).append((number, place, offered))
        for number, shard in enumerate(self._shards):
            holders = held.get(shard.name, [])
            for _, _, (_, dtype, shape, _, _, row) in holders:
                if (dtype, tuple(shape), row) != (shard.dtype, tuple(shard.shape), shard.row):
                    raise ValueError(f"{shard.name}: {shard.dtype} {shard.shape} is wanted, {dtype} {tuple(shape)} is offered")
            # Between these rows always the same sources have them.
            edges = {shard.begin, shard.end} | {e for _, _, o in holders for e in o[3:5] if shard.begin < e < shard.end}
            rows = sorted(edges)
            for begin, end in zip(rows, rows[1:]):
                have = [(s, place, (begin - o[3]) * o[5]) for s, place, o in holders if o[3] <= begin and end <= o[4]]
                if not have:
                    raise ValueError(f"{shard.name}: no source has rows {begin} to {end - 1}")
                start, length = (begin - shard.begin) * shard.row, (end - begin) * shard.row
                for at in range(0, length, PIECE):
                    yield Piece(number, start + at, min(PIECE, length - at), tuple((s, r, o + at) for s, r, o in have))

    def pull(self, *, verify: bool = False, progress: Optional[Callable[[int, int], None]] = None) -> None:
        """Reads everything. `verify`: the sources compute checksums of what was read from them, and they are compared.
        `progress` is called with the bytes that are there, and all. Raises the last source's error when none is left
        that has what is missing."""
        todo = list(range(len(self.pieces)))
        there = 0

        def moved(length: int) -> None:
            nonlocal there
            there += length
            if progress:
                progress(there, self.total)

        while todo:
            came_from = self._read(todo, moved)
            todo = self._unconfirmed(came_from) if verify else []
            for piece in todo:
                there -= self.pieces[piece].length

    def _connected(self, source: int) -> RemoteMemory:
        if source not in self._remotes:
            known = self._sources[source]
            peer = self._endpoint.connect(base64.b64decode(known["address"]), timeout=self._timeout).wait()
            self._peers[source] = peer
            self._remotes[source] = peer.import_memory(base64.b64decode(known["descriptor"]))
        return self._remotes[source]

    def _assign(self, pieces: Sequence[int], queues: Dict[int, Deque[int]], why: Optional[WeftError]) -> None:
        """To the source that has least to send."""
        for number in pieces:
            have = [s for s, _, _ in self.pieces[number].sources if s not in self._dead]
            if not have:
                raise why or ConnectionError(f"no source is left that has {self._shards[self.pieces[number].shard].name}")
            queues.setdefault(min(have, key=lambda s: len(queues.get(s, ()))), deque()).append(number)

    def _read(self, pieces: Sequence[int], moved: Callable[[int], None]) -> Dict[int, int]:
        """Each piece, and the source that it came from."""
        queues: Dict[int, Deque[int]] = {}
        self._assign(pieces, queues, None)
        under_way: Deque[Tuple[int, List[int], Operation[Any]]] = deque()
        came_from: Dict[int, int] = {}
        try:
            while any(queues.values()) or under_way:
                for source in list(queues):
                    while queues.get(source) and sum(s == source for s, _, _ in under_way) < DEPTH:
                        batch = [queues[source].popleft() for _ in range(min(BATCH, len(queues[source])))]
                        try:
                            under_way.append((source, batch, self._start(source, batch)))
                        except WeftError as error:
                            self._lose(source, batch, queues, error)
                if not under_way:
                    continue
                source, batch, operation = under_way.popleft()
                try:
                    operation.wait()
                except WeftError as error:
                    self._lose(source, batch, queues, error)
                else:
                    came_from.update((number, source) for number in batch)
                    moved(sum(self.pieces[number].length for number in batch))
        finally:
            self._stop(operation for _, _, operation in under_way)
        return came_from

    def _start(self, source: int, batch: Sequence[int]) -> Operation[Any]:
        remote, entries = self._connected(source), []
        for number in batch:
            piece = self.pieces[number]
            place, offset = next((r, o) for s, r, o in piece.sources if s == source)
            entries.append(Entry(self._memory, remote, piece.length, piece.shard, place, piece.offset, offset))
        return self._endpoint.read_list(entries, timeout=self._timeout)

    def _lose(self, source: int, batch: Sequence[int], queues: Dict[int, Deque[int]], why: WeftError) -> None:
        self._dead.add(source)
        self._assign([*batch, *queues.pop(source, ())], queues, why)

    @staticmethod
    def _stop(operations: Iterator[Operation[Any]]) -> None:
        for operation in list(operations):
            operation.cancel()
            try:
                operation.wait()
            except WeftError:
                pass

    def _unconfirmed(self, came_from: Dict[int, int]) -> List[int]:
        """Pieces whose source has died before it said what their checksum is. Raises ValueError if one differs."""
        asked: Dict[int, int] = {}
        for number, source in came_from.items():
            piece = self.pieces[number]
            place, offset = next((r, o) for s, r, o in piece.sources if s == source)
            try:
                self._peers[source].send(json.dumps([number, place, offset, piece.length]).encode())
                asked[number] = source
            except WeftError:
                self._dead.add(source)
        until = time.monotonic() + self._timeout
        while any(source not in self._dead for source in asked.values()):
            event = self._endpoint.wait_event(max(until - time.monotonic(), 0))
            if event is None:
                self._dead |= set(asked.values())  # silent: read from others
                break
            if isinstance(event, PeerDown):
                self._dead |= {s for s, peer in self._peers.items() if peer.id == event.peer.id}
            elif isinstance(event, Message):
                number, theirs = json.loads(event.data)
                if number not in asked or self._peers[asked[number]].id != event.peer.id:
                    continue  # too late: it is read from another source
                piece = self.pieces[number]
                shard = self._shards[piece.shard]
                if zlib.crc32(memoryview(shard.buffer).cast("B")[piece.offset:piece.offset + piece.length]) != theirs:
                    raise ValueError(f"{shard.name}: what was read from source {came_from[number]} is not what it has")
                asked.pop(number, None)
                came_from.pop(number, None)
                until = time.monotonic() + self._timeout
        return list(came_from)

    def close(self) -> None:
        self._endpoint.close()

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def header_of(path: str) -> bytes:
    """What precedes the tensors' bytes in a safetensors file."""
    with open(path, "rb") as file:
        first = file.read(8)
        length = int.from_bytes(first, "little")
        text = file.read(min(length, HEADER_MAX))
    if len(first) < 8 or len(text) < length:
        raise ValueError(f"{path} is no safetensors file: its header is cut off")
    return first + text


def _tensors(path: str, header: bytes) -> Dict[str, Any]:
    """The tensors that a header names."""
    try:
        said = json.loads(header[8:])
        return {name: (str(t["dtype"]), tuple(map(int, t["shape"])), *map(int, t["data_offsets"]))
                for name, t in said.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no safetensors file: {error!r}") from None


def _mapped(path: str, header: bytes, tensors: Dict[str, Any], access: int) -> List[Shard]:
    with open(path, "r+b" if access & mmap.PROT_WRITE else "rb") as file:
        bytes_ = memoryview(mmap.mmap(file.fileno(), 0, prot=access))[len(header):]
    for name, (_, _, begin, end) in tensors.items():
        if not 0 <= begin <= end <= len(bytes_):
            raise ValueError(f"{path}: {name} ends at byte {end}, beyond the end of the file")
    return [Shard(name, dtype, shape, 0, shape[0] if shape else 1, bytes_[begin:end])
            for name, (dtype, shape, begin, end) in tensors.items()]


def shards_of(path: str) -> List[Shard]:
    """All tensors of a safetensors file, which stays mapped."""
    header = header_of(path)
    return _mapped(path, header, _tensors(path, header), mmap.PROT_READ)


def copy_of(path: str, header: bytes) -> List[Shard]:
    """A safetensors file with another one's header, and room for the same tensors."""
    tensors = _tensors(path, header)
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(len(header) + max((t[3] for t in tensors.values()), default=0))
    return _mapped(path, header, tensors, mmap.PROT_READ | mmap.PROT_WRITE)


def create(path: str, wanted: Sequence[Tuple[str, str, Tuple[int, ...], int, int, int]],
           metadata: Optional[Dict[str, str]] = None) -> List[Shard]:
    """A safetensors file with room for these: as a manifest has them, name, dtype, shape, begin, end, bytes of a row."""
    header: Dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    places, at = [], 0
    for name, dtype, shape, begin, end, row in wanted:
        places.append((at, at + (end - begin) * row))
        header[name] = {"dtype": dtype, "shape": [end - begin, *shape[1:]] if shape else [], "data_offsets": places[-1]}
        at = places[-1][1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "w+b") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
        file.flush()
        bytes_ = memoryview(mmap.mmap(file.fileno(), 0))[8 + len(text):]
    return [Shard(name, dtype, tuple(shape), begin, end, bytes_[first:last])
            for (name, dtype, shape, begin, end, _), (first, last) in zip(wanted, places)]


def _place(text: str) -> Tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _serve(listen: Tuple[str, int], files: Sequence[str]) -> None:
    shards = [shard for path in files for shard in shards_of(path)]
    names = [shard.name for shard in shards]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is in several of the files")
    headers = [base64.b64encode(header_of(path)).decode() for path in files]
    with Source(shards) as source, socket.create_server(listen) as server:
        print(f"serving at {server.getsockname()[0]}:{server.getsockname()[1]}", flush=True)
        answer = json.dumps({**json.loads(source.manifest()), "headers": headers}).encode()
        while True:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(PATIENCE)
                try:
                    connection.sendall(answer)
                except OSError as error:
                    print(f"a target left: {error}", file=sys.stderr)


def _offer(place: Tuple[str, int]) -> bytes:
    """What a source has."""
    with socket.create_connection(place, timeout=PATIENCE) as connection:
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    if "headers" not in json.loads(answer):
        raise ValueError("it has no headers: it is of another version")
    return answer


def _pull(sources: Sequence[Tuple[str, int]], out: str, part: int, parts: int, verify: bool) -> None:
    manifests, headers, failed = [], [], None
    for place in sources:
        try:
            manifests.append(_offer(place))
        except (OSError, ValueError) as error:
            failed = f"{place[0]}:{place[1]} offers nothing: {error}"
            print(failed, file=sys.stderr)
            continue
        headers += [h for h in json.loads(manifests[-1])["headers"] if h not in headers]
    if not manifests:
        raise ConnectionError(f"no source is left; {failed}")
    # A file alone comes out as it is; what is of several, or a part, has a header of its own.
    texts = [base64.b64decode(header) for header in headers]
    if len(texts) == 1 and parts == 1:
        shards = copy_of(out, texts[0])
    else:
        whole: Dict[str, Any] = {}
        metadata: Dict[str, str] = {}
        for text in texts:
            metadata.update(json.loads(text[8:]).get("__metadata__") or {})
            for name, (dtype, shape, begin, end) in _tensors("a source's file", text).items():
                rows = shape[0] if shape else 1
                # What has no rows to share is in each part.
                cut = (rows * part // parts, rows * (part + 1) // parts) if shape else (0, 1)
                whole[name] = (name, dtype, shape, *cut, (end - begin) // max(rows, 1))
        shards = create(out, list(whole.values()), metadata)
    with Target(shards, manifests) as target:
        began = time.monotonic()
        target.pull(verify=verify)
        seconds = time.monotonic() - began
        print(f"{len(shards)} tensors, {target.total} bytes, {seconds:.2f} s, {target.total / max(seconds, math.ulp(1)) / 1e9:.2f} GB/s")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m libweft.weights", description="Moves weights between processes.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="offers safetensors files")
    serve.add_argument("--listen", type=_place, default=("0.0.0.0", 0), metavar="HOST:PORT")
    serve.add_argument("files", nargs="+", metavar="FILE")
    pull = commands.add_parser("pull", help="writes what sources have, or a part of it, into a file")
    pull.add_argument("--from", dest="sources", type=_place, action="append", required=True, metavar="HOST:PORT")
    pull.add_argument("--out", required=True, metavar="FILE")
    pull.add_argument("--shard", default="0/1", metavar="I/N", help="rows of part I of N of each tensor")
    pull.add_argument("--verify", action="store_true", help="compare checksums with the sources")
    given = parser.parse_args()
    try:
        if given.command == "serve":
            _serve(given.listen, given.files)
        else:
            part, parts = map(int, given.shard.split("/"))
            _pull(given.sources, given.out, part, parts, given.verify)
    except (OSError, ValueError, WeftError) as error:
        sys.exit(f"{given.command}: {error}")


if __name__ == "__main__":
    main()
