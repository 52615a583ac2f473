"""An engine as small as can be that drives the connector in vLLM's order of calls.

Its K and V are numbers that follow from the tokens, so that every byte can be checked, and garbage
spreads as in a model: who attends to a wrong block computes wrong ones, on every rank. Requests
have chunked prefill, preemption, abort, and vLLM's answer to failed loads ("recompute").
"""

import collections
import dataclasses
import hashlib
import time
from types import SimpleNamespace

import numpy as np

BLOCK, LAYERS, HEADS, DIM = 32, 3, 4, 8
TOKEN_BYTES = 2 * DIM * 4  # of one layer and head, float32


class HostTensor:
    """What the connector asks of a torch tensor."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape
        self.device = SimpleNamespace(type="cpu")

    def dim(self):
        return self.array.ndim

    def stride(self, axis=None):
        strides = tuple(one // self.array.itemsize for one in self.array.strides)
        return strides if axis is None else strides[axis]

    def element_size(self):
        return self.array.itemsize

    def data_ptr(self):
        return self.array.ctypes.data


def chain(tokens):
    """One number for each prefix."""
    state, numbers = 17, []
    for token in tokens:
        state = (state * 31 + token + 1) % 1000003
        numbers.append(state)
    return np.asarray(numbers, np.float32)


def expected_kv(tokens, layer, head, begin, end):
    """[end - begin][2 * DIM] of those positions."""
    numbers = chain(tokens[:end])[begin:]
    return numbers[:, None] + layer * 0.25 + head * 0.5 + np.arange(2 * DIM, dtype=np.float32) / 64


def block_hashes(tokens, salt=""):
    hashes, parent = [], salt.encode()
    for begin in range(0, len(tokens) - BLOCK + 1, BLOCK):
        block = ",".join(map(str, tokens[begin : begin + BLOCK]))
        parent = hashlib.sha256(parent + block.encode()).digest()
        hashes.append(parent)
    return hashes


class Request:
    def __init__(self, request_id, tokens, new_tokens=1, salt=None):
        self.request_id, self.all_token_ids = request_id, list(tokens)
        self.num_prompt_tokens, self.new_tokens = len(self.all_token_ids), new_tokens
        self.cache_salt, self.lora_request = salt, None
        self.num_computed_tokens = self.num_preemptions = 0
        self.status, self.blocks, self.outputs = "waiting", [], []
        self.hashed = block_hashes(self.all_token_ids, salt or "")

    @property
    def num_tokens(self):
        return len(self.all_token_ids)

    @property
    def block_hashes(self):
        return self.hashed

    def append(self, token):
        self.all_token_ids.append(token)
        self.outputs.append(token)
        self.hashed = block_hashes(self.all_token_ids, self.cache_salt or "")


def make_configs(extra=None, *, tp=1, rank=0, policy="recompute", blocks=64, role="kv_both",
                 model="mini"):
    transfer = SimpleNamespace(
        kv_connector_extra_config={
            "target": "fake", "weights_revision": "1", "lookup_deadline_ms": 500,
            "lookup_wait_ms": 200, **(extra or {}),
        },
        kv_load_failure_policy=policy, engine_id="engine", kv_role=role,
        is_kv_consumer=role != "kv_producer", is_kv_producer=role != "kv_consumer",
    )
    heads = max(1, HEADS // tp)
    spec = type("FullAttentionSpec", (), {})()
    vars(spec).update(
        block_size=BLOCK, num_heads=heads, head_size=DIM, dtype="torch.float32",
        page_size_bytes=heads * BLOCK * TOKEN_BYTES,
    )
    cache = SimpleNamespace(
        num_blocks=blocks, hash_block_size=BLOCK, kv_cache_layout="LBHNC",
        kv_cache_groups=[SimpleNamespace(
            kv_cache_spec=spec, layer_names=[f"layer.{i}" for i in range(LAYERS)]
        )],
    )
    config = SimpleNamespace(
        kv_transfer_config=transfer, kv_events_config=None,
        parallel_config=SimpleNamespace(
            tensor_parallel_size=tp, rank=rank, world_size=tp, pipeline_parallel_size=1,
            decode_context_parallel_size=1,
        ),
        model_config=SimpleNamespace(
            model=model, revision=None, dtype="float32", quantization=None, hf_config=None,
            get_total_num_kv_heads=lambda: HEADS,
        ),
        device_config=SimpleNamespace(device_type="cpu"),
        cache_config=SimpleNamespace(cache_dtype="auto", prefix_caching_hash_algo="sha256"),
    )
    return config, cache


@dataclasses.dataclass
class StepResult:
    finished: list
    failed_blocks: set


class MiniEngine:
    def __init__(self, connector_class, roles, extra=None, *, tp=1, blocks=64, chunk=4096,
                 chosen=True, events=False, role="kv_both"):
        self.tp, self.chunk, self.chosen = tp, chunk, chosen
        config, cache = make_configs(extra, tp=tp, blocks=blocks, role=role)
        if events:
            config.kv_events_config = SimpleNamespace(enable_kv_cache_events=True)
        self.scheduler = connector_class(config, roles.SCHEDULER, cache)
        self.workers, self.caches = [], []
        for rank in range(tp):
            config, cache = make_configs(extra, tp=tp, rank=rank, blocks=blocks, role=role)
            worker = connector_class(config, roles.WORKER, cache)
            heads = cache.kv_cache_groups[0].kv_cache_spec.num_heads
            array = np.full((LAYERS, blocks, heads, BLOCK, 2 * DIM), -7, np.float32)
            worker.register_kv_caches(
                {f"layer.{i}": HostTensor(array[i]) for i in range(LAYERS)}
            )
            self.workers.append(worker)
            self.caches.append(array)
        self.free = collections.deque(range(1, blocks))
        self.waiting, self.running, self.loading = [], [], []
        self.finished_ids, self.load_failed_ids = set(), set()
        self.received = collections.Counter()  # request -> ranks that loaded it
        self.loaded_tokens = collections.Counter()
        self.events, self.stats = [], collections.Counter()
        self.step_hook = None  # called with the layer's index before each layer

    # Requests ------------------------------------------------------------------------------------

    def add(self, request):
        self.waiting.append(request)
        self.scheduler.on_new_request(request)
        return request

    def generate(self, *requests, steps=400):
        for request in requests:
            self.add(request)
        for _ in range(steps):
            if not (self.waiting or self.running or self.loading):
                break
            self.step()
            if not self.running:
                time.sleep(0.001)  # for what goes on between steps
        assert all(one.status == "finished" for one in requests), (
            f"requests hang: {[(one.request_id, one.status, one.num_tokens) for one in requests]}"
        )
        self.step()
        return requests

    def abort(self, request):
        """As vLLM does: at once where it runs or waits; its blocks wait for a load under way."""
        request.status = "aborted"
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)
        self._finish(request, keep_blocks=request in self.loading)

    def preempt(self, request):
        self.running.remove(request)
        self._free(request)
        request.num_computed_tokens, request.status = 0, "preempted"
        request.num_preemptions += 1
        self.waiting.insert(0, request)

    def _finish(self, request, keep_blocks=False):
        self.scheduler.request_finished_all_groups(request, (list(request.blocks),))
        self.finished_ids.add(request.request_id)
        if not keep_blocks:
            self._free(request)

    def _free(self, request):
        self.free.extend(request.blocks)
        request.blocks = []

    # A step --------------------------------------------------------------------------------------

    def step(self):
        new, resumed, computed, scheduled = [], [], {}, {}
        added = {}
        sync_loads = False
        for request in self.running:
            computed[request.request_id] = request.num_computed_tokens
            count = min(self.chunk, request.num_tokens - request.num_computed_tokens)
            before = len(request.blocks)
            assert self._allocate(request, request.num_computed_tokens + count), "no free blocks"
            added[request.request_id] = request.blocks[before:]
            scheduled[request.request_id] = count
        for request in list(self.waiting):
            external, later = self._admit(request)
            if external is None:
                continue
            self.waiting.remove(request)
            if later:
                self.loading.append(request)
                continue
            sync_loads |= external > 0
            count = min(self.chunk, request.num_tokens - request.num_computed_tokens)
            computed[request.request_id] = request.num_computed_tokens
            scheduled[request.request_id] = count
            (resumed if request.status == "preempted" else new).append(request)
            request.status = "running"
            self.running.append(request)
        return self._execute(new, resumed, computed, scheduled, added, sync_loads)

    def _admit(self, request):
        if request.num_computed_tokens == 0:
            external, later = self.scheduler.get_num_new_matched_tokens(request, 0)
            assert external is not None or not later
            if external is None:
                return None, False
        else:
            external, later = 0, False  # after a load between steps
        if not self.chosen:
            external, later = 0, False
        begin = request.num_computed_tokens + external
        count = 0 if later else min(self.chunk, request.num_tokens - begin)
        if not self._allocate(request, begin + count):
            return None, False
        blocks = SimpleNamespace(get_block_ids=lambda: (list(request.blocks),))
        self.scheduler.update_state_after_alloc(request, blocks, external)
        request.num_computed_tokens = begin
        self.loaded_tokens[request.request_id] += external
        return external, later

    def _allocate(self, request, tokens):
        missing = -(-tokens // BLOCK) - len(request.blocks)
        if missing > len(self.free):
            return False
        request.blocks += [self.free.popleft() for _ in range(max(0, missing))]
        return True

    def _execute(self, new, resumed, computed, scheduled, added, sync_loads):
        old = [one for one in self.running if one not in new]
        output = SimpleNamespace(
            scheduled_new_reqs=[
                SimpleNamespace(req_id=one.request_id, block_ids=(list(one.blocks),),
                                num_computed_tokens=computed[one.request_id]) for one in new
            ],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[one.request_id for one in old],
                resumed_req_ids={one.request_id for one in resumed},
                new_block_ids=[
                    (list(one.blocks),) if one in resumed else (added[one.request_id],)
                    for one in old
                ],
                num_computed_tokens=[computed[one.request_id] for one in old],
            ),
            num_scheduled_tokens=scheduled,
            finished_req_ids=set(self.finished_ids),
        )
        message = self.scheduler.build_connector_meta(output)
        for request_id, count in scheduled.items():
            self._request(request_id).num_computed_tokens += count
        self.finished_ids.clear()
        for worker in self.workers:
            worker.bind_connector_metadata(message)
            if sync_loads:
                worker.start_load_kv(None)
        good = self._forward(computed, scheduled) if scheduled else {}
        return self._update(output, scheduled, good, sync_loads)

    def _forward(self, computed, scheduled):
        """Returns for each request whether its last layer saw right bytes only."""
        good = {request_id: True for request_id in scheduled}
        for layer in range(LAYERS):
            if self.step_hook is not None:
                self.step_hook(layer)
            seen = dict(good)
            for rank, worker in enumerate(self.workers):
                worker.wait_for_layer_load(f"layer.{layer}")
                for request_id, count in scheduled.items():
                    request, begin = self._request(request_id), computed[request_id]
                    good[request_id] &= self._layer(
                        rank, layer, request, begin, begin + count, seen[request_id]
                    )
                worker.save_kv_layer(f"layer.{layer}", None, None)
        return good

    def _layer(self, rank, layer, request, begin, end, good):
        cache = self.caches[rank][layer]
        first_head = self._first_head(rank)
        right = True
        for index in range(cache.shape[1]):
            head = first_head + index
            want = expected_kv(request.all_token_ids, layer, head, 0, end)
            for at in range(0, end, BLOCK):
                block = cache[request.blocks[at // BLOCK], index]
                stop = min(begin, at + BLOCK) - at
                if stop > 0:
                    right &= np.array_equal(block[:stop], want[at : at + stop])
                start = max(begin, at) - at
                if start < min(BLOCK, end - at):
                    values = want[at + start : min(end, at + BLOCK)]
                    block[start : start + len(values)] = values if good else -1
        return right

    def _first_head(self, rank):
        per_rank = max(1, HEADS // self.tp)
        return rank * HEADS // self.tp if self.tp > HEADS else rank * per_rank

    def _update(self, output, scheduled, good, sync_loads):
        answer, failed, received = None, set(), self.received
        for worker in self.workers:
            if not sync_loads:
                worker.start_load_kv(None)
            worker.wait_for_save()
            _, done = worker.get_finished(output.finished_req_ids)
            received.update(done or ())
            failed |= worker.get_block_ids_with_load_errors()
            self._count(worker.get_kv_connector_stats())
            part = worker.build_connector_worker_meta()
            if part is not None:
                answer = part if answer is None else answer.aggregate(part)
            worker.clear_connector_metadata()
        finished = []
        rewound = self._rewind(failed, scheduled)
        for request_id in scheduled:
            request = self._request(request_id)
            if request is None or request in rewound:
                continue
            assert good[request_id], f"{request_id} was computed over wrong bytes"
            if request.num_computed_tokens == request.num_tokens:
                request.append(int(chain(request.all_token_ids)[-1]) % 97)
                if len(request.outputs) == request.new_tokens:
                    finished.append(request)
        self.scheduler.update_connector_output(
            SimpleNamespace(kv_connector_worker_meta=answer, invalid_block_ids=failed)
        )
        self._receive(received)
        for request in finished:
            request.status = "finished"
            self.running.remove(request)
            self._finish(request)
        self._count(self.scheduler.get_kv_connector_stats())
        self.events += list(self.scheduler.take_events())
        return StepResult(finished, failed)

    def _rewind(self, failed, scheduled):
        """vLLM's _update_requests_with_invalid_blocks."""
        rewound = []
        for request in [*self.running, *self.loading]:
            done = request.num_computed_tokens - scheduled.get(request.request_id, 0)
            bad = [i for i, one in enumerate(request.blocks[: -(-done // BLOCK)]) if one in failed]
            if bad:
                request.num_computed_tokens = bad[0] * BLOCK
                rewound.append(request)
                if request in self.loading:
                    self.load_failed_ids.add(request.request_id)
        return rewound

    def _receive(self, received):
        for request in list(self.loading):
            if received[request.request_id] < self.tp:
                continue
            del received[request.request_id]
            self.loading.remove(request)
            if request.status == "aborted":
                self._free(request)
                continue
            if request.request_id in self.load_failed_ids and not request.num_computed_tokens:
                self._free(request)
            self.load_failed_ids.discard(request.request_id)
            self.waiting.append(request)

    def _request(self, request_id):
        every = [*self.running, *self.loading, *self.waiting]
        return next((one for one in every if one.request_id == request_id), None)

    def _count(self, stats):
        for name, value in (stats.data if stats is not None else {}).items():
            self.stats[name] += value

    def close(self):
        for connector in [self.scheduler, *self.workers]:
            connector.shutdown()


def assert_pages_right(daemon, core, prompts, *, roots):
    """Every byte the daemon has is what some prompt's tokens give, and something is there."""
    known = {}
    for tokens, salt in prompts:
        for index, page_hash in enumerate(block_hashes(tokens, salt)):
            for root in roots:
                known[core.external_keys(root, [page_hash])[0]] = (tokens, index)
    for (_, key, (head, _)), page in daemon.pages.items():
        tokens, index = known[key]
        data = np.concatenate(page.segments).view(np.float32).reshape(LAYERS, BLOCK, 2 * DIM)
        for layer in range(LAYERS):
            want = expected_kv(tokens, layer, head, index * BLOCK, (index + 1) * BLOCK)
            assert np.array_equal(data[layer], want), f"block {index} head {head} layer {layer}"
