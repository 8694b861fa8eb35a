"""Asyncio tasks that run in the background, their end, and waits with a limit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Final

#: After this many seconds a task that has not ended is cancelled once more.
AGAIN_S: Final = 1.0


class RunningTasks(set[asyncio.Task[None]]):
    """Tasks that nothing waits for; each is kept until it has ended."""

    def begin(self, call: Coroutine[Any, Any, None]) -> None:
        """Run a call; calls begin in this order, and each runs until it first waits."""
        task = asyncio.create_task(call)
        self.add(task)
        task.add_done_callback(self.discard)


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended, with whatever result.

    Before Python 3.12 `asyncio.wait_for`, which redis-py uses, loses a cancellation that arrives at
    the moment its awaitable is done. A task with an endless loop would then never end, so the
    cancellation is repeated.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)


async def wait_at_most(seconds: float | None, event: asyncio.Event) -> None:
    """Wait until an event is set or the time has passed; None is no limit."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
