"""`AsyncClient.offline`: the same run in threads, whose caller's event loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import suppress
from os import PathLike
from typing import Any, Final

from extensions.runs.offline import Rows, Work, work_of
from headrace.client.async_client import AsyncClient
from headrace.client.offline import OfflineRow
from headrace.client.sync_client import Client

#: The most values of an asynchronous iterable that a thread takes at once, and how long they may
#: gather.
TAKEN: Final = 500
GATHER_S: Final = 0.02


def offline_async(
    client: AsyncClient,
    model: str,
    source: Any,
    sink: str | PathLike[str] | None = None,
    **options: Any,
) -> Any:
    """Do what `AsyncClient.offline` describes."""
    rows = sink is None and not hasattr(source, "__arrow_c_stream__")
    call = _rows if rows else _ended
    return call(client, model, source, sink, options)


async def _ended(
    client: AsyncClient, model: str, source: Any, sink: Any, options: dict[str, Any]
) -> Any:
    values = _iterable(source)
    with client.another(Client) as blocking:
        work = await asyncio.to_thread(work_of, blocking, model, values, sink, **options)
        assert isinstance(work, Work)  # noqa: S101 - `offline_async` has chosen so
        running = asyncio.ensure_future(asyncio.to_thread(work.run))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            work.stop()
            _release(values)
            with suppress(Exception):
                await running
            raise


async def _rows(
    client: AsyncClient, model: str, source: Any, sink: Any, options: dict[str, Any]
) -> AsyncIterator[OfflineRow]:
    values = _iterable(source)
    with client.another(Client) as blocking:
        work = await asyncio.to_thread(work_of, blocking, model, values, sink, **options)
        assert isinstance(work, Rows)  # noqa: S101 - `offline_async` has chosen so
        try:
            while page := await asyncio.to_thread(work.next_page):
                for row in page:
                    yield row
        finally:
            work.stop()
            _release(values)
            await asyncio.to_thread(work.close)


def _iterable(source: Any) -> Any:
    """Return a source that a thread can iterate."""
    if isinstance(source, AsyncIterable):
        return _Taken(source, asyncio.get_running_loop())
    return source


def _release(values: Any) -> None:
    """Have a thread that waits for the next value wait no longer."""
    if isinstance(values, _Taken):
        values.close()


class _Taken:
    """An asynchronous iterable that a thread iterates."""

    def __init__(self, values: AsyncIterable[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._values = aiter(values)
        self._loop = loop
        self._next: asyncio.Future[Any] | None = None
        self._closed = False

    def __iter__(self) -> Iterator[Any]:
        while page := asyncio.run_coroutine_threadsafe(self._page(), self._loop).result():
            yield from page

    def close(self) -> None:
        """Take no further value; the thread that waits for one gets an error."""
        self._closed = True
        if self._next is not None:
            self._next.cancel()

    async def _page(self) -> list[Any]:
        """Return the next values: those that come soon after the first; none at the end."""
        page: list[Any] = []
        until = self._loop.time() + GATHER_S
        while len(page) < TAKEN and not self._closed:
            if self._next is None:
                self._next = asyncio.ensure_future(anext(self._values))
            left_s = max(0.0, until - self._loop.time()) if page else None
            await asyncio.wait([self._next], timeout=left_s)
            if not self._next.done():
                break
            error = self._next.exception()
            if page and error is not None:
                break  # the next page finds it, behind these values
            if isinstance(error, StopAsyncIteration):
                break
            page.append(self._next.result())
            self._next = None
        return page
