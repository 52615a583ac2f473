"""Codecs and attention of the C++ kernels; pagoda_kv.kernels says what they mean.

Everything that takes a while gives up the GIL. Errors are pagoda_kv.PagodaError with a `code`.
"""

from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt

from pagoda_kv._core import PagodaError as PagodaError

Stored = Literal["raw16", "q8", "q4", "q3", "q2"]
Readable = Literal["raw16", "q8", "q4"]
Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

class PageShape:
    def __init__(
        self, layer_count: int, head_count: int, head_dim: int, page_tokens: int = 64
    ) -> None: ...
    @property
    def layer_count(self) -> int: ...
    @property
    def head_count(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def page_tokens(self) -> int: ...

class Page:
    def __init__(
        self,
        shape: PageShape,
        precision: Stored = "raw16",
        segments: Sequence[Any] | None = None,
        *,
        base_position: int = 0,
        k_lo_layers: Sequence[int] = (),
    ) -> None: ...
    @staticmethod
    def from_bytes(
        shape: PageShape,
        precision: Stored,
        data: Any,
        *,
        base_position: int = 0,
        k_lo_layers: Sequence[int] = (),
    ) -> Page: ...
    @property
    def shape(self) -> PageShape: ...
    @property
    def precision(self) -> Stored: ...
    @property
    def reads_as(self) -> Readable: ...
    @property
    def base_position(self) -> int: ...
    @property
    def segments(self) -> list[Bytes]: ...
    @property
    def segment_layers(self) -> list[tuple[int, int]]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def stored_bytes(self) -> int: ...
    def data(self) -> Bytes: ...
    def write(self, layer: int, token: int, k: Any, v: Any) -> None: ...
    def read_at(self, precision: Readable, k_lo_layers: Sequence[int] = ()) -> Page: ...

def encode(page: Page, precision: Stored = "q8", k_lo_layers: Sequence[int] = ()) -> Page: ...
def encode_layer(raw: Page, target: Page, layer: int) -> None: ...
def cut(page: Page, precision: Stored, k_lo_layers: Sequence[int] = ()) -> Page: ...
def decode(pages: Sequence[Page], layer: int) -> tuple[Floats, Floats]: ...
@overload
def attention(
    q: Floats,
    pages: Sequence[Page],
    layer: int,
    *,
    first_position: int | None = None,
    softmax_scale: float | None = None,
    lse: Literal[False] = False,
    float_codes: bool = False,
) -> Floats: ...
@overload
def attention(
    q: Floats,
    pages: Sequence[Page],
    layer: int,
    *,
    first_position: int | None = None,
    softmax_scale: float | None = None,
    lse: Literal[True],
    float_codes: bool = False,
) -> tuple[Floats, Floats]: ...
def merge_states(
    o: Floats, lse2: Floats, other_o: Floats, other_lse2: Floats
) -> tuple[Floats, Floats]: ...
def set_threads(count: int) -> None: ...
def threads() -> int: ...
def available_isas() -> list[str]: ...
def use_isa(name: str) -> None: ...
