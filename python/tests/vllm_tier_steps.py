"""A slab as a tier of vLLM's own classes: its CPU tier, its manager and its steps; its workers, which need a GPU, are played here.

    python vllm_tier_steps.py        with vLLM: tools/test-vllm.sh
"""

# mypy: ignore-errors

import os
import socket
import tempfile
import threading
import time
import types
import uuid
import warnings

from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager

from libweft.slab import Slab
from libweft.weights import answer_at

CHUNKS, CHUNK = 4, 64 << 10
OPTIONS = {"fabric": "tcp", "rails": "lo"}


class Engine:
    """What an engine's scheduler has, of four chunks in memory; `namespace`: another model."""

    def __init__(self, place, model="a model"):
        spec = types.SimpleNamespace(blocks_per_chunk=1, config=types.SimpleNamespace(
            groups=[], canonical_layout=False, replicated_layout=False, model=types.SimpleNamespace(name=model, dtype="float16"),
            cache=types.SimpleNamespace(tokens_per_hash=16),
            parallel=types.SimpleNamespace(tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, rank=0, is_parallelism_agnostic=True)))
        region = SharedOffloadRegion(engine_id=uuid.uuid4().hex, num_chunks=CHUNKS, rank=None, kv_bytes_per_chunk=CHUNK, cpu_page_size=CHUNK)
        primary = CPUPrimaryTierOffloadingManager(num_chunks=CHUNKS, mmap_region=region)
        self.view = primary.get_kv_memoryview()
        self.flat = self.view.cast("B")
        self.tier = SecondaryTierFactory.create_secondary_tier(
            {"type": "WeftTier", "module_path": "libweft.vllm_tier", "slab": place, **OPTIONS}, self.view, spec)
        self.manager = TieringOffloadingManager(primary_tier=primary, secondary_tiers=[self.tier])
        self.requests = 0

    def request(self):
        self.requests += 1
        made = ReqContext(f"request {self.requests}")
        self.manager.on_new_request(made)
        return made

    def step(self):
        time.sleep(0.001)
        self.manager.on_schedule_end(ScheduleEndContext((), ()))

    def store(self, keys):
        """As a worker would, from a GPU: each chunk is of its key alone."""
        request = self.request()
        made = self.manager.prepare_store(keys, request)
        assert made is not None and made.keys_to_store == keys, made
        for key, chunk in zip(keys, made.store_spec.chunk_ids if hasattr(made.store_spec, "chunk_ids") else made.store_spec.block_ids):
            self.flat[int(chunk) * CHUNK:(int(chunk) + 1) * CHUNK] = contents(key)
        self.manager.complete_store(keys, request)
        while self.manager.has_pending_work() or self.manager._jobs:
            self.step()
        self.manager.on_request_finished(request)

    def load(self, keys):
        """Which came, after however many steps; those that came are what was stored."""
        request, found = self.request(), {}
        while len(found) < len(keys):
            for key in keys:
                result = self.manager.lookup(key, request)
                if result in (LookupResult.HIT, LookupResult.MISS):
                    found[key] = result is LookupResult.HIT
            self.step()
        hits = [key for key in keys if found[key]]
        spec = self.manager.prepare_load(hits, request)
        for key, chunk in zip(hits, spec.chunk_ids if hasattr(spec, "chunk_ids") else spec.block_ids):
            assert self.flat[int(chunk) * CHUNK:(int(chunk) + 1) * CHUNK] == contents(key), key
        self.manager.complete_load(hits, request)
        self.manager.on_request_finished(request)
        return [found[key] for key in keys]


def key(number):
    return make_offload_key(number.to_bytes(32, "big"), 0)


def contents(key):
    return key[-8:] * (CHUNK // 8)


def main():
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as file:
        slab = Slab(file.name, 12 * CHUNK, **OPTIONS)
        free = socket.create_server(("127.0.0.1", 0))
        place = free.getsockname()[:2]
        free.close()
        threading.Thread(target=answer_at, args=(place, "offering", slab.manifest), daemon=True).start()
        time.sleep(0.2)
        first, second, other = (Engine(f"{place[0]}:{place[1]}", *model) for model in ((), (), ("another model",)))
        for begin in (0, 4):
            first.store([key(begin + i) for i in range(4)])
        assert first.load([key(i) for i in range(4)]) == [True] * 4  # of the slab: memory has the last four
        assert second.load([key(i) for i in range(4, 8)]) == [True] * 4
        assert other.load([key(0), key(1)]) == [False] * 2
        second.store([key(i) for i in range(8, 12)])
        assert first.load([key(i) for i in range(8, 12)]) == [True] * 4
        second.store([key(i) for i in range(12, 16)])  # four go
        assert sum(first.load([key(i)])[0] for i in range(16)) >= 12
        slab.close()
        assert first.load([key(100)]) == [False]
        second.store([key(i) for i in range(200, 204)])
        for engine in (first, second, other):
            engine.flat.release()
            engine.manager.shutdown()
    print("vllm_tier_chunks 1")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    main()
