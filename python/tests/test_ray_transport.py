"""The transport for Ray as its actors call it, without Ray."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import types
import unittest
from dataclasses import dataclass
from typing import Any, ClassVar, List, Optional

from support import FABRIC

try:
    import numpy
except ImportError as missing:
    raise unittest.SkipTest(f"no numpy: {missing}") from None


@dataclass
class TensorTransportMetadata:
    tensor_meta: List[Any]
    tensor_device: Optional[str] = None


@dataclass
class FetchRequest:
    obj_id: str
    tensors: List[Any]


def imported() -> Any:
    """`libweft.ray`, with what it needs of Ray where that is not installed."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("libweft.ray")
    names = ["ray", "ray.experimental", "ray.experimental.rdt", "ray.experimental.rdt.tensor_transport_manager"]
    for name in names:
        sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[names[-1]]).update(TensorTransportMetadata=TensorTransportMetadata, FetchRequest=FetchRequest,
                                        CommunicatorMetadata=object, TensorTransportManager=object)
    try:
        return importlib.import_module("libweft.ray")
    finally:
        for name in (*names, "libweft.ray"):
            sys.modules.pop(name, None)


class Transports(unittest.TestCase):
    module: ClassVar[Any]

    @classmethod
    def setUpClass(cls) -> None:
        cls.module = imported()

    def setUp(self) -> None:
        self.source, self.target = self.module.Transport(), self.module.Transport()
        for transport in (self.source, self.target):
            transport.options = {"fabric": FABRIC, "rails": "lo" if FABRIC == "tcp" else None}
            self.addCleanup(transport.endpoint().close)
        self.made = [numpy.arange(1000), numpy.zeros(0)]

    def test_a_fetch_that_ray_drops_is_released(self) -> None:
        meta = self.source.extract_tensor_transport_metadata("a", self.made)
        fetch = self.target.fetch_multiple_tensors("a", meta, None)
        self.assertEqual(len(self.target.endpoint()._memories), 1)
        del fetch
        gc.collect()  # the traceback of a canceled read has it
        self.assertEqual((len(self.target._fetches), self.target.endpoint()._memories), (0, set()))
        found = self.target.recv_multiple_tensors("a", meta, None)
        self.assertEqual([one.tolist() for one in found], [one.tolist() for one in self.made])

    def test_what_a_repeated_task_has_registered_again_is_freed_with_its_object(self) -> None:
        for _ in range(2):
            meta = self.source.extract_tensor_transport_metadata("a", self.made)
        self.assertEqual(self.target.recv_multiple_tensors("a", meta, None)[0].tolist(), self.made[0].tolist())
        self.source.garbage_collect("a", meta, self.made)
        self.assertEqual((self.source._memories, self.source.endpoint()._memories), ({}, set()))
