"""Goal: what is pushed comes back byte for byte, by every path: shared memory and gRPC, whole,
mapped and layer by layer. Method: a real daemon."""

import numpy as np
import pages
import pagoda_kv
import pytest
from pagodad_process import Pagodad


def test_pages_come_back(any_client, first_token):
    scope, keys = pages.stored(any_client, 3, first_token)
    hit = any_client.lookup(scope, keys)
    assert len(hit) == 3 and hit and hit.chain_index == 0 and not hit.loading
    assert hit.pages[0].precision == hit.pages[0].fidelity == "raw16"
    assert hit.pages[0].tier == "host" and hit.pages[0].bytes >= pages.PAGE_BYTES
    assert len(hit.lease) == 16 and 0 < hit.lease_seconds < 3600
    result = any_client.fetch(hit, keys)
    assert result.error is None and result.bytes >= 3 * pages.PAGE_BYTES
    assert len(result.pages) == 3
    for i, page in enumerate(result.pages):
        assert page.header.key == keys[i]
        assert page.header.parent == (scope.root if i == 0 else keys[i - 1])
        assert page.header.base_position == i * pages.PAGE_TOKENS
        assert page.header.page_tokens == pages.PAGE_TOKENS
        assert (page.header.head_begin, page.header.head_count) == (0, pages.HEADS)
        assert page.header.layer_count == pages.LAYERS
        assert page.header.precision == page.header.fidelity == "raw16"
        assert sum(page.header.segment_lengths) == pages.PAGE_BYTES
        runs = pagoda_kv.opaque_segment_layers(pages.LAYERS, pages.LAYER_BYTES)
        assert page.header.segment_layers == runs
        assert [len(segment) for segment in page.segments] == page.header.segment_lengths
        assert np.array_equal(page.data(), pages.payload(i))
        assert np.array_equal(np.concatenate(page.segments), pages.payload(i))
    any_client.release(hit)


def test_paths_are_what_was_asked_for(pagodad, first_token):
    with pages.client(pagodad) as by_shm, pages.client(pagodad, shm_socket="none") as by_grpc:
        scope, keys = pages.stored(by_shm, 2, first_token)
        for one in (by_shm, by_grpc):
            one.fetch(one.lookup(scope, keys), keys)
        assert by_shm.stats()["shm_pages"] == 2 and "shm: " in by_shm.path_lines()
        assert by_grpc.stats()["shm_pages"] == 0 and by_grpc.stats()["fetched_pages"] == 2
        with pytest.raises(pagoda_kv.PagodaError) as error:
            by_grpc.map(by_grpc.lookup(scope, keys), keys)
        assert error.value.code == "UNAVAILABLE"


def test_a_part_of_the_pages(any_client, first_token):
    scope, keys = pages.stored(any_client, 4, first_token)
    hit = any_client.lookup(scope, keys)
    result = any_client.fetch(hit, keys, begin=1, count=2)
    assert [page.header.key for page in result.pages] == keys[1:3]
    assert np.array_equal(result.pages[1].data(), pages.payload(2))


def test_a_miss_is_an_empty_hit(client, first_token):
    scope = client.scope("private")
    hit = client.lookup(scope, pages.keys_of(scope, 2, first_token))
    assert len(hit) == 0 and not hit and hit.pages == []


def test_the_longest_prefix_is_found(client, first_token):
    scope, keys = pages.stored(client, 2, first_token)
    assert len(client.lookup(scope, pages.keys_of(scope, 5, first_token))) == 2


def test_maps_show_the_daemons_memory(client, first_token):
    scope, keys = pages.stored(client, 3, first_token)
    hit = client.lookup(scope, keys)
    mapped = client.map(hit, keys)
    assert len(mapped) == 3 and mapped.error is None
    for i in range(3):
        assert mapped.header(i).key == keys[i]
        segments = mapped.segments(i)
        assert not segments[0].flags.writeable
        with pytest.raises(ValueError):
            segments[0][0] = 1
        assert np.array_equal(np.concatenate(segments), pages.payload(i))
    assert mapped.still_valid()
    client.release(hit)
    with pytest.raises(IndexError):
        mapped.segments(3)
    with pytest.raises(IndexError):
        mapped.header(-1)


def test_spans_are_copied_out_of_a_map(client, first_token):
    scope, keys = pages.stored(client, 5, first_token)
    mapped = client.map(client.lookup(scope, keys), keys)
    spans = mapped.spans()
    assert spans.dtype == np.uint64 and spans.shape[1] == 5
    assert spans[:, 4].sum() == 5 * pages.PAGE_BYTES
    assert list(map(tuple, spans[spans[:, 0] == 2][:, 1:3])) == mapped.header(2).segment_layers
    for threads in (1, 3):
        target = np.zeros(5 * pages.PAGE_BYTES, np.uint8)
        offsets = np.concatenate([[0], np.cumsum(spans[:-1, 4])]).astype(np.uint64)
        rows = np.stack([offsets + np.uint64(target.ctypes.data), spans[:, 3], spans[:, 4]], axis=1)
        assert pagoda_kv.copy_spans(rows, threads) == target.nbytes
        assert mapped.still_valid()
        assert np.array_equal(target, np.concatenate([pages.payload(i) for i in range(5)]))


def test_layers_come_one_after_the_other(any_client, first_token):
    scope, keys = pages.stored(any_client, 3, first_token)
    fetch = any_client.start_fetch(any_client.lookup(scope, keys), keys)
    assert [header.key for header in fetch.wait_headers(5)] == keys
    for layer in range(pages.LAYERS):
        fetch.wait_layer(layer, 5)
    result = fetch.wait()
    assert result.error is None
    assert np.array_equal(result.pages[2].data(), pages.payload(2))
    with pytest.raises(pagoda_kv.PagodaError) as error:
        fetch.wait()
    assert error.value.code == "FAILED_PRECONDITION"


def test_a_cancelled_fetch_says_so(any_client, first_token):
    scope, keys = pages.stored(any_client, 3, first_token)
    fetch = any_client.start_fetch(any_client.lookup(scope, keys), keys)
    fetch.cancel()
    result = fetch.wait()
    assert len(result.pages) == 3 or result.error is not None
    any_client.start_fetch(any_client.lookup(scope, keys), keys)  # dropped at once


def test_a_lower_precision_on_request(tmp_path_factory, first_token):
    daemon = Pagodad(tmp_path_factory.mktemp("q8"), ladder="q8").start()
    try:
        with pages.client(daemon) as one:
            scope, keys = pages.stored(one, 2, first_token)
            hit = one.lookup(scope, keys, precision_min="q8")
            result = one.fetch(hit, keys, precision_max="q8")
            assert [page.header.precision for page in result.pages] == ["q8", "q8"]
            assert one.server_info.ladder == "q8"
    finally:
        daemon.stop()


def test_leases_are_renewed_and_given_back(client, first_token):
    scope, keys = pages.stored(client, 2, first_token)
    request = bytes(range(16))
    hit = client.lookup(scope, keys, request_id=request)
    client.renew(hit)
    client.renew(hit.lease)
    again = client.lookup(scope, keys, request_id=request)
    assert again.lease == hit.lease
    client.release(hit)
    with pytest.raises(pagoda_kv.PagodaError):
        client.renew(hit)
    peeked = client.lookup(scope, keys, peek=True)
    assert len(peeked) == 2 and peeked.lease == bytes(16)
    client.prefetch(scope, keys, 0.5)


def test_sequences(client, first_token):
    scope, keys = pages.stored(client, 2, first_token)
    sequence = client.open_sequence(128, 128, "raw16")
    assert len(sequence) == 16
    hit = client.lookup(scope, keys, sequence_id=sequence)
    client.advance_sequence(sequence, 192)
    client.report_ttft(sequence, 0.1, 192, 64 * len(hit))
    client.close_sequence(sequence)


def test_what_the_daemon_says(client):
    info = client.server_info
    assert info.version and info.instance_id and info.tenant == "local"
    assert info.identity == pages.model().identity()
    assert info.page_tokens == pages.PAGE_TOKENS and info.batch_pages_max > 0
    assert [scope.kind for scope in info.scopes][0] == "private"
    scope = client.scope("private")
    assert (len(scope.id), len(scope.root), scope.may_push) == (16, 32, True)
    assert client.scope("group:nobody") is None
    assert client.connected


def test_opaque_blocks_by_head(pagodad, first_token):
    layers, heads, layer_bytes = 7, 3, 100_003
    model = pagoda_kv.ModelSpec(
        "opaque-test",
        [pagoda_kv.LayerGroup(layers, heads, 64)],
        kv_dtype="opaque",
        opaque_layout="test/block64",
    )
    runs = pagoda_kv.opaque_segment_layers(layers, layer_bytes)
    assert [begin for begin, _ in runs] == [0, 1, 3, 5] and runs[-1] == (5, 2)
    blocks = {
        (block, head): np.random.default_rng([block, head]).bytes(layers * layer_bytes)
        for block in range(2)
        for head in range(heads)
    }
    with pages.client(pagodad, model=model) as one:
        scope = one.scope("private")
        hashes = [f"{first_token} {i}".encode() for i in range(2)]
        keys = pagoda_kv.external_keys(scope.root, hashes)
        pusher = one.pusher()
        for (block, head), data in blocks.items():
            pusher.push(
                scope,
                keys[block],
                scope.root if block == 0 else keys[block - 1],
                [memoryview(data)[b * layer_bytes : (b + n) * layer_bytes] for b, n in runs],
                parent_is_root=block == 0,
                base_position=block * pages.PAGE_TOKENS,
                precision="opaque",
                opaque_layer_bytes=layer_bytes,
                part=(head, 1),
            )
        pusher.flush(10)
        assert pusher.stats()["stored"] == 2 * heads
        parts = [(head, 1) for head in range(heads)]
        hit = one.lookup(scope, keys, parts=parts)
        assert len(hit) == 2 * heads
        result = one.fetch(hit, keys)
        assert result.error is None and len(result.pages) == 2 * heads
        for i, page in enumerate(result.pages):
            assert page.header.head_begin == i % heads
            assert page.header.precision == "opaque"
            assert page.data().tobytes() == blocks[i // heads, i % heads]
        mapped = one.map(hit, keys, begin=1, count=heads)
        assert b"".join(s.tobytes() for s in mapped.segments(0)) == blocks[0, 1]
        one.prefetch(scope, keys, 0.5, parts=parts)
        assert len(one.lookup(scope, keys, parts=[(1, 1)])) == 2
