"""Ends asyncio tasks, and waits until they have ended."""

from __future__ import annotations

import asyncio
from typing import Any, Final

#: After this many seconds a task that has not ended is cancelled once more.
AGAIN_S: Final = 1.0


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
