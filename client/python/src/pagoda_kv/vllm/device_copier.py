"""Copies between pages and a cache in a GPU's memory, on a stream of their own.

Bytes go through pinned memory: pages are collected there (or taken from there), one copy crosses
the bus for each layer, and an indexed copy on the device does the rest. The engine's stream waits
for the loads of a layer in front of it, and in front of a step for the saves of the one before,
whose blocks it may write over; the engine's thread waits for neither.

On a device of type "cpu" there are no streams and everything happens at once: so it is tested.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from pagoda_kv.vllm.layout import Addresses, CacheLayout
from pagoda_kv.vllm.plan import CachePlan


class DeviceCopier:
    def __init__(
        self,
        core: Any,
        plan: CachePlan,
        layout: CacheLayout,
        tensors: Mapping[str, torch.Tensor],
    ) -> None:
        self._core = core
        self._plan = plan
        self._heads = layout.head_count
        pieces = next(iter(tensors.values())).shape[0] // layout.block_count
        # [block][piece][head][token][content] of each layer.
        self._layers = [
            tensors[name].unflatten(0, (layout.block_count, pieces)) for name in plan.layer_names
        ]
        self._device = self._layers[0].device
        self._on_gpu = self._device.type != "cpu"
        self._stream = torch.cuda.Stream(self._device) if self._on_gpu else None
        self._saves: list[tuple[torch.Tensor, Addresses]] = []
        self._held: list[torch.Tensor] = []  # pinned memory that the device still reads

    def load(self, layer: int, blocks: Sequence[int], page_addresses: Addresses) -> None:
        if not len(blocks):
            return
        host = self._pinned(page_addresses.size)
        rows = np.empty((page_addresses.size, 3), np.uint64)
        rows[:, 0] = _row_addresses(host, page_addresses.size, self._plan.layer_bytes)
        rows[:, 1] = page_addresses
        rows[:, 2] = self._plan.layer_bytes
        self._core.copy_spans(rows)
        wanted = torch.tensor([at for at, block in enumerate(blocks) if block >= 0])
        ids = torch.tensor([block for block in blocks if block >= 0], device=self._device)
        with self._side_stream():
            pages = host.to(self._device, non_blocking=True)
            content = self._to_cache(pages, len(blocks))[wanted.to(self._device)]
            self._layers[layer][ids] = content
        self._held.append(host)

    def begin_step(self) -> None:
        if self._stream is not None:
            engine = torch.cuda.current_stream(self._device)
            engine.wait_stream(self._stream)
            self._stream.wait_stream(engine)

    def order_loads(self) -> None:
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def save(self, layer: int, blocks: Sequence[int], page_addresses: Addresses) -> None:
        if not len(blocks):
            return
        host = self._pinned(page_addresses.size)
        if self._stream is not None:  # on the engine's thread: after its attention of this layer
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with self._side_stream():
            ids = torch.tensor(list(blocks), device=self._device)
            pages = self._to_pages(self._layers[layer][ids], len(blocks))
            host.copy_(pages, non_blocking=True)
        self._saves.append((host, page_addresses))

    def finish_loads(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()
        self._held.clear()

    def finish_saves(self) -> "_Saves | None":
        saves, self._saves = self._saves, []
        if not saves:
            return None
        event = None
        if self._stream is not None:
            event = torch.cuda.Event()
            event.record(self._stream)
        return _Saves(self._core, self._plan.layer_bytes, saves, event)

    # Shapes: pages are [page * head][bytes], a cache's content
    # [block][piece][head][token][content].

    def _to_cache(self, pages: torch.Tensor, blocks: int) -> torch.Tensor:
        _, pieces, heads, tokens, content = self._layers[0].shape
        per_page = self._plan.blocks_per_page
        typed = pages.view(self._layers[0].dtype)
        if self._plan.precision == "opaque":
            shape = (blocks, heads, pieces, tokens, content)
            return typed.view(shape).transpose(1, 2)
        halves = typed.view(blocks // per_page, heads, 2, per_page, pieces, tokens, content // 2)
        together = halves.permute(0, 3, 4, 1, 5, 2, 6)  # K and V of a token beside each other
        return together.reshape(blocks, pieces, heads, tokens, content)

    def _to_pages(self, content: torch.Tensor, blocks: int) -> torch.Tensor:
        _, pieces, heads, tokens, width = self._layers[0].shape
        per_page = self._plan.blocks_per_page
        if self._plan.precision == "opaque":
            pages = content.transpose(1, 2)
        else:
            shape = (blocks // per_page, per_page, pieces, heads, tokens, 2, width // 2)
            pages = content.reshape(shape).permute(0, 3, 5, 1, 2, 4, 6)
        return pages.reshape(-1).view(torch.uint8).view(-1, self._plan.layer_bytes)

    def _pinned(self, pages: int) -> torch.Tensor:
        return torch.empty(
            (pages, self._plan.layer_bytes), dtype=torch.uint8, pin_memory=self._on_gpu
        )

    @contextlib.contextmanager
    def _side_stream(self):
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield


class _Saves:
    """Pages in pinned memory, or on their way there."""

    def __init__(
        self, core: Any, size: int, saves: list[tuple[torch.Tensor, Addresses]], event: Any
    ) -> None:
        self._core, self._size, self._saves, self._event = core, size, saves, event

    def ready(self) -> bool:
        return self._event is None or self._event.query()

    def finish(self) -> None:
        for host, addresses in self._saves:
            rows = np.empty((addresses.size, 3), np.uint64)
            rows[:, 0] = addresses
            rows[:, 1] = _row_addresses(host, addresses.size, self._size)
            rows[:, 2] = self._size
            self._core.copy_spans(rows)


def _row_addresses(host: torch.Tensor, count: int, size: int) -> Addresses:
    return np.uint64(host.data_ptr()) + np.arange(count, dtype=np.uint64) * np.uint64(size)
