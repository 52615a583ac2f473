"""Copies between pages and the engine's cache, one layer at a time."""

from collections.abc import Sequence
from typing import Any, Protocol

from pagoda_kv.vllm.layout import Addresses, CacheLayout


class Copier(Protocol):
    """page_addresses [page * head]: where this layer begins in each page, in this process."""

    def begin_step(self) -> None:
        """On the engine's thread, in front of a step's loads: what the engine does from here comes
        after the saves so far, and the loads after what it did."""

    def load(self, layer: int, blocks: Sequence[int], page_addresses: Addresses) -> None: ...

    def order_loads(self) -> None:
        """On the engine's thread: what it does from here comes after the loads so far."""

    def finish_loads(self) -> None:
        """Returns when all loads have read their pages."""

    def save(self, layer: int, blocks: Sequence[int], page_addresses: Addresses) -> None: ...

    def finish_saves(self) -> "PendingSaves | None":
        """Of the saves since the last call. None: they have written their pages."""


class PendingSaves(Protocol):
    def ready(self) -> bool: ...
    def finish(self) -> None:
        """Writes the pages, of a copy that is ready."""


class HostCopier:
    """For a cache in this machine's memory: copies at once, without the GIL."""

    def __init__(
        self, core: Any, layout: CacheLayout, heads: Sequence[int], threads: int
    ) -> None:
        self._core = core
        self._layout = layout
        self._heads = heads
        self._threads = threads

    def load(self, layer: int, blocks: Sequence[int], page_addresses: Addresses) -> None:
        self._copy(layer, blocks, page_addresses, into_cache=True)

    def save(self, layer: int, blocks: Sequence[int], page_addresses: Addresses) -> None:
        self._copy(layer, blocks, page_addresses, into_cache=False)

    def begin_step(self) -> None:
        pass

    def order_loads(self) -> None:
        pass

    def finish_loads(self) -> None:
        pass

    def finish_saves(self) -> None:
        return None

    def _copy(
        self, layer: int, blocks: Sequence[int], page_addresses: Addresses, *, into_cache: bool
    ) -> None:
        if not len(blocks):
            return
        if not -1 <= min(blocks) <= max(blocks) < self._layout.block_count:
            raise ValueError(
                f"block {max(blocks)}, but the cache has {self._layout.block_count} blocks"
            )
        rows = self._layout.rows(
            layer, blocks, self._heads, page_addresses, into_cache=into_cache
        )
        self._core.copy_spans(rows, self._threads)
