"""Checkpoints: tensors of many ranks in files on chosen hosts, committed all at once.

    store = Store("/nvme/checkpoints")                              # on each host with disks
    send_somehow(store.manifest())

    with Checkpoints(manifests) as checkpoints:                     # on each rank
        checkpoints.save(1000, {"w": w}).wait()
        checkpoints.load({"w": w})

Files are safetensors. `libweft.checkpoint.dcp` is the same for torch.distributed.checkpoint. On the command line:

    python -m libweft.checkpoint store --listen HOST:PORT [--keep N] FOLDER
    python -m libweft.checkpoint save --store HOST:PORT --step N FILE...
    python -m libweft.checkpoint load --store HOST:PORT [--step N] --out FILE [--shard I/N]
    python -m libweft.checkpoint list --store HOST:PORT
    python -m libweft.checkpoint verify --store HOST:PORT [--step N]

See docs/checkpoint.md.
"""

from ..weights import FileRange, Shard
from ._client import ChangedError, Checkpoints, Step, StoreError
from ._saving import Saving
from ._store import Store

__all__ = ["ChangedError", "Checkpoints", "FileRange", "Saving", "Shard", "Step", "Store", "StoreError"]
