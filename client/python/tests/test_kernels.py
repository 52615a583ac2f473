"""Goal: codecs and attention do what pagoda_kv.kernels says.

Method: numpy in double beside them: the page format read by an independent decoder, the rotation as
a matrix, softmax over decoded rows; errors held to the bounds of kernels/codec.h and attention.h.
"""

import ast
import hashlib
import os
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

from pagoda_kv import _kernels, kernels
from pagoda_kv._kernels import PagodaError
from pagoda_kv.kernels import Page, PageShape

SIGNS = [0x70566427AD8ACC64, 0xF15B975D26D1E7DB, 0x53DCB0CA5DD29241, 0x9A79B5FB51392ACA]
SMALL = PageShape(layer_count=3, head_count=2, head_dim=64, page_tokens=64)


def bf16_bits(x):
    """Rounds to nearest, ties to even."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bits(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rotation(head_dim):
    """forward(x) = matrix @ x: block Hadamard with signs, kernels/hadamard.h."""
    matrix, begin = np.zeros((head_dim, head_dim)), 0
    for size in (256, 128, 64, 32, 16, 8):
        if not head_dim & size:
            continue
        for i in range(size):
            for j in range(size):
                sign = (-1) ** (bin(i & j).count("1"))
                channel = begin + j
                flipped = SIGNS[channel // 64] >> (channel % 64) & 1
                matrix[begin + i, channel] = (-sign if flipped else sign) / np.sqrt(size)
        begin += size
    return matrix


def groups(head_dim):
    """(begin, end) of the channels that share a scale."""
    result, at = [], 0
    for block in (256, 128, 64, 32, 16, 8):
        if head_dim & block:
            step = min(block, 64)
            result += [(at + i, at + i + step) for i in range(0, block, step)]
            at += block
    return result


def filled_page(shape, seed, base_position=0, outlier=True):
    """Keys with a mean and a loud channel, as models have them; also K and V as they are stored."""
    rng = np.random.default_rng(seed)
    page = Page(shape, base_position=base_position)
    rows = (shape.layer_count, shape.head_count, shape.page_tokens, shape.head_dim)
    k = rng.normal(size=rows) + 2 * rng.normal(size=rows[:2] + (1, rows[3]))
    if outlier:
        k[..., 5] *= 8
    v = rng.normal(size=rows) * 0.5
    for layer in range(shape.layer_count):
        page.write(layer, 0, k[layer].astype(np.float32), v[layer].astype(np.float32))
    return page, from_bits(bf16_bits(k)), from_bits(bf16_bits(v))


def segments_by_layer(page, planes):
    """[plane][layer] -> (layers of its segment, index in it, bytes)."""
    found = []
    for (begin, count), data in zip(page.segment_layers, page.segments, strict=True):
        if begin == 0:
            found.append({})
        for layer in range(begin, begin + count):
            found[-1][layer] = (count, layer - begin, data)
    assert len(found) == planes
    return found


def octets(words):
    """[...] u32 -> [..., 8] elements: byte i has e[i] low and e[4 + i] high."""
    data = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)
    return np.concatenate([data & 15, data >> 4], axis=-1)


def decode_codes(page, layer, head):
    """K and V in double, read as kernels/README.md draws them; also the row and mean norms of K."""
    shape = page.shape
    tokens, dim, heads = shape.page_tokens, shape.head_dim, shape.head_count
    parts = groups(dim)
    scales_bytes = len(parts) * tokens * 2
    mean_bytes = -(-dim // 32) * 64
    v_dim = -(-dim // 32) * 32
    q8 = page.reads_as == "q8"
    planes = (4 if q8 else 2) + (1 if page.base_position == 0 else 0)
    found = segments_by_layer(page, planes)
    levels, scales, mean = {}, {}, None
    names = [("k", 0), ("v", 0), ("k", 1), ("v", 1)][: 4 if q8 else 2]
    for index, (tensor, low) in enumerate(names):
        count, at, data = found[index][layer]
        has_mean = tensor == "k" and not low
        params = (mean_bytes if has_mean else 0) + scales_bytes
        codes = tokens * (dim if tensor == "k" else v_dim) // 2
        tile = at * heads + head
        raw = data[tile * params :][:params]
        if has_mean:
            mean = raw[: dim * 2].view(np.float16).astype(np.float64)
            raw = raw[mean_bytes:]
        scale = raw.view(np.float16).astype(np.float64).reshape(len(parts), tokens)
        begin = count * heads * params + tile * codes
        words = data[begin:][:codes].view(np.uint32)
        if tensor == "k":  # [block][octet of channels][32 tokens]
            octet = octets(words.reshape(tokens // 32, dim // 8, 32))
            code = octet.transpose(0, 2, 1, 3).reshape(tokens, dim)
        else:  # [block][channel block][octet of tokens][32 channels]
            octet = octets(words.reshape(tokens // 32, v_dim // 32, 4, 32))
            code = octet.transpose(0, 2, 4, 1, 3).reshape(tokens, v_dim)[:, :dim]
        levels[tensor, low], scales[tensor, low] = code.astype(np.float64), scale
    result, norms = [], None
    back = rotation(dim).T
    for tensor in "kv":
        if q8:
            level = 16 * levels[tensor, 0] + levels[tensor, 1] - 127.5
            scale = scales[tensor, 1] / 16
        else:
            level, scale = levels[tensor, 0] - 7.5, scales[tensor, 0]
        rows = np.zeros((tokens, dim))
        for group, (begin, end) in enumerate(parts):
            rows[:, begin:end] = level[:, begin:end] * scale[group][:, None]
        row_norm = np.linalg.norm(rows, axis=1)
        if tensor == "k":
            rows += mean
            norms = np.linalg.norm(mean)
        result.append((rows @ back.T, row_norm))
    if page.base_position == 0:
        count, at, data = found[-1][layer]
        words = data.view(np.uint16).reshape(count, 2, heads, 4, dim)[at, :, head]
        for i in range(2):
            result[i][0][:4] = from_bits(words[i])
    return result, norms


def attend(q, k, v, first_position, positions, scale):
    """Softmax in double. q [n, heads, d]; k, v [kv heads, tokens, d]."""
    group = q.shape[1] // k.shape[0]
    out = np.zeros(q.shape)
    lse2 = np.full(q.shape[:2], -np.inf)
    for i in range(q.shape[0]):
        seen = positions <= first_position + i
        if not seen.any():
            continue
        for h in range(q.shape[1]):
            x = (k[h // group][seen] @ q[i, h]) * scale * np.log2(np.e)
            weights = np.exp2(x - x.max())
            out[i, h] = weights @ v[h // group][seen] / weights.sum()
            lse2[i, h] = x.max() + np.log2(weights.sum())
    return out, lse2


def logit_bound(q, k, head_dim, scale, mean_norm, bits=None):
    """E of kernels/attention.h, by integers of `bits` bits where decode reads codes so."""
    reach = np.linalg.norm(q, axis=-1).max() * (np.linalg.norm(k, axis=-1).max() + mean_norm)
    e = 2.0**-24 * scale * np.log2(np.e) * (2 * head_dim + 320) * reach
    if bits is not None:
        e += 2.0 ** -(bits + 1) * np.sqrt(head_dim) * scale * np.log2(np.e) * reach
    return e


def assert_code(error, code, *words):
    assert error.value.code == code
    for word in words:
        assert word in str(error.value)


# ---- Pages


@pytest.mark.parametrize("dtype", ["float32", "float16", "bits", "strided"])
def test_raw16_rows_are_rounded_to_bf16(dtype):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 64, 64)).astype(np.float32)
    x[0, 0, :4] = [1 + 2**-8, 1 + 3 * 2**-8, -0.0, 1e-40]  # two ties, a sign, a subnormal
    given = {
        "float32": x,
        "float16": x.astype(np.float16),
        "bits": bf16_bits(x),
        "strided": np.ascontiguousarray(x.transpose(2, 1, 0)).transpose(2, 1, 0),
    }[dtype]
    page = Page(SMALL)
    page.write(1, 0, given, given)
    k, v = kernels.decode([page], 1)
    expected = from_bits(bf16_bits(given if dtype == "float16" else x))
    if dtype == "float16":
        expected = from_bits(bf16_bits(x.astype(np.float16).astype(np.float32)))
    np.testing.assert_array_equal(k, expected)
    np.testing.assert_array_equal(v, expected)
    assert not kernels.decode([page], 0)[0].any()


def test_bytes_go_out_and_come_back():
    page, k, v = filled_page(SMALL, 2)
    assert page.nbytes == 2 * 2 * 3 * 2 * 64 * 64 == page.data().nbytes
    layer = page.data().view(np.uint16).reshape(3, 2, 2, 64, 64)[2]
    np.testing.assert_array_equal(from_bits(layer[0]), k[2])
    np.testing.assert_array_equal(from_bits(layer[1]), v[2])
    for precision in ("q8", "q4", "q3", "q2"):
        codes = kernels.encode(page, precision)
        assert codes.precision == precision
        over = Page(SMALL, precision, codes.segments)
        again = Page.from_bytes(SMALL, precision, codes.data())
        misaligned = np.empty(codes.nbytes + 1, np.uint8)[1:]
        misaligned[:] = codes.data()
        for other in (over, again, Page.from_bytes(SMALL, precision, misaligned)):
            np.testing.assert_array_equal(other.data(), codes.data())
            np.testing.assert_array_equal(
                kernels.decode([other], 1)[0], kernels.decode([codes], 1)[0]
            )


def test_segments_outlive_their_page():
    page, _, _ = filled_page(SMALL, 3)
    expected = page.data()
    segments = page.segments
    del page
    np.testing.assert_array_equal(np.concatenate(segments), expected)
    assert not segments[0].flags.writeable


def test_a_page_over_foreign_memory_is_not_written():
    page, _, _ = filled_page(SMALL, 4)
    over = Page(SMALL, "raw16", page.segments)
    rows = np.zeros((2, 1, 64), np.float32)
    with pytest.raises(PagodaError) as error:
        over.write(0, 0, rows, rows)
    assert_code(error, "FAILED_PRECONDITION", "Page(shape)")


# ---- Codecs


@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("base_position", [0, 128])
@pytest.mark.parametrize("precision", ["q8", "q4"])
def test_codes_decode_as_the_format_is_drawn(head_dim, base_position, precision):
    shape = PageShape(2, 2, head_dim, 64)
    page, k, v = filled_page(shape, head_dim, base_position)
    codes = kernels.encode(page, precision)
    forward = rotation(head_dim)
    for layer in range(2):
        decoded = kernels.decode([codes], layer)
        for head in range(2):
            expected, mean_norm = decode_codes(codes, layer, head)
            for tensor, truth, (rows, norms) in zip(decoded, (k, v), expected, strict=True):
                bound = (np.log2(head_dim) + 5) * 2.0**-24 * (norms + mean_norm)
                error = np.abs(tensor[head] - rows).max(axis=1)
                assert (error <= bound + 1e-30).all()
                # Against what was encoded: half a step, and what the scale moves it, per element
                # of the rotated frame (kernels/codec.h), here with the scale's freedom at a tenth.
                y = truth[layer, head].astype(np.float64) @ forward.T
                if tensor is decoded[0]:
                    y = y - y.mean(axis=0)
                step = 1 / 127.5 if precision == "q8" else 16 / 127.5
                difference = (tensor[head] - truth[layer, head]) @ forward.T
                first = 4 if base_position == 0 else 0
                np.testing.assert_array_equal(
                    tensor[head][:first], truth[layer, head][:first]
                )
                for begin, end in groups(head_dim):
                    m = np.abs(y[first:, begin:end]).max(axis=1, keepdims=True)
                    assert (
                        np.abs(difference[first:, begin:end]) <= m * (0.5 * step + 0.2) + 2**-10 * m
                    ).all()


def test_q8_is_an_order_better_than_q4():
    page, k, _ = filled_page(SMALL, 6, base_position=64)
    errors = [
        np.sqrt(np.mean((kernels.decode([kernels.encode(page, p)], 0)[0] - k[0]) ** 2))
        for p in ("q8", "q4", "q3", "q2")
    ]
    assert errors[0] * 8 < errors[1] < errors[2] < errors[3]


def test_dropping_bits_gives_what_encoding_gives():
    page, _, _ = filled_page(SMALL, 7)
    q8 = kernels.encode(page, "q8")
    for precision in ("q4", "q3", "q2"):
        np.testing.assert_array_equal(
            kernels.cut(q8, precision).data(), kernels.encode(page, precision).data()
        )
    q4 = q8.read_at("q4")
    assert (q4.precision, q4.reads_as) == ("q8", "q4")
    np.testing.assert_array_equal(
        kernels.decode([q4], 1)[1], kernels.decode([kernels.cut(q8, "q4")], 1)[1]
    )
    with pytest.raises(PagodaError) as error:
        kernels.cut(kernels.cut(q8, "q4"), "q8")
    assert_code(error, "FAILED_PRECONDITION")


def test_a_page_encoded_layer_by_layer_has_the_same_bytes():
    page, _, _ = filled_page(SMALL, 8)
    for precision in ("q8", "q4"):
        target = Page(SMALL, precision)
        for layer in (2, 0, 1):
            kernels.encode_layer(page, target, layer)
        np.testing.assert_array_equal(target.data(), kernels.encode(page, precision).data())


def test_q4_keeps_k_lo_where_a_profile_asks():
    page, _, _ = filled_page(SMALL, 9, base_position=64)
    profile = kernels.encode(page, "q4", k_lo_layers=[1])
    q8, q4 = kernels.encode(page, "q8"), kernels.encode(page, "q4")
    np.testing.assert_array_equal(kernels.decode([profile], 0)[0], kernels.decode([q4], 0)[0])
    np.testing.assert_array_equal(kernels.decode([profile], 1)[0], kernels.decode([q8], 1)[0])
    np.testing.assert_array_equal(kernels.decode([profile], 1)[1], kernels.decode([q4], 1)[1])
    assert q4.nbytes < profile.nbytes < q8.nbytes


HASHES = """
import hashlib, sys
import numpy as np
from pagoda_kv import kernels
if sys.argv[1] != "default":
    kernels.use_isa(sys.argv[1])
shape = kernels.PageShape(2, 2, 80, 64)
rng = np.random.default_rng(11)
page = kernels.Page(shape)
for layer in range(2):
    page.write(layer, 0, *rng.normal(size=(2, 2, 64, 80)).astype(np.float32))
print(hashlib.sha256(kernels.encode_bytes(page.data(), shape)).hexdigest())
"""


def test_codes_are_the_same_on_every_instruction_set():
    def run(isa):
        done = subprocess.run(
            [sys.executable, "-c", HASHES, isa], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert len({run(isa) for isa in ["default", *kernels.available_isas()]}) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**18])
def test_what_codes_cannot_hold_is_refused(value):
    page, _, _ = filled_page(SMALL, 12)
    rows = np.full((2, 1, 64), value, np.float32)
    page.write(2, 10, rows, rows)
    with pytest.raises(PagodaError) as error:
        kernels.encode(page)
    assert_code(error, "INVALID_ARGUMENT")


# ---- Attention


@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("queries", [1, 2, 100])
@pytest.mark.parametrize("mix", ["raw16", "q8", "q4", "q8 q4 raw16"])
def test_attention_equals_softmax_in_double(head_dim, group, queries, mix):
    shape = PageShape(1, 2, head_dim, 64)
    rng = np.random.default_rng(head_dim + group)
    pages = []
    for i in range(3):
        page, _, _ = filled_page(shape, 20 + i, 64 * i, outlier=False)
        precision = mix.split()[i % len(mix.split())]
        pages.append(page if precision == "raw16" else kernels.encode(page, precision))
    q = rng.normal(size=(queries, 2 * group, head_dim)).astype(np.float32)
    scale = 1 / np.sqrt(head_dim)
    k, v = (x.astype(np.float64) for x in kernels.decode(pages, 0))
    first = 192 - queries
    out, lse2 = kernels.attention(q, pages, 0, lse=True)
    expected, expected_lse2 = attend(q, k, v, first, np.arange(192), scale)
    integers = queries == 1 and mix != "raw16" and kernels.available_isas()[0] != "portable"
    e = logit_bound(q, k, head_dim, scale, np.linalg.norm(k.mean(axis=1), axis=-1).max(),
                    bits=7 if integers else None)
    v_max = np.abs(v).max()
    bound = 2 * v_max * (e + 2.0**-20 + (192 + 64) * 2.0**-24)
    if integers:
        bound += 2.0**-7 * 64 * v_max
    assert np.abs(out - expected).max() <= bound
    lse_bound = e + 2.0**-20 * (1 + np.abs(lse2).max()) + 192 * 2.0**-24
    assert np.abs(lse2 - expected_lse2).max() <= lse_bound
    # Worst cases are far away: this is what attention is like.
    assert np.abs(out - expected).max() <= v_max * (0.02 if integers else 2e-5)
    by_floats = kernels.attention(q, pages, 0, float_codes=True)
    assert np.abs(by_floats - expected).max() <= v_max * 2e-5


def test_rows_see_no_token_after_them_and_gaps_are_fine():
    shape = PageShape(1, 1, 64, 64)
    first, _, _ = filled_page(shape, 30, 64)
    second, _, _ = filled_page(shape, 31, 256)
    q = np.random.default_rng(32).normal(size=(300, 2, 64)).astype(np.float32)
    out, lse2 = kernels.attention(q, [first, second], 0, first_position=0, lse=True)
    k, v = (x.astype(np.float64) for x in kernels.decode([first, second], 0))
    positions = np.r_[64:128, 256:320]
    expected, expected_lse2 = attend(q, k, v, 0, positions, 1 / 8)
    np.testing.assert_allclose(out, expected, atol=1e-4)
    assert not out[:64].any()
    assert np.isneginf(lse2[:64]).all() and np.isneginf(expected_lse2[:64]).all()
    np.testing.assert_allclose(lse2[64:], expected_lse2[64:], atol=1e-4)


def test_rows_that_are_not_written_are_not_read():
    shape = PageShape(1, 1, 64, 64)
    page, _, _ = filled_page(shape, 33)
    q = np.random.default_rng(34).normal(size=(10, 1, 64)).astype(np.float32)
    before = kernels.attention(q, [page], 0, first_position=20)
    rows = np.full((1, 34, 64), np.nan, np.float32)
    page.write(0, 30, rows, rows)
    np.testing.assert_array_equal(kernels.attention(q, [page], 0, first_position=20), before)


def test_merged_parts_are_the_whole():
    shape = PageShape(1, 2, 64, 64)
    pages = [kernels.encode(filled_page(shape, 40 + i, 64 * i)[0], "q8") for i in range(4)]
    q = np.random.default_rng(41).normal(size=(7, 4, 64)).astype(np.float32)
    whole, whole_lse2 = kernels.attention(q, pages, 0, first_position=249, lse=True)
    parts = [
        kernels.attention(q, half, 0, first_position=249, lse=True)
        for half in (pages[:1], pages[1:])
    ]
    out, lse2 = kernels.merge_states(*parts[0], *parts[1])
    np.testing.assert_allclose(out, whole, atol=2e-5)
    np.testing.assert_allclose(lse2, whole_lse2, atol=2e-5)
    empty = (np.zeros_like(out), np.full_like(lse2, -np.inf))
    np.testing.assert_array_equal(kernels.merge_states(*parts[0], *empty)[0], parts[0][0])
    np.testing.assert_array_equal(kernels.merge_states(*empty, *parts[0])[1], parts[0][1])


def test_threads_change_nothing():
    shape = PageShape(1, 4, 64, 64)
    pages = [filled_page(shape, 50 + i, 64 * i)[0] for i in range(16)]
    rng = np.random.default_rng(51)
    try:
        for queries in (1, 129, 257, 300):
            q = rng.normal(size=(queries, 8, 64)).astype(np.float32)
            kernels.set_threads(1)
            alone = kernels.attention(q, pages, 0, lse=True)
            kernels.set_threads(2)
            shared = kernels.attention(q, pages, 0, lse=True)
            for a, b in zip(alone, shared, strict=True):
                np.testing.assert_array_equal(a, b)
        assert kernels.threads() == 2
        child = os.fork()
        if child == 0:
            again = kernels.attention(q, pages, 0)
            os._exit(0 if np.array_equal(again, shared[0]) else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        kernels.set_threads(1)


def test_other_python_threads_go_on():
    shape = PageShape(1, 8, 128, 64)
    pages = [filled_page(shape, 60 + i, 64 * i)[0] for i in range(8)]
    q = np.random.default_rng(61).normal(size=(512, 16, 128)).astype(np.float32)
    worker = threading.Thread(target=lambda: [kernels.attention(q, pages, 0) for _ in range(4)])
    steps = 0
    worker.start()
    while worker.is_alive():
        steps += 1
    assert steps > 10_000


# ---- Errors


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: PageShape(0, 1, 64, 64), ["layer"]),
        (lambda: PageShape(1, 1, 65, 64), ["65"]),
        (lambda: PageShape(1, 1, 64, 48), ["48"]),
        (lambda: Page(SMALL, "q5"), ["q5"]),
        (lambda: Page(SMALL, "q2"), ["q2"]),
        (lambda: Page(SMALL, base_position=32), ["32", "64"]),
        (lambda: Page(SMALL, "raw16", []), ["0 segments"]),
        (lambda: Page(SMALL, "q8", [b"x"] * 5), ["1 bytes"]),
        (lambda: Page.from_bytes(SMALL, "raw16", bytes(3)), ["3 bytes", "98304"]),
        (lambda: Page(SMALL).write(3, 0, np.zeros((2, 1, 64)), np.zeros((2, 1, 64))), ["layer 3"]),
        (lambda: Page(SMALL).write(0, 0, np.zeros((2, 1, 64)), np.zeros((2, 1, 64))), ["64 bits"]),
        (lambda: Page(SMALL).write(0, 0, np.zeros((2, 1, 32), "f"), np.zeros((2, 1, 64), "f")),
         ["[2][1][32]"]),
        (lambda: Page(SMALL).write(0, 60, *np.zeros((2, 2, 5, 64), "f")), ["5 tokens"]),
        (lambda: kernels.decode([], 0), ["no pages"]),
        (lambda: kernels.decode([Page(SMALL), Page(PageShape(1, 2, 64, 64))], 0), ["shapes"]),
        (lambda: kernels.attention(np.zeros((1, 3, 64), "f"), [Page(SMALL)], 0), ["2 kv heads"]),
        (lambda: kernels.attention(np.zeros((1, 2, 64), "f"), [Page(SMALL)] * 2, 0), ["sort"]),
        (lambda: kernels.attention(np.zeros((1, 2, 64), "f"), [Page(SMALL)], -1), ["layer -1"]),
        (lambda: kernels.merge_states(*[np.zeros((1, 2, 3), "f"), np.zeros((1, 1), "f")] * 2),
         ["rows"]),
        (lambda: kernels.set_threads(0), ["0 threads"]),
        (lambda: kernels.use_isa("abacus"), ["abacus"]),
    ],
)
def test_errors_name_the_value(call, words):
    with pytest.raises(PagodaError) as error:
        call()
    assert_code(error, "INVALID_ARGUMENT", *words)


def test_encoding_codes_again_is_refused():
    page, _, _ = filled_page(SMALL, 70)
    for call in (
        lambda: kernels.encode(kernels.encode(page)),
        lambda: kernels.encode_layer(page, Page(SMALL), 0),
        lambda: page.read_at("q8"),
    ):
        with pytest.raises(PagodaError) as error:
            call()
        assert_code(error, "FAILED_PRECONDITION")


def test_the_hash_of_a_known_page_is_known():
    """Bytes that were written once are read by later versions."""
    page = Page(SMALL)
    ramp = (np.arange(2 * 64 * 64) % 251 - 125).astype(np.float32).reshape(2, 64, 64) / 16
    for layer in range(3):
        page.write(layer, 0, ramp * (layer + 1), -ramp)
    digest = hashlib.sha256(kernels.encode(page).data()).hexdigest()
    assert digest == "c9044addd78e30e5301682caad65ec13bcaececc39a87a9c3e7c6d67c2b051f2"


def test_the_stub_names_what_is_there():
    stub = pathlib.Path(kernels.__file__).with_name("_kernels.pyi")
    named = {
        node.name
        for node in ast.parse(stub.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    there = {name for name in dir(_kernels) if not name.startswith("_")} - {"PagodaError"}
    assert named == there == set(kernels.__all__) - {"encode_bytes", "decode_bytes"}
    for name in named:
        assert getattr(_kernels, name).__doc__
