"""Kernels of GPUs have ended before tensors are read or written: with tensors that only say that they are on one."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import tempfile
import types
import unittest
import unittest.mock
from typing import Any, Dict, List

import libweft
from libweft.checkpoint import Checkpoints, Store
from libweft.checkpoint._saving import Writer
from libweft.weights import Shard, Source, Target
from support import FABRIC, PAGE, pattern

OPTIONS: Dict[str, Any] = {"fabric": FABRIC, "rails": "lo" if FABRIC == "tcp" else None}


class Device:
    type = "cuda"


class Tensor(bytearray):
    is_cuda = True
    device = Device()
    dtype = "float32"

    @property
    def shape(self) -> Any:
        return (len(self) // 4,)

    @property
    def nbytes(self) -> int:
        return len(self)

    def is_contiguous(self) -> bool:
        return True


class Kernels(unittest.TestCase):
    def setUp(self) -> None:
        #: What has happened, in turn.
        self.steps: List[str] = []
        self.torch = types.ModuleType("torch")
        self.enter(unittest.mock.patch.dict(sys.modules, torch=self.torch))
        setattr(self.torch, "cuda", types.SimpleNamespace(synchronize=self.synchronize))
        self.noted(libweft.Endpoint, "read_list", "read")
        self.target, self.wanted = Tensor(PAGE), pattern(7)

    def enter(self, manager: Any) -> Any:
        self.addCleanup(manager.__exit__, None, None, None)
        return manager.__enter__()

    def synchronize(self, device: Any) -> None:
        self.assertIs(device, Tensor.device)
        self.steps.append("synchronize")

    def noted(self, owner: Any, name: str, step: str) -> None:
        known = getattr(owner, name)

        def note(*given: Any, **named: Any) -> Any:
            self.steps.append(step)
            return known(*given, **named)

        self.enter(unittest.mock.patch.object(owner, name, note))

    def test_weights_are_offered_and_pulled_after_them(self) -> None:
        def shard(tensor: Tensor) -> Shard:
            return Shard("w", "F32", tensor.shape, 0, len(tensor) // 4, tensor)

        with Source([shard(Tensor(self.wanted))], **OPTIONS) as source:
            manifest = source.manifest()
            self.assertEqual(self.steps, ["synchronize"])
            with Target([shard(self.target)], [manifest], **OPTIONS) as target:
                for _ in range(2):
                    self.steps.clear()
                    target.pull()
                    self.assertEqual(self.steps, ["synchronize", "read"])
        self.assertEqual(self.target, self.wanted)

    def test_checkpoints_are_saved_and_loaded_after_them(self) -> None:
        self.noted(Writer, "write", "save")
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, Store(folder, **OPTIONS) as store, Checkpoints(
                [store.manifest()], **OPTIONS) as checkpoints:
            for copy in (False, True):
                self.steps.clear()
                checkpoints.save(copy, {"w": Tensor(self.wanted)}, copy=copy).wait(60)
                self.assertEqual(self.steps[:2], ["synchronize", "save"])
            self.steps.clear()
            checkpoints.load({"w": self.target})
        self.assertEqual(self.steps[:2], ["synchronize", "read"])
        self.assertEqual(self.target, self.wanted)

    def test_ray_reads_after_them(self) -> None:
        transport = self.transport()
        source, target = transport(), transport()
        self.noted(libweft.Endpoint, "register", "register")
        metadata = source.extract_tensor_transport_metadata("1", [Tensor(self.wanted)])
        self.assertEqual(self.steps[:2], ["synchronize", "register"])
        self.steps.clear()
        fetch = target.fetch_multiple_tensors("1", metadata, None, [self.target])
        self.assertEqual(self.steps[-2:], ["synchronize", "read"])
        self.assertEqual(target.wait_fetch_complete(fetch), [self.wanted])
        source.garbage_collect("1", metadata, [])
        for one in (source, target):
            one.endpoint().close()

    def transport(self) -> Any:
        """That of libweft.ray, with stand-ins for what it imports."""
        metadata = dataclasses.make_dataclass("TensorTransportMetadata", ["tensor_meta", "tensor_device"])
        request = dataclasses.make_dataclass("FetchRequest", ["obj_id", "tensors"])
        ray = types.SimpleNamespace(TensorTransportManager=object, TensorTransportMetadata=metadata, FetchRequest=request,
                                    CommunicatorMetadata=object)
        names = ["ray", "ray.experimental", "ray.experimental.rdt", "ray.experimental.rdt.tensor_transport_manager"]
        none = type("none", (), {})
        modules = {**dict.fromkeys(names, ray), "numpy": types.SimpleNamespace(ndarray=none, dtype=none), "libweft.ray": None}
        self.enter(unittest.mock.patch.dict(sys.modules, modules))
        del sys.modules["libweft.ray"]
        made = importlib.import_module("libweft.ray")
        return type("Transport", (made.Transport,), {"options": OPTIONS, "timeout": 20.0})


if __name__ == "__main__":
    unittest.main()
