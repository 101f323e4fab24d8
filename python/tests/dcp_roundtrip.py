"""torch.distributed.checkpoint over stores; run by tools/test-dcp.sh, with a torch.

    python dcp_roundtrip.py
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import os
import re
import tempfile
import unittest
from pathlib import Path
from typing import Any, Dict, List

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as processes
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from libweft.checkpoint import Checkpoints, Store
from libweft.checkpoint.dcp import WeftReader, WeftWriter

OPTIONS: Dict[str, Any] = {"fabric": "tcp", "rails": "lo"}
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex128,
          torch.float8_e4m3fn]


def state(zero: bool = False) -> Dict[str, Any]:
    generator = torch.Generator().manual_seed(7)
    made: Dict[str, Any] = {str(dtype): torch.randint(0, 1 if zero else 2, (33, 5), generator=generator).to(dtype) for dtype in DTYPES}
    made["large"] = torch.zeros(3000, 1000) if zero else torch.randn(3000, 1000, generator=generator)
    made["scalar"] = torch.tensor(0.0 if zero else 3.5)
    made["turned"] = torch.zeros(7, 9) if zero else torch.randn(9, 7, generator=generator).t()
    made["empty"] = torch.zeros(0, 4)
    made["objects"] = {"step": 0 if zero else 12, "names": ["a", "b"]}
    return made


def same(here: Any, there: Any) -> bool:
    if isinstance(here, torch.Tensor):
        return bool(torch.equal(here.reshape(-1).view(torch.uint8) if here.is_contiguous() else here,
                                there.reshape(-1).view(torch.uint8) if here.is_contiguous() else there))
    return bool(here == there)


def sharded(rank: int, manifests: List[bytes], port: int, world: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    whole = state()["large"]
    writer, reader = WeftWriter(manifests, copies=2, **OPTIONS), WeftReader(manifests, **OPTIONS)
    for step, saved, others in ((3, Shard(0), (Shard(1), Replicate())), (4, Shard(1), (Shard(0),))):
        dcp.save({"w": distribute_tensor(whole, mesh, [saved]), "n": torch.tensor(step)}, storage_writer=writer, checkpoint_id=f"{step}")
        for placement in others:
            found = {"w": distribute_tensor(torch.zeros_like(whole), mesh, [placement]), "n": torch.tensor(0)}
            reader.reset()
            dcp.load(found, storage_reader=reader)
            assert torch.equal(found["w"].full_tensor(), whole) and found["n"] == step
        dist.barrier()
    changing = {"w": distribute_tensor(whole, mesh, [Shard(0)])}
    saving = dcp.async_save(changing, storage_writer=writer, checkpoint_id="5")
    changing["w"] *= 0
    saving.result()
    dist.barrier()
    reader.reset("5")
    dcp.load(changing, storage_reader=reader)
    assert torch.equal(changing["w"].full_tensor(), whole)
    writer.close()
    reader.close()
    dist.destroy_process_group()


class Dcp(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(dir="/var/tmp")
        self.addCleanup(folder.cleanup)
        self.stores = [Store(f"{folder.name}/{i}", **OPTIONS) for i in range(2)]
        for store in self.stores:
            self.addCleanup(store.close)
        self.manifests = [store.manifest() for store in self.stores]

    def test_a_state_comes_back(self) -> None:
        writer = WeftWriter(self.manifests, **OPTIONS)
        self.addCleanup(writer.close)
        for step in ("1", "2"):
            dcp.save(state(), storage_writer=writer, checkpoint_id=step)
        with Checkpoints(self.manifests, **OPTIONS) as checkpoints:
            self.assertEqual([s.step for s in checkpoints.steps()], [1, 2])
            for given, options in ((self.manifests, OPTIONS), (checkpoints, {})):
                found = state(zero=True)
                dcp.load(found, storage_reader=WeftReader(given, **options), checkpoint_id="1")
                self.assertEqual([key for key, value in state().items() if not same(value, found[key])], [])
            checkpoints.save(3, {"w": torch.ones(3)}).wait()
            with self.assertRaisesRegex(CheckpointException, "was not saved by torch"):
                dcp.load(state(zero=True), storage_reader=WeftReader(checkpoints))
        for wrong in ("last", "run8/step-1", "²"):
            with self.assertRaisesRegex(ValueError, "is not the number of a step"):
                dcp.save(state(), storage_writer=writer, checkpoint_id=wrong)

    def test_the_block_of_the_page_saves_and_loads(self) -> None:
        page = (Path(__file__).parents[2] / "docs/checkpoint.md").read_text(encoding="utf-8")
        block = next(code for code in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "import WeftReader" in code)
        save, load = block[:block.index("dcp.load(")], block[block.index("dcp.load("):]
        os.environ.update(WEFT_FABRIC="tcp", WEFT_RAILS="lo")
        made: Dict[str, Any] = {"manifests": self.manifests, "state": state()}
        exec(save, made)
        self.addCleanup(made["writer"].close)
        made["state"] = state(zero=True)
        exec(load, made)
        self.assertEqual([key for key, value in state().items() if not same(value, made["state"][key])], [])

    def test_tensors_are_sharded_in_other_ways(self) -> None:
        processes.spawn(sharded, (self.manifests, 20000 + os.getpid() % 9000, 2), nprocs=2)


if __name__ == "__main__":
    unittest.main()
