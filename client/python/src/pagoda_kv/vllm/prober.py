"""Questions to the daemon: how long a prefix of these pages is there?

Asked on a thread, answered into a Probe that the scheduler looks at in every step. An answer holds
a lease, so that the pages stay until they are loaded; it ends by itself, or is given back here.

States of a probe   asking -> decided(pages)
                    asking -> loading (pages come up from SSD; asked again) -> decided(pages)
                    decided, lease run out -> asking
Limits   a step waits lookup_wait_ms in all; a question lookup_deadline_ms; loading load_wait_ms.
         After a question without answer nobody is asked for REST_SECONDS: that is a miss at once.
"""

import dataclasses
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from typing import Any

from pagoda_kv.vllm.config import ConnectorConfig
from pagoda_kv.vllm.guard import log_once, reason
from pagoda_kv.vllm.plan import CachePlan

REST_SECONDS = 0.5
ASK_AGAIN_SECONDS = 0.005  # while pages come up
LEASE_MARGIN_SECONDS = 1.0  # a lease that is shorter is not worth to load under
RECORDS_MAX = 4096  # of one question, where the daemon does not say


class Found:
    """A prefix, by as many questions as it takes: the daemon takes only so many records in one."""

    def __init__(self, hits: list[Any], now: float) -> None:
        self.hits = hits
        self.pages = [page for hit in hits for page in hit.pages]
        self.lease_seconds = min((hit.lease_seconds for hit in hits), default=0.0)
        self.expires = now + self.lease_seconds
        self.loading = any(hit.loading for hit in hits)

    def __len__(self) -> int:
        return len(self.pages)


def keys_per_question(client: Any, parts: int) -> int:
    info = client.server_info
    return max(1, (getattr(info, "batch_pages_max", 0) or RECORDS_MAX) // parts)


@dataclasses.dataclass
class Probe:
    scope: str
    hashes: list[bytes]
    peek: bool
    began: float
    lease_id: bytes = dataclasses.field(default_factory=lambda: secrets.token_bytes(16))
    future: "Future[Any] | None" = None
    ask_at: float = 0.0  # no question is out, the next one goes then
    pages: int | None = None  # decided
    tiers: list[str] = dataclasses.field(default_factory=list)  # of each whole page
    hit: Any = None
    renew_at: float = float("inf")
    expires: float = float("inf")
    released: bool = False
    failed: bool = False  # decided because there was no answer


class Prober:
    def __init__(
        self,
        core: Any,
        client: Any,
        plan: CachePlan,
        config: ConnectorConfig,
        count: Callable[..., None] = lambda name, amount=1: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core = core
        self._client = client
        self._plan = plan
        self._config = config
        self._count = count
        self._clock = clock
        self._parts = [(head, 1) for head in range(plan.kv_heads)]
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="pagoda-probe")
        self._step_wait = config.lookup_wait_ms / 1000
        self._rest_until = 0.0

    def new_step(self) -> None:
        self._step_wait = self._config.lookup_wait_ms / 1000

    def begin(self, scope: str, hashes: Sequence[bytes], *, peek: bool = False) -> Probe:
        now = self._clock()
        probe = Probe(scope, list(hashes), peek, began=now)
        self._count("lookups")
        if not hashes:
            probe.pages = 0
        elif now < self._rest_until or not self._client.connected:
            self._fail(probe, "away")
        else:
            self._ask(probe)
        return probe

    def check(self, probe: Probe) -> int | None:
        """Whole pages that are there; None: not known yet."""
        now = self._clock()
        if probe.pages is not None:
            return self._decided(probe, now)
        deadline = probe.began + self._config.lookup_deadline_ms / 1000
        if probe.hit is not None:
            deadline = probe.began + self._config.load_wait_ms / 1000
        if probe.future is None:
            if now < probe.ask_at:
                return None
            self._ask(probe)
        future = probe.future
        assert future is not None
        if not future.done():
            wait = max(0.0, min(self._step_wait, deadline - now))
            if wait > 0 and not probe.peek:
                try:
                    future.exception(wait)
                except TimeoutError:
                    pass
                waited = self._clock() - now
                self._step_wait = max(0.0, self._step_wait - waited)
                now += waited
        if future.done():
            self._take(probe, future, now)
        elif now >= deadline:
            if probe.hit is None:
                self._fail(probe, "deadline")
                self._rest_until = now + REST_SECONDS
            else:
                self._count("load_wait_exceeded")
                self._settle(probe, probe.hit)
        return probe.pages

    def release(self, probe: Probe | None) -> None:
        """Gives its lease back, now or when its answer comes."""
        if probe is None or probe.released:
            return
        probe.released = True
        if probe.hit is not None and not probe.peek:
            self._threads.submit(self._give_back, probe.hit)
        probe.hit = None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _decided(self, probe: Probe, now: float) -> int | None:
        if probe.hit is None or probe.peek or probe.released:
            return probe.pages
        if now >= probe.expires - LEASE_MARGIN_SECONDS:
            # Nobody loaded in time: the pages may be gone, so the question begins anew.
            self._count("lease_expired")
            probe.pages = None
            probe.hit = None
            probe.began = now
            self._ask(probe)
            return self.check(probe)
        if probe.future is None and now >= probe.renew_at:
            self._ask(probe)  # the same request id: renews the lease
        elif probe.future is not None and probe.future.done():
            pages = probe.pages
            self._take(probe, probe.future, now)
            if probe.failed:
                probe.pages, probe.failed = pages, False  # what is left of the lease still holds
        return probe.pages

    def _ask(self, probe: Probe) -> None:
        scope = self._client.scope(probe.scope)
        if scope is None:
            self._fail(probe, "scope")
            if self._client.connected:
                log_once("lookup", "scope", "the daemon gives this client no scope %r", probe.scope)
            return
        keys = self._core.external_keys(scope.root, probe.hashes)
        probe.future = self._threads.submit(self._lookup, scope, keys, probe.lease_id, probe.peek)
        probe.future.add_done_callback(lambda future: self._after(probe, future))

    def _lookup(self, scope: Any, keys: list[bytes], lease_id: bytes, peek: bool) -> Found:
        size = keys_per_question(self._client, len(self._parts))
        hits = []
        for begin in range(0, len(keys), size):
            some = keys[begin : begin + size]
            hit = self._client.lookup(
                scope,
                some,
                precision_min=self._plan.precision_min,
                fidelity_min=fidelity_min(self._plan),
                parts=self._parts,
                request_id=lease_id[:12] + begin.to_bytes(4, "little"),
                peek=peek,
            )
            if hit:
                hits.append(hit)
            if len(hit) < len(some) * len(self._parts):
                break
        return Found(hits, self._clock())

    def _after(self, probe: Probe, future: "Future[Any]") -> None:
        # On a thread of the pool. Nobody waits for this answer any more: its lease goes back.
        if probe.released and not probe.peek and not future.cancelled():
            if future.exception() is None and future.result():
                self._give_back(future.result())

    def _give_back(self, found: Found) -> None:
        for hit in found.hits:
            try:
                self._client.release(hit)
            except Exception:  # it ends by itself
                self._count("release_failures")

    def _take(self, probe: Probe, future: "Future[Any]", now: float) -> None:
        probe.future = None
        error = future.exception()
        if error is not None:
            if reason(error) == "DEADLINE_EXCEEDED":
                self._rest_until = now + REST_SECONDS
            log_once("lookup", reason(error), "%s", error)
            self._fail(probe, "error")
            return
        hit = future.result()
        if not hit:
            probe.pages, probe.hit = 0, None
            return
        probe.hit = hit
        probe.expires = hit.expires
        probe.renew_at = hit.expires - hit.lease_seconds / 2
        if hit.loading and not probe.peek and not probe.released:
            if now - probe.began < self._config.load_wait_ms / 1000:
                probe.ask_at = now + ASK_AGAIN_SECONDS
                return
            self._count("load_wait_exceeded")
        self._settle(probe, hit)

    def _settle(self, probe: Probe, hit: Any) -> None:
        parts = len(self._parts)
        tiers: list[str] = []
        for first in range(0, len(hit) - parts + 1, parts):
            page = hit.pages[first : first + parts]
            if not probe.peek and any(part.loading for part in page):
                break
            tiers.append(page[0].tier)
        probe.tiers = tiers
        probe.pages = len(tiers)
        probe.failed = False

    def _fail(self, probe: Probe, why: str) -> None:
        self._count(f"lookup_failures:{why}")
        probe.pages = 0
        probe.failed = True
        probe.released = probe.released or why == "deadline"


def fidelity_min(plan: CachePlan) -> str:
    return plan.precision_min if plan.precision_min in ("q8", "q4") else "raw16"
