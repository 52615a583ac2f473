"""K and V of one sequence in pages: raw16 in the window and under construction, encoded before it.

Reading    queries of page P read page p encoded if and only if it lies whole before the window:
           (p + 1) * page_tokens <= P * page_tokens - window. What a query reads is so a function
           of its position alone, not of how a prompt was cut into chunks. A layer that codes
           cannot hold (infinities) is read raw.
Loaded     pages may arrive encoded: read at all their bits in the window, beyond it at the
           sequence's precision.
Fidelity   of a page: the lowest precision that was read while it was computed.
Threads    one at a time
"""

from typing import Any

import numpy as np

from pagoda_kv import PagodaError, kernels

from .config import PagodaConfig

BITS = {"q4": 4, "q8": 8, "raw16": 16}


class _Slot:
    """A page in the forms that are there."""

    def __init__(self, raw: kernels.Page | None = None, encoded: kernels.Page | None = None):
        self.raw = raw
        self.encoded = encoded  # at all its bits
        self.aged: kernels.Page | None = None  # the same, read at the sequence's precision
        self.encoded_layers: set[int] | None = set()  # None: all, whatever raw holds
        self.raw_layers: set[int] = set()  # that codes cannot hold
        self.fidelity = "raw16"
        self.exact = True  # raw holds what was computed, not what was decoded


class PageSequence:
    def __init__(self, shape: kernels.PageShape, config: PagodaConfig) -> None:
        self.shape, self.config = shape, config
        self.length = 0  # tokens that all layers have
        self._slots: list[_Slot] = []
        # Pages that queries of that page read, where they are the same for all layers.
        self._read: tuple[int, list[kernels.Page]] | None = None
        # What pages are encoded to; with q8_tokens they come down to q4 later.
        ladder = config.q8_tokens > config.window
        self._encode_to = "q8" if ladder else config.precision

    # ---- Pages from a cache

    def usable_pages(self, precisions: list[str], prompt_tokens: int) -> int:
        """How many leading pages of these precisions a prompt may use."""
        size, count = self.shape.page_tokens, 0
        aged = self.config.aged_count(prompt_tokens // size)
        for index, precision in enumerate(precisions[: max(0, prompt_tokens - 1) // size]):
            needed = self.config.precision if index < aged else "q8"
            if not self.config.encodes:
                needed = "raw16"
            if BITS.get(precision, 0) < BITS[needed]:
                break
            count += 1
        return count

    def append_loaded(self, page: kernels.Page, fidelity: str) -> None:
        """PagodaError where it cannot be read at the sequence's precision; nothing changed then."""
        if page.precision == "raw16":
            slot = _Slot(raw=page)
        else:
            slot = _Slot(encoded=page)
            slot.encoded_layers = None
            slot.aged = page.read_at(self.config.precision, self._k_lo_layers)
        slot.fidelity = fidelity
        self._slots.append(slot)
        self.length += self.shape.page_tokens

    # ---- Writing

    def write(self, layer: int, position: int, k: Any, v: Any) -> None:
        """Rows [heads, tokens, head_dim] of tokens from `position` on."""
        size, count = self.shape.page_tokens, k.shape[1]
        while len(self._slots) * size < position + count:
            page = kernels.Page(self.shape, base_position=len(self._slots) * size)
            self._slots.append(_Slot(raw=page))
        done = 0
        while done < count:
            index, row = divmod(position + done, size)
            step = min(size - row, count - done)
            raw = self._slots[index].raw
            assert raw is not None, "rows of a page that is written are raw"
            raw.write(layer, row, k[:, done : done + step], v[:, done : done + step])
            done += step

    def advance(self, length: int, *, read_from: int | None = None) -> None:
        """All layers have tokens up to `length`. Queries of these tokens read what queries at
        `read_from` read, if it is given, else what their own page reads."""
        size = self.shape.page_tokens
        for page in range(self.length // size, -(-length // size)):
            reader = page if read_from is None else min(page, read_from // size)
            self._slots[page].fidelity = self._fidelity_of(page, reader)
        self.length = length

    def settle(self) -> None:
        """Gives up forms that no later query reads. What is to be pushed was taken before."""
        self._read = None
        next_page = self.length // self.shape.page_tokens
        for slot in self._slots[: self.config.encoded_count(next_page)]:
            if slot.raw is None:
                continue
            if slot.encoded_layers is not None:
                for layer in range(self.shape.layer_count):
                    self._encode(slot, layer)
                if slot.raw_layers:
                    continue
            slot.encoded_layers = None
            slot.raw = None
        for slot in self._slots[: self.config.aged_count(next_page)]:
            if slot.encoded is not slot.aged and slot.encoded_layers is None:
                slot.encoded = kernels.cut(slot.encoded, self.config.precision, self._k_lo_layers)
                slot.aged = slot.encoded

    def truncate(self, length: int) -> None:
        """Forgets tokens from `length` on."""
        size = self.shape.page_tokens
        self.length, self._read = length, None
        del self._slots[-(-length // size) :]
        if length % size:
            # The page is written again, in memory of its own: others may hold it, or push it.
            self._slots[-1] = self._unfinished(self._slots[-1])

    def fork(self) -> "PageSequence":
        """The same content; pages are shared, but for the unfinished one."""
        other = PageSequence(self.shape, self.config)
        other.length, other._slots = self.length, list(self._slots)
        if self.length % self.shape.page_tokens:
            other._slots[-1] = self._unfinished(self._slots[-1])
        return other

    # ---- Reading

    def attend(self, layer: int, position: int, q: np.ndarray, scale: float) -> np.ndarray:
        """q [tokens, query heads, head_dim] float32 of tokens from `position` on, whose K and V are
        written."""
        size, done, parts = self.shape.page_tokens, 0, []
        while done < q.shape[0]:
            query_page = (position + done) // size
            end = min(q.shape[0], (query_page + 1) * size - position)
            parts.append(
                kernels.attention(
                    q[done:end],
                    self._pages_for(query_page, layer),
                    layer,
                    first_position=position + done,
                    softmax_scale=scale,
                )
            )
            done = end
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def rows(self, layer: int, length: int, reader: int) -> tuple[np.ndarray, np.ndarray]:
        """K and V of the first `length` tokens as a query at `reader` reads them, [heads, length,
        head_dim] float32 each."""
        pages = list(self._pages_for(reader // self.shape.page_tokens, layer))
        pages += [slot.raw for slot in self._slots[len(pages) :]]
        k, v = kernels.decode(pages[: -(-length // self.shape.page_tokens)], layer)
        return k[:, :length], v[:, :length]

    def raw_page(self, index: int) -> kernels.Page | None:
        """As it was computed, where it still is."""
        slot = self._slots[index]
        return slot.raw if slot.exact else None

    def fidelity(self, index: int) -> str:
        return self._slots[index].fidelity

    def stored_bytes(self) -> int:
        forms = [page for slot in self._slots for page in (slot.raw, slot.encoded) if page]
        return sum(page.stored_bytes for page in forms)

    # ---- Insides

    def _unfinished(self, slot: _Slot) -> _Slot:
        """A raw16 copy of a page; rows that are there as codes alone are what was read of them."""
        form = slot.raw or slot.encoded
        copy = kernels.Page(self.shape, base_position=form.base_position)
        for layer in range(self.shape.layer_count):
            copy.write(layer, 0, *kernels.decode([form], layer))
        result = _Slot(raw=copy)
        result.exact = slot.exact and form is slot.raw
        return result

    @property
    def _k_lo_layers(self) -> tuple[int, ...]:
        return tuple(self.config.k_lo_layers) if self.config.precision == "q4" else ()

    def _pages_for(self, query_page: int, layer: int) -> list[kernels.Page]:
        if self._read is not None and self._read[0] == query_page:
            return self._read[1]
        encoded = self.config.encoded_count(query_page)
        aged = self.config.aged_count(query_page)
        pages = []
        for index, slot in enumerate(self._slots[: query_page + 1]):
            if index < encoded and slot.encoded_layers is not None:
                self._encode(slot, layer)
            read_raw = slot.raw is not None and (index >= encoded or layer in slot.raw_layers)
            coded = slot.aged if index < aged else slot.encoded
            pages.append(slot.raw if read_raw or coded is None else coded)
        if all(slot.encoded_layers is None for slot in self._slots[:encoded]):
            self._read = (query_page, pages)
        return pages

    def _encode(self, slot: _Slot, layer: int) -> None:
        if layer in slot.encoded_layers or layer in slot.raw_layers:
            return
        if slot.encoded is None:
            slot.encoded = kernels.Page(
                self.shape,
                self._encode_to,
                base_position=slot.raw.base_position,
                k_lo_layers=self._k_lo_layers if self._encode_to == "q4" else (),
            )
            slot.aged = slot.encoded
            if self._encode_to != self.config.precision:
                slot.aged = slot.encoded.read_at(self.config.precision, self._k_lo_layers)
        try:
            kernels.encode_layer(slot.raw, slot.encoded, layer)
            slot.encoded_layers.add(layer)
        except PagodaError:
            # Infinities, NaN, or magnitudes far beyond any model's: it is broken there already.
            slot.raw_layers.add(layer)

    def _fidelity_of(self, page: int, reader: int) -> str:
        """Of a page whose queries read what those of page `reader` read."""
        encoded, aged = self.config.encoded_count(reader), self.config.aged_count(reader)
        lowest = "raw16"
        for index, slot in enumerate(self._slots[:page]):
            read = "raw16"
            if index < encoded or slot.raw is None:
                read = self.config.precision if index < aged else "q8"
            lowest = min(lowest, slot.fidelity, read, key=BITS.__getitem__)
        return lowest
