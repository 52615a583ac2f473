"""Encoded pages (q8, q4) back to K and V of 16 bits, one layer at a time: what a cache can take."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pagoda_kv.vllm.plan import CachePlan

RANK = {"q4": 1, "q8": 2, "raw16": 3}


class PageDecoder:
    """Of one load's pages, all of one kv head. Keeps one layer of each, decoded."""

    def __init__(self, plan: CachePlan, pages: Sequence[Any], headers: Sequence[Any]) -> None:
        from pagoda_kv import kernels

        self._kernels = kernels
        self._bf16 = plan.kv_dtype == "bf16"
        shape = kernels.PageShape(len(plan.layer_names), 1, plan.head_dim, plan.page_tokens)
        self._pages = [
            kernels.Page(shape, header.precision, segments, base_position=header.base_position)
            for segments, header in zip(pages, headers)
        ]
        self._bytes = np.empty((len(self._pages), plan.layer_bytes), np.uint8)

    def addresses(self, layer: int) -> npt.NDArray[np.uint64]:
        """Where this layer of each page lies until the next call."""
        for at, page in enumerate(self._pages):
            k, v = self._kernels.decode([page], layer)
            both = np.concatenate([k.reshape(-1), v.reshape(-1)])
            words = to_bf16(both) if self._bf16 else both.astype(np.float16).view(np.uint16)
            self._bytes[at] = words.view(np.uint8)
        base, step = np.uint64(self._bytes.ctypes.data), np.uint64(self._bytes.shape[1])
        return base + np.arange(len(self._pages), dtype=np.uint64) * step


def to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """To the nearest, ties to even. Finite values only, as K and V are."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
