"""Expire waiting jobs whose time to start has passed, even without any worker."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from headrace.errors import BrokerError
from headrace.queue.asyncio_tasks import cancel_and_wait
from headrace.queue.job_queue import JobQueue
from headrace.redis.scripts.jobs import EXPIRE_MAX_JOBS

#: Seconds between two runs.
INTERVAL_S: Final = 1.0

logger = logging.getLogger(__name__)


class ExpiryTask:
    """Expires jobs while the process serves."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the task."""
        self._task = asyncio.create_task(self._repeat())

    async def stop(self) -> None:
        """Stop the task."""
        if self._task is not None:
            await cancel_and_wait(self._task)

    async def _repeat(self) -> None:
        while True:
            try:
                while await self._queue.expire() == EXPIRE_MAX_JOBS:
                    pass
            except BrokerError as error:
                logger.debug("jobs not expired; Redis does not answer: %s", error)
            await asyncio.sleep(INTERVAL_S)
