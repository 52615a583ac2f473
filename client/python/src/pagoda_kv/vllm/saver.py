"""Copies full pages out of the engine's cache and gives them to the daemon.

The copy is made before the engine may write over the blocks: in host memory before the step ends,
on a GPU's stream before the next one begins. Neither it nor the push is waited for. What a step
computed after a load of it failed, on any rank, is not kept: with one rank that is known at the end
of the step; with several the pages wait, copied, until the scheduler has heard from all.

Limits   save_bytes_max copied and not answered; beyond it pages are skipped and counted.
"""

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pagoda_kv.vllm.config import ConnectorConfig
from pagoda_kv.vllm.copier import Copier, PendingSaves
from pagoda_kv.vllm.guard import log_once, reason
from pagoda_kv.vllm.layout import Addresses
from pagoda_kv.vllm.messages import Save, StepMessage
from pagoda_kv.vllm.plan import CachePlan
from pagoda_kv.vllm.prober import fidelity_min


@dataclasses.dataclass
class _Copy:
    """Pages of one save, [page * head], in memory that the daemon can read."""

    save: Save
    pages: int
    buffers: list[Any]
    addresses: Addresses
    layers_copied: set[int] = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class _Batch:
    step: int
    seen_through: int
    copies: list[_Copy]
    pending: PendingSaves | None = None  # the copy itself is under way


class Saver:
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
        self._segments = core.opaque_segment_layers(len(plan.layer_names), plan.layer_bytes)
        self._pusher: Any = None
        self._generation = 0  # of the pusher: what an older one still answers does not count
        self._instance = ""
        self._current: _Batch | None = None
        self._waiting: list[_Batch] = []
        self._failed_steps: set[int] = set()
        self._lock = threading.Lock()  # over what the answers, on another thread, touch
        self._bytes = 0
        self._pushed: dict[bytes, tuple[str, bytes, int]] = {}  # key -> request, hash, answers due
        self._unsaved: dict[str, list[bytes]] = {}
        self._stored: list[bytes] = []

    # A step, in this order ------------------------------------------------------------------------

    def begin_step(self, message: StepMessage) -> None:
        self._failed_steps.update(message.failed_steps)
        self._current = None
        self._push_ready(message.seen_through)

    def save_layer(self, message: StepMessage, layer: int) -> None:
        for copy in self._batch(message).copies:
            self._copy_layer(copy, layer)

    def end_step(self, message: StepMessage, load_failed: bool) -> None:
        if load_failed:
            self._failed_steps.add(message.step)
        if not message.saves:
            return
        batch = self._batch(message)
        self._current = None
        for copy in batch.copies:
            for layer in range(len(self._plan.layer_names)):
                self._copy_layer(copy, layer)
        batch.pending = self._copier.finish_saves()
        self._waiting.append(batch)
        self._push_ready(message.step if self._plan.tp_size == 1 else message.seen_through)

    def take_unsaved(self) -> dict[str, list[bytes]]:
        with self._lock:
            unsaved, self._unsaved = self._unsaved, {}
        return unsaved

    def take_stored(self) -> list[bytes]:
        with self._lock:
            stored, self._stored = self._stored, []
        return stored

    def close(self) -> None:
        self._pusher = None

    # Inside --------------------------------------------------------------------------------------

    def _batch(self, message: StepMessage) -> _Batch:
        if self._current is None:
            self._current = _Batch(message.step, message.seen_through, [])
            for save in message.saves:
                copy = self._prepare(save)
                if copy is not None:
                    self._current.copies.append(copy)
        return self._current

    def _prepare(self, save: Save) -> _Copy | None:
        pages = len(save.hashes)
        size = pages * len(self._heads) * self._plan.page_bytes
        pusher = self._usable_pusher()
        if pusher is None:
            self._skip(save, save.hashes, "away")
            return None
        with self._lock:
            room = self._config.save_bytes_max - self._bytes
            fitting = min(pages, room // (len(self._heads) * self._plan.page_bytes))
            size = fitting * len(self._heads) * self._plan.page_bytes
            self._bytes += size
        if fitting < pages:
            self._skip(save, save.hashes[fitting:], "queue_full")
        buffers: list[Any] = []
        try:
            for _ in range(fitting * len(self._heads)):
                buffers.append(pusher.reserve(self._plan.page_bytes))
        except self._core.PagodaError as error:
            self._skip(save, save.hashes[:fitting], reason(error))
            self._give_back(size)
            return None
        if not buffers:
            return None
        addresses = np.asarray([one.ctypes.data for one in buffers], np.uint64)
        return _Copy(save, fitting, buffers, addresses)

    def _usable_pusher(self) -> Any:
        """A stream is over with its session: a new one then."""
        info = self._client.server_info
        if not self._client.connected or info is None:
            self._pusher = None
            return None
        if self._pusher is None or info.instance_id != self._instance:
            try:
                generation = self._generation + 1
                self._pusher = self._client.pusher(
                    callback=lambda key, outcome: self._answered(generation, key, outcome)
                )
                self._instance = info.instance_id
                with self._lock:
                    self._generation = generation
                    self._pushed.clear()
                    self._bytes = sum(
                        copy.pages * len(self._heads) * self._plan.page_bytes
                        for batch in self._waiting
                        for copy in batch.copies
                    )
            except self._core.PagodaError as error:
                log_once("save", reason(error), "%s", error)
                return None
        return self._pusher

    def _copy_layer(self, copy: _Copy, layer: int) -> None:
        if layer in copy.layers_copied:
            return
        began = time.monotonic()
        at = copy.addresses + np.uint64(layer * self._plan.layer_bytes)
        blocks = copy.save.block_ids[: copy.pages * self._plan.blocks_per_page]
        self._copier.save(layer, blocks, at)
        copy.layers_copied.add(layer)
        self._count("save_seconds", time.monotonic() - began)

    def _push_ready(self, judged_through: int) -> None:
        """In their order: parents first."""
        while self._waiting and self._waiting[0].step <= judged_through:
            batch = self._waiting[0]
            if batch.pending is not None:
                if not batch.pending.ready():
                    return
                batch.pending.finish()
            self._waiting.pop(0)
            self._push(batch)

    def _push(self, batch: _Batch) -> None:
        spoiled = any(batch.seen_through < step <= batch.step for step in self._failed_steps)
        for copy in batch.copies:
            if spoiled:
                self._drop(copy, 0, "load_failed")
            else:
                self._push_pages(copy)

    def _push_pages(self, copy: _Copy) -> None:
        save, plan = copy.save, self._plan
        scope = self._client.scope(save.scope)
        pusher = self._pusher
        if scope is None or pusher is None or not scope.may_push:
            self._drop(copy, 0, "away" if scope is None or pusher is None else "no_right")
            return
        hashes = save.hashes[: copy.pages]
        keys = self._core.external_keys(scope.root, hashes)
        parent = (
            scope.root
            if save.parent is None
            else self._core.external_keys(scope.root, [save.parent])[0]
        )
        for page, (page_hash, key) in enumerate(zip(hashes, keys)):
            with self._lock:
                self._pushed[key] = (save.request_id, page_hash, len(self._heads))
            for part, head in enumerate(self._heads):
                buffer = copy.buffers[page * len(self._heads) + part]
                try:
                    pusher.push(
                        scope,
                        key,
                        parent,
                        self._segments_of(buffer),
                        parent_is_root=save.parent is None and page == 0,
                        base_position=(save.first_page + page) * plan.page_tokens,
                        fidelity=fidelity_min(plan),
                        precision=plan.precision,
                        part=(head, 1),
                        opaque_layer_bytes=(
                            plan.layer_bytes if plan.precision == "opaque" else 0
                        ),
                    )
                except self._core.PagodaError as error:
                    log_once("save", reason(error), "%s", error)
                    if reason(error) == "UNAVAILABLE":
                        self._pusher = None  # that stream is over
                    with self._lock:
                        self._pushed.pop(key, None)
                    self._count(f"save_failures:{reason(error)}")
                    done = page * len(self._heads) + part
                    self._drop(copy, page, "push_refused", records_pushed=done)
                    return
            parent = key

    def _segments_of(self, buffer: Any) -> list[Any]:
        size = self._plan.layer_bytes
        return [buffer[begin * size : (begin + count) * size] for begin, count in self._segments]

    def _answered(self, generation: int, key: bytes, outcome: str) -> None:
        """On a thread of the client."""
        if generation != self._generation:
            return
        self._give_back(self._plan.page_bytes)
        if outcome in ("stored", "replaced"):
            self._count("saved_pages")
            self._count("saved_bytes", self._plan.page_bytes)
        elif outcome == "already_stored":
            self._count("already_stored_pages")
        else:
            code = outcome.partition(":")[0]
            self._count(f"save_failures:{code}")
            log_once("save", code, "%s", outcome)
        with self._lock:
            request_id, page_hash, due = self._pushed.pop(key, ("", b"", 0))
            if not due:
                return
            if outcome not in ("stored", "replaced", "already_stored"):
                self._unsaved.setdefault(request_id, []).append(page_hash)
            elif due == 1:
                self._stored.append(page_hash)
            else:
                self._pushed[key] = (request_id, page_hash, due - 1)

    def _drop(self, copy: _Copy, first: int, why: str, records_pushed: int = 0) -> None:
        self._skip(copy.save, copy.save.hashes[first : copy.pages], why)
        left = copy.pages * len(self._heads) - records_pushed
        self._give_back(left * self._plan.page_bytes)

    def _skip(self, save: Save, hashes: list[bytes], why: str) -> None:
        if hashes:
            self._count(f"save_skipped:{why}", len(hashes) * len(self._heads))
            with self._lock:
                self._unsaved.setdefault(save.request_id, []).extend(hashes)

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._bytes -= size
