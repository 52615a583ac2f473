"""Goal: keys are those of the contract. Method: the vectors of proto/README.md, read from there."""

import re

import numpy as np
import pagoda_kv
import pytest
from pagodad_process import REPOSITORY


def vector(name):
    text = (REPOSITORY / "proto" / "README.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
    return bytes.fromhex(re.findall(r"`([0-9a-f]{32,64})`", row)[-1])


ROOT = vector("root")


def test_key_chain():
    assert pagoda_kv.key_chain(bytes(32), [0, 1, 2, 3], 4) == [vector("known answer")]
    first = pagoda_kv.key_chain(ROOT, [1, 2, 3, 4], 4)
    assert first == [vector("first key")]
    # The second vector has an extra; without it, a chain goes on from the key before.
    chain = pagoda_kv.key_chain(ROOT, [1, 2, 3, 4, 5, 6, 7, 8], 4)
    assert chain == first + pagoda_kv.key_chain(first[0], [5, 6, 7, 8], 4)


def test_external_keys():
    assert pagoda_kv.external_keys(ROOT, [b"engine-hash"]) == [vector("engine's key")]
    assert pagoda_kv.external_keys(ROOT, []) == []


def test_identity():
    model = pagoda_kv.ModelSpec(
        "test",
        [pagoda_kv.LayerGroup(30, 3, 64)],
        weights_revision="abc",
        rope_theta=100000.0,
        rope_rotary_dims=64,
    )
    assert model.identity() == vector("identity")


@pytest.mark.parametrize(
    "of",
    [
        list,
        tuple,
        np.asarray,
        lambda ids: np.asarray(ids, np.uint32),
        lambda ids: np.asarray(ids, np.int64),
        lambda ids: np.repeat(np.asarray(ids, np.uint32), 2)[::2],
        lambda ids: range(ids[0], ids[-1] + 1),
    ],
)
def test_all_kinds_of_token_ids(of):
    assert pagoda_kv.key_chain(ROOT, of([1, 2, 3, 4]), 4) == [vector("first key")]


def test_only_full_pages_have_keys():
    assert pagoda_kv.key_chain(ROOT, range(7), 4) == pagoda_kv.key_chain(ROOT, range(4), 4)
    assert pagoda_kv.key_chain(ROOT, [], 4) == []


@pytest.mark.parametrize("token", [-1, 2**32, 2**70])
def test_tokens_have_32_bits(token):
    text = r"token_ids\[1\] is -?\d+; accepted: 0 to 4294967295"
    with pytest.raises(pagoda_kv.PagodaError, match=text):
        pagoda_kv.key_chain(ROOT, [1, token], 4)
    with pytest.raises(pagoda_kv.PagodaError, match="page_tokens"):
        pagoda_kv.key_chain(ROOT, [1], 0)


def test_crc32c():
    assert pagoda_kv.crc32c(b"123456789") == 0xE3069283
    assert pagoda_kv.crc32c(b"6789", pagoda_kv.crc32c(b"12345")) == 0xE3069283
    assert pagoda_kv.crc32c(np.zeros(0, np.uint8)) == 0


def test_opaque_segments_cover_all_layers():
    for layers, layer_bytes in [(1, 1), (30, 100_000), (5, 1 << 20), (500, 1000)]:
        runs = pagoda_kv.opaque_segment_layers(layers, layer_bytes)
        assert runs[0][0] == 0 and sum(count for _, count in runs) == layers
        assert all(a[0] + a[1] == b[0] for a, b in zip(runs, runs[1:]))
    for layers, layer_bytes in [(0, 1), (1, 0), (1, 1 << 30), (100_000, 1)]:
        with pytest.raises(pagoda_kv.PagodaError):
            pagoda_kv.opaque_segment_layers(layers, layer_bytes)


def test_copies_end_where_they_should():
    source = np.arange(5_000_000, dtype=np.uint8)
    for threads in (1, 2, 7):
        target = np.zeros_like(source)
        edges = np.array([0, 1, 1, 1000, 4_999_999, 5_000_000], np.uint64)
        lengths = np.diff(edges)
        starts = [np.uint64(side.ctypes.data) + edges[:-1] for side in (target, source)]
        rows = np.stack([*starts, lengths], axis=1)
        assert pagoda_kv.copy_spans(rows, threads) == source.nbytes
        assert np.array_equal(source, target)
    assert pagoda_kv.copy_spans(np.zeros((0, 3), np.uint64)) == 0
    with pytest.raises(pagoda_kv.PagodaError, match="threads is 0"):
        pagoda_kv.copy_spans(rows, 0)
