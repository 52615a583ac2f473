"""Goal: objects live as long as something needs them, whatever the order in which they are dropped;
threads do not hold each other up; and a process ends, also in the middle of everything. Method:
weak references, threads, and programs of their own that end in every way."""

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pages
import pagoda_kv
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))


def test_views_keep_what_they_show(pagodad, first_token):
    one = pages.client(pagodad)
    scope, keys = pages.stored(one, 2, first_token)
    fetched = one.fetch(one.lookup(scope, keys), keys).pages[1].segments
    mapped = one.map(one.lookup(scope, keys), keys).segments(1)
    spans = one.map(one.lookup(scope, keys), keys).spans()
    del one, scope
    gc.collect()
    for segments in (fetched, mapped):
        assert np.array_equal(np.concatenate(segments), pages.payload(1))
    assert spans[:, 4].sum() == 2 * pages.PAGE_BYTES


def test_what_hangs_on_a_client_keeps_it(pagodad, first_token):
    scope, keys = pages.stored(pages.client(pagodad), 2, first_token)
    pusher = pages.client(pagodad).pusher()
    gc.collect()
    pages.push(pusher, scope, keys, first=first_token)
    pusher.flush(10)
    assert pusher.stats()["already_stored"] == 2

    def started():
        one = pages.client(pagodad)
        hit = one.lookup(scope, keys)
        return one.start_fetch(hit, keys), one.map(hit, keys)

    fetch, mapped = started()
    gc.collect()
    assert len(fetch.wait().pages) == 2
    assert mapped.still_valid()


def test_memory_is_given_back(client, first_token):
    def resident():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    scope, keys = pages.stored(client, 8, first_token)
    hit = client.lookup(scope, keys)

    def rounds(count):
        for _ in range(count):
            client.renew(hit)
            client.fetch(hit, keys)
            client.map(hit, keys).segments(0)

    rounds(20)
    before = resident()
    rounds(200)
    assert resident() - before < 16 * pages.PAGE_BYTES  # of 1,600 pages fetched


def test_threads_share_a_client(pagodad, first_token):
    with pages.client(pagodad) as one:
        scope = one.scope("private")
        wrong = []

        def work(number):
            try:
                first = first_token + number * 5000
                keys = pages.keys_of(scope, 2, first)
                heard = []
                pusher = one.pusher(callback=lambda key, outcome: heard.append(outcome))
                for _ in range(10):
                    pages.push(pusher, scope, keys, first=first)
                    pusher.flush(20)
                    hit = one.lookup(scope, keys)
                    result = one.fetch(hit, keys)
                    assert np.array_equal(result.pages[1].data(), pages.payload(1))
                    one.release(hit)
                assert len(heard) == 20
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=[i]) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_waiting_leaves_python_to_others(own_pagodad, first_token):
    with pages.client(own_pagodad, control_timeout=1.0) as one:
        scope = one.scope("private")
        own_pagodad.freeze()
        ticks = 0
        waiting = threading.Thread(target=lambda: pytest.raises(
            pagoda_kv.PagodaError, one.lookup, scope, [bytes(32)]))
        waiting.start()
        while waiting.is_alive():
            time.sleep(0.01)
            ticks += 1
        assert ticks > 20


PROGRAM = """
import gc, os, signal, sys, threading, time
sys.path.insert(0, {here!r})
import pages, pagoda_kv

class Daemon:
    listen = {listen!r}

first = {first}
client = pages.client(Daemon, **{options!r})
scope = client.scope("private")
keys = pages.keys_of(scope, 8, first)
heard = []
pusher = client.pusher(callback=lambda key, outcome: heard.append(outcome))
pages.push(pusher, scope, keys, first=first)
"""


def run(daemon, first, body, options=None, code=0):
    program = PROGRAM.format(here=HERE, listen=daemon.listen, first=first, options=options or {})
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program + textwrap.dedent(body)],
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    return done


ENDS = {
    "pushes under way": "",
    "a map and a view": """
        pusher.flush(10)
        hit = client.lookup(scope, keys)
        mapped = client.map(hit, keys)
        view = mapped.segments(0)
        result = client.fetch(hit, keys)
        fetch = client.start_fetch(hit, keys)
    """,
    "a slow callback": """
        def slow(key, outcome):
            time.sleep(0.05)
        other = client.pusher(callback=slow)
        pages.push(other, scope, keys, first=first)
    """,
    "a daemon thread inside": """
        def again():
            try:
                while True:
                    client.lookup(scope, keys)
            except pagoda_kv.PagodaError:
                pass
        threading.Thread(target=again, daemon=True).start()
        time.sleep(0.1)
    """,
    "cycles": """
        class Holder: pass
        holder = Holder()
        holder.client, holder.pusher, holder.self = client, pusher, holder
        del client, pusher
    """,
    "sys.exit": "sys.exit(0)",
    "closed": "client.close()",
    "closed by a callback": """
        other = client.pusher(callback=lambda key, outcome: client.close())
        try:
            pages.push(other, scope, keys, first=first)
        except pagoda_kv.PagodaError as error:
            assert error.code == "FAILED_PRECONDITION"
    """,
    "dropped by a callback": """
        things = {"client": client, "other": None}
        things["other"] = client.pusher(callback=lambda key, outcome: things.clear())
        pages.push(things["other"], scope, keys, first=first)
        del client, pusher
        gc.collect()
    """,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_process_ends(pagodad, first_token, end):
    for options in ({}, {"shm_socket": "none"}):
        if options and end == "a map and a view":
            continue
        assert run(pagodad, first_token, ENDS[end], options).stderr == ""


def test_an_interrupt_ends_a_wait(own_pagodad, first_token):
    body = """
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
        os.kill({pid}, signal.SIGSTOP)
        more = pages.keys_of(scope, 8, first + 10_000)
        pages.push(pusher, scope, more, first=first + 10_000)
        threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
        begin = time.monotonic()
        try:
            pusher.flush(60)
        except KeyboardInterrupt:
            print("interrupted after", time.monotonic() - begin)
        os.kill({pid}, signal.SIGCONT)
    """.format(pid=own_pagodad.process.pid)
    assert "interrupted after" in run(own_pagodad, first_token, body).stdout


def test_a_forked_child_ends_and_is_told(pagodad, first_token):
    body = """
        pusher.flush(10)
        child = os.fork()
        if child == 0:
            for call in (lambda: client.lookup(scope, keys), lambda: pusher.flush(1)):
                try:
                    call()
                except pagoda_kv.PagodaError as error:
                    assert error.code == "FAILED_PRECONDITION", error
            client.close()
            del client, pusher
            gc.collect()
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert len(client.lookup(scope, keys)) == 8
    """
    run(pagodad, first_token, body)
