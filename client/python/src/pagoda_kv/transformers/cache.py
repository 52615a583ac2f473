"""A Transformers cache that keeps K and V in Pagoda's pages and shares them by prefix.

    client = connect(model, "127.0.0.1:7070")
    cache = PagodaCache.from_prompt(model, input_ids, client=client)
    model.generate(input_ids, past_key_values=cache)      # computes what no page held
    cache.close()

raw16      K and V are Transformers' own tensors: every attention computes what it computes with
           DynamicCache, bit for bit. Pages are made when they are full, for the daemon.
q8, q4     pages, encoded once they have left the window. The attention "pagoda" reads them as they
           are; for any other one update() decodes them. That one reads the tokens of its own
           forward pass exact, whatever their number.
Batches    rows are sequences of their own, left padding is left out. Prefixes are loaded where no
           row is padded: as many pages as all rows have.
Limits     layers with a sliding window keep all tokens
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from pagoda_kv import Client, kernels

from .attention import NAME
from .config import PagodaConfig
from .model_facts import model_spec, page_shape, text_config
from .paged_layers import PagedLayer, PagedRows
from .prefix_pages import PrefixPages
from .row_tokens import RowTokens, left_padding
from .token_watch import watch


def connect(
    model: Any, target: str = "127.0.0.1:7070", config: PagodaConfig | None = None, **options: Any
) -> Client:
    """A session with the daemon for this model's pages: one for a process and model. Options are
    those of pagoda_kv.Client."""
    config = config or PagodaConfig()
    return Client(target, model_spec(model, config), page_tokens=config.page_tokens, **options)


class PagodaCache(Cache):
    """For one request, or a batch of them. `hit_tokens` of each row came from the daemon."""

    def __init__(
        self, model: Any, config: PagodaConfig | None = None, client: Client | None = None
    ) -> None:
        self.config = config or PagodaConfig()
        self.hit_tokens = 0
        self._model_config = text_config(model)
        self._shape = page_shape(self._model_config, self.config.page_tokens)
        self._rows: list[RowTokens] = []
        self._paged: PagedRows | None = None
        self._prefix: PrefixPages | None = None
        exact = model.dtype == torch.bfloat16 or self.config.allow_rounding
        if client is not None and exact:
            self._prefix = PrefixPages(client, self.config, self._shape)
        count = self._shape.layer_count
        if self.config.encodes:
            kernels.set_threads(torch.get_num_threads())
            self._paged = PagedRows(self._shape, self.config, self._reads_pages)
            super().__init__(layers=[PagedLayer(self._paged, layer) for layer in range(count)])
        else:
            super().__init__(layers=[DynamicLayer() for _ in range(count)])
        watch(model)

    @classmethod
    def from_prompt(
        cls,
        model: Any,
        input_ids: torch.Tensor,
        config: PagodaConfig | None = None,
        client: Client | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> "PagodaCache":
        """A cache for generate(input_ids, attention_mask=attention_mask): it has the longest prefix
        that the daemon has, at most all tokens but the last."""
        cache = cls(model, config, client)
        if cache._prefix is not None:
            cache._prefix.open(input_ids.shape[1])
            if not any(left_padding(attention_mask, len(input_ids))):
                cache._load(input_ids.tolist(), model.dtype, input_ids.device)
        return cache

    @property
    def problem(self) -> Exception | None:
        """What the daemon failed in first; generation goes on without."""
        return self._prefix.problem if self._prefix is not None else None

    @property
    def pushed_pages(self) -> int:
        return self._prefix.pushed if self._prefix is not None else 0

    def stored_bytes(self) -> int:
        """Of K and V as they are kept now."""
        if self._paged is not None:
            return sum(sequence.stored_bytes() for sequence in self._paged.sequences)
        return sum(
            x.numel() * x.element_size()
            for layer in self.layers
            if layer.is_initialized
            for x in (layer.keys, layer.values)
        )

    def close(self) -> None:
        """Waits for the last pushes, at most config.flush_timeout, and tells the daemon that the
        request is over. The cache can go on, without it."""
        if self._prefix is not None:
            self._prefix.close()

    # ---- What Transformers calls

    def note_inputs(
        self, input_ids: torch.Tensor | None, attention_mask: torch.Tensor | None
    ) -> None:
        """Tokens of the forward pass that is to come, from token_watch."""
        if input_ids is None:
            return
        start = self.get_seq_length()
        if start == 0:
            self._open(left_padding(attention_mask, len(input_ids)))
        self._fit_rows(len(input_ids))
        for row, tokens in zip(self._rows, input_ids.tolist(), strict=True):
            skip = max(0, row.pad - start)
            row.note(start + skip - row.pad, tokens[skip:])

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        for states in (key_states, value_states):
            if (states.shape[1], states.shape[3]) != (self._shape.head_count, self._shape.head_dim):
                raise ValueError(
                    f"layer {layer_idx} has K or V of {states.shape[1]} heads of {states.shape[3]} "
                    f"channels, pages of this model {self._shape.head_count} of "
                    f"{self._shape.head_dim}"
                )
        if layer_idx == 0:
            self._fit_rows(key_states.shape[0])
        result = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        if layer_idx == self._shape.layer_count - 1:
            self._finish(self.get_seq_length(layer_idx))
        return result

    def reset(self) -> None:
        """Forgets all tokens. What was loaded is not loaded again."""
        self._rows = []
        if self._paged is not None:
            self._paged.open([])
            self._paged.truncate(0)
        super().reset()

    def crop(self, tokens_to_remove: int) -> None:
        length = self.get_seq_length()
        # A positive number is the length to keep, as older callers have it.
        keep = tokens_to_remove if tokens_to_remove > 0 else length + tokens_to_remove
        keep = max(0, keep)
        if keep >= length:
            return
        if self._paged is not None:
            self._paged.truncate(keep)
        else:
            super().crop(keep - length)
        for row in self._rows:
            row.truncate(max(0, keep - row.pad), self._shape.page_tokens)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self._select(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select([row for row in range(len(self._rows)) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._select(torch.arange(len(self._rows))[indices.cpu()].tolist())

    def __deepcopy__(self, memo: dict[int, Any]) -> "PagodaCache":
        """The same tokens, without the daemon: continuing one prompt several ways."""
        other = copy.copy(self)
        memo[id(self)] = other
        other._prefix = None
        other._rows = [row.fork() for row in self._rows]
        if self._paged is None:
            other.layers = copy.deepcopy(self.layers, memo)
        else:
            other._paged = self._paged.fork()
            other.layers = [PagedLayer(other._paged, i) for i in range(len(self.layers))]
        return other

    # ---- Insides

    def _reads_pages(self) -> bool:
        return self._model_config._attn_implementation == NAME

    def _open(self, pads: Sequence[int]) -> None:
        self._rows = [RowTokens(pad) for pad in pads]
        if self._paged is not None:
            self._paged.open(pads)

    def _fit_rows(self, count: int) -> None:
        """generate() multiplies rows for beams and samples after the cache was made."""
        if not self._rows:
            self._open([0] * count)
        if count % len(self._rows) != 0:
            raise ValueError(f"{count} rows of K and V for a cache of {len(self._rows)}")
        if count != len(self._rows):
            self.batch_repeat_interleave(count // len(self._rows))

    def _select(self, indices: Sequence[int]) -> None:
        if list(indices) == list(range(len(self._rows))):
            return
        self._rows = [self._rows[index].fork() for index in indices]
        if self._paged is not None:
            self._paged.select(indices)
            return
        for layer in self.layers:
            layer.batch_select_indices(torch.tensor(indices))

    def _finish(self, columns: int) -> None:
        """All layers have that many columns: what is full is pushed."""
        if self._paged is not None:
            self._paged.advance()
        prefix, size = self._prefix, self._shape.page_tokens
        if prefix is None or prefix.closed:
            return
        for index, row in enumerate(self._rows):
            full = max(0, columns - row.pad) // size
            if full == row.finished:
                continue
            prefix.advance(columns - row.pad)
            # Where tokens are unknown (embeddings came instead) pages have no keys.
            row.keys = prefix.keys(row.tokens[: full * size], row.keys)
            for page in range(row.finished, min(full, len(row.keys))):
                if not prefix.wants(row.keys[page]):
                    continue
                raw, fidelity = self._raw_page(index, page)
                if raw is None:
                    break
                tokens = row.tokens[page * size : (page + 1) * size]
                prefix.store(row.keys[: page + 1], tokens, raw, fidelity)
            row.finished = full

    def _raw_page(self, row: int, page: int) -> tuple[kernels.Page | None, str]:
        """A page that was just completed, and its fidelity."""
        if self._paged is not None:
            sequence = self._paged.sequences[row]
            return sequence.raw_page(page), sequence.fidelity(page)
        size = self._shape.page_tokens
        raw = kernels.Page(self._shape, base_position=page * size)
        begin = self._rows[row].pad + page * size
        for index, layer in enumerate(self.layers):
            k, v = (
                x[row, :, begin : begin + size].detach().cpu() for x in (layer.keys, layer.values)
            )
            raw.write(index, 0, k, v)
        return raw, "raw16"

    def _load(self, rows: list[list[int]], dtype: torch.dtype, device: torch.device) -> None:
        assert self._prefix is not None
        loaded = [self._prefix.load(row) for row in rows]
        count = min(len(pages) for pages in loaded)
        if count == 0:
            return
        self._open([0] * len(rows))
        size = self._shape.page_tokens
        for row, prompt in zip(self._rows, rows, strict=True):
            row.tokens, row.promised = prompt[: count * size], prompt
            row.keys, row.finished = self._prefix.keys(row.tokens), count
        self.hit_tokens = count * size
        if self._paged is not None:
            for sequence, pages in zip(self._paged.sequences, loaded, strict=True):
                for page, fidelity in pages[:count]:
                    sequence.append_loaded(page, fidelity)
            self._paged.columns = [count * size] * len(self.layers)
            return
        for index, layer in enumerate(self.layers):
            decoded = [
                kernels.decode([page for page, _ in pages[:count]], index) for pages in loaded
            ]
            k, v = (
                torch.stack([torch.from_numpy(x) for x in rows]).to(device, dtype)
                for rows in zip(*decoded, strict=True)
            )
            layer.update(k, v)
