"""Ending asyncio tasks."""

from __future__ import annotations

import asyncio
from typing import Any, Final

#: A task that has not ended by then is cancelled once more.
AGAIN_S: Final = 1.0


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended, whatever they end with.

    Before Python 3.12 `asyncio.wait_for` loses a cancel that comes in the moment in which what it
    waits for is done, and redis-py sends through it. So it is said again until it was heard: a task
    that repeats something for ever would keep its process from ending.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)
