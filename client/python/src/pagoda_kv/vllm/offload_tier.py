"""PagodaTier: the daemon as a secondary tier of vLLM's own CPU offloading.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
      "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": ...,
        "secondary_tiers": [{"type": "PagodaTier", "module_path": "pagoda_kv.vllm"}]}}'

vLLM moves blocks between the GPU and its CPU memory; this moves chunks of that memory, whole and
opaque, to the daemon and back. A chunk is one record: all ranks, one key, no chain to its parent.

Threads  the engine calls from one; jobs run on two of ours, answers come on one of the client's.
Limits   a load lasts load_deadline_ms, a store STORE_SECONDS; then it has failed.
"""

import collections
import dataclasses
import json
import os
import secrets
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from pagoda_kv.vllm import weights
from pagoda_kv.vllm.config import ConnectorConfig
from pagoda_kv.vllm.guard import log_once, reason

STORE_SECONDS = 30.0
PAGE_TOKENS = (16, 32, 64, 128, 256)
LOOKUP_GAPS_MAX = 4  # questions for one list of keys


def load_core() -> Any:
    import importlib

    return importlib.import_module("pagoda_kv._core")


@dataclasses.dataclass
class _Store:
    """A job whose pages are with the daemon."""

    job: TransferJob
    began: float
    due: set[bytes]  # keys
    failed: bool = False


class _Lookups(AsyncLookupManager):
    def __init__(self, tier: "PagodaTier", tier_type: str) -> None:
        self._tier = tier
        super().__init__(tier_type)

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        return self._tier.find(keys)


class PagodaTier(SecondaryTierManager):
    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        locality: str | None = None,
        enable_kv_events: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = Locality(locality) if locality is not None else None
        self._config = ConnectorConfig.parse(options)
        self._core = load_core()
        self._memory = np.asarray(primary_kv_view)  # [chunk][bytes]
        tokens = offloading_spec.tokens_per_block[0] * offloading_spec.blocks_per_chunk
        if tokens not in PAGE_TOKENS:
            raise ValueError(
                f"a chunk has {tokens} tokens, PagodaTier stores {', '.join(map(str, PAGE_TOKENS))}"
                ": set block_size or blocks_per_chunk so that they come to one of these"
            )
        self._client = self._core.Client(
            model=self._model_spec(offloading_spec),
            page_tokens=tokens,
            client_name="vllm-offload",
            control_timeout=self._config.lookup_deadline_ms / 1000 * 5,
            transfer_timeout=self._config.load_deadline_ms / 1000,
            push_queue_bytes_max=self._config.save_bytes_max,
            **self._config.target.client_arguments(),
        )
        wanted = enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events
        self._events: list[OffloadingEvent] | None = [] if wanted else None
        self._lookups = _Lookups(self, tier_type)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="pagoda-tier")
        self._changed = threading.Condition()  # over what follows
        self._jobs = 0  # submitted and not finished
        self._finished: collections.deque[JobResult] = collections.deque()
        self._failed_loads: list[OffloadKey] = []
        self._stores: dict[int, _Store] = {}
        self._by_key: dict[bytes, list[int]] = {}  # key on its way -> its jobs
        self._pusher: Any = None
        self._instance = ""

    # What the engine calls -----------------------------------------------------------------------

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        if not self._client.connected:
            return LookupResult.MISS
        found = self._lookups.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._submit(self._load, job_metadata)

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._submit(self._store, job_metadata)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        self._expire_stores()
        with self._changed:
            finished = list(self._finished)
            self._finished.clear()
            failed, self._failed_loads = self._failed_loads, []
        # Or the engine would try the same load again and again.
        self._lookups.mark_miss(failed)
        return finished

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._lookups.flush()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._lookups.cleanup(req_context.req_id)

    def take_events(self) -> Iterable[OffloadingEvent]:
        with self._changed:
            events, self._events = self._events or [], [] if self._events is not None else None
        return events

    def drain_jobs(self) -> None:
        with self._changed:
            while self._jobs:
                self._changed.wait(0.1)
                self._expire_stores()

    def shutdown(self) -> None:
        self._lookups.shutdown()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._client.close()

    # On threads ----------------------------------------------------------------------------------

    def find(self, keys: list[OffloadKey]) -> list[bool]:
        """Which are there. A lookup tells a prefix; behind a gap it is asked again."""
        found = [False] * len(keys)
        scope = self._client.scope(self._config.scope)
        if scope is None:
            return found
        own = self._core.external_keys(scope.root, [bytes(key) for key in keys])
        begin = 0
        for _ in range(LOOKUP_GAPS_MAX):
            if begin >= len(own):
                break
            hit = self._client.lookup(
                scope, own[begin:], precision_min="opaque", request_id=secrets.token_bytes(16)
            )
            found[begin : begin + len(hit)] = [True] * len(hit)
            begin += len(hit) + 1
        return found

    def _submit(self, run: Any, job: TransferJob) -> None:
        with self._changed:
            self._jobs += 1
        self._threads.submit(self._guarded, run, job)

    def _guarded(self, run: Any, job: TransferJob) -> None:
        try:
            run(job)
        except Exception as error:
            log_once("offload tier", reason(error), "%s", error)
            self._finish(job, False, [])

    def _load(self, job: TransferJob) -> None:
        began = time.monotonic()
        keys = list(job.keys)
        scope = self._client.scope(self._config.scope)
        if scope is None:
            return self._finish(job, False, [])
        own = self._core.external_keys(scope.root, [bytes(key) for key in keys])
        loaded = 0
        hit = self._client.lookup(
            scope, own, precision_min="opaque", request_id=secrets.token_bytes(16)
        )
        if hit:
            try:
                loaded = self._copy_in(job, hit, own[: len(hit)])
            finally:
                self._client.release(hit)
        self._finish(job, loaded == len(keys), keys[:loaded], time.monotonic() - began)

    def _copy_in(self, job: TransferJob, hit: Any, keys: list[bytes]) -> int:
        try:
            mapped = self._client.map(hit, keys)
            spans, still_valid, count = mapped.spans(), mapped.still_valid, len(mapped)
        except self._core.PagodaError:  # no shared memory, or still on its way there
            result = self._client.fetch(hit, keys)
            spans = np.asarray(
                [
                    (page, 0, 1, segment.ctypes.data, segment.nbytes)
                    for page, one in enumerate(result.pages)
                    for segment in one.segments
                ],
                np.uint64,
            ).reshape(-1, 5)
            still_valid, count = (lambda: True), len(result.pages)
        rows = np.asarray(
            [
                (self._address(job.chunk_ids[int(page)]), address, length)
                for page, _, _, address, length in spans.tolist()
            ],
            np.uint64,
        ).reshape(-1, 3)
        if (rows[:, 2] != self.block_size_bytes).any() or len(rows) != count:
            raise ValueError(f"a chunk is not of {self.block_size_bytes} bytes")
        self._core.copy_spans(rows, self._config.copy_threads)
        return count if still_valid() else 0

    def _store(self, job: TransferJob) -> None:
        keys = list(job.keys)
        scope = self._client.scope(self._config.scope)
        pusher = self._usable_pusher()
        if scope is None or pusher is None or not scope.may_push:
            return self._finish(job, False, [])
        own = self._core.external_keys(scope.root, [bytes(key) for key in keys])
        buffers = [pusher.reserve(self.block_size_bytes) for _ in own]
        rows = np.asarray(
            [
                (buffer.ctypes.data, self._address(chunk), self.block_size_bytes)
                for buffer, chunk in zip(buffers, job.chunk_ids)
            ],
            np.uint64,
        ).reshape(-1, 3)
        self._core.copy_spans(rows, self._config.copy_threads)
        with self._changed:
            self._stores[job.job_id] = _Store(job, time.monotonic(), set(own))
            for key in own:
                self._by_key.setdefault(key, []).append(job.job_id)
        for key, buffer in zip(own, buffers):
            try:
                pusher.push(
                    scope, key, scope.root, [buffer], parent_is_root=True, precision="opaque",
                    opaque_layer_bytes=self.block_size_bytes,
                )
            except self._core.PagodaError as error:
                if reason(error) == "UNAVAILABLE":
                    self._pusher = None
                self._answered(key, f"{reason(error)}: {error}")

    def _address(self, chunk: Any) -> int:
        if not 0 <= int(chunk) < len(self._memory):
            raise ValueError(f"chunk {chunk}, but there are {len(self._memory)}")
        return self._memory.ctypes.data + int(chunk) * self.block_size_bytes

    def _usable_pusher(self) -> Any:
        info = self._client.server_info
        if info is None or not self._client.connected:
            return None
        with self._changed:
            if self._pusher is None or self._instance != info.instance_id:
                self._pusher = self._client.pusher(callback=self._answered)
                self._instance = info.instance_id
            return self._pusher

    def _answered(self, key: bytes, outcome: str) -> None:
        good = outcome in ("stored", "already_stored", "replaced")
        if not good:
            log_once("offload tier", outcome.partition(":")[0], "%s", outcome)
        over = []
        with self._changed:
            for job_id in self._by_key.pop(key, []):
                store = self._stores.get(job_id)
                if store is None:
                    continue
                store.due.discard(key)
                store.failed |= not good
                if not store.due:
                    over.append(self._stores.pop(job_id))
        for store in over:
            self._finish(store.job, not store.failed, None, time.monotonic() - store.began)

    def _expire_stores(self) -> None:
        now = time.monotonic()
        with self._changed:
            late = [one for one in self._stores.values() if now - one.began > STORE_SECONDS]
            for store in late:
                del self._stores[store.job.job_id]
        for store in late:
            self._finish(store.job, False, None)

    def _finish(
        self,
        job: TransferJob,
        success: bool,
        loaded: list[OffloadKey] | None,
        seconds: float | None = None,
    ) -> None:
        count = len(job.keys) if success else len(loaded or [])
        result = JobResult(
            job_id=job.job_id,
            success=success,
            successful_keys=tuple(loaded) if loaded and not success else None,
            transfer_time=seconds,
            transfer_bytes=count * self.block_size_bytes,
        )
        with self._changed:
            self._finished.append(result)
            if job.is_promotion and not success:
                self._failed_loads += [key for key in job.keys if key not in (loaded or [])]
            if success and not job.is_promotion and self._events is not None:
                self._events.append(
                    OffloadingEvent(
                        keys=list(job.keys), medium=self.medium, removed=False,
                        locality=self.locality,
                    )
                )
            self._jobs -= 1
            self._changed.notify_all()

    # Identity ------------------------------------------------------------------------------------

    def _model_spec(self, offloading_spec: Any) -> Any:
        """vLLM's own name for what makes chunks exchangeable, and the weights."""
        mapper = FileMapper.from_offloading_spec(
            root_dir="",
            offloading_spec=offloading_spec,
            blocks_per_file=offloading_spec.blocks_per_chunk,
            parallel_agnostic=True,
        )
        config = offloading_spec.config
        revision = self._config.weights_revision
        if not revision and os.path.isdir(config.model.name):
            revision = weights.fingerprint(config.model.name)
        facts = {
            **mapper.get_run_config(),
            "chunk_bytes": self.block_size_bytes,
            "layout": config.kv_cache_layout,
            "hash_seed": os.environ.get("PYTHONHASHSEED", "default"),
        }
        return self._core.ModelSpec(
            self._config.model or config.model.name,
            [self._core.LayerGroup(1, 1, 64)],
            weights_revision=revision,
            kv_dtype="opaque",
            rope_style="none",
            opaque_layout="vllm-offload/" + json.dumps(facts, sort_keys=True),
        )
