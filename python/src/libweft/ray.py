"""Weft as a tensor transport of Ray: actors read each other's arrays in place.

    from libweft.ray import register_transport

    register_transport()                       # in the driver, before classes of actors name it

    @ray.remote(enable_tensor_transport=True)
    class Trainer:
        @ray.method(tensor_transport="WEFT")
        def weights(self):
            return numpy.ones(1 << 20)

Arrays of numpy or, where torch is installed, tensors of CPUs and CUDA GPUs. The actor that made them registers them until
Ray frees the object; others read them in one transfer. An actor that is lost, or a transfer that Ray aborts, ends the read
with an exception of libweft, within `timeout` seconds at the latest; no process has to be killed.
"""
# Where Ray is not installed, all of it is Any.
# mypy: disable-error-code="import-not-found,misc,no-any-return"

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import ray
from ray.experimental.rdt.tensor_transport_manager import (CommunicatorMetadata, FetchRequest, TensorTransportManager,
                                                           TensorTransportMetadata)

from . import log
from ._buffers import synchronize
from .endpoint import Access, Endpoint
from .errors import WeftError
from .memory import Memory, RemoteMemory
from .operation import Operation
from .transfers import Entry

try:
    import torch
except ImportError:
    torch = None


@dataclass
class Metadata(TensorTransportMetadata):
    """Where an object's arrays are: what `Endpoint.address` and `Memory.export` gave."""

    address: bytes = b""
    descriptor: bytes = b""


@dataclass
class Fetch(FetchRequest):
    """A read in flight."""

    operation: Optional[Operation[Any]] = None
    held: List[Any] = field(default_factory=list)

    def finish(self, timeout: Optional[float]) -> List[Any]:
        if self.operation is not None:
            self.operation.wait(timeout)
        self.release()
        return self.tensors

    def release(self) -> None:
        """Nothing of the read touches the arrays afterwards."""
        operation, self.operation = self.operation, None
        if operation is not None and not operation.done:
            operation.cancel()
            try:
                operation.wait()
            except WeftError:
                pass
        for thing in self.held:
            thing.release() if isinstance(thing, RemoteMemory) else thing.deregister()
        self.held.clear()

    def __del__(self) -> None:
        log.outside(self.release)


class Transport(TensorTransportManager):
    """What Ray asks of a transport. A subclass can set `options`, those of `Endpoint`, and `timeout`."""

    #: Of the endpoint that each process opens when it needs one.
    options: Dict[str, Any] = {}
    #: Seconds after which a read has failed.
    timeout = 30.0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._endpoint: Optional[Endpoint] = None
        #: Of each object; a task that Ray repeats registers its arrays again.
        self._memories: Dict[str, List[Memory]] = {}
        #: Those that Ray still has.
        self._fetches: "weakref.WeakValueDictionary[str, Fetch]" = weakref.WeakValueDictionary()
        self._aborted: List[str] = []

    def endpoint(self) -> Endpoint:
        with self._lock:
            if self._endpoint is None:
                fabric = os.environ.get("WEFT_RAY_FABRIC")
                self._endpoint = Endpoint(**{**({"fabric": fabric} if fabric else {}), **self.options})
            return self._endpoint

    def tensor_transport_backend(self) -> str:
        return "WEFT"

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        def has(_: Any) -> bool:
            import libweft.ray  # noqa: F401  (whether it can be)
            return True

        call = actor.__ray_call__.options(concurrency_group="_ray_system")
        return bool(ray.get(call.remote(has)))

    def get_communicator_metadata(self, src_actor: Any, dst_actor: Any, backend: Optional[str] = None) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    def extract_tensor_transport_metadata(self, obj_id: str, rdt_object: List[Any]) -> Metadata:
        """At the source: registers the arrays."""
        meta = [(tuple(a.shape), a.dtype) for a in rdt_object]
        device = _device(rdt_object[0]) if rdt_object else None
        if any(_device(a) != device or not _contiguous(a) for a in rdt_object):
            raise ValueError("the arrays of an object must be contiguous, and on one kind of device")
        synchronize(rdt_object)
        filled = [a for a in rdt_object if _bytes(a)]
        if not filled:
            return Metadata(meta, device)
        endpoint = self.endpoint()
        memory = endpoint.register(filled, access=Access.REMOTE_READ)
        with self._lock:
            self._memories.setdefault(obj_id, []).append(memory)
        return Metadata(meta, device, endpoint.address, memory.export())

    def fetch_multiple_tensors(self, obj_id: str, tensor_transport_metadata: Any, communicator_metadata: Any,
                               target_buffers: Optional[List[Any]] = None) -> Fetch:
        """At the target: starts the read."""
        meta: Metadata = tensor_transport_metadata
        arrays = target_buffers or [_empty(shape, dtype, meta.tensor_device) for shape, dtype in meta.tensor_meta]
        fetch = Fetch(obj_id, arrays)
        filled = [a for a in arrays if _bytes(a)]
        if not filled:
            return fetch
        endpoint = self.endpoint()
        while endpoint.wait_event(0) is not None:
            pass  # peers that came and went: operations say all that matters here
        peer = endpoint.connect(meta.address, timeout=self.timeout).wait()
        fetch.held.append(peer.import_memory(meta.descriptor))
        fetch.held.append(endpoint.register(filled, access=Access.LOCAL))
        remote, local = fetch.held
        synchronize(filled)  # memory that torch gives out may still be in use by kernels
        with self._lock:
            if obj_id in self._aborted:
                self._aborted.remove(obj_id)
                raise RuntimeError(f"Ray has aborted the transfer of {obj_id}")
            fetch.operation = endpoint.read_list([Entry(local, remote, _bytes(a), i, i) for i, a in enumerate(filled)],
                                                 timeout=self.timeout)
            self._fetches[obj_id] = fetch
        return fetch

    def wait_fetch_complete(self, fetch_request: Any, timeout: float = -1) -> List[Any]:
        try:
            return list(fetch_request.finish(None if timeout < 0 else timeout))
        finally:
            with self._lock:
                if fetch_request.operation is None or fetch_request.operation.done:
                    self._fetches.pop(fetch_request.obj_id, None)

    def recv_multiple_tensors(self, obj_id: str, tensor_transport_metadata: Any, communicator_metadata: Any,
                              target_buffers: Optional[List[Any]] = None) -> List[Any]:
        return self.wait_fetch_complete(
            self.fetch_multiple_tensors(obj_id, tensor_transport_metadata, communicator_metadata, target_buffers))

    def send_multiple_tensors(self, tensors: List[Any], tensor_transport_metadata: Any, communicator_metadata: Any) -> None:
        raise NotImplementedError("the target reads")

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: List[Any]) -> None:
        with self._lock:
            memories = self._memories.pop(obj_id, [])
        for memory in memories:
            memory.deregister()

    def abort_transport(self, obj_id: str, communicator_metadata: Any) -> None:
        """At the target: ends the read that is under way, or the next one. The source has nothing to end."""
        with self._lock:
            if obj_id in self._memories:
                return
            fetch = self._fetches.pop(obj_id, None)
            if fetch is not None and fetch.operation is not None:
                fetch.operation.cancel()
            elif fetch is None:
                self._aborted = self._aborted[-99:] + [obj_id]


def register_transport(name: str = "WEFT", transport: type = Transport, data_type: Optional[type] = None) -> None:
    """Tells Ray of the transport: for tensors where torch is installed, else for numpy's arrays, or as `data_type` says."""
    from ray.experimental import register_tensor_transport

    if data_type is None:
        data_type = np.ndarray if torch is None else torch.Tensor
    devices = ["cpu"] if data_type is np.ndarray else ["cpu", "cuda"]
    register_tensor_transport(name, devices, transport, data_type)


def _device(array: Any) -> str:
    return "cpu" if isinstance(array, np.ndarray) else str(array.device.type)


def _contiguous(array: Any) -> bool:
    return bool(array.flags.c_contiguous if isinstance(array, np.ndarray) else array.is_contiguous())


def _bytes(array: Any) -> int:
    return int(array.nbytes)


def _empty(shape: Tuple[int, ...], dtype: Any, device: Optional[str]) -> Any:
    if isinstance(dtype, np.dtype):
        return np.empty(shape, dtype)
    return torch.empty(shape, dtype=dtype, device=device)
