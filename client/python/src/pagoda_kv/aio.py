"""The client for asyncio: calls that wait run on threads of their own, a bounded number at a time.

    async with AsyncClient(client) as pagoda:
        hit = await pagoda.lookup(scope, keys)
        result = await pagoda.fetch(hit, keys)

A call that is cancelled returns at once; its thread ends with the timeout of the client, and a hit
that nobody waits for any more gives its lease back.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from ._core import Client, FetchResult, Hit, PagodaError, Pusher, Scope

T = TypeVar("T")


class AsyncClient:
    """`client` stays the caller's. Calls beyond `waiting_max` are refused (RESOURCE_EXHAUSTED)."""

    def __init__(self, client: Client, threads: int = 4, waiting_max: int = 1024) -> None:
        self.client = client
        self._waiting_max = waiting_max
        self._waiting = 0
        self._executor = concurrent.futures.ThreadPoolExecutor(threads, "pagoda-kv")

    async def wait_connected(self, timeout: float) -> None:
        await self._call(self.client.wait_connected, timeout)

    async def lookup(self, scope: Scope, keys: Sequence[bytes], **options: Any) -> Hit:
        """As Client.lookup()."""
        look_up = functools.partial(self.client.lookup, scope, keys, **options)
        return await self._call(look_up, unwanted=self._release)

    async def fetch(self, hit: Hit, keys: Sequence[bytes], **options: Any) -> FetchResult:
        """As Client.fetch()."""
        return await self._call(functools.partial(self.client.fetch, hit, keys, **options))

    async def flush(self, pusher: Pusher, timeout: float) -> None:
        await self._call(pusher.flush, timeout)

    async def release(self, hit: Hit) -> None:
        await self._call(self.client.release, hit)

    def close(self) -> None:
        """Waits for no call; those that did not begin are cancelled."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def _call(
        self,
        function: Callable[..., T],
        *arguments: Any,
        unwanted: Callable[[T], None] | None = None,
    ) -> T:
        if self._waiting >= self._waiting_max:
            code = "RESOURCE_EXHAUSTED"
            error = PagodaError(f"{code}: {self._waiting} calls wait, at most {self._waiting_max}")
            error.code = code
            raise error
        self._waiting += 1
        future = self._executor.submit(function, *arguments)
        loop = asyncio.get_running_loop()
        future.add_done_callback(functools.partial(self._ended, loop))
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            if not future.cancel() and unwanted is not None:
                future.add_done_callback(functools.partial(_drop, unwanted))
            raise

    def _ended(self, loop: asyncio.AbstractEventLoop, _: concurrent.futures.Future[Any]) -> None:
        def count() -> None:
            self._waiting -= 1

        try:
            loop.call_soon_threadsafe(count)
        except RuntimeError:  # the loop is closed: nobody counts any more
            pass

    def _release(self, hit: Hit) -> None:
        if hit:
            self.client.release(hit)


def _drop(unwanted: Callable[[T], None], future: concurrent.futures.Future[T]) -> None:
    if future.cancelled() or future.exception() is not None:
        return
    try:
        unwanted(future.result())
    except PagodaError:  # the daemon is away: the lease ends by itself
        pass
