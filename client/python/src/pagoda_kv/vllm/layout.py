"""Where the bytes of a page's layer and head lie in the engine's cache: arithmetic on addresses.

    cache, one layer    [blocks][heads][tokens][content], any strides, content without gaps
    opaque page         [layer][the cache's bytes of a (block, head), token after token]
    raw16 page          [layer][K [token][dim], V [token][dim]], of blocks_per_page blocks

Both are runs of bytes that are contiguous on either side. A copy is an array of rows
(destination, source, length), made here for many pages at once; who copies is not decided here.

Units  bytes. Addresses are uint64.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagoda_kv.vllm.plan import CachePlan, Unsupported

Addresses = npt.NDArray[np.uint64]


@dataclasses.dataclass(frozen=True)
class CacheLayout:
    layer_bases: Addresses  # [layer]: block 0, head 0
    block_stride: int
    head_stride: int
    head_count: int
    block_count: int
    run_bytes: int
    cache_offsets: Addresses  # [run]: of each run in its (block, head)
    page_offsets: Addresses  # [block of page][run]: of each run in the page's layer

    def block_rows(self, layer: int, blocks: Sequence[int], heads: Sequence[int]) -> Addresses:
        """Addresses in the cache [page * head][block of page][run]; blocks has whole pages."""
        per_page = self.page_offsets.shape[0]
        ids = np.asarray(blocks, np.uint64).reshape(-1, 1, per_page, 1)
        head_ids = np.asarray(heads, np.uint64).reshape(1, -1, 1, 1)
        head_offsets = head_ids * np.uint64(self.head_stride)
        rows = self.layer_bases[layer] + ids * np.uint64(self.block_stride)
        rows = rows + head_offsets + self.cache_offsets.reshape(1, 1, 1, -1)
        return rows.reshape(-1, per_page, self.cache_offsets.size)

    def rows(
        self,
        layer: int,
        blocks: Sequence[int],
        heads: Sequence[int],
        page_addresses: Addresses,
        *,
        into_cache: bool,
    ) -> Addresses:
        """The copy of one layer: page_addresses [page * head] is where it begins in each page.
        Blocks of -1 are left out."""
        wanted = np.asarray(blocks, np.int64)
        cache = self.block_rows(layer, np.where(wanted < 0, 0, wanted), heads)
        page = page_addresses.reshape(-1, 1, 1) + self.page_offsets.reshape(
            1, *self.page_offsets.shape
        )
        pair = [cache, page] if into_cache else [page, cache]
        rows = np.empty((cache.size, 3), np.uint64)
        rows[:, 0] = pair[0].reshape(-1)
        rows[:, 1] = pair[1].reshape(-1)
        rows[:, 2] = self.run_bytes
        if (wanted < 0).any():
            per_page, runs = self.page_offsets.shape
            keep = np.repeat((wanted >= 0).reshape(-1, 1, per_page), len(heads), axis=1)
            rows = rows[np.repeat(keep.reshape(-1), runs)]
        return rows


def describe(plan: CachePlan, tensors: Mapping[str, Any], block_count: int) -> CacheLayout:
    """Of the tensors that the engine registers; Unsupported where they are not as planned."""
    missing = [name for name in plan.layer_names if name not in tensors]
    if missing:
        raise Unsupported(f"layer {missing[0]!r} has no KV cache of its own")
    layers = [tensors[name] for name in plan.layer_names]
    first = layers[0]
    if any(one.shape != first.shape or one.stride() != first.stride() for one in layers):
        raise Unsupported("layers of the KV cache differ in shape")
    if first.dim() != 4 or first.shape[0] % block_count or first.stride(3) != 1:
        raise Unsupported(
            f"a layer of the KV cache is {tuple(first.shape)} with strides {first.stride()}, "
            f"[{block_count} blocks, heads, tokens, content] expected"
        )
    item = first.element_size()
    # The engine may cut its blocks into smaller ones for the kernel: those come first.
    pieces = first.shape[0] // block_count
    heads, tokens, content = first.shape[1:]
    kernel_stride, head_stride, token_stride, _ = (one * item for one in first.stride())
    token_offsets = (
        np.arange(pieces, dtype=np.uint64)[:, None] * np.uint64(kernel_stride)
        + np.arange(tokens, dtype=np.uint64)[None, :] * np.uint64(token_stride)
    ).reshape(-1)
    if plan.precision == "opaque":
        cache_offsets, run_bytes = _joined(token_offsets, content * item)
        runs = np.arange(cache_offsets.size, dtype=np.uint64)
        page_offsets = runs[None, :] * np.uint64(run_bytes)
    else:
        cache_offsets, page_offsets, run_bytes = _k_then_v(plan, token_offsets, content * item)
    if heads != len(plan.rank_heads) or page_offsets.size * run_bytes != plan.layer_bytes:
        raise Unsupported(
            f"the KV cache has {heads} heads and {page_offsets.size * run_bytes} bytes of each in "
            f"a page's layer, {len(plan.rank_heads)} and {plan.layer_bytes} expected"
        )
    return CacheLayout(
        layer_bases=np.asarray([one.data_ptr() for one in layers], np.uint64),
        block_stride=pieces * kernel_stride,
        head_stride=head_stride,
        head_count=heads,
        block_count=block_count,
        run_bytes=run_bytes,
        cache_offsets=cache_offsets,
        page_offsets=page_offsets,
    )


def _joined(offsets: Addresses, length: int) -> tuple[Addresses, int]:
    """Runs that follow each other are one, where that goes evenly."""
    gaps = np.flatnonzero(np.diff(offsets) != length)
    per_run = offsets.size if gaps.size == 0 else int(gaps[0]) + 1
    if offsets.size % per_run or not np.array_equal(
        gaps, np.arange(per_run - 1, offsets.size - 1, per_run)
    ):
        return offsets, length
    return offsets[::per_run].copy(), length * per_run


def _k_then_v(
    plan: CachePlan, token_offsets: Addresses, content_bytes: int
) -> tuple[Addresses, Addresses, int]:
    """The engine keeps K and V of a token beside each other; a page all K, then all V."""
    half = content_bytes // 2
    cache = np.concatenate([token_offsets, token_offsets + np.uint64(half)])
    tokens = token_offsets.size
    page = np.empty((plan.blocks_per_page, 2 * tokens), np.uint64)
    for block in range(plan.blocks_per_page):
        row = np.uint64(block * tokens) + np.arange(tokens, dtype=np.uint64)
        page[block, :tokens] = row * np.uint64(half)
        page[block, tokens:] = (row + np.uint64(plan.page_tokens)) * np.uint64(half)
    return cache, page, half
