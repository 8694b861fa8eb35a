"""Gathers requests that are made at the same time into one call. Independent of Redis.

One call is under way at a time; requests that come meanwhile go into the next. A lone request is
sent at once, and under load the calls grow by themselves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from headrace.errors import BrokerUnavailable, HeadraceError
from headrace.queue.asyncio_tasks import cancel_and_wait

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")


class Coalescer(Generic[RequestT, ReplyT]):
    """Turns single requests into calls for many.

    Args:
        call: answers many requests; an error takes the place of the reply to its request.
        max_items: how many requests one call has at most.
        max_bytes: how many bytes they have at most, unless the first alone is larger.
    """

    def __init__(
        self,
        call: Callable[[list[RequestT]], Awaitable[Sequence[ReplyT | HeadraceError]]],
        *,
        max_items: int,
        max_bytes: int = 0,
        size_bytes: Callable[[RequestT], int] | None = None,
    ) -> None:
        self._call = call
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._size_bytes = size_bytes
        self._pending: deque[tuple[RequestT, asyncio.Future[ReplyT]]] = deque()
        self._flusher: asyncio.Task[None] | None = None

    async def add(self, request: RequestT) -> ReplyT:
        """Make one request in the next call, with others; raise its error, or that of the call."""
        loop = asyncio.get_running_loop()
        if self._flusher is None:
            self._flusher = loop.create_task(self._flush())
        future: asyncio.Future[ReplyT] = loop.create_future()
        self._pending.append((request, future))
        try:
            return await future
        finally:
            # Its error holds this frame, which holds the request.
            del future

    async def close(self) -> None:
        """End the call under way; pending requests fail with BrokerUnavailable."""
        if self._flusher is not None:
            await cancel_and_wait(self._flusher)

    async def _flush(self) -> None:
        taken: list[tuple[RequestT, asyncio.Future[ReplyT]]] = []
        try:
            while self._pending:
                taken = self._take()
                if not taken:
                    break
                try:
                    replies = await self._call([request for request, _ in taken])
                except Exception as error:  # noqa: BLE001 - raised again for each request
                    for _, future in taken:
                        _resolve(future, error)
                    continue
                for (_, future), reply in zip(taken, replies, strict=True):
                    _resolve(future, reply)
        except BaseException:
            stopped = BrokerUnavailable("this API process is stopping", hint="Try again.")
            for _, future in (*taken, *self._pending):
                _resolve(future, stopped)
            self._pending.clear()
            raise
        finally:
            self._flusher = None

    def _take(self) -> list[tuple[RequestT, asyncio.Future[ReplyT]]]:
        taken: list[tuple[RequestT, asyncio.Future[ReplyT]]] = []
        size = 0
        while self._pending and len(taken) < self._max_items:
            if self._pending[0][1].cancelled():  # so nothing is sent for a caller that has gone
                self._pending.popleft()
                continue
            if self._size_bytes is not None:
                size += self._size_bytes(self._pending[0][0])
                if taken and size > self._max_bytes:
                    break
            taken.append(self._pending.popleft())
        return taken


def _resolve(future: asyncio.Future[ReplyT], reply: ReplyT | Exception) -> None:
    if future.done():  # the caller was cancelled
        return
    if isinstance(reply, Exception):
        future.set_exception(reply)
    else:
        future.set_result(reply)
