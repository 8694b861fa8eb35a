"""What follows a pipeline's job, told by Celery's own machinery, from threads of the conductor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from headrace.redis.backoff import MAX_S
from workers.background.pipelines.execution import PipelineExecution, about
from workers.background.pipelines.stage_jobs import StageJobs
from workers.canvas.notifier import tell_end, tell_left
from workers.canvas.sender import TRY_AGAIN, CanvasSender, ChordBusy, Malformed, SendProgress
from workers.jobs.settlement import Settlement
from workers.models.pending_callbacks import EndedJob, OrphanedEnd

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LATER: Final = (*TRY_AGAIN, ChordBusy, Malformed)


class PipelineCanvas:
    """Tells, with a connection of its own for each, as few jobs of pipelines are followed.

    Args:
        redis_url: the broker.
        result_ttl_s: how long what Celery keeps is kept.
        jobs: for its threads.
    """

    def __init__(self, redis_url: str, result_ttl_s: int, jobs: StageJobs) -> None:
        self._url = redis_url
        self._ttl_s = result_ttl_s
        self._jobs = jobs

    async def ended(self, course: PipelineExecution, settlement: Settlement) -> Settlement:
        """Tell what follows a job, until it is told; the settlement that is to be said then."""
        progress, end = SendProgress(), EndedJob(course.item, settlement)
        while True:
            try:
                return await self._say(partial(tell_end, end), progress)
            except _LATER as error:
                logger.warning(
                    "what follows the job cannot be told yet: %s", error, extra=about(course)
                )
                progress.tries += 1
            await asyncio.sleep(MAX_S / 4)

    async def left(self, queue: str, pairs: Sequence[bytes]) -> None:
        """Tell of ends that scripts have left: names, each with its entry.

        What cannot be told now stays there, and comes up again in a minute.
        """
        for name, entry in zip(pairs[::2], pairs[1::2], strict=True):
            try:
                await self._say(partial(tell_left, OrphanedEnd(queue, name, entry)), SendProgress())
            except _LATER as error:
                logger.warning(
                    "what follows a job that a script has ended cannot be told yet: %s",
                    error,
                    extra={"job": name.decode("utf-8", "replace")},
                )
            except Exception:
                logger.exception("what follows a job that a script has ended cannot be told")

    async def _say(
        self, tell: Callable[[CanvasSender, SendProgress], T], progress: SendProgress
    ) -> T:
        def said() -> T:
            sender = CanvasSender(self._url, self._ttl_s)
            try:
                return tell(sender, progress)
            finally:
                sender.close()

        return await self._jobs.in_thread(said)
