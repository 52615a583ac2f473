"""Goal: PagodaTier keeps the contract of vLLM's SecondaryTierManager. Method: vLLM's own base
classes and a daemon in memory; jobs as its tiering manager submits them.
"""

import time
import types

import fake_core
import numpy as np
import pytest
import stand_ins

if not stand_ins.HAVE_VLLM:
    pytest.skip("vLLM is not installed", allow_module_level=True)

from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key  # noqa: E402
from vllm.v1.kv_offload.config import (  # noqa: E402
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.base import TransferJob  # noqa: E402
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory  # noqa: E402

import pagoda_kv.vllm  # noqa: E402
from pagoda_kv.vllm import offload_tier  # noqa: E402

CHUNKS, BYTES = 8, 4096
KEYS = [make_offload_key(bytes([i]) * 32, 0) for i in range(6)]
CONTEXT = ReqContext(req_id="r")


def spec(tokens=16, **parallel):
    facts = dict(
        rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, data_parallel_index=0,
        data_parallel_size=1, data_parallel_rank_local=None, is_parallelism_agnostic=False,
    )
    config = OffloadingConfig(
        groups=(OffloadingGroupConfig(tokens, ("layer.0",), 0),),
        worker_kv_bytes_per_block=BYTES,
        enable_kv_cache_events=True,
        extra_config={},
        engine_id="engine",
        model=OffloadingModelConfig("mini", "float16"),
        cache=OffloadingCacheConfig(tokens, 1),
        parallel=OffloadingParallelConfig(**{**facts, **parallel}),
    )
    return types.SimpleNamespace(
        config=config, tokens_per_block=(tokens,), blocks_per_chunk=1,
        kv_events_config=types.SimpleNamespace(enable_kv_cache_events=True),
    )


class Tier:
    def __init__(self, offloading_spec=None, **options):
        self.memory = np.zeros((CHUNKS, BYTES), np.uint8)
        self.tier = SecondaryTierFactory.create_secondary_tier(
            {"type": "PagodaTier", "module_path": "pagoda_kv.vllm", "target": "fake",
             "weights_revision": "1", **options},
            memoryview(self.memory), offloading_spec or spec(),
        )
        self.jobs = 0

    def submit(self, keys, chunks, load):
        self.jobs += 1
        job = TransferJob(self.jobs, keys, np.asarray(chunks), load, CONTEXT)
        (self.tier.submit_load if load else self.tier.submit_store)(job)
        return self.jobs

    def run(self, keys, chunks, load):
        job = self.submit(keys, chunks, load)
        until = time.monotonic() + 5
        while time.monotonic() < until:
            for result in self.tier.get_finished_jobs():
                assert result.job_id == job
                return result
            time.sleep(0.002)
        raise AssertionError("the job hangs")

    def lookup(self, key):
        until = time.monotonic() + 5
        while (found := self.tier.lookup(key, CONTEXT)) is LookupResult.RETRY:
            assert time.monotonic() < until
            self.tier.on_schedule_end(None)
            time.sleep(0.002)
        return found


@pytest.fixture
def tier(daemon, monkeypatch):
    monkeypatch.setattr(offload_tier, "load_core", lambda: fake_core)
    made = []

    def make(*arguments, **options):
        made.append(Tier(*arguments, **options))
        return made[-1]

    yield make
    for one in made:
        one.tier.shutdown()


def test_it_is_found_by_its_module(daemon):
    assert pagoda_kv.vllm.PagodaTier is offload_tier.PagodaTier


def test_chunks_come_back_as_they_were_in_another_engine(daemon, tier):
    first = tier(enable_kv_events=True)
    first.memory[:] = np.random.default_rng(1).integers(0, 256, first.memory.shape)
    assert first.lookup(KEYS[0]) is LookupResult.MISS
    result = first.run(KEYS[:3], [5, 0, 2], load=False)
    assert result.success and result.transfer_bytes == 3 * BYTES
    (event,) = first.tier.take_events()
    assert event.keys == KEYS[:3] and not event.removed
    second = tier()
    assert [second.lookup(key) for key in KEYS[:4]] == [LookupResult.HIT] * 3 + [LookupResult.MISS]
    result = second.run(KEYS[:3], [1, 7, 4], load=True)
    assert result.success
    assert np.array_equal(second.memory[[1, 7, 4]], first.memory[[5, 0, 2]])
    assert not second.memory[[0, 2, 3, 5, 6]].any()


def test_storing_twice_is_well(daemon, tier):
    one = tier()
    assert one.run(KEYS[:2], [0, 1], load=False).success
    assert one.run(KEYS[:3], [0, 1, 2], load=False).success
    assert len(daemon.pages) == 3


def test_a_lookup_goes_on_behind_a_gap(daemon, tier):
    one = tier()
    one.run([KEYS[0], KEYS[2]], [0, 2], load=False)
    for key in KEYS[:3]:
        one.tier.lookup(key, CONTEXT)
    found = [one.lookup(key) for key in KEYS[:3]]
    assert found == [LookupResult.HIT, LookupResult.MISS, LookupResult.HIT]


def test_a_load_that_comes_in_part_says_which_and_is_a_miss_then(daemon, tier):
    one = tier()
    one.run(KEYS[:3], [0, 1, 2], load=False)
    assert one.lookup(KEYS[2]) is LookupResult.HIT
    key = fake_core.external_keys(
        one.tier._client.scope().root, [bytes(KEYS[1])]
    )[0]
    daemon.drop([record for record in daemon.pages if record[1] == key])
    result = one.run(KEYS[:3], [3, 4, 5], load=True)
    assert not result.success and result.successful_keys == (KEYS[0],)
    assert one.lookup(KEYS[2]) is LookupResult.MISS


def test_without_a_daemon_jobs_fail_and_nothing_waits(daemon, tier):
    one = tier()
    daemon.alive = False
    assert one.lookup(KEYS[0]) is LookupResult.MISS
    assert not one.run(KEYS[:1], [0], load=False).success
    assert not one.run(KEYS[:1], [0], load=True).success
    daemon.restart(keep_pages=False)
    assert one.run(KEYS[:1], [0], load=False).success


def test_pages_without_shared_memory_and_taken_back_pages(daemon, tier):
    one = tier()
    one.memory[0] = 7
    one.run(KEYS[:1], [0], load=False)
    daemon.has_shm = False
    assert one.run(KEYS[:1], [1], load=True).success and (one.memory[1] == 7).all()
    daemon.has_shm = True
    for page in daemon.pages.values():
        page.valid = False
    assert not one.run(KEYS[:1], [2], load=True).success


def test_drain_waits_for_every_job(daemon, tier):
    one = tier()
    daemon.delay["reserve"] = 0.05
    jobs = {one.submit(KEYS[i : i + 1], [i], load=False) for i in range(4)}
    one.tier.drain_jobs()
    assert {result.job_id for result in one.tier.get_finished_jobs()} == jobs


def test_other_topologies_and_chunks_do_not_meet(daemon, tier):
    def identity(*arguments, **options):
        return tier(*arguments, **options).tier._client._identity

    found = [identity(), identity(spec(tp_size=2, world_size=2)), identity(spec(32)),
             identity(weights_revision="2")]
    assert len(set(found)) == 4 and identity() == found[0]
    with pytest.raises(ValueError, match="a chunk has 48 tokens"):
        tier(spec(48))
    with pytest.raises(ValueError, match="no option 'taget'"):
        tier(taget="x")
