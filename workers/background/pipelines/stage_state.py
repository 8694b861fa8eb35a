"""The states of a pipeline job's stages, as its record stores them, and where a resume begins.

Results are freed once no stage needs them, so a stage that has ended may rightly have none left.
The saved states have the stages that have ended; the records of their jobs have the results left.
Independent of Redis.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import msgspec

from headrace.config.model.pipelines import PipelineConfig, Stage
from headrace.jobs.ids import callback_id
from headrace.jobs.job import TIMINGS, Job, State
from headrace.jobs.progress import STAGES, SavedStage

_SUCCEEDED: Final = "succeeded"


@dataclass(slots=True)
class StageState:
    """The state of a stage.

    Attributes:
        jobs: how many jobs it has; 0 while the number is not known.
        done: how many of them have succeeded.
        began_s, ended_s: when its first job was submitted and its last ended, in seconds since
            1970. Both are 0 before that.
        sums: the summed timings of its succeeded jobs, in ms.
        failed: one of its jobs has ended without a result.
    """

    model: str
    jobs: int = 0
    done: int = 0
    began_s: float = 0.0
    ended_s: float = 0.0
    sums: list[float] = field(default_factory=lambda: [0.0] * len(TIMINGS))
    failed: bool = False

    @classmethod
    def of(cls, model: str, saved_stages: SavedStage) -> Self:
        """Return the state of a stage that had ended before, from its saved state."""
        now, timings = time.time(), saved_stages.timings or {}
        began_s = now - timings.get("total", 0.0) / 1000
        sums = [timings.get(name, 0.0) * saved_stages.jobs for name in TIMINGS]
        return cls(model, saved_stages.jobs, saved_stages.jobs, began_s, now, sums)

    def add(self, job: Job) -> None:
        """Add a job that has succeeded."""
        self.done += 1
        if job.timings:
            queued, hold, *ran = job.timings.split(",")
            for n, took in enumerate((queued, hold, job.device_wait, *ran)):
                self.sums[n] += float(took)

    def stage_json(self, name: str) -> dict[str, Any]:
        """Return the stage as the job object shows it, with the means of its jobs' timings."""
        status = "waiting"
        if self.failed:
            status = "failed"
        elif self.ended_s:
            status = _SUCCEEDED
        elif self.began_s:
            status = "running"
        timings = None
        if self.done:
            means = (round(total / self.done, 3) for total in self.sums)
            timings = dict(zip(TIMINGS, means, strict=True))
        if timings is not None and self.ended_s:
            timings["total"] = round((self.ended_s - self.began_s) * 1000, 3)
        return {
            "name": name,
            "model": self.model,
            "status": status,
            "jobs": self.jobs,
            "done": self.done,
            "timings": timings,
        }


#: Reads jobs with their results; None for a job that Redis does not have.
View = Callable[[Sequence[str]], Awaitable[list[Job | None]]]


@dataclass(slots=True)
class PreviousAttempt:
    """What an earlier attempt at an execution has left.

    Attributes:
        ended: the stages that do not run again, by name.
        jobs: the jobs of ended stages whose results are needed, in order.
        incomplete: ids of the jobs of ended stages that run again, because a result is lost.
    """

    ended: dict[str, SavedStage] = field(default_factory=dict)
    jobs: dict[str, list[Job]] = field(default_factory=dict)
    incomplete: list[str] = field(default_factory=list)


def stage_job_id(job_id: str, stage: str, n: int) -> str:
    """Return the id of a stage's job number `n`, which is the same in every attempt."""
    return callback_id(job_id, f"stage/{stage}/{n}")


async def read_previous(
    job_id: str, pipeline: PipelineConfig, note: bytes, view: View
) -> PreviousAttempt:
    """Read what an earlier attempt left, from the result backwards; `note` has saved states."""
    previous, wanted = PreviousAttempt(), set(pipeline.result)
    try:
        stages = STAGES.decode(note) if note else []
    except msgspec.MsgspecError:
        stages = []
    ended = {stage.name: stage for stage in stages if stage.status == _SUCCEEDED}
    for stage in reversed(pipeline.stages) if ended else ():
        saved = ended.get(stage.name)
        if saved is not None and stage.name not in wanted:
            previous.ended[stage.name] = saved
            continue
        if saved is not None:
            ids = [stage_job_id(job_id, stage.name, n) for n in range(saved.jobs)]
            jobs = _whole(stage, await view(ids))
            if jobs is not None:
                previous.ended[stage.name], previous.jobs[stage.name] = saved, jobs
                continue
            previous.incomplete += ids
        wanted.update(stage.sources)
    return previous


def _whole(stage: Stage, read: Sequence[Job | None]) -> list[Job] | None:
    """Return the jobs if each of them still has its result, else None."""
    jobs = [
        job
        for job in read
        if job is not None
        and job.state is State.SUCCEEDED
        and (job.stored is not None or job.result_json is not None)
    ]
    complete = len(jobs) == len(read) and (stage.spread or len(jobs) == 1)
    return jobs if complete else None
