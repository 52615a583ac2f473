"""Goal: prefixes that a daemon has are not computed again and change nothing; without one, or with
one that fails, generation goes on.

Method: a real pagodad and tiny random models in bfloat16. What came from the daemon is compared bit
for bit with what was computed; answers with those of a default cache that holds the same bits.
"""

import pytest

torch = pytest.importorskip("torch", reason="the cache for Transformers needs torch")
transformers = pytest.importorskip("transformers", reason="needs transformers")

from pagodad_process import REPOSITORY, Pagodad  # noqa: E402

from pagoda_kv.transformers import PagodaCache, PagodaConfig, connect  # noqa: E402
from test_transformers import generate, make_model, one_thread, prompt  # noqa: E402, F401


@pytest.fixture(scope="module")
def q8_pagodad(tmp_path_factory):
    daemon = Pagodad(tmp_path_factory.mktemp("q8"), ladder="q8").start()
    yield daemon
    daemon.stop()


def open_client(daemon, model, config=None):
    client = connect(model, daemon.listen, config)
    client.wait_connected(10)
    return client


def run(model, ids, config, client, **options):
    cache = PagodaCache.from_prompt(model, ids, config, client)
    out = generate(model, ids, cache, **options)
    cache.close()
    assert cache.problem is None
    return cache, out


def default_with(cache, tokens):
    """A default cache with the first tokens' K and V of another."""
    default = transformers.DynamicCache()
    for i, layer in enumerate(cache.layers):
        default.update(layer.keys[:, :, :tokens].clone(), layer.values[:, :, :tokens].clone(), i)
    return default


@pytest.mark.parametrize("attention", ["sdpa", "eager", "pagoda"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral"])
def test_a_warm_prompt_goes_on_from_the_same_bits(pagodad, name, attention):
    model = make_model(name, attention=attention, seed=10)
    ids, config = prompt(300), PagodaConfig(weights_revision=f"{name} {attention}")
    client = open_client(pagodad, model, config)
    cold, expected = run(model, ids, config, client)
    assert (cold.hit_tokens, cold.pushed_pages) == (0, 4)
    warm = PagodaCache.from_prompt(model, ids, config, client)
    assert warm.hit_tokens == warm.get_seq_length() == 256
    for a, b in zip(cold.layers, warm.layers, strict=True):
        assert torch.equal(a.keys[:, :, :256], b.keys)
        assert torch.equal(a.values[:, :, :256], b.values)
    got = generate(model, ids, warm, return_dict_in_generate=True, output_logits=True)
    same = generate(
        model, ids, default_with(cold, 256), return_dict_in_generate=True, output_logits=True
    )
    for a, b in zip(got.logits, same.logits, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(got.sequences, same.sequences)
    # And the cold answer, whose sums were ordered otherwise: the tokens are the same here.
    assert torch.equal(got.sequences, expected)
    client.close()


def test_generated_pages_are_shared_too(pagodad):
    model, config = make_model(seed=11), PagodaConfig(weights_revision="generated")
    client = open_client(pagodad, model, config)
    first, answer = run(model, prompt(100), config, client, tokens=100)
    assert first.pushed_pages == 3
    following = torch.cat([answer, prompt(30, seed=5)], dim=1)
    second, _ = run(model, following, config, client)
    assert second.hit_tokens == 192
    assert second.pushed_pages == 0
    other = following.clone()
    other[0, 70] += 1
    third, _ = run(model, other, config, client)
    assert third.hit_tokens == 64
    client.close()


def test_the_last_token_is_always_computed(pagodad):
    model, config = make_model(seed=12), PagodaConfig(weights_revision="last")
    client = open_client(pagodad, model, config)
    run(model, prompt(128), config, client)
    again, _ = run(model, prompt(128), config, client)
    assert again.hit_tokens == 64
    client.close()


@pytest.mark.parametrize("beams", [1, 3])
def test_a_batch_takes_what_all_rows_have(pagodad, beams):
    model = make_model(seed=13)
    config = PagodaConfig(weights_revision=f"batch {beams}")
    client = open_client(pagodad, model, config)
    ids = prompt(200, rows=3)
    expected = generate(model, ids, num_beams=beams)
    run(model, ids[:1], config, client)
    run(model, ids[1:2, :150], config, client)
    cold, _ = run(model, ids, config, client)
    assert cold.hit_tokens == 0
    warm, got = run(model, ids, config, client, num_beams=beams)
    assert warm.hit_tokens == 192
    assert torch.equal(got, expected)
    client.close()


def test_padded_rows_share_their_own_tokens(pagodad):
    model, config = make_model(seed=14), PagodaConfig(weights_revision="padded")
    client = open_client(pagodad, model, config)
    ids = prompt(200)
    padded = torch.cat([torch.zeros(1, 37, dtype=torch.long), ids], dim=1)
    mask = (torch.arange(237) >= 37)[None].long()
    cache = PagodaCache.from_prompt(model, padded, config, client, attention_mask=mask)
    generate(model, padded, cache, attention_mask=mask)
    cache.close()
    assert cache.pushed_pages == 3
    warm, _ = run(model, ids, config, client)
    assert warm.hit_tokens == 192
    client.close()


@pytest.mark.parametrize("precision", ["q8", "q4"])
def test_codes_of_the_daemon_are_those_of_the_cache(q8_pagodad, precision):
    model = make_model(dtype=torch.bfloat16, attention="pagoda", seed=15)
    config = PagodaConfig(precision, window=64, weights_revision=f"codes {precision}")
    client = open_client(q8_pagodad, model, config)
    ids = prompt(500)
    cold, expected = run(model, ids, config, client)
    assert cold.pushed_pages == 7
    for _ in range(2):  # before and after the daemon has encoded what left the window
        warm, got = run(model, ids, config, client)
        assert warm.hit_tokens in (384, 448)
        assert (got == expected).float().mean() > 0.9
        kept = [sequence.rows(1, 256, 499) for sequence in warm._paged.sequences]
        computed = [sequence.rows(1, 256, 499) for sequence in cold._paged.sequences]
        assert (kept[0][0] == computed[0][0]).all()
    client.close()


def test_pages_over_codes_are_no_hit_for_exact_readers(pagodad):
    model = make_model(attention="pagoda", seed=16)
    coded = PagodaConfig("q4", window=0, weights_revision="fidelity")
    client = open_client(pagodad, model, coded)
    run(model, prompt(300), coded, client)
    exact, _ = run(model, prompt(300), PagodaConfig(weights_revision="fidelity"), client)
    assert exact.hit_tokens == 64  # its queries read nothing but themselves
    again, _ = run(model, prompt(300), PagodaConfig(weights_revision="fidelity"), client)
    assert again.hit_tokens == 256  # pages of higher fidelity took their place
    client.close()


def test_float32_shares_only_where_rounding_is_allowed(pagodad):
    model = make_model(dtype=torch.float32, seed=17)
    exact = PagodaConfig(weights_revision="f32")
    client = open_client(pagodad, model, exact)
    cache, expected = run(model, prompt(200), exact, client)
    assert (cache.pushed_pages, cache.hit_tokens) == (0, 0)
    rounded = PagodaConfig(weights_revision="f32", allow_rounding=True)
    assert torch.equal(run(model, prompt(200), rounded, client)[1], expected)
    warm, got = run(model, prompt(200), rounded, client)
    assert warm.hit_tokens == 192
    assert (got == expected).float().mean() > 0.9
    client.close()


def test_another_prompt_than_the_loaded_one_is_refused(pagodad):
    model, config = make_model(seed=18), PagodaConfig(weights_revision="promise")
    client = open_client(pagodad, model, config)
    run(model, prompt(200), config, client)
    cache = PagodaCache.from_prompt(model, prompt(200), config, client)
    other = prompt(200)
    other[0, 195] += 1
    with pytest.raises(ValueError, match="token 195"):
        generate(model, other, cache)
    client.close()


def test_embeddings_are_not_pushed(pagodad):
    model, config = make_model(seed=19), PagodaConfig(weights_revision="embeddings")
    client = open_client(pagodad, model, config)
    cache = PagodaCache(model, config, client)
    model(inputs_embeds=model.model.embed_tokens(prompt(200)), past_key_values=cache)
    generate(model, torch.cat([prompt(200), prompt(50)], dim=1), cache, tokens=80)
    cache.close()
    assert cache.pushed_pages == 0
    client.close()


@pytest.mark.parametrize("when", ["never", "before", "between", "frozen"])
def test_without_a_daemon_the_answer_is_the_same(tmp_path, when):
    model, config = make_model(seed=20), PagodaConfig(weights_revision="away", flush_timeout=0.5)
    ids = prompt(200)
    expected = generate(model, ids)
    daemon = Pagodad(tmp_path)
    if when != "never":
        daemon.start()
    client = connect(
        model, daemon.listen, config, control_timeout=0.3, transfer_timeout=0.3, connect_timeout=0.3
    )
    try:
        if when != "never":
            client.wait_connected(10)
            run(model, ids, config, client)
        if when == "before":
            daemon.kill()
        if when == "frozen":
            daemon.freeze()
        cache = PagodaCache.from_prompt(model, ids, config, client)
        assert cache.hit_tokens == (192 if when == "between" else 0)
        if when == "between":
            daemon.kill()
        got = generate(model, ids, cache, tokens=80)
        cache.close()
        assert torch.equal(got[:, : expected.shape[1]], expected)
        assert cache.problem is not None
    finally:
        client.close()
        daemon.kill()


def test_the_readme_example_runs(pagodad, tmp_path):
    model = make_model()
    model.save_pretrained(tmp_path)
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(300)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path)
    readme = REPOSITORY / "client" / "python" / "src" / "pagoda_kv" / "transformers" / "README.md"
    code = readme.read_text().split("```python")[1].split("```")[0]
    given = dict(
        folder=str(tmp_path),
        target=pagodad.listen,
        document=" ".join(f"w{3 + i % 290}" for i in range(300)),
        question=" w7 w8",
    )
    exec(code.replace("\n\ninputs", "\nclient.wait_connected(10)\ninputs"), given)
    assert given["cache"].problem is None
    assert given["cache"].pushed_pages == 5
    exec(code[code.index("inputs =") :], given)
    assert given["cache"].hit_tokens == 256
    given["client"].close()


def test_prefill_in_chunks_is_refused_after_loading(pagodad):
    model, config = make_model(seed=21), PagodaConfig(weights_revision="chunks")
    client = open_client(pagodad, model, config)
    cold, expected = run(model, prompt(200), config, client, prefill_chunk_size=70)
    assert cold.pushed_pages == 3
    assert torch.equal(generate(model, prompt(200), tokens=12, prefill_chunk_size=70), expected)
    with pytest.raises(ValueError, match="of the prompt"):
        run(model, prompt(200), config, client, prefill_chunk_size=70)
    client.close()
