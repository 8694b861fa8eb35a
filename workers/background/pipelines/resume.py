"""Finds which stages of a resumed execution need not run again.

Results are freed once no stage needs them, so a stage that has ended may rightly have none left.
The saved states have the stages that have ended; the records of their jobs have the results left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from headrace.config.pipelines import PipelineConfig, Stage
from headrace.jobs.ids import callback_id
from headrace.jobs.job import Job, State
from workers.background.pipelines.stage_state import SavedStage, ended_stages

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
    """Read what an earlier attempt has left, from the result backwards.

    Args:
        job_id: the pipeline's job.
        pipeline: the pipeline.
        note: the saved states of its stages; empty without an earlier attempt.
        view: reads the jobs of ended stages whose results are needed.
    """
    saved_stages, previous, wanted = ended_stages(note), PreviousAttempt(), set(pipeline.result)
    for stage in reversed(pipeline.stages) if saved_stages else ():
        found = saved_stages.get(stage.name)
        if found is not None and stage.name not in wanted:
            previous.ended[stage.name] = found
            continue
        if found is not None:
            ids = [stage_job_id(job_id, stage.name, n) for n in range(found.jobs)]
            jobs = _whole(stage, await view(ids))
            if jobs is not None:
                previous.ended[stage.name], previous.jobs[stage.name] = found, jobs
                continue
            previous.incomplete += ids
        wanted.update(stage.sources)
    return previous


def _whole(stage: Stage, found: Sequence[Job | None]) -> list[Job] | None:
    """Return the jobs if each of them still has its result, else None."""
    jobs = [job for job in found if job is not None and _has_result(job)]
    complete = len(jobs) == len(found) and (stage.spread or len(jobs) == 1)
    return jobs if complete else None


def _has_result(job: Job) -> bool:
    has = job.stored is not None or job.result_json is not None
    return job.state is State.SUCCEEDED and has
