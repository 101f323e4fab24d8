"""Kills stores and ranks while they save, at random points and before each step that changes a disk or asks for it; then looks at
what is loaded: the old checkpoint or the new one, else it is torn.

    python3 checkpoint_kills.py N        prints checkpoint_torn, and leaves it in target/figures
"""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from typing import Any, Callable, Dict, List, Optional, Tuple

from libweft import Endpoint
from libweft.checkpoint import Checkpoints, Shard, Store
from libweft._calls import Calls

OPTIONS: Dict[str, Any] = {"fabric": "tcp", "rails": "lo"}
#: Each rank's tensors: one of many pieces of the file, one of an odd length.
SIZES = {"large": 600_000, "small": 1001}
RANKS = 2
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["checkpoint_kills"])
#: Seconds after which a save or a load is a hang.
PATIENCE = 60.0


def contents(rank: int, version: int) -> List[Shard]:
    """Of each version all bytes are others."""
    shards = []
    for name, size in SIZES.items():
        data = bytes(((version * 7 + rank * 3 + i) % 251 for i in range(251))) * (size // 251 + 1)
        shards.append(Shard(name, "U8", (RANKS * size,), rank * size, (rank + 1) * size, data[:size]))
    return shards


class Death:
    """Ends this process before the step that `left` counts down to."""

    def __init__(self) -> None:
        self.left: Optional[int] = None
        self._lock = threading.Lock()

    def before(self, holder: Any, *names: str) -> None:
        for name in names:
            setattr(holder, name, self._guarded(getattr(holder, name)))

    def _guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **more: Any) -> Any:
            with self._lock:
                if self.left is not None:
                    if self.left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    self.left -= 1
            return call(*args, **more)

        return guarded


def store(pipe: Connection, folder: str) -> None:
    death = Death()
    with Store(folder, keep=1, **OPTIONS) as made:
        death.before(os, "makedirs", "ftruncate", "posix_fallocate", "fsync", "rename", "unlink")
        death.before(shutil, "rmtree")
        death.before(Endpoint, "read_list")
        pipe.send(made.manifest())
        while True:
            death.left = pipe.recv()
            pipe.send(None)


def ranks(pipe: Connection, manifests: List[bytes], copies: int) -> None:
    death = Death()
    death.before(Calls, "begin")
    death.before(Endpoint, "write_list")
    made = [Checkpoints(manifests, rank=rank, ranks=RANKS, copies=copies, **OPTIONS) for rank in range(RANKS)]
    pipe.send(None)
    while True:
        do, step, version, left = pipe.recv()
        death.left = left
        try:
            if do == "save":
                saves = [one.save(step, contents(rank, version), copy=version % 2 == 0) for rank, one in enumerate(made)]
                made[0].commit(step, [one.wait() for one in saves])
                pipe.send("committed")
            else:
                pipe.send(loaded(made[0]))
        except Exception as error:
            pipe.send(repr(error))


def loaded(rank: Checkpoints) -> Any:
    """Step and version of the last checkpoint; or what is wrong with it."""
    wanted = [Shard(name, "U8", (RANKS * size,), 0, RANKS * size, bytearray(RANKS * size)) for name, size in SIZES.items()]
    step = rank.load(wanted)
    version = next((v for v in range(251) if (v * 7) % 251 == wanted[0].buffer[0]), -1)
    expected = [b"".join(contents(r, version)[i].buffer for r in range(RANKS)) for i in range(len(SIZES))]
    return (step, version) if [one.buffer for one in wanted] == expected else f"step {step} is a mixture"


class Child:
    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        self.pipe, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=target, args=(theirs, *args), daemon=True)
        self.process.start()
        theirs.close()
        self.said = self.take()

    def take(self) -> Any:
        if not self.pipe.poll(PATIENCE):
            raise TimeoutError("a process hangs")
        return self.pipe.recv()

    def ask(self, *words: Any) -> Any:
        self.pipe.send(words if len(words) > 1 else words[0])
        return self.take()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


class World:
    """Two stores, and a process of two ranks."""

    def __init__(self, folder: pathlib.Path, copies: int) -> None:
        self.folder, self.copies, self.torn = folder, copies, list[str]()
        self.stores = [self.store(i) for i in range(2)]
        self.ranks = self.rank()
        #: Of the last checkpoint.
        self.step, self.version = 0, 0
        assert self.ranks.ask("save", 0, 0, None) == "committed"

    def store(self, number: int) -> Child:
        return Child(store, str(self.folder / f"{self.copies}-{number}"))

    def rank(self) -> Child:
        return Child(ranks, [child.said for child in self.stores], self.copies)

    def save(self, what: str, victim: int, delay: Optional[float], left: Optional[int], same_step: bool) -> bool:
        """Saves while `victim` (a store, or 2: the ranks) dies. Returns whether it died."""
        step, version = self.step + (not same_step), (self.version + 1) % 251
        dying = self.ranks if victim == 2 else self.stores[victim]
        if left is not None and victim < 2:
            dying.ask(left)
        self.ranks.pipe.send(("save", step, version, left if victim == 2 else None))
        if delay is not None:
            time.sleep(delay)
            dying.process.kill()
        try:
            said = self.ranks.take()
        except (EOFError, ConnectionError):
            said = "died"
        died = dying.process.exitcode is not None or delay is not None or said == "died"
        if died:
            dying.kill()
            if victim < 2:
                self.ranks.kill()
                self.stores[victim] = self.store(victim)
            self.ranks = self.rank()
        elif left is not None and victim < 2:
            dying.ask([None][0])
        found = self.ranks.ask("load", 0, 0, None)
        new, old = (step, version), (self.step, self.version)
        if found not in ((new,) if said == "committed" else (new, old)):
            self.torn.append(f"{what}: {found!r} where {old} was and {new} was being saved ({said})")
        if isinstance(found, tuple):
            self.step, self.version = found
        return died

    def close(self) -> None:
        for child in (self.ranks, *self.stores):
            child.kill()


def torn(folder: pathlib.Path, count: int, sweep: bool, seed: Optional[int] = None) -> List[str]:
    """Those of `count` random kills (and one before each step) after which a checkpoint was neither the old nor the new one."""
    seed = random.randrange(1 << 32) if seed is None else seed
    chance = random.Random(seed)
    found: List[str] = []
    for copies in (1, 2):
        world = World(folder, copies)
        try:
            began = time.monotonic()
            world.save("no kill", 2, None, None, False)
            usual = time.monotonic() - began
            for number in range(count // 2):
                victim, delay, same = chance.randrange(3), chance.random() * usual, chance.random() < 0.5
                world.save(f"seed {seed}, kill {number} of {'rank' if victim == 2 else 'store'} after {delay:.4f} s", victim, delay, None, same)
            for victim in (0, 2) if sweep else ():
                step = 0
                while world.save(f"{copies} copies, step {step} of {'rank' if victim == 2 else 'store'}", victim, None, step, step % 2 == 0):
                    step += 1
                assert step > 5, "the steps were not counted"
        finally:
            world.close()
        found += world.torn
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        kills = int(sys.argv[1])
        bad = torn(pathlib.Path(scratch), kills, True, int(sys.argv[2]) if len(sys.argv) > 2 else None)
    print("\n".join(bad))
    figures = pathlib.Path(__file__).resolve().parents[2] / "target/figures"
    figures.mkdir(parents=True, exist_ok=True)
    (figures / "checkpoint_torn_by_kills").write_text(f"{len(bad)}\n")
    #: Power cuts are another program's: checkpoint_cuts.py.
    all_torn = sum(int(part.read_text()) for part in figures.glob("checkpoint_torn_by_*"))
    for name, value in (("checkpoint_torn", all_torn), ("checkpoint_kills", kills)):
        print(f"{name:28}{value}")
        (figures / name).write_text(f"{value}\n")
