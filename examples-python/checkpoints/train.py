"""A training that is killed, loses a disk, and goes on with another number of ranks.

    python3 train.py FOLDER      the folders a and b in it stand for disks of two hosts
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from typing import Any, Dict, List, Sequence

from libweft.checkpoint import Checkpoints, Shard, Store

ROWS, COLUMNS, EVERY = 600, 512, 10
PROCESSES = multiprocessing.get_context("spawn")
try:
    library: Any = importlib.import_module("torch")
except ImportError:
    library = importlib.import_module("numpy")


def keep(folder: str, pipe: Connection) -> None:
    """The process of a host with a disk."""
    with Store(folder, keep=2) as store:
        pipe.send(store.manifest())
        pipe.recv()


def train(manifests: Sequence[bytes], rank: int, ranks: int, until: int, dies: bool, parts: Any, committed: Any) -> None:
    """A rank, which has some rows of the weights."""
    begin, end = ROWS * rank // ranks, ROWS * (rank + 1) // ranks
    weights = library.zeros((end - begin, COLUMNS), dtype=library.float32)
    mine = [Shard("weights", "F32", (ROWS, COLUMNS), begin, end, weights)]
    with Checkpoints(manifests, rank=rank, ranks=ranks, copies=len(manifests)) as checkpoints:
        step = checkpoints.load(mine) if checkpoints.steps() else 0
        if not bool((weights == step).all()):
            sys.exit(f"rank {rank}: step {step} has other weights")
        print(f"rank {rank} of {ranks} begins at step {step}", flush=True)
        while step < until:
            step += 1
            weights += 1  # "training"
            if step % EVERY:
                continue
            saving = checkpoints.save(step, mine)  # a copy is made, so the next steps could run meanwhile
            if dies and step == until:
                os._exit(9)
            parts.put(saving.wait())
            if rank == 0:
                checkpoints.commit(step, [parts.get(timeout=60) for _ in range(ranks)])
                print(f"step {step} is a checkpoint", flush=True)
            committed.wait(60)


def run(manifests: List[bytes], ranks: int, until: int, dies: bool = False) -> List[Any]:
    """Starts all ranks; the status of each."""
    parts, committed = PROCESSES.Queue(), PROCESSES.Barrier(ranks)
    processes = [PROCESSES.Process(target=train, args=(manifests, rank, ranks, until, dies and rank == ranks - 1, parts, committed))
                 for rank in range(ranks)]
    for process in processes:
        process.start()
    if dies:
        processes[-1].join()
        for process in processes:
            process.kill()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def main(folder: str) -> int:
    stores: Dict[str, Any] = {}
    pipes: Dict[str, Connection] = {}
    manifests: List[bytes] = []
    for name in ("a", "b"):
        pipes[name], theirs = PROCESSES.Pipe()
        stores[name] = PROCESSES.Process(target=keep, args=(os.path.join(folder, name), theirs), daemon=True)
        stores[name].start()
        manifests.append(pipes[name].recv())
    status = run(manifests, 2, 3 * EVERY, dies=True)
    print(f"rank 1 died while it saved step {3 * EVERY}: {status}", flush=True)
    stores["b"].kill()
    print("the host of b is lost", flush=True)
    if run(manifests[:1], 3, 4 * EVERY) != [0, 0, 0]:
        return 1
    with Checkpoints(manifests[:1]) as checkpoints:
        print(f"checkpoints: {[one.step for one in checkpoints.steps()]}; bytes that differ: {checkpoints.verify()}", flush=True)
    pipes["a"].send("end")
    stores["a"].join()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
