"""Saves checkpoints, one after the other, until the power fails; and looks what a load finds once the machine has started again: the
last checkpoint, or the one that was being saved; anything else is torn. tools/test-files-vm.sh runs it in a virtual machine.

    python3 checkpoint_cuts.py FOLDER LEDGER writes|looks

FOLDER: on a disk with a volatile cache. LEDGER: a file outside of the machine. WEFT_FLUSH=none: without flushes, so that something is torn.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import random
import sys
from typing import Any, Dict, Tuple

from checkpoint_kills import OPTIONS, RANKS, contents, loaded
from libweft import Endpoint
from libweft.checkpoint import Checkpoints, Store

#: For an emulated machine; in seconds.
TIMEOUT = 600


def without_flushes() -> None:
    write_list = Endpoint.write_list

    def cached(endpoint: Endpoint, *given: Any, durable: bool = False, **more: Any) -> Any:
        return write_list(endpoint, *given, **more)

    setattr(Endpoint, "write_list", cached)
    os.fsync = lambda _: None  # type: ignore[assignment]


class Ledger:
    """What was begun and what has ended; and what may be loaded: of the last one that has ended, and of one begun since."""

    def __init__(self, path: pathlib.Path) -> None:
        self.may_be: Dict[str, Tuple[int, int]] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            what, step, version = line.split()
            self._note(what, (int(step), int(version)))
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def _note(self, what: str, one: Tuple[int, int]) -> None:
        if what == "ended":
            self.may_be.clear()
        self.may_be[what] = one

    def note(self, what: str, one: Tuple[int, int]) -> None:
        self._note(what, one)
        os.write(self.file, f"{what} {one[0]} {one[1]}\n".encode())


def look(rank: Checkpoints, ledger: Ledger) -> Tuple[int, int]:
    """Prints what is there; returns the last checkpoint."""
    if not ledger.may_be:
        print("there 0 lost 0", flush=True)
        return 0, 0
    try:
        found = loaded(rank)
    except Exception as error:
        found = repr(error)
    is_torn = found not in ledger.may_be.values()
    if is_torn:
        print(f"lost: a load gave {found!r}, and there were {ledger.may_be}")
    print(f"there {int(not is_torn)} lost {int(is_torn)}", flush=True)
    if isinstance(found, tuple):
        ledger.note("ended", found)
    return ledger.may_be.get("ended", (0, 0))


def main(folder: str, path: str, do: str) -> None:
    if os.environ.get("WEFT_FLUSH") == "none":
        without_flushes()
    ledger = Ledger(pathlib.Path(path))
    with contextlib.ExitStack() as open_ones:
        stores = [open_ones.enter_context(Store(f"{folder}/{i}", keep=1, **OPTIONS)) for i in range(2)]
        manifests = [store.manifest() for store in stores]
        ranks = [[open_ones.enter_context(Checkpoints(manifests, rank=rank, ranks=RANKS, copies=copies, timeout=TIMEOUT, **OPTIONS))
                  for rank in range(RANKS)] for copies in (1, 2)]
        step, version = look(ranks[0][0], ledger)
        for number in itertools.count() if do == "writes" else ():
            step, version = step + random.randrange(2), (version + 1) % 251
            ledger.note("begun", (step, version))
            saving = ranks[number % 2]
            saves = [one.save(step, contents(rank, version), copy=number % 3 == 0) for rank, one in enumerate(saving)]
            saving[0].commit(step, [one.wait() for one in saves])
            ledger.note("ended", (step, version))


main(*sys.argv[1:])
