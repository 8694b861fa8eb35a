"""The background worker, killed at a moment in which results of a pipeline's stages are freed.

`TEST_DIES` has the moment. `half noted`: some of the jobs of a stage are freed, in the first call
of several. `noted`: all of them are, and none of their payloads is deleted. `freed`: the payloads
are deleted too, and the next stage's job is not submitted. `TEST_DIES_AFTER` is how often it passes
that moment first.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from workers.background.pipelines import stage_jobs
from workers.background.pipelines.stage_jobs import StageJobs

DIES = os.environ["TEST_DIES"]
left = int(os.environ.get("TEST_DIES_AFTER", "0"))


def _die() -> None:
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)


_save, _delete, _free = StageJobs._save, StageJobs._delete, StageJobs.free


async def note(self: StageJobs, execution: Any, *freed: str) -> bool:
    saved = await _save(self, execution, *freed)
    if freed and DIES == "half noted":
        _die()
    return saved


async def delete(self: StageJobs, execution: Any, entries: Any) -> None:
    if DIES == "noted":
        _die()
    await _delete(self, execution, entries)


async def free(self: StageJobs, execution: Any, stages: Any) -> bool:
    done = await _free(self, execution, stages)
    if DIES == "freed":
        _die()
    return done


stage_jobs.FREE_MAX_JOBS = 2  # type: ignore[misc] # so that a list of four takes two calls
StageJobs._save, StageJobs._delete, StageJobs.free = note, delete, free  # type: ignore[method-assign]

from workers.background.app import app  # noqa: E402 - it is begun with these

__all__ = ["app"]
