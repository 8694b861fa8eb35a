"""Gathers what is asked at the same time into one call, and answers each on its own.

One call is under way at a time; what is asked meanwhile leaves with the next. Alone, a question
leaves at once; under load the calls grow by themselves. Knows nothing of Redis.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from headrace.errors import BrokerUnavailable, HeadraceError
from headrace.queue.tasks import cancel_and_wait

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Coalescer(Generic[Question, Answer]):
    """Turns single questions into calls of many.

    Args:
        call: answers many at once; an error stands at the place of the question that it concerns.
        max_items: the most questions of one call.
        max_bytes: ... and the most bytes of them, unless the first alone is larger.
        size_bytes: the size of one question.
    """

    def __init__(
        self,
        call: Callable[[list[Question]], Awaitable[Sequence[Answer | HeadraceError]]],
        *,
        max_items: int,
        max_bytes: int = 0,
        size_bytes: Callable[[Question], int] | None = None,
    ) -> None:
        self._call = call
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._size_bytes = size_bytes
        self._pending: deque[tuple[Question, asyncio.Future[Answer]]] = deque()
        self._flusher: asyncio.Task[None] | None = None
        # The flusher's. To ask which loop runs is a system call each time, on Python 3.11.
        self._loop: asyncio.AbstractEventLoop | None = None

    async def ask(self, question: Question) -> Answer:
        """Ask one question together with whoever asks at the same time.

        Raises:
            HeadraceError: what the call answered at this question's place, or raised as a whole.
        """
        loop = self._loop
        if self._flusher is None or loop is None:
            loop = self._loop = asyncio.get_running_loop()
            self._flusher = loop.create_task(self._flush())
        future: asyncio.Future[Answer] = loop.create_future()
        self._pending.append((question, future))
        return await future

    async def close(self) -> None:
        """End the call under way; whoever still waits is told that the broker is unavailable."""
        flusher = self._flusher
        if flusher is not None:
            await cancel_and_wait(flusher)

    async def _flush(self) -> None:
        taken: list[tuple[Question, asyncio.Future[Answer]]] = []
        try:
            while self._pending:
                taken = self._take()
                try:
                    answers = await self._call([question for question, _ in taken])
                except Exception as error:  # noqa: BLE001 - raised again by each who asked
                    _fail(taken, error)
                    continue
                for (_, future), answer in zip(taken, answers, strict=True):
                    _resolve(future, answer)
        finally:
            self._flusher = None
            stopped = BrokerUnavailable("this API process is stopping", hint="Try again.")
            _fail([*taken, *self._pending], stopped)
            self._pending.clear()

    def _take(self) -> list[tuple[Question, asyncio.Future[Answer]]]:
        taken: list[tuple[Question, asyncio.Future[Answer]]] = []
        size = 0
        while self._pending and len(taken) < self._max_items:
            if self._size_bytes is not None:
                size += self._size_bytes(self._pending[0][0])
                if taken and size > self._max_bytes:
                    break
            taken.append(self._pending.popleft())
        return taken


def _resolve(future: asyncio.Future[Answer], answer: Answer | HeadraceError) -> None:
    if future.done():  # whoever asked has hung up
        return
    if isinstance(answer, HeadraceError):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def _fail(taken: Sequence[tuple[object, asyncio.Future[Answer]]], error: BaseException) -> None:
    for _, future in taken:
        if not future.done():
            future.set_exception(error)
