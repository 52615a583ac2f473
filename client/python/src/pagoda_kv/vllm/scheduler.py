"""The scheduler's side: which pages a request may have from the daemon, and which it will give.

Asked in every step for every request that waits, so nothing here waits for long and asking changes
nothing: only update_state_after_alloc() makes a load of an answer.

A request here   probed (a lease holds what was found) -> loads (n pages, once) -> saves what the
                 daemon has not, page by page as they become full -> finished, lease given back
"""

import collections
import dataclasses
import hashlib
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any

from pagoda_kv.vllm import weights
from pagoda_kv.vllm.config import ConnectorConfig
from pagoda_kv.vllm.messages import Load, Save, StepMessage, WorkerMessage
from pagoda_kv.vllm.plan import CachePlan
from pagoda_kv.vllm.prober import Probe, Prober

GIVEN_SECONDS = 10.0  # a page that was pushed so lately is not pushed again by another request
GIVEN_PAGES_MAX = 65536
REPROBES_MAX = 3  # of a request whose pushes fail: then its pages stay unsaved
FAILED_STEPS_KEPT = 64


def _raise(method: str, error: Exception) -> None:
    raise error


@dataclasses.dataclass
class RequestState:
    request: Any
    scope: str
    probe: Probe | None = None
    preemptions: int = 0  # of the request when it was probed
    local_pages: int = 0  # whole or begun ones that the engine had itself at the last probe
    local_blocks: int = 0
    loading: bool = False
    ranks_loaded: int = 0
    load_failed: bool = False
    blocks: list[int] = dataclasses.field(default_factory=list)
    salt: bytes = b""  # of what the engine's hashes do not tell apart
    stored: int | None = None  # pages that the daemon has or was given; None: ask it
    reprobes: int = 0


class SchedulerSide:
    def __init__(
        self,
        core: Any,
        client: Any,
        plan: CachePlan,
        config: ConnectorConfig,
        *,
        loads: bool = True,
        saves: bool = True,
        events: Any = None,
        count: Callable[..., None] = lambda name, amount=1: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._plan = plan
        self._config = config
        self._may_load = loads
        self._may_save = saves
        self._events = events
        self._count = count
        self._clock = clock
        self._prober = Prober(core, client, plan, config, count, clock)
        self._states: dict[str, RequestState] = {}
        self._loads: list[Load] = []
        self._given: collections.OrderedDict[tuple[str, bytes], float] = collections.OrderedDict()
        self._step = 0
        self._seen_through = 0
        self._failed_steps: collections.deque[int] = collections.deque(maxlen=FAILED_STEPS_KEPT)
        self._instance = ""
        self._salt = b""
        self._adapters: dict[str, bytes] = {}  # path -> what its weights are known by

    # What the engine asks ------------------------------------------------------------------------

    def new_request(self, request: Any) -> None:
        """The first question goes out while the request waits for its turn."""
        state = self._state(request)
        if self._wanted(request, state):
            self._probe(state)

    def matched_tokens(self, request: Any, computed: int) -> tuple[int | None, bool]:
        state = self._state(request)
        if not self._wanted(request, state):
            return 0, False
        plan = self._plan
        # The last token is always computed: its logits are wanted.
        usable = min((request.num_tokens - 1) // plan.page_tokens, self._hashed_pages(request))
        if usable * plan.page_tokens <= computed:
            return 0, False
        if state.probe is None or state.preemptions != request.num_preemptions:
            self._probe(state)
        assert state.probe is not None
        pages = self._prober.check(state.probe)
        if pages is None:
            return None, False
        state.local_pages = computed // plan.page_tokens
        state.local_blocks = computed // plan.block_tokens
        tokens = min(pages, usable) * plan.page_tokens - computed
        return (tokens, self._config.async_load) if tokens > 0 else (0, False)

    def update_after_alloc(self, request: Any, blocks: Any, tokens: int) -> None:
        state = self._state(request)
        if tokens <= 0:
            # A miss, another connector's hit, or blocks for what follows an asynchronous load.
            if not state.loading:
                self._prober.release(state.probe)
            return
        plan = self._plan
        first = state.local_pages
        end_block = state.local_blocks + -(-tokens // plan.block_tokens)
        end = -(-end_block // plan.blocks_per_page)
        ids = [int(block) for block in blocks.get_block_ids()[0][:end_block]]
        # Blocks of the first page that the engine had itself, others may be reading: untouched.
        ids[: state.local_blocks] = [-1] * state.local_blocks
        state.loading = True
        state.ranks_loaded = 0
        self._count("load_tokens", tokens)
        self._loads.append(
            Load(
                request_id=request.request_id,
                scope=state.scope,
                hashes=self._hashes(request)[first:end],
                block_ids=ids[first * plan.blocks_per_page : end * plan.blocks_per_page],
                first_page=first,
                between_steps=self._config.async_load,
            )
        )

    def hit_tiers(self, request: Any, tokens: int) -> dict[str, int]:
        """Tokens of the load just planned, by the daemon's tier."""
        state = self._states.get(request.request_id)
        found: collections.Counter[str] = collections.Counter()
        if state is not None and state.probe is not None:
            first = state.local_pages
            for tier in state.probe.tiers[first : first + -(-tokens // self._plan.page_tokens)]:
                found[tier] += min(self._plan.page_tokens, tokens - found.total())
        return dict(found)

    def build_message(
        self, output: Any, on_error: Callable[[str, Exception], None] = _raise
    ) -> StepMessage:
        """on_error takes what goes wrong with saves; the loads go to the workers in any case."""
        self._step += 1
        self._prober.new_step()
        loads, self._loads = self._loads, []
        message = StepMessage(
            step=self._step,
            seen_through=self._seen_through,
            failed_steps=list(self._failed_steps),
            loads=loads,
        )
        try:
            self._follow_blocks(output)
            if self._client.connected:
                self._notice_restart()
                if self._may_save:
                    message.saves = self._plan_saves(output)
        except Exception as error:
            on_error("build_connector_meta", error)
        return message

    def finished(self, request: Any) -> None:
        state = self._states.pop(request.request_id, None)
        if state is not None:
            self._prober.release(state.probe)

    def worker_output(self, message: Any) -> None:
        if not isinstance(message, WorkerMessage):
            return
        self._seen_through = max(self._seen_through, message.step)
        self._may_load = self._may_load and not message.disabled
        if message.failed:
            self._failed_steps.append(message.step)
        for request_id, ranks in message.loaded.items():
            if state := self._states.get(request_id):
                state.ranks_loaded += ranks
                if state.ranks_loaded >= self._plan.tp_size:
                    state.loading = False
                    self._prober.release(state.probe)
        for request_id in message.failed_loads:
            if state := self._states.get(request_id):
                # Once is enough: what is still missing is computed, not asked for again.
                state.load_failed = True
                self._ask_anew(state)
        for request_id, hashes in message.unsaved.items():
            state = self._states.get(request_id)
            for page_hash in hashes:
                self._given.pop((state.scope if state else "", page_hash), None)
            if state is not None:
                self._ask_anew(state)
        if self._events is not None:
            self._events.stored(message.stored, self._plan.pushing_ranks)

    def take_events(self) -> Iterable[Any]:
        return self._events.take() if self._events is not None else ()

    def reset(self) -> bool:
        """Whatever was stored before belongs to another model, say with new weights in place."""
        self._salt = secrets.token_bytes(16)
        self._given.clear()
        for state in self._states.values():
            self._prober.release(state.probe)
            state.probe = None
            state.reprobes = REPROBES_MAX + 1  # what it computed is of the old weights
        return True

    def close(self) -> None:
        self._prober.close()

    # Inside --------------------------------------------------------------------------------------

    def _state(self, request: Any) -> RequestState:
        state = self._states.get(request.request_id)
        if state is None:
            scope = self._config.scope_of(getattr(request, "cache_salt", None))
            state = RequestState(request, scope, salt=self._adapter_salt(request))
            self._states[request.request_id] = state
        state.request = request
        return state

    def _wanted(self, request: Any, state: RequestState) -> bool:
        return (
            self._may_load
            and not state.load_failed
            and not getattr(request, "skip_reading_prefix_cache", False)
        )

    def _hashed_pages(self, request: Any) -> int:
        return len(request.block_hashes) * self._plan.hash_tokens // self._plan.page_tokens

    def _hashes(self, request: Any) -> list[bytes]:
        hashes = self._plan.page_hashes(request.block_hashes)
        salt = self._salt + self._state(request).salt
        return [hashlib.sha256(salt + one).digest() for one in hashes] if salt else hashes

    def _adapter_salt(self, request: Any) -> bytes:
        """The engine's hash has a LoRA adapter's name; other weights may have the same one."""
        lora = getattr(request, "lora_request", None)
        if lora is None:
            return b""
        path = str(getattr(lora, "lora_path", ""))
        if path not in self._adapters:
            try:
                found = weights.fingerprint(path)
            except OSError:
                found = f"unread@{path}"
            self._adapters[path] = found.encode()
        return self._adapters[path]

    def _probe(self, state: RequestState, *, peek: bool = False) -> None:
        self._prober.release(state.probe)
        state.preemptions = state.request.num_preemptions
        state.probe = self._prober.begin(state.scope, self._hashes(state.request), peek=peek)
        state.stored = None

    def _ask_anew(self, state: RequestState) -> None:
        """What the daemon has of this request is not what we believed."""
        self._prober.release(state.probe)
        state.probe = None
        state.stored = None
        state.loading = False
        state.reprobes += 1

    def _follow_blocks(self, output: Any) -> None:
        for new in output.scheduled_new_reqs:
            if state := self._states.get(new.req_id):
                state.blocks = list(new.block_ids[0])
        cached = output.scheduled_cached_reqs
        for request_id, added in zip(cached.req_ids, cached.new_block_ids):
            if state := self._states.get(request_id):
                if request_id in cached.resumed_req_ids:
                    state.blocks = []
                if added:
                    state.blocks.extend(added[0])

    def _notice_restart(self) -> None:
        info = self._client.server_info
        if info is None or info.instance_id == self._instance:
            return
        if self._instance:
            self._count("daemon_restarts")
            self._given.clear()
            for state in self._states.values():
                self._ask_anew(state)
                state.reprobes = 0
        self._instance = info.instance_id

    def _plan_saves(self, output: Any) -> list[Save]:
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens))
        saves = []
        for request_id, scheduled in output.num_scheduled_tokens.items():
            state = self._states.get(request_id)
            if state is None or request_id not in computed:
                continue
            save = self._save_of(state, computed[request_id] + scheduled)
            if save is not None:
                saves.append(save)
        return saves

    def _save_of(self, state: RequestState, computed: int) -> Save | None:
        plan, request = self._plan, state.request
        publishable = getattr(request, "num_publishable_block_hashes", None)
        full = min(
            computed // plan.page_tokens,
            self._hashed_pages(request),
            len(state.blocks) // plan.blocks_per_page,
        )
        if publishable is not None:
            full = min(full, publishable * plan.hash_tokens // plan.page_tokens)
        if full == 0 or full <= (state.stored or 0) or state.reprobes > REPROBES_MAX:
            return None
        if state.stored is None:
            # Also blocks that the engine had itself: the daemon may have forgotten them, and takes
            # no page without its parent.
            if state.probe is None:
                self._probe(state, peek=True)
            assert state.probe is not None
            found = self._prober.check(state.probe)
            if found is None:
                return None  # nothing is lost: the blocks are there in the next step, too
            state.stored = found  # 0 without an answer: the daemon will say already_stored
            if self._events is not None and not state.probe.failed:
                self._events.missing(state.probe.hashes[found:])
        hashes = self._hashes(request)
        now = self._clock()
        first = state.stored
        while first < full and self._given_lately((state.scope, hashes[first]), now):
            first += 1
        state.stored = max(full, state.stored)
        if first >= full:
            return None
        for page_hash in hashes[first:full]:
            self._given[state.scope, page_hash] = now
        while len(self._given) > GIVEN_PAGES_MAX:
            self._given.popitem(last=False)
        if self._events is not None:
            self._events.given(request, plan, hashes, first, full)
        per_page = plan.blocks_per_page
        return Save(
            request_id=request.request_id,
            scope=state.scope,
            hashes=hashes[first:full],
            block_ids=state.blocks[first * per_page : full * per_page],
            first_page=first,
            parent=hashes[first - 1] if first else None,
        )

    def _given_lately(self, key: tuple[str, bytes], now: float) -> bool:
        when = self._given.get(key)
        return when is not None and now - when < GIVEN_SECONDS
