"""Loads pages into the engine's cache, layer by layer, on a thread of its own.

A job is done when its last byte is copied and the pages were still the daemon's word after that;
whatever is not then in order is a failed block, which the engine computes. After cancel() returns
nothing is written any more, so that a late copy cannot meet the engine's own.
"""

import dataclasses
import functools
import queue
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pagoda_kv.vllm.config import ConnectorConfig
from pagoda_kv.vllm.copier import Copier
from pagoda_kv.vllm.decoder import RANK, PageDecoder
from pagoda_kv.vllm.guard import log_once, reason
from pagoda_kv.vllm.layout import Addresses
from pagoda_kv.vllm.messages import Load
from pagoda_kv.vllm.plan import CachePlan
from pagoda_kv.vllm.prober import fidelity_min, keys_per_question

BYTES_PER_SECOND = 1e9  # at least: for each gigabyte a load may take a second more


@dataclasses.dataclass
class _Source:
    """Pages of one load: where each layer of each (page, head) begins."""

    load: Load
    first: int  # of the load's pages
    pages: int  # whole ones
    addresses: Addresses  # [page * head][layer]
    still_valid: Callable[[], bool]
    keep: Any  # what the addresses point into
    lease: Any
    decoder: PageDecoder | None = None  # where the pages are encoded; then no addresses

    def layer(self, layer: int) -> Addresses:
        if self.decoder is not None:
            return self.decoder.addresses(layer)
        return self.addresses[:, layer]


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
        least = RANK.get(plan.precision_min, 0)
        self._precisions = {one for one in RANK if RANK[one] >= least} if least else {"opaque"}
        self._jobs: queue.SimpleQueue[LoadJob | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="pagoda-load", daemon=True)
        self._thread.start()

    def start(self, loads: list[Load]) -> LoadJob:
        pages = sum(len(load.hashes) for load in loads) * len(self._heads)
        deadline = time.monotonic() + self._config.load_deadline_ms / 1000
        deadline += pages * self._plan.page_bytes / BYTES_PER_SECOND
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
                pages = self._find_all(load, sources)
                if pages * self._plan.blocks_per_page < len(load.block_ids):
                    job.fail(load, pages * self._plan.blocks_per_page)
                    self._count("load_failures:gone")
            for layer in range(len(self._plan.layer_names)):
                if not job.copy_layer(functools.partial(self._copy, layer, sources)):
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
            per_page = self._plan.blocks_per_page
            end = source.first + source.pages
            blocks = source.load.block_ids[source.first * per_page : end * per_page]
            self._copier.load(layer, blocks, source.layer(layer))

    def _find_all(self, load: Load, sources: list[_Source]) -> int:
        """Whole pages from the first one on, in as many questions as the daemon wants."""
        pages = 0
        size = keys_per_question(self._client, len(self._heads))
        while pages < len(load.hashes):
            source = self._find(load, pages, load.hashes[pages : pages + size])
            if source is None:
                break
            sources.append(source)
            pages += source.pages
            if pages % size:
                break
        return pages

    def _find(self, load: Load, first: int, hashes: list[bytes]) -> _Source | None:
        scope = self._client.scope(load.scope) if self._client.connected else None
        if scope is None:
            return None
        parts = [(head, 1) for head in self._heads]
        keys = self._core.external_keys(scope.root, hashes)
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
        count = len(hit) // len(parts) * len(parts)
        try:
            source = self._mapped(load, first, hit, keys, count)
        except self._core.PagodaError:  # no shared memory with it, or still on the way there
            source = None
        if source is None or source.pages * len(parts) < count:
            source = self._fetched(load, first, hit, keys, count)
        if source.pages == 0:
            self._client.release(hit)
            return None
        return source

    def _mapped(
        self, load: Load, first: int, hit: Any, keys: list[bytes], count: int
    ) -> _Source:
        mapped = self._client.map(hit, keys, count=count)
        headers = [mapped.header(index) for index in range(len(mapped))]
        count = self._whole_pages(load, first, headers) * len(self._heads)
        if self._encoded(headers[:count]):
            segments = [mapped.segments(index) for index in range(count)]
            return self._decoded(
                load, first, headers[:count], segments, mapped.still_valid, mapped, hit
            )
        spans = mapped.spans() if count else np.empty((0, 5), np.uint64)
        return self._source(load, first, count, spans, mapped.still_valid, mapped, hit)

    def _fetched(
        self, load: Load, first: int, hit: Any, keys: list[bytes], count: int
    ) -> _Source:
        result = self._client.fetch(hit, keys, count=count)
        if result.error is not None:
            log_once("load", reason(result.error), "%s", result.error)
        headers = [page.header for page in result.pages]
        count = self._whole_pages(load, first, headers) * len(self._heads)
        if self._encoded(headers[:count]):
            segments = [page.segments for page in result.pages[:count]]
            return self._decoded(
                load, first, headers[:count], segments, lambda: True, result, hit
            )
        rows = [
            (index, begin, layers, segment.ctypes.data, segment.nbytes)
            for index, page in enumerate(result.pages[:count])
            for segment, (begin, layers) in zip(page.segments, page.header.segment_layers)
        ]
        spans = np.asarray(rows, np.uint64).reshape(-1, 5)
        return self._source(load, first, count, spans, lambda: True, result, hit)

    def _whole_pages(self, load: Load, first: int, headers: list[Any]) -> int:
        good = 0
        while good < len(headers) and self._is_ours(load, first, good, headers[good]):
            good += 1
        return good // len(self._heads)

    def _encoded(self, headers: list[Any]) -> bool:
        return any(header.precision != self._plan.precision for header in headers)

    def _decoded(
        self, load: Load, first: int, headers: list[Any], segments: list[Any], still_valid: Any,
        keep: Any, lease: Any,
    ) -> _Source:
        decoder = PageDecoder(self._plan, segments, headers)
        pages = len(headers) // len(self._heads)
        nowhere = np.empty((0, 0), np.uint64)
        return _Source(load, first, pages, nowhere, still_valid, keep, lease, decoder)

    def _source(
        self, load: Load, first: int, count: int, spans: Any, still_valid: Any, keep: Any,
        lease: Any,
    ) -> _Source:
        layers = len(self._plan.layer_names)
        addresses = np.zeros((count, layers), np.uint64)
        size = np.uint64(self._plan.layer_bytes)
        for page, begin, number, address, length in spans:
            if page < count and length >= number * size:
                at = np.arange(int(number), dtype=np.uint64) * size + address
                addresses[int(page), int(begin) : int(begin) + int(number)] = at
        if not addresses.all():
            raise ValueError("a page came without all of its layers")
        pages = count // len(self._heads)
        return _Source(load, first, pages, addresses, still_valid, keep, lease)

    def _is_ours(self, load: Load, first: int, index: int, header: Any) -> bool:
        page, part = divmod(index, len(self._heads))
        position = (load.first_page + first + page) * self._plan.page_tokens
        return (
            header.page_tokens == self._plan.page_tokens
            and header.layer_count == len(self._plan.layer_names)
            and (header.head_begin, header.head_count) == (self._heads[part], 1)
            and header.base_position == position
            and header.precision in self._precisions
        )
