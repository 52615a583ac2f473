"""Loads pages into the engine's cache, layer by layer, on a thread of its own.

A job is done when its last byte is copied and the pages were still the daemon's word after that;
whatever is not then in order is a failed block, which the engine computes. After cancel() returns
nothing is written any more, so that a late copy cannot meet the engine's own.
"""

import dataclasses
import queue
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pagoda_kv.vllm.config import ConnectorConfig
from pagoda_kv.vllm.copier import Copier
from pagoda_kv.vllm.guard import log_once, reason
from pagoda_kv.vllm.layout import Addresses
from pagoda_kv.vllm.messages import Load
from pagoda_kv.vllm.plan import CachePlan
from pagoda_kv.vllm.prober import fidelity_min


@dataclasses.dataclass
class _Source:
    """Pages of one load: where each layer of each (page, head) begins."""

    load: Load
    pages: int  # whole ones
    addresses: Addresses  # [page * head][layer]
    still_valid: Callable[[], bool]
    keep: Any  # what the addresses point into
    lease: Any


class LoadJob:
    """The loads of one step, or one load between steps."""

    def __init__(self, loads: list[Load], layers: int, deadline: float) -> None:
        self.loads = loads
        self.deadline = deadline
        self.failed_blocks: set[int] = set()
        self.failed_requests: set[str] = set()
        self._layers = layers
        self._copied = 0  # layers
        self._done = False
        self._cancelled = False
        self._changed = threading.Condition()

    def wait_layer(self, layer: int) -> bool:
        with self._changed:
            self._changed.wait_for(
                lambda: self._copied > layer or self._done, self._left()
            )
            return self._copied > layer and not self._cancelled

    def wait_done(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._done, self._left())
            return self._done

    @property
    def done(self) -> bool:
        with self._changed:
            return self._done

    def cancel(self) -> None:
        """Waits for the copy under way, of one layer at most."""
        with self._changed:
            if self._done:
                return
            self._cancelled = True
            self.fail_all()
            self._done = True
            self._changed.notify_all()

    def fail_all(self) -> None:
        for load in self.loads:
            self.fail(load, 0)

    def fail(self, load: Load, first_block: int) -> None:
        self.failed_blocks.update(one for one in load.block_ids[first_block:] if one >= 0)
        self.failed_requests.add(load.request_id)

    # For the thread. The lock is held while a layer is copied: see cancel().

    def copy_layer(self, copy: Callable[[], None]) -> bool:
        with self._changed:
            if self._cancelled:
                return False
            copy()
            self._copied += 1
            self._changed.notify_all()
            return True

    def finish(self) -> None:
        with self._changed:
            self._done = True
            self._changed.notify_all()

    def _left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


class Loader:
    def __init__(
        self,
        core: Any,
        client: Any,
        plan: CachePlan,
        config: ConnectorConfig,
        copier: Copier,
        count: Callable[..., None],
    ) -> None:
        self._core = core
        self._client = client
        self._plan = plan
        self._config = config
        self._copier = copier
        self._count = count
        self._heads = list(plan.rank_heads)
        self._jobs: queue.SimpleQueue[LoadJob | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="pagoda-load", daemon=True)
        self._thread.start()

    def start(self, loads: list[Load]) -> LoadJob:
        deadline = time.monotonic() + self._config.load_deadline_ms / 1000
        job = LoadJob(loads, len(self._plan.layer_names), deadline)
        self._jobs.put(job)
        return job

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join(1.0)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            began = time.monotonic()
            try:
                self._load(job)
            except Exception as error:
                job.fail_all()
                self._count(f"load_failures:{reason(error)}")
                log_once("load", reason(error), "%s", error)
            finally:
                self._count("load_seconds", time.monotonic() - began)
                job.finish()

    def _load(self, job: LoadJob) -> None:
        sources = []
        try:
            for load in job.loads:
                source = self._find(load)
                blocks = 0 if source is None else source.pages * self._plan.blocks_per_page
                if blocks < len(load.block_ids):
                    job.fail(load, blocks)
                    self._count("load_failures:gone")
                if source is not None:
                    sources.append(source)
            for layer in range(len(self._plan.layer_names)):
                if not job.copy_layer(lambda: self._copy(layer, sources)):
                    self._count("load_failures:cancelled")
                    return
            self._copier.finish_loads()
            for source in sources:
                pages = source.pages * len(self._heads)
                if source.still_valid():
                    self._count("loaded_pages", pages)
                    self._count("loaded_bytes", pages * self._plan.page_bytes)
                else:
                    job.fail(source.load, 0)
                    self._count("load_failures:taken_back")
        finally:
            for source in sources:
                try:
                    self._client.release(source.lease)
                except Exception:  # it ends by itself
                    self._count("release_failures")

    def _copy(self, layer: int, sources: list[_Source]) -> None:
        for source in sources:
            blocks = source.load.block_ids[: source.pages * self._plan.blocks_per_page]
            self._copier.load(layer, blocks, source.addresses[:, layer])

    def _find(self, load: Load) -> _Source | None:
        if not load.hashes or not self._client.connected:
            return None
        scope = self._client.scope(load.scope)
        if scope is None:
            return None
        parts = [(head, 1) for head in self._heads]
        keys = self._core.external_keys(scope.root, load.hashes)
        hit = self._client.lookup(
            scope,
            keys,
            precision_min=self._plan.precision_min,
            fidelity_min=fidelity_min(self._plan),
            parts=parts,
            request_id=secrets.token_bytes(16),
        )
        if not hit:
            return None
        page_keys = [key for key in keys for _ in parts]
        count = len(hit) // len(parts) * len(parts)
        try:
            source = self._mapped(load, hit, page_keys, count)
        except self._core.PagodaError:  # no shared memory with it, or still on the way there
            source = None
        if source is None or source.pages * len(parts) < count:
            source = self._fetched(load, hit, page_keys, count)
        if source.pages == 0:
            self._client.release(hit)
            return None
        return source

    def _mapped(self, load: Load, hit: Any, keys: list[bytes], count: int) -> _Source:
        mapped = self._client.map(hit, keys, count=count)
        good = 0
        while good < len(mapped) and self._is_ours(load, good, mapped.header(good)):
            good += 1
        pages = good // len(self._heads)
        spans = mapped.spans() if pages else np.empty((0, 5), np.uint64)
        return self._source(load, pages, spans, mapped.still_valid, mapped, hit)

    def _fetched(self, load: Load, hit: Any, keys: list[bytes], count: int) -> _Source:
        precision = None if self._plan.precision == "opaque" else "raw16"
        result = self._client.fetch(hit, keys, count=count, precision_max=precision)
        if result.error is not None:
            log_once("load", reason(result.error), "%s", result.error)
        rows, good = [], 0
        for page in result.pages:
            if not self._is_ours(load, good, page.header):
                break
            for segment, (begin, layers) in zip(page.segments, page.header.segment_layers):
                rows.append((good, begin, layers, segment.ctypes.data, segment.nbytes))
            good += 1
        spans = np.asarray(rows, np.uint64).reshape(-1, 5)
        return self._source(load, good // len(self._heads), spans, lambda: True, result, hit)

    def _source(
        self, load: Load, pages: int, spans: Any, still_valid: Any, keep: Any, lease: Any
    ) -> _Source:
        count, layers = pages * len(self._heads), len(self._plan.layer_names)
        addresses = np.zeros((count, layers), np.uint64)
        size = np.uint64(self._plan.layer_bytes)
        for page, begin, number, address, length in spans:
            if page < count and length >= number * size:
                at = np.arange(int(number), dtype=np.uint64) * size + address
                addresses[int(page), int(begin) : int(begin) + int(number)] = at
        if not addresses.all():
            raise ValueError("a page came without all of its layers")
        return _Source(load, pages, addresses, still_valid, keep, lease)

    def _is_ours(self, load: Load, index: int, header: Any) -> bool:
        page, part = divmod(index, len(self._heads))
        return (
            header.page_tokens == self._plan.page_tokens
            and header.layer_count == len(self._plan.layer_names)
            and (header.head_begin, header.head_count) == (self._heads[part], 1)
            and header.base_position == (load.first_page + page) * self._plan.page_tokens
            and header.precision == self._plan.precision
        )
