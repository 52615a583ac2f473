"""Goal: generate() with a PagodaCache gives what it gives without: at raw16 exactly, with any
attention, in batches and beams, cold and out of the daemon; and codes are read as they should be.

Method: tiny random Llama, Qwen2, Qwen3 and Mistral models, beside DynamicCache; and attention in
double over what PageSequence says that a query reads.
"""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the cache for Transformers needs torch")
transformers = pytest.importorskip("transformers", reason="needs transformers")

from pagoda_kv import kernels  # noqa: E402
from pagoda_kv.transformers import PagodaCache, PagodaConfig, model_spec  # noqa: E402
from pagoda_kv.transformers.page_sequence import PageSequence  # noqa: E402

SIZES = dict(
    vocab_size=320,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=2048,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
MODELS = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {}),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, {}),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, {}),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM, {}),
    "mistral, sliding": (
        transformers.MistralConfig,
        transformers.MistralForCausalLM,
        dict(sliding_window=100),
    ),
}
ENCODED = PagodaConfig("q8", window=64)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    with torch.no_grad():
        yield


def make_model(name="llama", dtype=torch.bfloat16, attention="sdpa", seed=0):
    config, model, options = MODELS[name]
    torch.manual_seed(seed)
    made = model(config(**SIZES, **options)).to(dtype).eval()
    made.set_attn_implementation(attention)
    return made


def prompt(tokens=200, rows=1, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, SIZES["vocab_size"], (rows, tokens), generator=generator)


def generate(model, ids, cache=None, tokens=12, **options):
    return model.generate(
        ids, past_key_values=cache, max_new_tokens=tokens, do_sample=False, eos_token_id=None,
        **options,
    )


# ---- raw16 is exact


@pytest.mark.parametrize("attention", ["sdpa", "eager", "pagoda"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("name", MODELS)
def test_raw16_equals_the_default_cache(name, dtype, attention):
    model = make_model(name, dtype, "eager" if attention == "eager" else "sdpa")
    expected = generate(model, prompt(), return_dict_in_generate=True, output_logits=True)
    model.set_attn_implementation(attention)
    cache = PagodaCache(model)
    got = generate(model, prompt(), cache, return_dict_in_generate=True, output_logits=True)
    assert torch.equal(got.sequences, expected.sequences)
    if name != "mistral, sliding":  # the default drops what has left the window: other sums
        for a, b in zip(got.logits, expected.logits, strict=True):
            assert torch.equal(a, b)
    assert cache.get_seq_length() == 200 + 11


@pytest.mark.parametrize("attention", ["sdpa", "pagoda"])
@pytest.mark.parametrize("config", [PagodaConfig(), PagodaConfig("q8", window=1024)])
def test_padded_batches_and_beams(config, attention):
    model = make_model(attention=attention)
    ids = prompt(90, rows=3)
    mask = torch.ones_like(ids)
    for row, pad in enumerate((70, 0, 13)):
        ids[row, :pad], mask[row, :pad] = 0, 0
    model.set_attn_implementation("sdpa")
    expected = generate(model, ids, attention_mask=mask)
    beams = generate(model, ids, attention_mask=mask, num_beams=3)
    model.set_attn_implementation(attention)
    got = generate(model, ids, PagodaCache(model, config), attention_mask=mask)
    got_beams = generate(model, ids, PagodaCache(model, config), attention_mask=mask, num_beams=3)
    if config.precision == "raw16":
        assert torch.equal(got, expected)
        assert torch.equal(got_beams, beams)
    else:  # the kernels sum in another order
        assert (got == expected).float().mean() > 0.95
        assert (got_beams == beams).float().mean() > 0.9


def test_a_conversation_goes_on_in_one_cache():
    model = make_model()
    first = prompt(100)
    cache, default = PagodaCache(model), transformers.DynamicCache(config=model.config)
    for _ in range(3):
        expected = generate(model, first, default)
        assert torch.equal(generate(model, first, cache), expected)
        first = torch.cat([expected, prompt(20, seed=expected.shape[1])], dim=1)


def test_assisted_generation_crops_the_cache():
    model, assistant = make_model(), make_model(seed=3)
    expected = generate(model, prompt())
    got = generate(model, prompt(), PagodaCache(model), assistant_model=assistant)
    assert torch.equal(got, expected)


# ---- Codes


def dense_reference(model, ids, config):
    """Hidden states where attention reads, in double, what PageSequence says."""
    size, window = config.page_tokens, config.window
    pages_before = lambda page: max(0, page - -(-window // size))  # noqa: E731

    def attention(module, query, key, value, attention_mask, scaling=None, **kwargs):
        k, v = key[0], value[0]
        shape = kernels.PageShape(1, k.shape[0], k.shape[2], size)
        count = -(-k.shape[1] // size)
        raw = [kernels.Page(shape, base_position=i * size) for i in range(count)]
        for i, page in enumerate(raw):
            rows = slice(i * size, min((i + 1) * size, k.shape[1]))
            page.write(0, 0, k[:, rows].contiguous(), v[:, rows].contiguous())
        codes = [kernels.encode(page, config.precision) for page in raw[:-1]]
        out = torch.zeros(query.shape[1:], dtype=torch.float64)
        group = query.shape[1] // k.shape[0]
        for t in range(query.shape[2]):
            encoded = pages_before(t // size)
            keys, values = kernels.decode(codes[:encoded] + raw[encoded : t // size + 1], 0)
            keys, values = (
                torch.from_numpy(x[:, : t + 1]).double().repeat_interleave(group, dim=0)
                for x in (keys, values)
            )
            scores = torch.einsum("hd,htd->ht", query[0, :, t].double(), keys) * scaling
            out[:, t] = torch.einsum("ht,htd->hd", scores.softmax(dim=-1), values)
        return out.transpose(0, 1)[None].to(query.dtype), None

    transformers.AttentionInterface.register("in_double", attention)
    before = model.config._attn_implementation
    model.set_attn_implementation("in_double")
    hidden = model.model(ids, use_cache=False).last_hidden_state
    model.set_attn_implementation(before)
    return hidden


@pytest.mark.parametrize("chunks", [[300], [1] * 3 + [200, 97], [128, 64, 108]])
@pytest.mark.parametrize(
    "config", [PagodaConfig("q8", window=64), PagodaConfig("q4", window=100), PagodaConfig("q4", 0)]
)
def test_a_query_reads_what_its_position_says(config, chunks):
    model = make_model(dtype=torch.float32, attention="pagoda")
    ids = prompt(300)
    expected = dense_reference(model, ids, config)
    cache, hidden, at = PagodaCache(model, config), [], 0
    for count in chunks:
        out = model.model(ids[:, at : at + count], past_key_values=cache)
        hidden.append(out.last_hidden_state)
        at += count
    # By integers, single tokens are read to 2 % of the largest value at worst.
    single = 1 in chunks
    torch.testing.assert_close(
        torch.cat(hidden, dim=1), expected, atol=0.05 if single else 2e-4, rtol=0
    )


@pytest.mark.parametrize("precision", ["q8", "q4"])
def test_any_attention_reads_codes(precision):
    """Others get decoded K and V: in decode the same ones."""
    model = make_model(dtype=torch.float32, attention="pagoda")
    config = PagodaConfig(precision, window=64)
    pages = PagodaCache(model, config)
    model.model(prompt(300), past_key_values=pages)
    others = copy.deepcopy(pages)
    a = model.model(prompt(1, seed=4), past_key_values=pages).last_hidden_state
    model.set_attn_implementation("eager")
    b = model.model(prompt(1, seed=4), past_key_values=others).last_hidden_state
    torch.testing.assert_close(a, b, atol=0.05, rtol=0)


def test_a_mask_that_is_more_than_causal_is_obeyed():
    model = make_model(dtype=torch.float32, attention="pagoda")
    ids = prompt(150)
    cache = PagodaCache(model, ENCODED)
    model.model(ids, past_key_values=cache)
    mask = torch.ones(1, 151, dtype=torch.long)
    mask[0, 20:40] = 0
    got = model.model(ids[:, :1], past_key_values=cache, attention_mask=mask).last_hidden_state
    model.set_attn_implementation("sdpa")
    default = transformers.DynamicCache(config=model.config)
    model.model(ids, past_key_values=default)
    expected = model.model(
        ids[:, :1], past_key_values=default, attention_mask=mask
    ).last_hidden_state
    torch.testing.assert_close(got, expected, atol=0.05, rtol=0)


def test_encoded_pages_take_the_place_of_raw_ones():
    shape, tokens = kernels.PageShape(4, 4, 64), 1024
    rows = np.zeros((4, tokens, 64), np.float32)
    sizes = {}
    for precision, window in (("q8", 1024), ("q8", 0), ("q4", 0)):
        sequence = PageSequence(shape, PagodaConfig(precision, window))
        for layer in range(4):
            sequence.write(layer, 0, rows, rows)
        sequence.advance(tokens)
        sequence.settle()
        sizes[precision, window] = sequence.stored_bytes() / sizes.get(("q8", 1024), 1)
    assert sizes["q8", 1024] == 16 * (4096 + 4 * 2 * 4 * 64 * 64 * 2)
    assert sizes["q8", 0] < 0.6
    assert sizes["q4", 0] < 0.35


def test_what_does_not_know_pages_fails_aloud():
    model = make_model(attention="pagoda")
    cache = PagodaCache(model, ENCODED)
    states = torch.zeros(1, 2, 70, 16, dtype=torch.bfloat16)
    key, _ = cache.update(states, states, 0)
    assert key.shape == (1, 2, 70, 16)
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.matmul(states, key.transpose(2, 3)).sum().item()


@pytest.mark.parametrize("length", [300, 256, 250, 130, 64, 10, 0])
def test_crop_goes_back_into_encoded_pages(length):
    model = make_model(dtype=torch.float32, attention="pagoda")
    ids = prompt(320)
    cache = PagodaCache(model, ENCODED)
    model.model(ids, past_key_values=cache)
    cache.crop(length - 320)
    assert cache.get_seq_length() == length
    got = model.model(ids[:, length:], past_key_values=cache).last_hidden_state
    expected = model.model(ids, past_key_values=PagodaCache(model, ENCODED)).last_hidden_state
    torch.testing.assert_close(got, expected[:, length:], atol=0.02, rtol=0)


def test_rows_of_a_paged_cache_are_chosen_and_multiplied():
    model = make_model(dtype=torch.float32, attention="pagoda")
    ids = prompt(150, rows=3)
    cache = PagodaCache(model, ENCODED)
    model.model(ids, past_key_values=cache)
    cache.reorder_cache(torch.tensor([2, 0, 2]))
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 2, 5]))
    more = prompt(40, rows=3, seed=9)
    got = model.model(more, past_key_values=cache).last_hidden_state
    whole = torch.cat([ids[[2, 0, 2]], more], dim=1)
    expected = model.model(whole, past_key_values=PagodaCache(model, ENCODED)).last_hidden_state
    torch.testing.assert_close(got, expected[:, 150:], atol=1e-4, rtol=0)


def test_reset_forgets_everything():
    model = make_model(attention="pagoda")
    for config in (PagodaConfig(), ENCODED):
        cache = PagodaCache(model, config)
        first = generate(model, prompt(), cache)
        cache.reset()
        assert cache.get_seq_length() == 0
        assert torch.equal(generate(model, prompt(), cache), first)


def test_what_codes_cannot_hold_stays_raw():
    shape, size = kernels.PageShape(2, 1, 16, 32), 32
    sequence = PageSequence(shape, PagodaConfig("q4", window=0, page_tokens=32))
    rows = np.random.default_rng(5).normal(size=(1, 3 * size, 16)).astype(np.float32)
    wild = rows.copy()
    wild[0, 3, 3] = np.inf
    for layer, k in enumerate((rows, wild)):
        sequence.write(layer, 0, k, rows)
    q = np.ones((1, 1, 16), np.float32)
    sequence.attend(1, 3 * size - 1, q, 0.1)
    sequence.advance(3 * size)
    sequence.settle()
    sequence.write(0, 3 * size, rows[:, :1], rows[:, :1])
    k, _ = sequence.rows(1, 3 * size, 3 * size)
    assert np.isinf(k[0, 3, 3])
    assert sequence.raw_page(0) is not None
    assert sequence.raw_page(1) is None
    assert not np.isinf(sequence.rows(0, 3 * size, 3 * size)[0]).any()


def test_fidelity_is_the_lowest_that_was_read():
    shape = kernels.PageShape(1, 1, 16, 32)
    config = PagodaConfig("q4", window=32, q8_tokens=96, page_tokens=32)
    sequence = PageSequence(shape, config)
    rows = np.zeros((1, 8 * 32, 16), np.float32)
    sequence.write(0, 0, rows, rows)
    sequence.advance(8 * 32)
    assert [sequence.fidelity(i) for i in range(8)] == ["raw16"] * 2 + ["q8"] * 2 + ["q4"] * 4
    again = PageSequence(shape, config)
    again.write(0, 0, rows, rows)
    again.advance(8 * 32, read_from=0)
    assert {again.fidelity(i) for i in range(8)} == {"raw16"}


# ---- Wrong inputs


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (dict(precision="q5"), "q5"),
        (dict(window=-1), "-1"),
        (dict(page_tokens=48), "48"),
        (dict(q8_tokens=8), "q8_tokens"),
    ],
)
def test_config_names_the_value(options, word):
    with pytest.raises(ValueError, match=word):
        PagodaConfig(**options)


def test_models_without_rows_of_heads_are_refused():
    model = make_model()
    model.config.layer_types = ["linear_attention"] * 3
    with pytest.raises(ValueError, match="linear_attention"):
        PagodaCache(model)


def test_heads_of_another_shape_are_refused():
    cache = PagodaCache(make_model())
    with pytest.raises(ValueError, match="3 heads of 16"):
        cache.update(torch.zeros(1, 3, 5, 16), torch.zeros(1, 3, 5, 16), 0)


@pytest.mark.parametrize("name", ["softcap", "s_aux"])
def test_attention_that_the_kernels_have_not_is_refused(name):
    from pagoda_kv.transformers.attention import attention_forward

    states = torch.zeros(1, 2, 5, 16)
    with pytest.raises(ValueError, match=name):
        attention_forward(torch.nn.Identity(), states, states, states, None, **{name: 30.0})


def test_specs_tell_models_apart():
    config = PagodaConfig()
    base = model_spec(make_model(), config).identity()
    assert base == model_spec(make_model(), config).identity()
    changed = make_model()
    changed.model.layers[2].mlp.up_proj.weight[5, 5] += 1
    others = [
        make_model(seed=1),
        make_model(dtype=torch.float32),
        make_model("qwen2"),
        make_model("mistral, sliding"),
        changed,
    ]
    identities = {model_spec(model, config).identity() for model in others} | {base}
    assert len(identities) == len(others) + 1
    named = PagodaConfig(weights_revision="v1")
    assert model_spec(make_model(), named).identity() == model_spec(changed, named).identity()
    model = make_model()
    assert model_spec(model, config).identity() == base
    model.lm_head.weight[1, 1] += 1  # in place, after it was hashed
    assert model_spec(model, config).identity() != base
