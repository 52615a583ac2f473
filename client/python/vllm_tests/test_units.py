"""Goal: the parts of pagoda_kv.vllm that are arithmetic or words. Method: examples and edges."""

import types

import fake_core
import numpy as np
import pytest
import stand_ins
from fixtures import KVConnectorRole, connector_module
from mini_engine import BLOCK, DIM, HEADS, LAYERS, HostTensor, Request, make_configs
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from pagoda_kv.vllm import plan as plan_module
from pagoda_kv.vllm import stats, weights
from pagoda_kv.vllm.config import ConnectorConfig
from pagoda_kv.vllm.copier import HostCopier
from pagoda_kv.vllm.layout import describe

# Configuration -----------------------------------------------------------------------------------


def test_unknown_options_are_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="no option 'traget': did you mean 'target'"):
        ConnectorConfig.parse({"traget": "x"})
    with pytest.raises(ValueError, match="known are .*scope"):
        ConnectorConfig.parse({"zzzzzz": 1})


@pytest.mark.parametrize(
    "extra,text",
    [
        ({"precision": "q5"}, "precision is 'q5': give one of auto, opaque, raw16, q8, q4"),
        ({"scope": "groups:a"}, "scope is 'groups:a': give private, public or group:NAME"),
        ({"salt_scopes": {"a": "b"}}, "scope is 'b'"),
        ({"salt_scopes": ["a"]}, "salt_scopes is"),
        ({"async_load": "yes"}, "async_load is 'yes': give true or false"),
        ({"load_deadline_ms": 0}, "load_deadline_ms is 0.0: give more than 0"),
        ({"save_bytes_max": 1.5}, "save_bytes_max is 1.5: give a whole number"),
        ({"copy_threads": 0}, "copy_threads is 0: give 1 to 64"),
        ({"target": 7070}, "target is 7070: give a text"),
    ],
)
def test_wrong_values_are_refused_by_name(extra, text):
    with pytest.raises(ValueError) as error:
        ConnectorConfig.parse(extra)
    assert text in str(error.value)


def test_options_go_where_they_belong(tmp_path):
    (tmp_path / "token").write_text("secret\n")
    config = ConnectorConfig.parse(
        {"target": "unix:/a", "token_file": str(tmp_path / "token"), "pagoda.scope": "group:a"}
    )
    assert config.scope == "group:a"
    arguments = config.target.client_arguments()
    assert arguments["token"] == "secret" and arguments["target"] == "unix:/a"
    assert "token_file" not in arguments


def test_the_longest_prefix_of_a_salt_counts():
    config = ConnectorConfig.parse({"salt_scopes": {"a": "group:a", "ab": "public"}})
    assert [config.scope_of(one) for one in (None, "", "x", "a1", "abc")] == [
        "private", "private", "private", "group:a", "public",
    ]


def test_the_fail_policy_is_refused_with_the_remedy(daemon):
    config, cache = make_configs(policy="fail")
    with pytest.raises(ValueError, match='Add "kv_load_failure_policy": "recompute"'):
        connector_module.PagodaConnector(config, KVConnectorRole.SCHEDULER, cache)
    config, cache = make_configs({"allow_fail_policy": True}, policy="fail")
    connector_module.PagodaConnector(config, KVConnectorRole.SCHEDULER, cache).shutdown()


# Identity ----------------------------------------------------------------------------------------


def identity(change=lambda config, cache: None, extra=None):
    config, cache = make_configs(extra)
    change(config, cache)
    plan = plan_module.make_plan(
        config, cache, ConnectorConfig.parse(config.kv_transfer_config.kv_connector_extra_config)
    )
    return plan.model_spec(fake_core).identity()


def test_whatever_makes_bytes_differ_makes_another_identity(monkeypatch):
    monkeypatch.setattr(plan_module, "_inner_layout", lambda config, spec: "x86_64-vec")

    def of_spec(**facts):
        return lambda config, cache: vars(cache.kv_cache_groups[0].kv_cache_spec).update(facts)

    def of_cache(**facts):
        return lambda config, cache: vars(config.cache_config).update(facts)

    changes = {
        "the same": lambda config, cache: None,
        "model": lambda config, cache: vars(config.model_config).update(model="other"),
        "dtype": of_spec(dtype="torch.bfloat16"),
        "cache dtype": of_cache(cache_dtype="fp8"),
        "block": of_spec(block_size=64),
        "layout": lambda config, cache: vars(cache).update(kv_cache_layout="LHBNC"),
        "quantization": lambda config, cache: vars(config.model_config).update(quantization="fp8"),
        "layers": lambda config, cache: cache.kv_cache_groups[0].layer_names.pop(),
    }
    found = {name: identity(change) for name, change in changes.items()}
    assert len(set(found.values())) == len(changes)
    assert identity() == found["the same"]
    assert identity(extra={"weights_revision": "2"}) != found["the same"]


def test_engines_that_hash_otherwise_never_meet(monkeypatch):
    same = identity()
    monkeypatch.setattr(
        plan_module, "_hash_fact", lambda config, block: "sha256-0123456789abcdef"
    )
    assert identity() != same


def test_random_hashes_are_for_one_engine_alone(monkeypatch):
    from vllm.v1.core import kv_cache_utils

    seeds = iter(range(100))
    monkeypatch.setattr(kv_cache_utils, "resolve_none_hash_seed", lambda fn: str(next(seeds)))
    config, cache = make_configs()
    own = ConnectorConfig.parse({})
    plans = [plan_module.make_plan(config, cache, own) for _ in range(2)]
    assert plans[0] == plans[1] and not plan_module.hashes_are_shared(plans[0])
    config.kv_transfer_config.engine_id = "another"
    assert plan_module.make_plan(config, cache, own) != plans[0]


@pytest.mark.parametrize(
    "change,text",
    [
        (lambda config, cache: cache.kv_cache_groups.append(cache.kv_cache_groups[0]),
         "2 KV cache groups"),
        (lambda config, cache: vars(config.parallel_config).update(pipeline_parallel_size=2),
         "pipeline_parallel_size is 2"),
        (lambda config, cache: vars(config.parallel_config).update(
            tensor_parallel_size=3, world_size=3), "4 kv heads do not divide over 3 ranks"),
        (lambda config, cache: vars(cache.kv_cache_groups[0]).update(
            kv_cache_spec=type("MambaSpec", (), {})()), "MambaSpec"),
        (lambda config, cache: vars(cache.kv_cache_groups[0].kv_cache_spec).update(block_size=48),
         "blocks have 48 tokens, 16, 32, 64, 128, 256 are stored"),
    ],
)
def test_caches_that_are_not_stored_say_why(daemon, change, text):
    config, cache = make_configs()
    change(config, cache)
    with pytest.raises(plan_module.Unsupported, match=text):
        plan_module.make_plan(config, cache, ConnectorConfig.parse({"weights_revision": "1"}))
    one = connector_module.PagodaConnector(config, KVConnectorRole.SCHEDULER, cache)
    assert one.get_num_new_matched_tokens(None, 0) == (0, False)
    one.shutdown()


def gpu_plan(extra=None, **facts):
    config, cache = make_configs({"weights_revision": "1", **(extra or {})})
    config.device_config.device_type = "cuda"
    config.model_config.hf_config = types.SimpleNamespace(
        rope_theta=10000.0, head_dim=8, to_dict=lambda: {"rope_theta": 10000.0}
    )
    values = dict(dtype="torch.bfloat16", block_size=16, page_size_bytes=4 * 16 * 2 * 8 * 2)
    vars(cache.kv_cache_groups[0].kv_cache_spec).update({**values, **facts})
    cache.hash_block_size = 16
    extra = config.kv_transfer_config.kv_connector_extra_config
    return plan_module.make_plan(config, cache, ConnectorConfig.parse(extra))


def test_known_layouts_become_pages_of_64_tokens_and_others_stay_whole():
    plan = gpu_plan()
    assert (plan.precision, plan.kv_dtype, plan.page_tokens) == ("raw16", "bf16", 64)
    assert plan.layer_bytes == 64 * 2 * 8 * 2 and plan.rope["rope_theta"] == 10000.0
    assert "cuda" not in plan.opaque_layout  # the bytes are those of a page
    assert gpu_plan({"precision": "q8"}).precision_min == "q8"
    assert gpu_plan({"precision": "opaque"}).page_tokens == 16
    padded = gpu_plan(page_size_bytes=4 * 16 * 2 * 8 * 2 + 64)
    assert padded.precision == "opaque" and "cuda" in padded.opaque_layout


@pytest.mark.parametrize(
    "extra,facts,text",
    [
        ({"precision": "q8"}, {"dtype": "torch.float16"}, "this cache is float16"),
        ({"precision": "raw16"}, {"dtype": "torch.float8_e4m3fn"}, "only the engine knows"),
    ],
)
def test_a_precision_that_a_cache_cannot_have_is_refused(extra, facts, text):
    with pytest.raises(ValueError, match=text):
        gpu_plan(extra, **facts)


def test_weights_are_known_by_their_bytes(tmp_path):
    def write(name, data):
        (tmp_path / name).write_bytes(data)
        return weights.fingerprint(str(tmp_path))

    with pytest.raises(FileNotFoundError, match="no weight files"):
        weights.fingerprint(str(tmp_path))
    header = b'{"a":1}'
    body = bytes(range(256)) * 4096
    safetensors = len(header).to_bytes(8, "little") + header + body
    seen = {write("model.safetensors", safetensors)}
    seen.add(write("config.json", b"{}"))
    seen.add(write("config.json", b"{ }"))
    seen.add(write("model.safetensors", safetensors[:-1] + b"x"))
    seen.add(write("model.safetensors", safetensors + b"x"))
    seen.add(write("model.safetensors", safetensors.replace(b'"a"', b'"b"')))
    assert len(seen) == 6
    (tmp_path / "README.md").write_text("no weights")
    assert weights.fingerprint(str(tmp_path)) in seen


# Layouts -----------------------------------------------------------------------------------------


def plan_of(**facts):
    values = dict(
        model="m", weights_revision="1", layer_names=("a", "b"), kv_heads=2, head_dim=8,
        block_tokens=16, page_tokens=16, hash_tokens=16, layer_bytes=16 * 2 * 8 * 2,
        kv_dtype="opaque", precision="opaque", precision_min="opaque",
    )
    return plan_module.CachePlan(**{**values, **facts})


def tensors_of(order, blocks=6, heads=2, tokens=16, content=16):
    """Two layers [blocks][heads][tokens][content] of u16 in the given physical order."""
    sizes = dict(b=blocks, h=heads, n=tokens, c=content)
    axes = [order.index(axis) for axis in "bhnc"]
    made = {}
    for name in ("a", "b"):
        flat = np.arange(blocks * heads * tokens * content, dtype=np.uint16)
        flat += ord(name)
        made[name] = flat.reshape([sizes[one] for one in order]).transpose(axes)
    return made


@pytest.mark.parametrize("order", ["bhnc", "bnhc", "hbnc"])
def test_opaque_pages_are_the_cache_s_bytes_in_every_order_of_axes(order):
    plan = plan_of()
    arrays = tensors_of(order)
    layout = describe(plan, {name: HostTensor(one) for name, one in arrays.items()}, 6)
    assert layout.run_bytes == (32 if order == "bnhc" else plan.layer_bytes)
    copier = HostCopier(fake_core, layout, range(2), 1)
    pages = np.zeros((2, 2, plan.layer_bytes), np.uint8)  # [block][head]
    addresses = np.asarray([one.ctypes.data for page in pages for one in page], np.uint64)
    copier.save(1, [4, 2], addresses)
    for at, block in enumerate([4, 2]):
        for head in range(2):
            want = np.ascontiguousarray(arrays["b"][block, head]).view(np.uint8).reshape(-1)
            assert np.array_equal(pages[at, head], want)
    copier.load(0, [1, 5], addresses)
    assert np.array_equal(arrays["a"][1], arrays["b"][4])
    assert np.array_equal(arrays["a"][5], arrays["b"][2])
    untouched = tensors_of(order)["a"]
    for block in (0, 2, 3, 4):
        assert np.array_equal(arrays["a"][block], untouched[block])


@pytest.mark.parametrize("order", ["bhnc", "bnhc"])
def test_raw16_pages_hold_k_then_v_of_several_blocks(order):
    plan = plan_of(
        page_tokens=64, layer_bytes=64 * 2 * 8 * 2, kv_dtype="bf16", precision="raw16",
        precision_min="raw16",
    )
    arrays = tensors_of(order)
    layout = describe(plan, {name: HostTensor(one) for name, one in arrays.items()}, 6)
    copier = HostCopier(fake_core, layout, range(2), 1)
    page = np.zeros((2, 2, 64, 8), np.uint16)  # [head][K, V][token][dim]
    addresses = np.asarray([one.ctypes.data for one in page], np.uint64)
    blocks = [3, 0, 5, 1]
    copier.save(0, blocks, addresses)
    for at, block in enumerate(blocks):
        tokens = slice(at * 16, at * 16 + 16)
        assert np.array_equal(page[:, 0, tokens], arrays["a"][block, :, :, :8])
        assert np.array_equal(page[:, 1, tokens], arrays["a"][block, :, :, 8:])
    # The first two blocks are the engine's own: left alone.
    copier.load(1, [-1, -1, 4, 2], addresses)
    before = tensors_of(order)["b"]
    assert np.array_equal(arrays["b"][4], arrays["a"][5])
    assert np.array_equal(arrays["b"][2], arrays["a"][1])
    assert all(np.array_equal(arrays["b"][one], before[one]) for one in (0, 1, 3, 5))


def test_blocks_that_the_engine_cuts_for_its_kernel():
    plan = plan_of(block_tokens=32, page_tokens=32, hash_tokens=32, layer_bytes=32 * 2 * 8 * 2)
    arrays = tensors_of("bhnc")  # 6 kernel blocks of 16: 3 blocks of 32
    layout = describe(plan, {name: HostTensor(one) for name, one in arrays.items()}, 3)
    pages = np.zeros((2, 32, 16), np.uint16)
    addresses = np.asarray([one.ctypes.data for one in pages], np.uint64)
    HostCopier(fake_core, layout, range(2), 1).save(0, [2], addresses)
    assert np.array_equal(pages[1, :16], arrays["a"][4, 1])
    assert np.array_equal(pages[1, 16:], arrays["a"][5, 1])


def test_a_block_beyond_the_cache_is_refused():
    layout = describe(
        plan_of(), {name: HostTensor(one) for name, one in tensors_of("bhnc").items()}, 6
    )
    with pytest.raises(ValueError, match="block 6, but the cache has 6 blocks"):
        HostCopier(fake_core, layout, range(2), 1).save(0, [6], np.zeros(2, np.uint64))


@pytest.mark.parametrize("change", [{"layer_bytes": 8}, {"kv_heads": 4}, {"layer_names": ("x",)}])
def test_tensors_that_are_not_as_planned_are_refused(change):
    tensors = {name: HostTensor(one) for name, one in tensors_of("bhnc").items()}
    with pytest.raises(plan_module.Unsupported):
        describe(plan_of(**change), tensors, 6)


def test_pages_of_several_blocks_are_known_by_the_last_one():
    plan = plan_of(block_tokens=16, page_tokens=64, hash_tokens=16)
    assert plan.page_hashes([bytes([i]) for i in range(11)]) == [b"\x03", b"\x07"]


@pytest.mark.parametrize(
    "tp,rank,heads,pushes",
    [(1, 0, [0, 1, 2, 3], True), (2, 1, [2, 3], True), (4, 3, [3], True), (8, 5, [2], False),
     (8, 4, [2], True)],
)
def test_heads_of_a_rank(tp, rank, heads, pushes):
    plan = plan_of(kv_heads=4, tp_size=tp, tp_rank=rank)
    assert list(plan.rank_heads) == heads and plan.rank_pushes == pushes
    assert plan.pushing_ranks == min(tp, 4)


# Metrics and events ------------------------------------------------------------------------------


def test_stats_add_up_over_workers_and_steps():
    counters = stats.Counters()
    assert counters.take() is None
    counters.count("loaded_bytes", 3e9)
    counters.count("load_seconds", 2)
    one = counters.take()
    counters.count("loaded_bytes", 1e9)
    counters.count("save_skipped:away", 2)
    both = one.aggregate(counters.take())
    assert both.data == {"loaded_bytes": 4e9, "load_seconds": 2, "save_skipped:away": 2}
    assert both.reduce()["pagoda load GB/s"] == 2
    assert stats.PagodaStats(data={}).is_empty()
    with pytest.raises(AssertionError):
        counters.count("no_such_counter")


def test_prometheus_has_a_series_for_each_counter_and_label():
    made = {}

    class Counter:
        def __init__(self, name, documentation, labelnames):
            self.labelnames, self.values = labelnames, {}
            made[name] = self

        def labels(self, *values):
            assert len(values) == len(self.labelnames)
            return types.SimpleNamespace(
                inc=lambda amount: self.values.update(
                    {values: self.values.get(values, 0) + amount}
                )
            )

    class Kinds(dict):
        def __missing__(self, kind):
            return Counter

    metrics = connector_module.PagodaConnector.build_prom_metrics(
        make_configs()[0], Kinds(), ["model_name", "engine"], {0: ["m", "0"]}
    )
    assert set(made) == {f"vllm:pagoda_{name}" for name in stats.COUNTERS}
    metrics.observe({"loaded_pages": 4, "save_skipped:away": 2})
    metrics.observe({"loaded_pages": 1, "unknown": 1})
    assert made["vllm:pagoda_loaded_pages"].values == {("m", "0"): 5}
    assert made["vllm:pagoda_save_skipped"].values == {("m", "0", "away"): 2}


def test_every_counter_that_the_code_names_is_listed():
    import pathlib
    import re

    folder = pathlib.Path(plan_module.__file__).parent
    text = "".join(one.read_text() for one in folder.glob("*.py"))
    named = set(re.findall(r'count\(\s*f?"([a-z_]+)[":]', text)) | {"errors"}
    assert named == set(stats.COUNTERS)


def test_events_tell_what_is_stored_and_what_is_gone(daemon, engine):
    prompt = list(range(2 * BLOCK + 3))
    one = engine(events=True)
    (request,) = one.generate(Request("a", prompt))
    one.step()
    hashes = [maybe_convert_block_hash(one) for one in request.block_hashes]
    assert [event.block_hashes for event in one.events] == [[one] for one in hashes]
    assert one.events[0].parent_block_hash is None
    assert one.events[1].parent_block_hash == hashes[0]
    assert list(one.events[1].token_ids) == prompt[BLOCK : 2 * BLOCK]
    assert {event.medium for event in one.events} == {"PAGODA"}
    one.events.clear()
    daemon.evict()
    one.generate(Request("b", prompt))
    assert type(one.events[0]).__name__.lstrip("_") == "BlockRemoved"
    assert one.events[0].block_hashes == hashes


def test_sources_of_a_hit_by_tier(daemon, engine):
    prompt = list(range(3 * BLOCK + 3))
    engine().generate(Request("a", prompt))
    second = engine()
    request = second.add(Request("a", prompt))
    while request.status != "finished":
        second.step()
    sources = second.scheduler.get_external_cache_hit_sources(request, 5)
    assert sum(sources.values()) == 5  # no longer known: unspecified


def test_nothing_of_the_daemon_s_reaches_the_engine(daemon, engine, monkeypatch):
    one = engine()
    monkeypatch.setattr(one.scheduler._scheduler, "new_request", lambda request: 1 / 0)
    monkeypatch.setattr(one.scheduler._scheduler, "_plan_saves", lambda output: 1 / 0)
    one.generate(Request("a", list(range(2 * BLOCK + 3))))
    assert one.stats["errors:on_new_request"] == 1
    assert one.stats["errors:build_connector_meta"] >= 1
    assert HEADS and LAYERS and DIM


# Device ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision,per_page", [("opaque", 1), ("raw16", 4)])
@pytest.mark.parametrize("order", ["bhnc", "bnhc"])
def test_the_device_copier_moves_the_same_bytes_as_the_host_s(precision, per_page, order):
    torch = pytest.importorskip("torch")
    from pagoda_kv.vllm.device_copier import DeviceCopier

    plan = plan_of(
        page_tokens=16 * per_page, layer_bytes=16 * per_page * 2 * 8 * 2, precision=precision,
    )
    arrays = tensors_of(order)
    tensors = {name: torch.from_numpy(one.view(np.int16)) for name, one in arrays.items()}
    layout = describe(plan, tensors, 6)
    host = HostCopier(fake_core, layout, range(2), 1)
    device = DeviceCopier(fake_core, plan, layout, tensors)
    blocks = [3, 0, 5, 1]
    pages = [np.zeros((2 * 4 // per_page, plan.layer_bytes), np.uint8) for _ in range(2)]
    for copier, page in zip((host, device), pages):
        copier.save(1, blocks, np.asarray([one.ctypes.data for one in page], np.uint64))
        pending = copier.finish_saves()
        assert pending is None or pending.ready()
        if pending is not None:
            pending.finish()
    assert pages[0].any() and np.array_equal(*pages)
    addresses = np.asarray([one.ctypes.data for one in pages[0]], np.uint64)
    before = arrays["a"].copy()
    device.load(0, [-1, 4, 2, 0], addresses)
    device.finish_loads()
    after = arrays["a"].copy()
    arrays["a"][:] = before
    host.load(0, [-1, 4, 2, 0], addresses)
    assert not np.array_equal(after, before) and np.array_equal(after, arrays["a"])


@pytest.mark.parametrize("precision", ["q8", "q4"])
@pytest.mark.parametrize("has_shm", [True, False])
def test_encoded_pages_are_decoded_into_the_cache(daemon, precision, has_shm):
    kernels = pytest.importorskip("pagoda_kv.kernels")
    from pagoda_kv.vllm.loader import Loader
    from pagoda_kv.vllm.messages import Load

    tokens, dim, layers = 64, 32, 2
    plan = plan_of(
        page_tokens=tokens, head_dim=dim, layer_bytes=tokens * 2 * dim * 2, kv_dtype="bf16",
        precision="raw16", precision_min=precision, kv_heads=1,
    )
    shape = kernels.PageShape(layers, 1, dim, tokens)
    page = kernels.Page(shape, base_position=0)
    rng = np.random.default_rng(3)
    k, v = rng.standard_normal((2, layers, 1, tokens, dim), np.float32)
    for layer in range(layers):
        page.write(layer, 0, k[layer], v[layer])
    codes = kernels.cut(kernels.encode(page), precision)

    spec = plan.model_spec(fake_core)
    client = fake_core.Client("fake", spec, page_tokens=tokens)
    scope = client.scope()
    key = fake_core.external_keys(scope.root, [b"h"])[0]
    client.pusher().push(
        scope, key, scope.root, page.segments, parent_is_root=True, part=(0, 1)
    )
    (stored,) = daemon.pages.values()
    stored.header.precision = precision
    stored.header.segment_layers = codes.segment_layers
    stored.segments = [np.array(one) for one in codes.segments]
    daemon.has_shm = has_shm

    arrays = tensors_of("bnhc", heads=1, content=2 * dim)
    layout = describe(plan, {name: HostTensor(one) for name, one in arrays.items()}, 6)
    loader = Loader(
        fake_core, client, plan, ConnectorConfig(),
        HostCopier(fake_core, layout, range(1), 1), stats.Counters().count,
    )
    job = loader.start([Load("r", "private", [b"h"], [4, 1, 0, 2], 0, False)])
    assert job.wait_done() and not job.failed_blocks
    for name, layer in (("a", 0), ("b", 1)):
        want = kernels.decode([codes], layer)
        got = np.concatenate([arrays[name][block, 0] for block in (4, 1, 0, 2)])
        values = (got.astype(np.uint32) << 16).view(np.float32)
        for side, half in ((0, values[:, :dim]), (1, values[:, dim:])):
            assert np.allclose(half, want[side][0], rtol=2**-8, atol=1e-6)
            error = np.abs(half - (k, v)[side][layer, 0]).max()
            assert error < (0.05 if precision == "q8" else 0.8)
    loader.close()


def test_rounding_to_bf16():
    from pagoda_kv.vllm.decoder import to_bf16

    values = np.asarray([1, -2, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-12], np.float32)
    assert to_bf16(values).tolist() == [0x3F80, 0xC000, 0x3F80, 0x3F82, 0x3F81]


@pytest.mark.skipif(not stand_ins.HAVE_VLLM, reason="vLLM is not installed")
@pytest.mark.parametrize("name", ["sha256", "sha256_cbor"])
def test_the_known_answer_is_what_the_engine_computes(name):
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils

    config, _ = make_configs()
    config.cache_config.prefix_caching_hash_algo = name
    function = get_hash_fn_by_name(name)
    kv_cache_utils.init_none_hash(function)
    answer = kv_cache_utils.hash_block_tokens(function, None, range(BLOCK))
    assert plan_module._hash_fact(config, BLOCK) == f"{name}-{answer.hex()[:16]}"
