"""Goal: whatever happens to a request, the engine computes over right bytes only, hangs never, and
the daemon gets right bytes only. Method: a small engine in vLLM's order of calls (mini_engine.py)
and a daemon in memory (fake_core.py); one test for each way in which connectors have failed.
"""

import time
from types import SimpleNamespace

import fake_core
import pytest
from fixtures import roots
from mini_engine import BLOCK, HEADS, LAYERS, Request, assert_pages_right

PROMPT = [(i * 37) % 89 for i in range(4 * BLOCK + 5)]
OTHER = PROMPT[: 2 * BLOCK] + [(i * 11) % 83 for i in range(2 * BLOCK + 9)]


def check(daemon, one, *prompts):
    assert daemon.pages
    assert_pages_right(
        daemon, fake_core, [(list(tokens), "") for tokens in prompts], roots=roots(one)
    )


def eventually(condition, seconds=2.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "did not come about"
        time.sleep(0.005)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def way(request):
    return {"async_load": request.param}


def test_a_second_engine_loads_what_the_first_computed(daemon, engine, way):
    first = engine(way)
    (cold,) = first.generate(Request("a", PROMPT, 40))
    check(daemon, first, cold.all_token_ids)
    assert len(daemon.pages) == len(cold.all_token_ids[:-1]) // BLOCK * HEADS
    second = engine(way)
    (warm,) = second.generate(Request("a", PROMPT, 40))
    assert warm.outputs == cold.outputs
    assert second.loaded_tokens["a"] == 4 * BLOCK
    assert second.stats["loaded_pages"] == 4 * HEADS
    assert not daemon.leases


def test_one_token_is_always_left_to_compute(daemon, engine, way):
    prompt = PROMPT[: 4 * BLOCK]
    engine(way).generate(Request("a", prompt))
    second = engine(way)
    second.generate(Request("a", prompt))
    assert second.loaded_tokens["a"] == 3 * BLOCK


def test_what_was_loaded_is_not_pushed_again(daemon, engine, way):
    engine(way).generate(Request("a", PROMPT))
    daemon.pushed.clear()
    second = engine(way)
    second.generate(Request("a", PROMPT), Request("b", OTHER))
    assert len(daemon.pushed) == 2 * HEADS  # the last two blocks of OTHER
    check(daemon, second, PROMPT, OTHER)


def test_chunked_prefill(daemon, engine, way):
    one = engine(way, chunk=BLOCK + 7)
    (cold,) = one.generate(Request("a", PROMPT, 3))
    check(daemon, one, cold.all_token_ids)
    assert len(daemon.pages) == 4 * HEADS
    second = engine(way, chunk=BLOCK + 7)
    second.generate(Request("a", PROMPT, 3), Request("b", OTHER, 3))
    assert second.loaded_tokens["a"] == 4 * BLOCK
    assert second.loaded_tokens["b"] == 2 * BLOCK


def test_abort_while_waiting_gives_the_lease_back(daemon, engine, way):
    engine(way).generate(Request("a", PROMPT))
    second = engine(way, blocks=3)  # no room: probed in every step, never scheduled
    request = second.add(Request("a", PROMPT))
    for _ in range(20):
        second.step()
    assert daemon.calls.count("lookup") <= 4 and daemon.leases
    second.abort(request)
    eventually(lambda: not daemon.leases)


def test_abort_before_the_answer_gives_the_lease_back(daemon, engine, way):
    engine(way).generate(Request("a", PROMPT))
    daemon.delay["lookup"] = 0.1
    second = engine({**way, "lookup_wait_ms": 0})
    request = second.add(Request("a", PROMPT))
    second.step()
    second.abort(request)
    eventually(lambda: daemon.calls[-1] == "release")
    assert not daemon.leases
    second.step()


def test_abort_while_loading(daemon, engine):
    way = {"async_load": True}
    engine(way).generate(Request("a", PROMPT))
    second = engine(way, blocks=7)
    daemon.delay["map"] = 0.1
    request = second.add(Request("a", PROMPT))
    second.step()
    assert request in second.loading
    second.abort(request)
    eventually(lambda: (second.step(), not second.loading)[1])
    daemon.delay.clear()
    second.generate(Request("b", OTHER))  # the blocks are free again, and nobody writes to them
    check(daemon, second, PROMPT, OTHER)
    eventually(lambda: not daemon.leases)


def test_abort_while_running(daemon, engine, way):
    one = engine(way, chunk=BLOCK)
    request = one.add(Request("a", PROMPT, 9))
    one.step()
    one.step()
    one.abort(request)
    one.step()
    one.generate(Request("b", OTHER, 9))
    check(daemon, one, PROMPT, OTHER)
    eventually(lambda: not daemon.leases)


def test_a_preempted_request_is_probed_again_with_what_it_generated(daemon, engine, way):
    one = engine(way)
    request = one.add(Request("a", PROMPT, 2 * BLOCK))
    for _ in range(BLOCK + 8):
        one.step()
    assert request.num_tokens > 5 * BLOCK
    one.preempt(request)
    one.loaded_tokens.clear()
    while request.status != "finished":
        one.step()
    assert one.loaded_tokens["a"] == 5 * BLOCK  # generated blocks, too
    one.step()
    check(daemon, one, request.all_token_ids)
    (again,) = engine(way).generate(Request("b", PROMPT, 2 * BLOCK))
    assert again.outputs == request.outputs


def test_allocation_failure_after_the_probe(daemon, engine, way):
    engine(way).generate(Request("a", PROMPT))
    second = engine(way, blocks=9)
    long = second.add(Request("long", OTHER, 5))
    second.step()
    request = second.add(Request("a", PROMPT))
    for _ in range(3):
        second.step()  # a hit, but no blocks
    assert request.status in ("waiting", "finished") or request in second.loading
    while request.status != "finished" or long.status != "finished":
        second.step()
    assert second.loaded_tokens["a"] == 4 * BLOCK


def test_pages_under_a_lease_survive_until_they_are_loaded(daemon, engine, way):
    engine(way).generate(Request("a", PROMPT))
    second = engine(way)
    request = second.add(Request("a", PROMPT))
    eventually(lambda: daemon.leases)
    assert daemon.evict() == 0
    while request.status != "finished":
        second.step()
    assert second.loaded_tokens["a"] == 4 * BLOCK and not second.stats["load_failures:gone"]


def test_eviction_between_probe_and_load(daemon, engine, way):
    engine(way).generate(Request("a", PROMPT))
    second = engine(way)
    request = second.add(Request("a", PROMPT, 4))
    eventually(lambda: daemon.leases)
    daemon.leases.clear()
    daemon.drop(list(daemon.pages))
    while request.status != "finished":
        second.step()
    assert second.stats["load_failures:gone"] == 1
    second.step()
    check(daemon, second, request.all_token_ids)  # computed, and stored again


def test_partial_load_failure_keeps_the_good_prefix(daemon, engine, way):
    engine(way).generate(Request("a", PROMPT))
    second = engine(way)
    request = second.add(Request("a", PROMPT, 4))
    eventually(lambda: daemon.leases)
    keys = fake_core.external_keys(roots(second)[0], request.block_hashes)
    daemon.drop([one for one in daemon.pages if one[1] == keys[2] and one[2] == (1, 1)])
    while request.status != "finished":
        second.step()
    assert second.stats["loaded_pages"] == 2 * HEADS
    second.step()
    check(daemon, second, request.all_token_ids)


def test_pages_taken_back_while_they_are_copied(daemon, engine):
    engine().generate(Request("a", PROMPT))
    second = engine()

    def damage(layer):
        if layer == LAYERS - 1:
            for page in daemon.pages.values():
                page.valid = False
                for segment in page.segments:
                    segment[:] = 255

    request = second.add(Request("a", PROMPT, 3))
    real = fake_core.copy_spans

    def damaged_copy(rows, threads=1):
        damage(LAYERS - 1)
        return real(rows, threads)

    fake_core.copy_spans, keep = damaged_copy, fake_core.copy_spans
    try:
        second.step()
    finally:
        fake_core.copy_spans = keep
    daemon.drop(list(daemon.pages))
    while request.status != "finished":
        second.step()
    assert second.stats["load_failures:taken_back"] == 1
    second.step()
    check(daemon, second, request.all_token_ids)


def test_what_a_step_computed_over_a_failed_load_is_not_stored(daemon, engine):
    """Another request of the same step is held back with it, and stored later."""
    engine().generate(Request("a", PROMPT))
    second = engine()
    requests = [second.add(Request("a", PROMPT, 6)), second.add(Request("b", PROMPT[3:], 6))]
    eventually(lambda: daemon.leases)
    daemon.leases.clear()
    daemon.drop(list(daemon.pages))
    second.step()
    assert not daemon.pages
    while any(one.status != "finished" for one in requests):
        second.step()
    second.step()
    check(daemon, second, *[one.all_token_ids for one in requests])
    assert len(daemon.pages) == 8 * HEADS


def test_a_request_whose_load_failed_is_not_loaded_again(daemon, engine, way):
    engine(way).generate(Request("a", PROMPT))
    second = engine(way)
    daemon.fail["map"] = daemon.fail["fetch"] = fake_core.PagodaError("DATA_LOSS", "bad disk")
    second.generate(Request("a", PROMPT, 3))
    assert daemon.calls.count("map") == 1 and second.stats["load_failures:DATA_LOSS"] == 1
    assert second.loaded_tokens["a"] == 4 * BLOCK


def test_without_shared_memory_pages_are_fetched(daemon, engine, way):
    engine(way).generate(Request("a", PROMPT))
    daemon.has_shm = False
    second = engine(way)
    second.generate(Request("a", PROMPT))
    assert second.stats["loaded_pages"] == 4 * HEADS and "fetch" in daemon.calls


def test_a_second_update_after_an_asynchronous_load_changes_nothing(daemon, engine):
    way = {"async_load": True}
    engine(way).generate(Request("a", PROMPT))
    second = engine(way)
    request = second.add(Request("a", PROMPT, 3))
    eventually(lambda: (second.step(), request.status == "finished")[1])
    assert daemon.calls.count("map") == 1 and second.stats["load_tokens"] == 4 * BLOCK


def test_multi_connector_gives_blocks_but_no_tokens(daemon, engine, way):
    engine(way).generate(Request("a", PROMPT))
    second = engine(way, chosen=False)
    second.generate(Request("a", PROMPT, 3), Request("b", OTHER, 3))
    assert "map" not in daemon.calls and not second.stats["load_tokens"]
    eventually(lambda: not daemon.leases)
    check(daemon, second, PROMPT, OTHER)


def test_finished_with_saves_in_flight(daemon, engine, monkeypatch):
    held = []

    def hold(self, *arguments, **keywords):
        held.append((self, arguments, keywords))

    real = fake_core.Pusher.push
    monkeypatch.setattr(fake_core.Pusher, "push", hold)
    one = engine(blocks=8)
    one.generate(Request("a", PROMPT))
    one.generate(Request("b", OTHER))  # takes the same blocks
    monkeypatch.undo()
    # The answers come after both are over.
    for pusher, arguments, keywords in held:
        real(pusher, *arguments, **keywords)
    assert_pages_right(
        daemon, fake_core, [(PROMPT, ""), (OTHER, "")],
        roots=[fake_core.hashlib.sha256(one.scheduler._client._identity + b"private").digest()],
    )


def test_a_lease_that_ran_out_is_taken_anew(daemon, engine, way):
    engine(way).generate(Request("a", PROMPT))
    daemon.lease_seconds = 1.2  # margin 1 s
    second = engine(way, blocks=3)
    request = second.add(Request("a", PROMPT))
    eventually(lambda: daemon.leases)
    time.sleep(0.3)
    second.step()
    second.step()
    assert second.stats["lease_expired"] >= 1
    lookups = daemon.calls.count("lookup")
    assert lookups >= 2 and request.status == "waiting"


def test_a_lease_is_renewed_while_the_request_waits(daemon, engine, way):
    engine(way).generate(Request("a", PROMPT))
    daemon.lease_seconds = 2.6
    second = engine(way, blocks=3)
    second.add(Request("a", PROMPT))
    for _ in range(30):
        second.step()
        time.sleep(0.1)
    assert not second.stats["lease_expired"] and len(daemon.leases) == 1
    assert daemon.evict() == 0


def test_pages_on_ssd_are_waited_for(daemon, engine, way):
    engine(way).generate(Request("a", PROMPT))
    daemon.loading.update(daemon.pages)
    second = engine(way)
    request = second.add(Request("a", PROMPT))
    for _ in range(5):
        second.step()
    assert request.status == "waiting"
    daemon.loading.clear()
    eventually(lambda: (second.step(), request.status == "finished")[1])
    assert second.loaded_tokens["a"] == 4 * BLOCK


def test_pages_that_do_not_come_up_are_computed(daemon, engine, way):
    engine(way).generate(Request("a", PROMPT))
    keys = {one: one[1] for one in daemon.pages}
    second = engine({**way, "load_wait_ms": 80})
    third = fake_core.external_keys(roots(second)[0], Request("a", PROMPT).block_hashes)[2]
    daemon.loading.update(one for one, key in keys.items() if key == third)
    request = second.add(Request("a", PROMPT))
    eventually(lambda: (second.step(), request.status == "finished")[1])
    assert second.loaded_tokens["a"] == 2 * BLOCK and second.stats["load_wait_exceeded"]


def test_a_daemon_that_hangs_costs_one_deadline(daemon, engine, way):
    engine(way).generate(Request("a", PROMPT))
    daemon.delay["lookup"] = 5.0
    second = engine({**way, "lookup_deadline_ms": 50})
    began = time.monotonic()
    second.generate(Request("a", PROMPT), Request("b", OTHER), Request("c", PROMPT[5:]))
    assert time.monotonic() - began < 2.0
    assert not second.loaded_tokens["a"] and second.stats["lookup_failures:deadline"]
    daemon.delay.clear()


def test_a_load_that_hangs_costs_one_deadline(daemon, engine, way):
    engine(way).generate(Request("a", PROMPT))
    daemon.delay["map"] = 1.0
    second = engine({**way, "load_deadline_ms": 100})
    began = time.monotonic()
    second.generate(Request("a", PROMPT, 3), steps=100000)
    assert time.monotonic() - began < 0.9
    time.sleep(1.0)  # the late thread writes nothing any more
    second.generate(Request("b", OTHER, 3))
    check(daemon, second, PROMPT, OTHER)


def test_no_daemon_is_a_miss(daemon, engine, way):
    daemon.alive = False
    one = engine(way)
    (request,) = one.generate(Request("a", PROMPT, 40))
    assert one.stats["lookup_failures:away"] and not daemon.calls
    daemon.alive = True
    (again,) = engine(way).generate(Request("a", PROMPT, 40))
    assert again.outputs == request.outputs


@pytest.mark.parametrize("keep_pages", [False, True])
def test_a_daemon_that_restarts_in_the_middle(daemon, engine, way, keep_pages):
    one = engine(way, chunk=BLOCK)
    request = one.add(Request("a", PROMPT, 40))
    one.step()
    one.step()
    daemon.alive = False
    one.step()
    daemon.restart(keep_pages=keep_pages)
    while request.status != "finished":
        one.step()
    one.step()
    check(daemon, one, request.all_token_ids)
    assert len(daemon.pages) == (request.num_tokens - 1) // BLOCK * HEADS  # all of it, again
    assert one.stats["daemon_restarts"] == 1
    second = engine(way)
    (warm,) = second.generate(Request("b", PROMPT, 40))
    assert warm.outputs == request.outputs and second.loaded_tokens["b"] == 4 * BLOCK


def test_a_daemon_that_dies_while_pages_are_loaded(daemon, engine, way):
    engine(way).generate(Request("a", PROMPT))
    second = engine(way)
    request = second.add(Request("a", PROMPT, 3))
    eventually(lambda: daemon.leases)
    daemon.alive = False
    eventually(lambda: (second.step(), request.status == "finished")[1])
    daemon.alive = True
    second.generate(Request("b", OTHER, 3))
    check(daemon, second, request.all_token_ids, OTHER)


def test_saves_beyond_the_limit_are_skipped_and_made_up_for(daemon, engine):
    one = engine({"save_bytes_max": HEADS * LAYERS * BLOCK * 2 * 8 * 4})  # one block of all heads
    (request,) = one.generate(Request("a", PROMPT, 6))
    assert one.stats["save_skipped:queue_full"]
    check(daemon, one, request.all_token_ids)


def test_a_page_the_daemon_refuses_is_tried_again_and_then_left(daemon, engine):
    daemon.fail["push"] = fake_core.PagodaError("RESOURCE_EXHAUSTED", "quota")
    one = engine()
    one.generate(Request("a", PROMPT, 20))
    assert one.stats["save_failures:RESOURCE_EXHAUSTED"] == 4  # once, and three times more
    assert not daemon.pages


def test_scopes_and_salts_do_not_meet(daemon, engine, way):
    salted = {**way, "salt_scopes": {"team-a/": "group:a"}}
    one = engine(salted)
    one.generate(Request("a", PROMPT, salt="team-a/x"), Request("b", PROMPT))
    names = {root: name for root, name in zip(roots(one), ("private", "public", "a", "b"))}
    assert {names[record[0]] for record in daemon.pages} == {"private", "a"}
    second = engine(salted)
    second.generate(Request("a", PROMPT, salt="team-a/y"), Request("b", PROMPT, salt="team-a/x"))
    assert second.loaded_tokens["a"] == 0  # another salt: other hashes
    assert second.loaded_tokens["b"] == 4 * BLOCK


def test_reset_cache_forgets_what_was_stored(daemon, engine, way):
    one = engine(way)
    one.generate(Request("a", PROMPT))
    assert one.scheduler.reset_cache() is True
    one.generate(Request("b", PROMPT))
    assert one.loaded_tokens["b"] == 0
    one.generate(Request("c", PROMPT))
    assert one.loaded_tokens["c"] == 4 * BLOCK


@pytest.mark.parametrize("writer,reader", [(2, 1), (1, 2), (2, 4), (8, 1), (1, 8)])
def test_tensor_parallel_sizes_read_each_other(daemon, engine, way, writer, reader):
    first = engine(way, tp=writer)
    (cold,) = first.generate(Request("a", PROMPT, 40))
    check(daemon, first, cold.all_token_ids)
    assert len(daemon.pages) == 5 * HEADS and len(daemon.pushed) == 5 * HEADS
    second = engine(way, tp=reader)
    (warm,) = second.generate(Request("a", PROMPT, 40))
    assert warm.outputs == cold.outputs and second.loaded_tokens["a"] == 4 * BLOCK
    assert not daemon.leases


def test_a_failed_load_of_one_rank_spoils_the_step_of_all(daemon, engine):
    engine(tp=2).generate(Request("a", PROMPT))
    second = engine(tp=2)
    daemon.pages = {one: page for one, page in daemon.pages.items()}
    real = second.workers[1]._client.lookup
    second.workers[1]._client.lookup = lambda *a, **k: fake_core.Hit([], b"", 1.0)
    request = second.add(Request("a", PROMPT + OTHER, 6))
    second.step()
    second.workers[1]._client.lookup = real
    while request.status != "finished":
        second.step()
    second.step()
    check(daemon, second, request.all_token_ids)
    assert len(daemon.pages) == (request.num_tokens - 1) // BLOCK * HEADS


def test_roles(daemon, engine, way):
    engine(way, role="kv_consumer").generate(Request("a", PROMPT))
    assert not daemon.pages
    engine(way, role="kv_producer").generate(Request("a", PROMPT))
    assert daemon.pages
    second = engine(way, role="kv_producer")
    second.generate(Request("a", PROMPT))
    assert not second.loaded_tokens["a"]


def test_prompts_longer_than_one_question(daemon, engine, way):
    daemon.records_max = 2 * HEADS + 1
    first = engine(way)
    first.generate(Request("a", PROMPT * 2, 3))
    second = engine(way)
    second.generate(Request("a", PROMPT * 2, 3))
    assert second.loaded_tokens["a"] == 8 * BLOCK and second.stats["loaded_pages"] == 8 * HEADS
    check(daemon, second, PROMPT * 2)
    eventually(lambda: not daemon.leases)
    third = engine(way)
    hit = fake_core.external_keys(roots(third)[0], Request("x", PROMPT * 2).block_hashes)
    request = third.add(Request("a", PROMPT * 2, 3))
    eventually(lambda: len(daemon.leases) == 4)
    daemon.drop([one for one in daemon.pages if one[1] == hit[5]])
    eventually(lambda: (third.step(), request.status == "finished")[1])
    assert third.stats["loaded_pages"] == 5 * HEADS


def test_adapters_of_one_name_and_other_weights_do_not_meet(daemon, engine, tmp_path):
    def request(name, folder, data):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "adapter_model.safetensors").write_bytes(data)
        one = Request(name, PROMPT)
        one.lora_request = SimpleNamespace(
            name="poet", adapter_id=1, lora_path=str(tmp_path / folder)
        )
        return one

    engine().generate(request("a", "one", b"x" * 99))
    second = engine()
    second.generate(request("b", "two", b"y" * 99), request("c", "three", b"x" * 99),
                    Request("d", PROMPT))
    assert [second.loaded_tokens[one] for one in "bcd"] == [0, 4 * BLOCK, 0]


def test_a_cache_that_no_worker_can_load_is_asked_for_once(daemon, engine, way):
    engine(way).generate(Request("a", PROMPT))
    second = engine(way)
    second.workers[0]._worker._loader = None
    second.generate(Request("a", PROMPT, 3))
    lookups = daemon.calls.count("lookup")
    second.generate(Request("b", OTHER, 3))
    assert second.loaded_tokens["b"] == 0 and second.loaded_tokens["a"] == 4 * BLOCK
    assert daemon.calls.count("lookup") == lookups + 1  # what of it is stored


def test_loads_and_saves_around_the_forward_pass(daemon, engine, way):
    around = {**way, "layerwise": False}
    first = engine(around)
    (cold,) = first.generate(Request("a", PROMPT, 40))
    check(daemon, first, cold.all_token_ids)
    second = engine(around)
    (warm,) = second.generate(Request("a", PROMPT, 40))
    assert warm.outputs == cold.outputs and second.loaded_tokens["a"] == 4 * BLOCK


def test_what_the_engine_is_told(daemon, engine):
    one = engine().scheduler
    assert one.requires_kv_delivery is False
    assert one.requires_piecewise_for_cudagraph({}) is True
    assert one.requires_piecewise_for_cudagraph({"layerwise": False}) is False
