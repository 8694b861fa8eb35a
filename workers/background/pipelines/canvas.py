"""Sends the callbacks of pipeline jobs with Celery's canvas, in threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from headrace.redis.backoff import MAX_S
from workers.background.pipelines.execution import PipelineExecution, about
from workers.background.pipelines.stage_jobs import StageJobs
from workers.canvas.notifier import send_end, send_orphaned
from workers.canvas.sender import TRY_AGAIN, CanvasSender, ChordBusy, Malformed, SendProgress
from workers.jobs.settlement import Settlement
from workers.models.pending_callbacks import OrphanedEnd, UnsentCallbacks

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds between two attempts to send callbacks.
AGAIN_S: Final = MAX_S / 4
_LATER: Final = (*TRY_AGAIN, ChordBusy, Malformed)


class PipelineCanvas:
    """Sends callbacks, with a connection for each job, as few pipeline jobs have callbacks.

    Args:
        redis_url: the broker.
        result_ttl_s: how long the results that Celery writes are kept, in seconds.
        jobs: has the threads.
    """

    def __init__(self, redis_url: str, result_ttl_s: int, jobs: StageJobs) -> None:
        self._url = redis_url
        self._ttl_s = result_ttl_s
        self._jobs = jobs

    async def send_end(self, execution: PipelineExecution, settlement: Settlement) -> Settlement:
        """Send a job's callbacks, and retry until they are sent; return its settlement."""
        progress, end = SendProgress(), UnsentCallbacks(execution.job, settlement)
        while True:
            try:
                return await self._send(partial(send_end, end), progress)
            except _LATER as error:
                logger.warning("callbacks not sent yet: %s", error, extra=about(execution))
                progress.tries += 1
            await asyncio.sleep(AGAIN_S)

    async def send_orphaned(self, queue: str, pairs: Sequence[bytes]) -> None:
        """Send the callbacks of jobs that scripts have ended: names, each with its entry.

        Callbacks that cannot be sent now stay there, and the next sweep returns them again.
        """
        for name, entry in zip(pairs[::2], pairs[1::2], strict=True):
            end = OrphanedEnd(queue, name, entry)
            job = {"job": name.decode("utf-8", "replace")}
            try:
                await self._send(partial(send_orphaned, end), SendProgress())
            except _LATER as error:
                logger.warning("callbacks of an ended job not sent yet: %s", error, extra=job)
            except Exception:
                logger.exception("callbacks of an ended job cannot be sent", extra=job)

    async def _send(
        self, send: Callable[[CanvasSender, SendProgress], T], progress: SendProgress
    ) -> T:
        def connected() -> T:
            sender = CanvasSender(self._url, self._ttl_s)
            try:
                return send(sender, progress)
            finally:
                sender.close()

        return await self._jobs.in_thread(connected)
