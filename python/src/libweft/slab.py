"""A file of slots for pages of caches: peers write pages into it under keys, and read them until they are evicted.

    python -m libweft.slab --listen HOST:PORT --bytes N FILE         # on the host with the disk

    with Slots(manifest, slot=65536) as slots:                       # in an engine
        slots.put(["a", "b"], memory, [3, 4])                        # pages 3 and 4 of `memory`
        slots.get(["a", "b"], memory, [7, 8])                        # which of them came

The index lies with the owner of the file. Peers reach slots under grants alone: one that writes has its slots to itself until it is
done, and one that reads loses its grant before a slot is used for another key, so that what it gets is of the key that it asked for. What is
in the file is a cache: it begins empty.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import math
import os
import stat
import sys
import threading
import time
from collections import OrderedDict
from typing import Any, Dict, Iterable, List, NamedTuple, Sequence, Set

from . import weights
from ._calls import Calls
from .endpoint import Access, Endpoint
from .errors import WeftError
from .memory import Memory
from .peer import Peer
from .transfers import Side


__all__ = ["Slab", "Slots"]


class _Grant(NamedTuple):
    """What a peer may reach. `keys`: those that it writes; a reader's are none. `until`: when a peer that writes has given it up."""

    peer: int
    token: bytes
    slots: List[int]
    keys: List[str]
    until: float = math.inf


class Slab:
    """Slots in a file of this host; its threads are its own. When none is free, the key goes that was used longest ago."""

    def __init__(self, path: str, size: int, **options: Any) -> None:
        """`path`: a file, which is made, or a block device, of which `size` bytes are used. `options`: those of `Endpoint`."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            of_file = os.fstat(file)
            if stat.S_ISREG(of_file.st_mode) and of_file.st_size < size:
                os.posix_fallocate(file, 0, size)
            self._endpoint = Endpoint(**{**weights.DIRECT, **options})
            self._memory = self._endpoint.register_file(file, [(0, size)], access=Access.GRANTED)
        finally:
            os.close(file)
        self._size, self._slot = size, 0
        self._lock = threading.RLock()
        self._free: List[int] = []
        #: The slots of keys, the one that was used longest ago first; and keys that are being written.
        self._where: "OrderedDict[str, int]" = OrderedDict()
        self._coming: Set[str] = set()
        self._grants: Dict[int, _Grant] = {}
        #: Those of them that are over, and could not be revoked yet: a disk hangs.
        self._over: Set[int] = set()
        self._numbers = itertools.count(1)
        self._calls = Calls(self._endpoint, self._serve, self._ended)

    def manifest(self) -> bytes:
        """What peers need to know; it may travel by any means."""
        return json.dumps({"format": 1, "slab": base64.b64encode(self._endpoint.address).decode()}).encode()

    def close(self) -> None:
        """Ends it; what is in the file is lost with its index."""
        self._calls.close()

    def __enter__(self) -> Slab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, peer: Peer, given: Dict[str, Any]) -> Any:
        do = given.pop("do")
        if do not in ("attach", "has", "put", "get", "done"):
            raise ValueError(f"{do!r} is no request: it is of another version")
        try:
            return getattr(self, "_" + do)(peer, **given)
        finally:
            try:
                peer.info()
            except WeftError:
                self._ended(peer.id)

    def _attach(self, peer: Peer, slot: int) -> str:
        """The first peer says how long slots are."""
        with self._lock:
            if not self._slot and 0 < slot <= self._size:
                self._slot, self._free = slot, list(range(self._size // slot - 1, -1, -1))
            if slot != self._slot:
                raise ValueError(f"slots of {slot} bytes are wanted, this file of {self._size} bytes has some of {self._slot}")
        return base64.b64encode(self._memory.export()).decode()

    def _has(self, peer: Peer, keys: List[str]) -> List[bool]:
        with self._lock:
            for key in keys:
                if key in self._where:
                    self._where.move_to_end(key)
            return [key in self._where for key in keys]

    def _grant(self, peer: Peer, slots: List[int], keys: List[str], access: Access, until: float = math.inf) -> Dict[str, Any]:
        number = next(self._numbers)
        token = self._endpoint.grant(self._memory, peer, self._slot, Side(slots, self._slot), access=access)
        self._grants[number] = _Grant(peer.id, token, slots, keys, until)
        return {"number": number, "token": token.hex()}

    def _put(self, peer: Peer, keys: List[str], seconds: float) -> Dict[str, Any]:
        """Slots for those keys that are not there; of the others -1, as of those for which there is no room. `seconds`: in which the
        peer has to have the answer, then to have written, and then to have said so."""
        with self._lock:
            now = time.monotonic()
            self._end_all(number for number, grant in self._grants.items() if grant.until < now and number not in self._over)
            if len(self._free) < len(keys):
                self._end_all(self._over)
            slots: List[int] = []
            taken: Dict[str, int] = {}
            try:
                for key in keys:
                    slots.append(-1 if key in self._where or key in self._coming or key in taken else self._room())
                    if slots[-1] >= 0:
                        taken[key] = slots[-1]
                granted = self._grant(peer, list(taken.values()), list(taken), Access.REMOTE_WRITE, now + 3 * seconds) if taken else {}
            except BaseException:
                self._free += taken.values()
                raise
            self._coming.update(taken)
            return {"slots": slots, **granted}

    def _room(self) -> int:
        """A free slot, of which no reader has a grant any longer."""
        if not self._free:
            if not self._where:
                return -1
            key, slot = next(iter(self._where.items()))
            for number in [number for number, grant in self._grants.items() if slot in grant.slots]:
                self._end(number)
            del self._where[key]
            return slot
        return self._free.pop()

    def _end(self, number: int, ok: bool = False) -> None:
        """Ends a grant; what it had for writing is free then, or (`ok`) of its keys. Where the revocation fails, nothing changes,
        and the next `put` that needs room tries it again."""
        grant = self._grants[number]
        self._over.add(number)
        self._endpoint.revoke(grant.token).wait()
        del self._grants[number]
        self._over.discard(number)
        for key, slot in zip(grant.keys, grant.slots):
            self._coming.discard(key)
            if ok:
                self._where[key] = slot
            else:
                self._free.append(slot)

    def _end_all(self, numbers: Iterable[int]) -> None:
        for number in list(numbers):
            try:
                self._end(number)
            except WeftError:
                pass  # it is in `_over`

    def _get(self, peer: Peer, keys: List[str]) -> Dict[str, Any]:
        with self._lock:
            self._has(peer, keys)
            slots = [self._where.get(key, -1) for key in keys]
            there = sorted({slot for slot in slots if slot >= 0})
            return {"slots": slots, **(self._grant(peer, there, [], Access.REMOTE_READ) if there else {})}

    def _done(self, peer: Peer, number: int, ok: bool) -> bool:
        """A peer has read, or written (`ok`: all of it). False: its grant was revoked before."""
        with self._lock:
            if self._grants.get(number, (None,))[0] != peer.id:
                return False
            self._end(number, ok)
            return True

    def _ended(self, peer: int) -> None:
        with self._lock:
            self._end_all(number for number, grant in self._grants.items() if grant.peer == peer)


class Slots:
    """A slab, as a peer of its owner sees it. Any thread may call anything; calls block until the pages have moved."""

    def __init__(self, manifest: bytes, slot: int, *, timeout: float = 30, **options: Any) -> None:
        """`slot`: bytes of a page. `timeout`: seconds for each answer and transfer. `options`: those of `Endpoint`."""
        self._slot, self._timeout = slot, timeout
        #: Registers the memory of `put` and `get`.
        self.endpoint: Endpoint = Endpoint(**{**weights.DIRECT, **options})
        self._calls = Calls(self.endpoint)
        try:
            address = base64.b64decode(weights.said_by([manifest], "slab")[0]["slab"])
            self._peer = self.endpoint.connect(address, timeout=timeout).wait()
            self._remote = self._peer.import_memory(base64.b64decode(self._calls(self._peer, "attach", timeout, slot=slot)))
        except BaseException:
            self._calls.close()
            raise

    def has(self, keys: Sequence[str]) -> List[bool]:
        """Which keys are there now."""
        found: List[bool] = self._calls(self._peer, "has", self._timeout, keys=list(keys))
        return found

    def put(self, keys: Sequence[str], memory: Memory, pages: Sequence[int]) -> int:
        """Writes pages of `memory` under keys, but for those that are there, or for which there is no room. Returns how many
        were written."""
        given = self._calls(self._peer, "put", self._timeout, keys=list(keys), seconds=self._timeout)
        chosen = [(page, slot) for page, slot in zip(pages, given["slots"]) if slot >= 0]
        if chosen:
            self._move(self.endpoint.write_pages, given, memory, chosen)
        return len(chosen)

    def get(self, keys: Sequence[str], memory: Memory, pages: Sequence[int]) -> List[bool]:
        """Reads what is under keys into pages of `memory`. Returns which came; raises RevokedError if a slot was needed for
        another key meanwhile: then none counts."""
        given = self._calls(self._peer, "get", self._timeout, keys=list(keys))
        chosen = [(page, slot) for page, slot in zip(pages, given["slots"]) if slot >= 0]
        if chosen:
            self._move(self.endpoint.read_pages, given, memory, chosen)
        return [slot >= 0 for slot in given["slots"]]

    def _move(self, transfer: Any, given: Dict[str, Any], memory: Memory, chosen: Sequence[Any]) -> None:
        ok = False
        try:
            transfer(memory, self._remote, self._slot, local=Side([page for page, _ in chosen], self._slot),
                     remote=Side([slot for _, slot in chosen], self._slot), grant=bytes.fromhex(given["token"]), timeout=self._timeout).wait()
            ok = True
        finally:
            self._calls(self._peer, "done", self._timeout, number=given["number"], ok=ok)

    def close(self) -> None:
        """Disconnects from the owner."""
        self._calls.close()

    def __enter__(self) -> Slots:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m libweft.slab", description="Offers slots of a file for pages of caches.")
    parser.add_argument("--listen", type=weights.place_of, required=True, metavar="HOST:PORT", help="where others ask for its address")
    parser.add_argument("--bytes", type=int, required=True, metavar="N", help="of the file that are used")
    parser.add_argument("file", metavar="FILE", help="a file, which is made, or a block device")
    given = parser.parse_args()
    try:
        with Slab(given.file, given.bytes) as slab:
            weights.answer_at(given.listen, f"offering slots of {given.file}", slab.manifest)
    except (OSError, ValueError, WeftError) as error:
        sys.exit(f"slab: {error}")


if __name__ == "__main__":
    main()
