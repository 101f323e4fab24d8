"""Tensors on a GPU whose kernels still run as they are offered, pulled, saved and loaded:

    python gpu_kernels.py      a GPU and torch; `./run.sh tests` of the bundle of `make gpu-test`

Each is filled, or cleared, behind a kernel that takes a second, on a stream of its own: what does not wait for it moves bytes
that are not there yet, or has its own overwritten.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import sys
import tempfile
import unittest
from typing import Any, Callable, Dict

import torch
from libweft.checkpoint import Checkpoints, Store
from libweft.weights import Shard, Source, Target
from support import FABRIC

LENGTH = 1 << 20
OPTIONS: Dict[str, Any] = {"fabric": FABRIC, "rails": "lo" if FABRIC == "tcp" else None}


def later(step: Callable[[], Any]) -> None:
    """On a stream, behind a kernel of a second."""
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(2_000_000_000)  # in cycles of the clock
        step()


@unittest.skipUnless(torch.cuda.is_available(), "no GPU here")
class Kernels(unittest.TestCase):
    def setUp(self) -> None:
        self.wanted = torch.arange(LENGTH, dtype=torch.float32, device="cuda")
        self.source, self.target = torch.zeros_like(self.wanted), torch.zeros_like(self.wanted)

    def fill(self) -> None:
        later(lambda: self.source.copy_(self.wanted))

    def clear(self) -> None:
        later(self.target.zero_)

    def arrived(self) -> None:
        torch.cuda.synchronize()
        self.assertTrue(torch.equal(self.target, self.wanted))

    def test_weights(self) -> None:
        def shard(tensor: Any) -> Shard:
            return Shard("w", "F32", tensor.shape, 0, LENGTH, tensor)

        with Source([shard(self.source)], **OPTIONS) as source:
            self.fill()
            manifest = source.manifest()
            with Target([shard(self.target)], [manifest], **OPTIONS) as target:
                target.pull()
                self.arrived()
                self.clear()
                target.pull()
                self.arrived()

    def test_checkpoints(self) -> None:
        for copy in (False, True):
            with self.subTest(copy=copy), tempfile.TemporaryDirectory(dir="/var/tmp") as folder, Store(
                    folder, **OPTIONS) as store, Checkpoints([store.manifest()], **OPTIONS) as checkpoints:
                self.source.zero_()
                self.fill()
                saving = checkpoints.save(1, {"w": self.source}, copy=copy)
                if copy:  # it is the caller's again at once
                    self.source.zero_()
                saving.wait(60)
                self.clear()
                checkpoints.load({"w": self.target})
                self.arrived()


if __name__ == "__main__":
    unittest.main() if torch.cuda.is_available() else sys.exit(print("SKIPPED: no GPU here") or 77)
