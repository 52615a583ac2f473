"""KV cache events, the way vLLM publishes them, for routers that want to know what is where.

A page is announced when every rank's part of it is stored. The daemon does not tell when it evicts:
BlockRemoved follows when a later lookup no longer finds what was announced.
"""

import collections
from collections.abc import Iterable, Mapping
from typing import Any

from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from pagoda_kv.vllm.plan import CachePlan

MEDIUM = "PAGODA"
PENDING_MAX = 65536
ANNOUNCED_MAX = 1 << 20


class EventLog:
    def __init__(self) -> None:
        self._pending: collections.OrderedDict[bytes, Any] = collections.OrderedDict()
        self._parts: collections.Counter[bytes] = collections.Counter()
        self._announced: collections.OrderedDict[bytes, list[Any]] = collections.OrderedDict()
        self._events: list[Any] = []

    def given(
        self, request: Any, plan: CachePlan, hashes: list[bytes], first: int, end: int
    ) -> None:
        """Pages [first, end) of the request are on their way."""
        per_page = plan.page_tokens // plan.hash_tokens
        lora = getattr(request, "lora_request", None)
        for page in range(first, end):
            begin = page * per_page
            own = request.block_hashes[begin : begin + per_page]
            self._pending[hashes[page]] = BlockStored(
                block_hashes=[maybe_convert_block_hash(one) for one in own],
                parent_block_hash=(
                    maybe_convert_block_hash(request.block_hashes[begin - 1]) if begin else None
                ),
                token_ids=list(
                    request.all_token_ids[page * plan.page_tokens : (page + 1) * plan.page_tokens]
                ),
                block_size=plan.hash_tokens,
                lora_id=lora.adapter_id if lora else None,
                medium=MEDIUM,
                lora_name=lora.name if lora else None,
            )
        while len(self._pending) > PENDING_MAX:
            gone, _ = self._pending.popitem(last=False)
            self._parts.pop(gone, None)

    def stored(self, parts: Mapping[bytes, int], ranks: int) -> None:
        for page_hash, count in parts.items():
            if page_hash not in self._pending:
                continue
            self._parts[page_hash] += count
            if self._parts[page_hash] >= ranks:
                del self._parts[page_hash]
                event = self._pending.pop(page_hash)
                self._events.append(event)
                self._announced[page_hash] = event.block_hashes
                while len(self._announced) > ANNOUNCED_MAX:
                    self._announced.popitem(last=False)

    def missing(self, hashes: Iterable[bytes]) -> None:
        """A lookup did not find these."""
        gone = [self._announced.pop(one) for one in hashes if one in self._announced]
        if gone:
            blocks = [one for page in gone for one in page]
            self._events.append(BlockRemoved(block_hashes=blocks, medium=MEDIUM))

    def take(self) -> list[Any]:
        events, self._events = self._events, []
        return events
