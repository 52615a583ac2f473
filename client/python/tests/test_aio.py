"""Goal: the client under asyncio: calls do not hold up the loop, are bounded, and can be cancelled,
after which no lease is left behind. Method: a real daemon, frozen where a call shall hang."""

import asyncio
import signal
import time

import numpy as np
import pages
import pagoda_kv
import pytest
from pagoda_kv.aio import AsyncClient


def test_push_and_fetch(client, first_token):
    async def run():
        async with AsyncClient(client) as pagoda:
            await pagoda.wait_connected(5)
            scope = client.scope("private")
            keys = pages.keys_of(scope, 3, first_token)
            pusher = client.pusher()
            pages.push(pusher, scope, keys, first=first_token)
            await pagoda.flush(pusher, 10)
            hits = await asyncio.gather(*(pagoda.lookup(scope, keys) for _ in range(20)))
            results = await asyncio.gather(*(pagoda.fetch(hit, keys) for hit in hits))
            for result in results:
                assert np.array_equal(result.pages[2].data(), pages.payload(2))
            await asyncio.gather(*(pagoda.release(hit) for hit in hits))
            with pytest.raises(pagoda_kv.PagodaError):
                await pagoda.lookup(scope, [b"short"])

    asyncio.run(run())


def test_the_loop_goes_on_and_a_call_can_be_cancelled(own_pagodad, first_token):
    async def run():
        with pages.client(own_pagodad, control_timeout=1.0) as one:
            scope, keys = pages.stored(one, 1, first_token)
            pagoda = AsyncClient(one, threads=1, waiting_max=2)
            own_pagodad.freeze()
            begin = time.monotonic()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(pagoda.lookup(scope, keys), 0.1)
            assert time.monotonic() - begin < 0.8
            waiting = asyncio.create_task(pagoda.lookup(scope, keys))
            await asyncio.sleep(0)
            with pytest.raises(pagoda_kv.PagodaError) as error:
                await pagoda.lookup(scope, keys)
            assert error.value.code == "RESOURCE_EXHAUSTED"
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            own_pagodad.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(1.2)  # the first lookup ends, one way or the other
            hit = await pagoda.lookup(scope, keys)
            assert len(hit) == 1
            pagoda.close()

    asyncio.run(run())


def test_a_hit_that_nobody_waits_for_is_released():
    class Slow:
        def __init__(self):
            self.released = []

        def lookup(self, scope, keys):
            time.sleep(0.2)
            return "hit"

        def release(self, hit):
            self.released.append(hit)

    async def run():
        slow = Slow()
        pagoda = AsyncClient(slow)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(pagoda.lookup(None, []), 0.05)
        end = time.monotonic() + 5
        while not slow.released and time.monotonic() < end:
            await asyncio.sleep(0.01)
        assert slow.released == ["hit"]

    asyncio.run(run())
