"""What a PagodaCache keeps at which precision, and with whom it shares."""

import dataclasses
from collections.abc import Sequence

PRECISIONS = ("raw16", "q8", "q4")
PAGE_TOKENS = (32, 64, 128, 256)


@dataclasses.dataclass(frozen=True)
class PagodaConfig:
    # raw16: K and V stay what the model computed, in its own type. q8, q4: pages that have left the
    # window are encoded; the window is kept in bfloat16, the first 4 tokens stay exact.
    precision: str = "raw16"
    window: int = 256  # tokens; a page is encoded once it lies this far behind whole
    # At q4: the most recent tokens that are read at q8 at least. 0, or within the window: none.
    q8_tokens: int = 0
    # At q4: layers whose K keeps all 8 bits (the model's layer profile).
    k_lo_layers: Sequence[int] = ()
    page_tokens: int = 64

    # ---- Sharing; of no effect without a client
    scope: str = "private"  # "private", "group:NAME", "public"
    push: bool = True
    # Pages are bfloat16. Models of another type share only where rounding is allowed: what they
    # load is then not exactly what they would have computed.
    allow_rounding: bool = False
    # Names the weights instead of a hash of them all, which takes about a second a gigabyte, once.
    weights_revision: str = ""
    flush_timeout: float = 5.0  # seconds that close() waits for the last pages

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision is {self.precision!r}: give one of {', '.join(PRECISIONS)}")
        if self.page_tokens not in PAGE_TOKENS:
            raise ValueError(f"page_tokens is {self.page_tokens}: give one of {PAGE_TOKENS}")
        for name in ("window", "q8_tokens"):
            if not 0 <= getattr(self, name) <= 1 << 24:
                raise ValueError(f"{name} is {getattr(self, name)}: give 0 to {1 << 24} tokens")
        if self.precision != "q4" and (self.q8_tokens or self.k_lo_layers):
            raise ValueError(
                f"q8_tokens and k_lo_layers are for precision q4, which is {self.precision!r}"
            )
        object.__setattr__(self, "k_lo_layers", tuple(self.k_lo_layers))

    @property
    def encodes(self) -> bool:
        return self.precision != "raw16"

    def encoded_count(self, query_page: int) -> int:
        """Pages that queries of that page read encoded, the first ones."""
        return self._pages_before(query_page, self.window) if self.encodes else 0

    def aged_count(self, query_page: int) -> int:
        """Of them those at `precision`; the others are read at q8."""
        if not self.encodes:
            return 0
        return self._pages_before(query_page, max(self.window, self.q8_tokens))

    def _pages_before(self, query_page: int, recent_tokens: int) -> int:
        return max(0, query_page - -(-recent_tokens // self.page_tokens))
