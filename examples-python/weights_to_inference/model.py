"""What trainers and inference share: a model of two tensors, of torch where it is there, else of numpy."""

from __future__ import annotations

import importlib
import json
import socket
from typing import Any, Dict, Iterator

from libweft.weights import Shard

SHAPES = {"hidden": (512, 256), "output": (256, 64)}
try:
    library: Any = importlib.import_module("torch")
except ImportError:
    library = importlib.import_module("numpy")


def rows(name: str, rank: int, ranks: int) -> range:
    """Those that a rank has."""
    count = SHAPES[name][0]
    return range(count * rank // ranks, count * (rank + 1) // ranks)


def shards(rank: int, ranks: int) -> Dict[str, Shard]:
    """A rank's part of each tensor, which begins with zeros."""
    made = {}
    for name, shape in SHAPES.items():
        mine = rows(name, rank, ranks)
        tensor = library.zeros((len(mine), shape[1]), dtype=library.float32)
        made[name] = Shard(name, "F32", shape, mine.start, mine.stop, tensor)
    return made


def lines(connection: socket.socket) -> Iterator[Any]:
    """What the other side says, a line of JSON each."""
    with connection.makefile() as file:
        yield from map(json.loads, file)


def say(connection: socket.socket, what: Any) -> None:
    connection.sendall(json.dumps(what).encode() + b"\n")
