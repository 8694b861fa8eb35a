"""Both shells of the client under one face, so that one test is a test of both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headrace import AsyncClient, Client

SHELLS = ("sync", "async")


class Blocking:
    """An AsyncClient whose methods block."""

    def __init__(self, client: AsyncClient, runner: asyncio.Runner) -> None:
        self._client = client
        self._runner = runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            made = method(*args, **kwargs)
            return self._runner.run(made) if inspect.iscoroutine(made) else self._items(made)

        return call

    def _items(self, iterator: AsyncIterator[Any]) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(iterator)

        while True:
            try:
                yield self._runner.run(following())
            except StopAsyncIteration:
                return


@contextmanager
def client_of(shell: str, url: str, **options: Any) -> Iterator[Any]:
    """A client of that shell; the methods of either block."""
    if shell == "sync":
        with Client(url, **options) as client:
            yield client
        return
    with asyncio.Runner() as runner:
        # Made in its loop, where its connections live.
        async def made() -> AsyncClient:
            return AsyncClient(url, **options)

        client_ = runner.run(made())
        try:
            yield Blocking(client_, runner)
        finally:
            runner.run(client_.close())
