"""A peer's disk as a tier of vLLM's KV cache: `secondary_tiers` of its OffloadingConnector, without a patch. With `python -m
libweft.slab` on the host with the disk:

    "secondary_tiers": [{"type": "WeftTier", "module_path": "libweft.vllm_tier", "slab": "HOST:PORT"}]

Several engines of the same model may share a slab. A tier whose slab has ended finds nothing from then on. Tested with vLLM 0.32.0, which
calls this interface experimental.
"""
# mypy: disable-error-code="import-not-found,misc,no-any-return"

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Callable, Iterable, List, Set

from vllm.v1.kv_offload.base import LookupResult, Medium, RequestOffloadingContext
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from .endpoint import Access
from .slab import Slots
from .weights import answer_of, place_of


class _Lookups(AsyncLookupManager):
    def __init__(self, tier: WeftTier) -> None:
        super().__init__(tier_type=tier.tier_type)
        self._tier = tier

    def batch_lookup(self, keys: List[bytes], req_context: Any) -> Iterable[bool]:
        try:
            return self._tier.slots.has([self._tier.name(key) for key in keys])
        except Exception:  # whatever it is, the engine goes on
            return [False] * len(keys)


class WeftTier(SecondaryTierManager):
    """Moves chunks between vLLM's CPU cache and a slab; jobs run in threads, so that the scheduler never waits."""

    medium = Medium.STORAGE

    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, slab: str, threads: int = 4,
                 backpressure_detector: Any = None, **options: Any) -> None:
        """slab: HOST:PORT; threads: jobs at once; `options`: those of `libweft.Endpoint`."""
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        #: Names are of a model and its layout, so that others find no chunk of theirs.
        self._names = FileMapper.from_offloading_spec("", offloading_spec, offloading_spec.blocks_per_chunk, parallel_agnostic=True)
        self.slots = Slots(answer_of(place_of(slab), "slab"), self.block_size_bytes, **options)
        self._memory = self.slots.endpoint.register(primary_kv_view, access=Access.LOCAL)
        self._pool = ThreadPoolExecutor(threads, "weft-tier")
        self._lock = threading.Lock()
        self._running: Set[Any] = set()
        self._finished: List[Any] = []
        self._loads: dict[int, List[bytes]] = {}
        self._lookups = _Lookups(self)

    def name(self, key: bytes) -> str:
        return str(self._names.get_file_name(key))

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        self._lookups.cleanup(req_context.req_id)

    def on_schedule_end(self, context: Any) -> None:
        self._lookups.flush()

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        found = self._lookups.lookup(key, req_context)
        return LookupResult.RETRY if found is None else LookupResult.HIT if found else LookupResult.MISS

    def submit_store(self, job_metadata: Any) -> None:
        self._submit(job_metadata, lambda names, pages: [bool(self.slots.put(names, self._memory, pages)) or True] * len(names))

    def submit_load(self, job_metadata: Any) -> None:
        self._loads[job_metadata.job_id] = list(job_metadata.keys)
        self._submit(job_metadata, lambda names, pages: self.slots.get(names, self._memory, pages))

    def _submit(self, job: Any, move: Callable[[List[str], List[int]], List[bool]]) -> None:
        keys, pages = list(job.keys), [int(page) for page in job.chunk_ids]

        def run() -> None:
            began = time.monotonic()
            try:
                came = move([self.name(key) for key in keys], pages)
            except Exception:  # a job without a result would never end
                came = [False] * len(keys)
            there = [key for key, is_there in zip(keys, came) if is_there]
            result = JobResult(job.job_id, len(there) == len(keys), transfer_time=time.monotonic() - began,
                               transfer_bytes=len(there) * self.block_size_bytes)
            if job.job_id in self._loads and there and not result.success:
                result.successful_keys = there
            with self._lock:
                self._finished.append(result)

        running = self._pool.submit(run)
        with self._lock:
            self._running = {one for one in self._running if not one.done()} | {running}

    def get_finished_jobs(self) -> Iterable[JobResult]:
        with self._lock:
            finished, self._finished = self._finished, []
        for result in finished:
            keys = self._loads.pop(result.job_id, [])
            if not result.success:
                self._lookups.mark_miss([key for key in keys if key not in (result.successful_keys or ())])
        return finished

    def has_pending_work(self) -> bool:
        with self._lock:
            return bool(self._finished) or any(not one.done() for one in self._running)

    def drain_jobs(self) -> None:
        with self._lock:
            running = list(self._running)
        wait(running)

    def shutdown(self) -> None:
        self._lookups.shutdown()
        self._pool.shutdown()
        self.slots.close()
