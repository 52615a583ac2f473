"""Codecs and attention on pages, as functions.

A page holds K and V of `page_tokens` consecutive tokens, all layers: bf16 as produced ("raw16"), or
encoded once into an 8-bit code ("q8") whose upper half alone is a 4-bit code ("q4"), and its upper
3 or 2 bits again ("q3", "q2"). Bytes are those that pages travel and are stored in.

    shape = PageShape(layer_count=30, head_count=3, head_dim=64, page_tokens=64)
    page = Page(shape, base_position=0)          # raw16, zeroed
    for layer in range(30):
        page.write(layer, 0, k[layer], v[layer])     # [heads, tokens, head_dim]
    q8 = encode(page)                            # the same bytes on every machine
    q4 = cut(q8, "q4")                           # drops bits, never rounds again
    out, lse2 = attention(q, [q4, page2], layer=0, lse=True)

Shapes      K, V [kv heads, tokens, head_dim]; q, out [queries, query heads, head_dim] float32,
            query heads that share a kv head side by side; lse2 [queries, query heads]
Frame       keys after RoPE; whatever turns q and K for the codes happens inside
Sinks       the first 4 tokens of a sequence (base_position 0) stay exact in encoded pages
Threads     any; the GIL is given up. Rows are written while nobody reads that page
Errors      PagodaError, its `code` "INVALID_ARGUMENT" or "FAILED_PRECONDITION"
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pagoda_kv._kernels import (
    Page,
    PageShape,
    attention,
    available_isas,
    cut,
    decode,
    encode,
    encode_layer,
    merge_states,
    set_threads,
    threads,
    use_isa,
)

__all__ = [
    "Page",
    "PageShape",
    "attention",
    "available_isas",
    "cut",
    "decode",
    "decode_bytes",
    "encode",
    "encode_bytes",
    "encode_layer",
    "merge_states",
    "set_threads",
    "threads",
    "use_isa",
]

Stored = Literal["raw16", "q8", "q4", "q3", "q2"]


def encode_bytes(
    data: Any,
    shape: PageShape,
    precision: Stored = "q8",
    *,
    base_position: int = 0,
    k_lo_layers: Sequence[int] = (),
) -> npt.NDArray[np.uint8]:
    """The bytes of a raw16 page to those of its codes."""
    page = Page.from_bytes(shape, "raw16", data, base_position=base_position)
    return encode(page, precision, k_lo_layers).data()


def decode_bytes(
    data: Any,
    shape: PageShape,
    precision: Stored,
    layer: int,
    *,
    base_position: int = 0,
    k_lo_layers: Sequence[int] = (),
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """K and V of one layer of a page, from its bytes: [kv heads, page_tokens, head_dim] each."""
    page = Page.from_bytes(
        shape, precision, data, base_position=base_position, k_lo_layers=k_lo_layers
    )
    return decode([page], layer)
