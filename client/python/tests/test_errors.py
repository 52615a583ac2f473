"""Goal: whatever goes wrong is a PagodaError with its code, or a TypeError, and no wait is longer
than it may be. Method: wrong arguments, closed clients, no daemon, and a daemon that is killed."""

import threading
import time

import numpy as np
import pages
import pagoda_kv
import pytest


def raises(code, match=None):
    class Raises:
        def __enter__(self):
            self.inner = pytest.raises(pagoda_kv.PagodaError, match=match)
            self.info = self.inner.__enter__()
            return self.info

        def __exit__(self, *error):
            caught = self.inner.__exit__(*error)
            assert self.info.value.code == code
            assert str(self.info.value).startswith(code + ": ")
            return caught

    return Raises()


def test_the_error_itself():
    assert issubclass(pagoda_kv.PagodaError, Exception)
    assert pagoda_kv.PagodaError.__module__ == "pagoda_kv"
    assert pagoda_kv.PagodaError("mine").code == "UNKNOWN"


def test_wrong_values_are_named(client):
    scope = client.scope("private")
    with raises("INVALID_ARGUMENT", r"keys\[1\]: id of 3 bytes, expected 32"):
        client.lookup(scope, [bytes(32), b"abc"])
    with raises("INVALID_ARGUMENT", "precision_min is 'q9'; accepted: q2, q3, q4, q8, raw16"):
        client.lookup(scope, [bytes(32)], precision_min="q9")
    with raises("INVALID_ARGUMENT", "request_id"):
        client.lookup(scope, [bytes(32)], request_id=b"x")
    with raises("INVALID_ARGUMENT", "timeout"):
        client.wait_connected(-1)
    with raises("INVALID_ARGUMENT", "timeout"):
        client.wait_connected(float("nan"))
    with raises("INVALID_ARGUMENT"):
        client.scope("everybody")
    with raises("INVALID_ARGUMENT", "part"):
        client.lookup(scope, [bytes(32)], parts=[(0, -1)])
    with raises("INVALID_ARGUMENT"):
        client.fetch(client.lookup(scope, [bytes(32)]), [bytes(32)])
    with raises("INVALID_ARGUMENT"):
        pagoda_kv.Client("", pages.model())
    with raises("INVALID_ARGUMENT"):
        pagoda_kv.Client(push_staging_bytes=5)
    with raises("INVALID_ARGUMENT", "kind is 'round'; accepted: full, sliding_window, mla, state"):
        pagoda_kv.LayerGroup(1, 1, 64, "round")
    with raises("INVALID_ARGUMENT", "kv_dtype"):
        pagoda_kv.ModelSpec("x", [pagoda_kv.LayerGroup(1, 1, 64)], kv_dtype="fp8")
    with raises("INVALID_ARGUMENT", "0 layer groups"):
        pagoda_kv.ModelSpec("x", [])


def test_wrong_types_are_type_errors(client):
    scope = client.scope("private")
    for wrong in (
        lambda: client.lookup("private", []),
        lambda: client.lookup(scope, 5),
        lambda: client.lookup(scope, ["text"]),
        lambda: client.lookup(scope, [], parts=[(1, 2, 3)]),
        lambda: client.pusher(callback=5),
        lambda: pagoda_kv.key_chain(scope.root, ["a"], 64),
        lambda: pagoda_kv.copy_spans(np.zeros((2, 2), np.uint64)),
    ):
        with pytest.raises(TypeError):
            wrong()


def test_no_daemon(tmp_path):
    one = pagoda_kv.Client(f"unix:{tmp_path}/nobody.sock", pages.model())
    begin = time.monotonic()
    with raises("UNAVAILABLE", "nobody.sock"):
        one.wait_connected(0.4)
    assert 0.3 < time.monotonic() - begin < 2
    assert not one.connected and one.server_info is None and one.scope() is None
    with raises("UNAVAILABLE"):
        one.pusher()
    one.close()


def test_a_closed_client(pagodad, first_token):
    one = pages.client(pagodad)
    scope, keys = pages.stored(one, 2, first_token)
    hit = one.lookup(scope, keys)
    result = one.fetch(hit, keys)
    mapped = one.map(hit, keys)
    segments = mapped.segments(0)
    fetch = one.start_fetch(hit, keys)
    pusher = one.pusher()
    one.close()
    one.close()
    for call in (
        lambda: one.lookup(scope, keys),
        lambda: one.fetch(hit, keys),
        lambda: one.map(hit, keys),
        lambda: one.pusher(),
        lambda: one.stats(),
        lambda: one.connected,
        lambda: one.release(hit),
        lambda: one.wait_connected(1),
        lambda: fetch.wait(),
        lambda: pusher.flush(1),
        lambda: pusher.reserve(4096),
        lambda: pages.push(pusher, scope, keys),
    ):
        with raises("FAILED_PRECONDITION", "closed"):
            call()
    fetch.cancel()
    assert np.array_equal(result.pages[0].data(), pages.payload(0))
    assert np.array_equal(segments[0], pages.payload(0)[: len(segments[0])])  # still mapped


def test_close_ends_a_flush_that_waits(own_pagodad, first_token):
    one = pages.client(own_pagodad, shm_socket="none")
    scope = one.scope("private")
    pusher = one.pusher()
    own_pagodad.freeze()
    pages.push(pusher, scope, pages.keys_of(scope, 2, first_token), first=first_token)
    threading.Timer(0.3, one.close).start()
    begin = time.monotonic()
    with raises("FAILED_PRECONDITION"):
        pusher.flush(60)
    assert time.monotonic() - begin < 8


def test_a_slow_answer_is_a_deadline(own_pagodad, first_token):
    with pages.client(own_pagodad, control_timeout=0.3) as one:
        scope = one.scope("private")
        pusher = one.pusher()
        own_pagodad.freeze()
        with raises("DEADLINE_EXCEEDED"):
            one.lookup(scope, [bytes(32)])
        pages.push(pusher, scope, pages.keys_of(scope, 1, first_token), first=first_token)
        begin = time.monotonic()
        with raises("DEADLINE_EXCEEDED"):
            pusher.flush(0.3)
        assert 0.25 < time.monotonic() - begin < 3


@pytest.mark.parametrize("shm", ["", "none"])
def test_a_daemon_killed_in_the_middle(own_pagodad, shm, first_token):
    one = pages.client(own_pagodad, shm_socket=shm, transfer_timeout=2)
    scope, keys = pages.stored(one, 3, first_token)
    hit = one.lookup(scope, keys)
    mapped = one.map(hit, keys) if not shm else None
    heard = []
    pusher = one.pusher(callback=lambda key, outcome: heard.append(outcome))
    own_pagodad.freeze()
    more = pages.keys_of(scope, 3, first_token + 10_000)
    pages.push(pusher, scope, more, first=first_token + 10_000)
    own_pagodad.kill()
    with pytest.raises(pagoda_kv.PagodaError):
        pusher.flush(10)
        pusher.flush(10)  # the first may be told of all that was lost
        raise pagoda_kv.PagodaError("every page was answered")
    end = time.monotonic() + 10
    while len(heard) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    assert len(heard) == 3 and all(": " in outcome for outcome in heard)
    begin = time.monotonic()
    try:
        result = one.fetch(hit, keys)
        assert result.error is not None or shm == ""
    except pagoda_kv.PagodaError as error:
        assert error.code in ("UNAVAILABLE", "ABORTED", "DEADLINE_EXCEEDED")
    assert time.monotonic() - begin < 5
    if mapped is not None:  # the memory outlives the daemon
        assert np.array_equal(np.concatenate(mapped.segments(1)), pages.payload(1))
    end = time.monotonic() + 10
    while one.connected and time.monotonic() < end:
        time.sleep(0.01)
    with raises("UNAVAILABLE"):
        one.lookup(scope, keys)
    # It comes back by itself, and a pusher opened then works.
    before = one.server_info.instance_id
    own_pagodad.start()
    one.wait_connected(10)
    assert one.server_info.instance_id != before
    pages.stored(one, 2, first_token + 20_000)
    assert one.stats()["reconnects"] >= 1
    one.close()
