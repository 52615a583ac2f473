"""Goal: a push holds its buffers until the page is answered and no longer, takes all that has the
buffer protocol or DLPack, refuses the rest by name, and tells of every page once. Method: a real
daemon, by shared memory and gRPC; sys.getrefcount and weak references."""

import array
import ctypes
import gc
import sys
import threading
import time
import weakref

import numpy as np
import pages
import pagoda_kv
import pytest


def one_page(one, first, segments, **options):
    scope = one.scope("private")
    keys = pages.keys_of(scope, 1, first)
    pusher = one.pusher()
    options = {"token_ids": pages.tokens(1, first), "parent_is_root": True, **options}
    pusher.push(scope, keys[0], scope.root, segments, **options)
    pusher.flush(10)
    result = one.fetch(one.lookup(scope, keys), keys)
    return result.pages[0].data() if result.pages else None


class OnlyDlpack:
    """What a tensor shows of itself."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


@pytest.mark.parametrize(
    "of",
    [
        bytes,
        bytearray,
        memoryview,
        np.asarray,
        lambda s: s.view(np.uint16).reshape(4, -1),
        lambda s: array.array("B", s.tobytes()),
        lambda s: (ctypes.c_uint8 * s.size).from_buffer_copy(s.tobytes()),
        lambda s: OnlyDlpack(s.copy().view(np.float16)),
    ],
)
def test_whatever_has_bytes_is_a_segment(client, first_token, of):
    segments = [of(segment) for segment in pages.split(pages.payload(5))]
    assert np.array_equal(one_page(client, first_token, segments), pages.payload(5))


def test_tensors_are_segments(client, first_token):
    torch = pytest.importorskip("torch")
    segments = [
        torch.from_numpy(segment.view(np.int16).copy()).view(torch.bfloat16)
        for segment in pages.split(pages.payload(5))
    ]
    data = one_page(client, first_token, segments)
    assert np.array_equal(data, pages.payload(5))
    assert torch.from_numpy(data).data_ptr() == data.ctypes.data


@pytest.mark.parametrize(
    "segment, part",
    [
        (np.zeros((64, 64), np.uint16)[:, ::2], "not contiguous"),
        (np.zeros((64, 64), np.uint16).T, "not contiguous"),
        (OnlyDlpack(np.zeros((64, 64), np.float32)[:, ::2]), "not contiguous"),
        ("text", "is a str"),
        (7, "is a int"),
        (None, "is a NoneType"),
    ],
)
def test_other_segments_are_refused_by_name(client, first_token, segment, part):
    with pytest.raises(pagoda_kv.PagodaError, match=r"segments\[1\].*" + part) as error:
        one_page(client, first_token, [b"x", segment])
    assert error.value.code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("shm", ["", "none"])
def test_buffers_are_held_until_the_answer_and_no_longer(pagodad, first_token, shm):
    with pages.client(pagodad, shm_socket=shm) as one:
        scope = one.scope("private")
        keys = pages.keys_of(scope, 4, first_token)
        pusher = one.pusher()
        gone = []
        for i, key in enumerate(keys):
            segments = [segment.copy() for segment in pages.split(pages.payload(i))]
            gone += [weakref.ref(segment) for segment in segments]
            parent = scope.root if i == 0 else keys[i - 1]
            pusher.push(scope, key, parent, segments, parent_is_root=i == 0,
                        token_ids=pages.tokens(1, first_token + i * pages.PAGE_TOKENS),
                        base_position=i * pages.PAGE_TOKENS)
            del segments
        pusher.flush(10)
        end = time.monotonic() + 10
        while any(ref() is not None for ref in gone) and time.monotonic() < end:
            time.sleep(0.01)
        assert not any(ref() is not None for ref in gone)
        result = one.fetch(one.lookup(scope, keys), keys)
        for i, page in enumerate(result.pages):
            assert np.array_equal(page.data(), pages.payload(i))
        assert len(result.pages) == 4


def test_a_refused_push_holds_nothing(client, first_token):
    scope = client.scope("private")
    data = np.zeros(pages.PAGE_BYTES, np.uint8)
    before = sys.getrefcount(data)
    pusher = client.pusher()
    for wrong in ({"key": b"short"}, {"fidelity": "q5"}, {"token_ids": [-1]}, {"part": (0, 70000)}):
        arguments = {"key": bytes(32), "parent": scope.root, "segments": [data], **wrong}
        with pytest.raises(pagoda_kv.PagodaError) as error:
            pusher.push(scope, **arguments)
        assert error.value.code == "INVALID_ARGUMENT"
    del error, arguments
    assert pusher.stats()["pushed"] == 0
    end = time.monotonic() + 10
    while sys.getrefcount(data) != before and time.monotonic() < end:
        time.sleep(0.01)
    assert sys.getrefcount(data) == before


def test_reserved_memory_is_pushed_without_a_copy(client, first_token):
    scope = client.scope("private")
    pages.stored(client, 1, first_token + 500)  # by then the daemon has given its memory
    pusher = client.pusher()
    keys = pages.keys_of(scope, 1, first_token)
    memory = pusher.reserve(pages.PAGE_BYTES)
    assert memory.flags.writeable and memory.nbytes == pages.PAGE_BYTES
    memory[:] = pages.payload(9)
    pusher.push(scope, keys[0], scope.root, pages.split(memory), parent_is_root=True,
                token_ids=pages.tokens(1, first_token))
    pusher.flush(10)
    assert client.stats()["shm_pushed_pages"] == 2
    result = client.fetch(client.lookup(scope, keys), keys)
    assert np.array_equal(result.pages[0].data(), pages.payload(9))
    with pytest.raises(pagoda_kv.PagodaError):
        pusher.reserve(0)
    client.close()
    assert np.array_equal(memory, pages.payload(9))  # outlives everything


def test_the_callback_hears_of_every_page_once(any_client, first_token):
    scope = any_client.scope("private")
    keys = pages.keys_of(scope, 3, first_token)
    heard = []
    threads = set()

    def callback(key, outcome):
        threads.add(threading.get_ident())
        heard.append((key, outcome))

    pusher = any_client.pusher(callback=callback)
    pages.push(pusher, scope, keys, first=first_token)
    pusher.flush(10)
    assert heard == [(key, "stored") for key in keys]
    pages.push(pusher, scope, keys, first=first_token)
    pusher.flush(10)
    assert heard[3:] == [(key, "already_stored") for key in keys]
    # Other tokens than the key says: the daemon's own words.
    pusher.push(scope, keys[0], scope.root, pages.split(pages.payload(0)), parent_is_root=True,
                token_ids=pages.tokens(1, 7))
    pusher.flush(10)
    assert heard[6][1].startswith("INVALID_ARGUMENT: ")
    assert threading.get_ident() not in threads
    stats = pusher.stats()
    assert stats == {"pushed": 7, "stored": 3, "already_stored": 3, "replaced": 0, "failed": 1,
                     "bytes": 7 * pages.PAGE_BYTES}


def test_a_callback_may_do_anything(client, first_token, monkeypatch):
    scope = client.scope("private")
    keys = pages.keys_of(scope, 4, first_token)
    complaints = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    seen = []

    def callback(key, outcome):
        seen.append(len(client.lookup(scope, keys)))
        pusher.flush(5)
        gc.collect()
        if key == keys[-1]:
            client.close()
        raise ValueError("of the callback")

    pusher = client.pusher(callback=callback)
    pages.push(pusher, scope, keys, first=first_token)
    end = time.monotonic() + 20
    while len(complaints) < 4 and time.monotonic() < end:
        time.sleep(0.01)
    assert len(seen) == 4 and seen[-1] == 4
    assert {complaint.exc_type for complaint in complaints} == {ValueError}


def test_a_full_queue_refuses(pagodad, first_token):
    with pages.client(pagodad, push_queue_bytes_max=pages.PAGE_BYTES + 1) as one:
        scope = one.scope("private")
        keys = pages.keys_of(scope, 50, first_token)
        pusher = one.pusher()
        with pytest.raises(pagoda_kv.PagodaError) as error:
            pages.push(pusher, scope, keys, first=first_token)
        assert error.value.code == "RESOURCE_EXHAUSTED"


def test_cycles_through_a_callback_are_collected(client, first_token):
    class Saver:
        def __init__(self):
            self.pusher = client.pusher(callback=self.heard)
            self.outcomes = []

        def heard(self, key, outcome):
            self.outcomes.append(outcome)

    saver = Saver()
    scope = client.scope("private")
    pages.push(saver.pusher, scope, pages.keys_of(scope, 1, first_token), first=first_token)
    saver.pusher.flush(10)
    assert saver.outcomes == ["stored"]
    gone = weakref.ref(saver)
    del saver
    gc.collect()
    assert gone() is None
