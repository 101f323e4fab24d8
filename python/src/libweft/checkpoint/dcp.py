"""Checkpoints of torch.distributed.checkpoint on stores: the writer or reader is the only line that changes.

    from libweft.checkpoint.dcp import WeftReader, WeftWriter

    writer = WeftWriter(manifests)                                  # once, of every rank
    dcp.save(state, storage_writer=writer, checkpoint_id="1000")    # also dcp.async_save, in a thread
    dcp.load(state, storage_reader=WeftReader(manifests))           # the last one; checkpoint_id="1000": that one

`checkpoint_id` is the number of a step: the stores' folders are of one run. As with PyTorch's own reader, objects that are no
tensors are unpickled: load what you trust.
"""
# mypy: disable-error-code="import-not-found,misc,no-any-return"

from __future__ import annotations

import dataclasses
import io
import os
import pickle
import re
from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed
from torch.distributed.checkpoint import Metadata, StorageReader, StorageWriter
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from .._safetensors import dtype_and_shape
from ..weights import Shard, bytes_of, length_of
from . import Checkpoints

#: The tensor that has DCP's metadata.
METADATA = "torch.distributed.checkpoint"
Id = Union[str, "os.PathLike[str]"]


def _step(checkpoint_id: Id) -> int:
    # With a text before the number, steps of two runs would replace each other.
    if not re.fullmatch("[0-9]+", os.fspath(checkpoint_id)):
        raise ValueError(f"checkpoint_id {os.fspath(checkpoint_id)!r} is not the number of a step; give each run folders of its own")
    return int(os.fspath(checkpoint_id))


def _kind(tensor: torch.Tensor) -> Tuple[str, Tuple[int, ...]]:
    """A tensor's dtype and shape in a file: where safetensors has no such dtype, its bytes."""
    try:
        return dtype_and_shape("", tensor, length_of(tensor))
    except ValueError:
        rows = tensor.shape[0] if tensor.dim() else 1
        return "U8", (rows, length_of(tensor) // max(rows, 1))


def _plain(buffer: Any, dtype: str) -> Any:
    """What a file has of a tensor: its bytes, where it has no such dtype."""
    return bytes_of(buffer) if dtype == "U8" and isinstance(buffer, torch.Tensor) else buffer


class _Storage:
    def __init__(self, stores: Union[Checkpoints, Sequence[bytes]], **options: Any) -> None:
        """stores: their manifests, and `options` those of `Checkpoints`, whose rank is torch.distributed's; or a
        `Checkpoints` of this rank, which stays open."""
        super().__init__()
        self._own = not isinstance(stores, Checkpoints)
        if not isinstance(stores, Checkpoints):
            world = torch.distributed
            rank, ranks = (world.get_rank(), world.get_world_size()) if world.is_initialized() else (0, 1)
            stores = Checkpoints(stores, rank=rank, ranks=ranks, **options)
        self.checkpoints: Checkpoints = stores
        self._step: Optional[int] = None

    def reset(self, checkpoint_id: Optional[Id] = None) -> None:
        self._step = None if checkpoint_id is None else _step(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Id) -> bool:
        return re.fullmatch("[0-9]+", os.fspath(checkpoint_id)) is not None

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: Any) -> Any:
        return plans

    def close(self) -> None:
        """Ends the connections, if they are its own."""
        if self._own:
            self.checkpoints.close()


class WeftWriter(_Storage, StorageWriter):
    """Saves what dcp.save is given; may be used again for the next step. `finish`, of the coordinator, commits."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._step is None:
            raise ValueError("checkpoint_id is needed: the number of the step")

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[List[WriteResult]]:
        shards: List[Shard] = []
        for item in plan.items:
            data, key = planner.resolve_data(item), item.index.fqn
            if item.type == WriteItemType.BYTE_IO:
                view = data.getbuffer()
                shards.append(Shard(key, "U8", (len(view),), 0, len(view), view))
                continue
            if item.tensor_data.chunk.sizes != item.tensor_data.size:
                key += f"[{','.join(map(str, item.tensor_data.chunk.offsets))}]"
            tensor = data.detach().contiguous()
            dtype, shape = _kind(tensor)
            shards.append(Shard(key, dtype, shape, 0, shape[0] if shape else 1, _plain(tensor, dtype)))
        results: Future[List[WriteResult]] = Future()
        part = self._write(shards, f"rank{self.checkpoints.rank}")
        results.set_result([
            WriteResult(item.index, length_of(shard.buffer), (shard.name, b"" if number else part))
            for number, (item, shard) in enumerate(zip(plan.items, shards))])
        return results

    def _write(self, shards: Sequence[Shard], name: str) -> bytes:
        assert self._step is not None
        return self.checkpoints._begin(self._step, shards, name, False, None, False).wait() if shards else b"{}"

    def finish(self, metadata: Metadata, results: List[List[WriteResult]]) -> None:
        assert self._step is not None
        written = [one for of_rank in results for one in of_rank]
        metadata.storage_data = {one.index: one.storage_data[0] for one in written}
        metadata.storage_meta = StorageMeta(checkpoint_id=str(self._step))
        data = pickle.dumps(metadata)
        parts = [one.storage_data[1] for one in written if one.storage_data[1]]
        self.checkpoints._commit(self._step, [*parts, self._write([Shard(METADATA, "U8", (len(data),), 0, len(data), data)], "dcp")])


class WeftReader(_Storage, StorageReader):
    """Loads what dcp.load is given, with any sharding, into memory or GPUs; of the last step, or of `checkpoint_id`."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        self._step = self.checkpoints._step(self._step).step
        self._kinds = {name: (dtype, shape, length) for name, dtype, shape, length in self.checkpoints.contents(self._step)}
        if METADATA not in self._kinds:
            raise ValueError(f"step {self._step} was not saved by torch.distributed.checkpoint: load it with Checkpoints")
        data = bytearray(self._kinds[METADATA][2])
        self.checkpoints.load({METADATA: data}, self._step)
        return pickle.loads(data)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._metadata = metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return dataclasses.replace(plan, storage_data=self._step)

    def prepare_global_plan(self, plans: List[LoadPlan]) -> List[LoadPlan]:
        steps = {plan.storage_data for plan in plans}
        if len(steps) > 1:
            raise RuntimeError(f"ranks have found different last steps, {sorted(steps)}, since one was committed meanwhile: load again")
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        shards = []
        #: With each item, the buffer that its rows come into, and the tensor that it is for, if that is another one.
        read: List[Tuple[Any, Any, Any]] = []
        for item in plan.items:
            key = self._metadata.storage_data[item.storage_index]
            dtype, shape, length = self._kinds[key]
            target: Any = None
            if item.type == LoadItemType.BYTE_IO:
                begin, end, buffer = 0, length, bytearray(length)
            else:
                begin, end = (item.storage_offsets[0], item.storage_offsets[0] + item.lengths[0]) if shape and len(item.lengths) else (0, 1)
                known = self._metadata.state_dict_metadata[item.storage_index.fqn]
                sizes = next(c.sizes for c in known.chunks if item.storage_index.offset in (None, c.offsets))
                target = buffer = planner.resolve_tensor(item).detach()
                # Rows go where they belong; of what is cut in other dimensions, too, whole rows come beside it.
                if item.lengths[1:] != sizes[1:] or not target.is_contiguous() or target.dtype != known.properties.dtype:
                    buffer = torch.empty((end - begin, *sizes[1:]) if len(sizes) else (), dtype=known.properties.dtype)
            shards.append(Shard(key, dtype, shape, begin, end, _plain(buffer, dtype)))
            read.append((item, buffer, target))
        self.checkpoints.load(shards, self._step)
        for item, buffer, target in read:
            if target is None:
                planner.load_bytes(item, io.BytesIO(buffer))
                continue
            if buffer is not target:
                for dimension in range(1, len(item.lengths)):
                    buffer = buffer.narrow(dimension, item.storage_offsets[dimension], item.lengths[dimension])
                target.copy_(buffer)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done
