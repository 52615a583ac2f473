"""Layers of a cache whose rows are PageSequences: what update() stores, and what attention gets."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import CacheLayerMixin

from pagoda_kv import kernels

from .config import PagodaConfig
from .page_sequence import PageSequence


class PagedRows:
    """The sequences of a batch, all layers. `reads_pages` says whether attention reads pages."""

    def __init__(
        self, shape: kernels.PageShape, config: PagodaConfig, reads_pages: Callable[[], bool]
    ) -> None:
        self.shape, self.config, self.reads_pages = shape, config, reads_pages
        self.columns = [0] * shape.layer_count  # that a layer has, padding counted
        self.sequences: list[PageSequence] = []
        self.pads: list[int] = []
        self.read_from: int | None = None  # column, where attention read decoded K and V

    def open(self, pads: Sequence[int]) -> None:
        self.pads = list(pads)
        self.sequences = [PageSequence(self.shape, self.config) for _ in pads]

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> "PagedStates":
        """[rows, heads, tokens, head_dim] each."""
        start, count = self.columns[layer], k.shape[2]
        if layer == 0:
            for sequence in self.sequences:
                sequence.settle()
        k, v = k.detach().cpu(), v.detach().cpu()
        for row, (sequence, pad) in enumerate(zip(self.sequences, self.pads, strict=True)):
            skip = min(max(0, pad - start), count)
            if skip < count:
                sequence.write(layer, start + skip - pad, k[row, :, skip:], v[row, :, skip:])
        self.columns[layer] = start + count
        return PagedStates(self, layer, start, start + count)

    def advance(self) -> None:
        """All layers have what the first one has."""
        for sequence, pad in zip(self.sequences, self.pads, strict=True):
            reader = None if self.read_from is None else max(0, self.read_from - pad)
            sequence.advance(max(0, self.columns[0] - pad), read_from=reader)
        self.read_from = None

    def truncate(self, columns: int) -> None:
        """Forgets columns from `columns` on."""
        self.columns = [columns] * len(self.columns)
        for sequence, pad in zip(self.sequences, self.pads, strict=True):
            sequence.truncate(max(0, columns - pad))

    def select(self, indices: Sequence[int]) -> None:
        self.pads = [self.pads[index] for index in indices]
        chosen, taken = [], set()
        for index in indices:
            sequence = self.sequences[index]
            chosen.append(sequence.fork() if index in taken else sequence)
            taken.add(index)
        self.sequences = chosen

    def fork(self) -> "PagedRows":
        other = PagedRows(self.shape, self.config, self.reads_pages)
        other.columns, other.pads = list(self.columns), list(self.pads)
        other.sequences = [sequence.fork() for sequence in self.sequences]
        return other


class PagedStates:
    """K and V of one layer as a forward pass of columns [start, end) reads them."""

    def __init__(self, rows: PagedRows, layer: int, start: int, end: int) -> None:
        self._rows, self._layer, self._start, self._end = rows, layer, start, end

    def attend(
        self, query: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
    ) -> torch.Tensor | None:
        """[rows, tokens, query heads, head_dim]; None where the mask is more than causal."""
        rows = self._rows
        pads = [0] * len(rows.pads) if mask is None else getattr(mask, "_pagoda_pads", None)
        if pads != rows.pads:
            return None
        scale = scaling if scaling is not None else 1 / math.sqrt(query.shape[-1])
        q = query.detach().transpose(1, 2).to("cpu", torch.float32).contiguous().numpy()
        out = np.zeros(q.shape, np.float32)
        for row, (sequence, pad) in enumerate(zip(rows.sequences, rows.pads, strict=True)):
            skip = max(0, pad - self._start)
            if skip < q.shape[1]:
                position = self._start + skip - pad
                out[row, skip:] = sequence.attend(self._layer, position, q[row, skip:], scale)
        return torch.from_numpy(out).to(query.device, query.dtype)

    def dense(self, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Decoded, [rows, heads, columns, head_dim]; padding is zero. Codes are those that the
        first of these columns reads."""
        rows, shape = self._rows, self._rows.shape
        size = (len(rows.pads), shape.head_count, self._end, shape.head_dim)
        k, v = np.zeros(size, np.float32), np.zeros(size, np.float32)
        for row, (sequence, pad) in enumerate(zip(rows.sequences, rows.pads, strict=True)):
            if pad >= self._end:
                continue
            k[row, :, pad:], v[row, :, pad:] = sequence.rows(
                self._layer, self._end - pad, max(0, self._start - pad)
            )
        return tuple(torch.from_numpy(x).to(device, dtype) for x in (k, v))

    def handles(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Stand-ins for K and V, of their shape, without memory: what does not know them fails."""
        size = (like.shape[0], like.shape[1], self._end, like.shape[3])
        key = torch.empty(size, dtype=like.dtype, device="meta")
        key._pagoda_states = self
        return key, torch.empty_like(key)


class PagedLayer(CacheLayerMixin):
    """One layer of PagedRows, as Transformers asks for it."""

    is_croppable = True
    is_sliding = False

    def __init__(self, rows: PagedRows, layer: int) -> None:
        super().__init__()
        self._rows, self._layer = rows, layer

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        states = self._rows.write(self._layer, key_states, value_states)
        if self._rows.reads_pages():
            return states.handles(key_states)
        self._rows.read_from = states._start
        return states.dense(key_states.dtype, key_states.device)

    def get_seq_length(self) -> int:
        return self._rows.columns[self._layer]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1

    # Whole caches are reordered, cut and reset, not single layers: PagodaCache does that.
    def reset(self) -> None: ...
    def reorder_cache(self, beam_idx: torch.LongTensor) -> None: ...
    def crop(self, tokens_to_remove: int) -> None: ...
    def batch_repeat_interleave(self, repeats: int) -> None: ...
    def batch_select_indices(self, indices: torch.Tensor) -> None: ...
