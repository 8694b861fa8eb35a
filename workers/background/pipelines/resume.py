"""What still holds of a course that was begun before: which stages need not run (again).

Results are freed once no stage needs them, so that a stage which has ended may have none left, and
that is right. The note of the stages says which have ended; their jobs' records, what is left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from headrace.config.pipelines import PipelineConfig, Stage
from headrace.jobs.ids import id_of_sequel
from headrace.jobs.job import Job, State
from workers.background.pipelines.stage_state import SavedStage, ended_stages

#: Reads jobs with their results; None for those that Redis does not know.
View = Callable[[Sequence[str]], Awaitable[list[Job | None]]]


@dataclass(slots=True)
class PreviousAttempt:
    """What holds of a course's former lives.

    Attributes:
        ended: the stages that do not run, by name.
        jobs: of those of them whose results are wanted, in order.
        undone: ids of the jobs of stages that had ended and run again, as one of theirs is lost.
    """

    ended: dict[str, SavedStage] = field(default_factory=dict)
    jobs: dict[str, list[Job]] = field(default_factory=dict)
    undone: list[str] = field(default_factory=list)


def stage_job_id(job_id: str, stage: str, n: int) -> str:
    """The id of one of a stage's jobs: whoever runs the pipeline's job finds it under that."""
    return id_of_sequel(job_id, f"stage/{stage}/{n}")


async def read_past(
    job_id: str, pipeline: PipelineConfig, note: bytes, view: View
) -> PreviousAttempt:
    """Look at what a note says, from the result backwards: each stage before what it takes from.

    Args:
        job_id: the pipeline's job.
        pipeline: what it runs.
        note: how far its stages had come; empty where it has not begun.
        view: reads the jobs of stages that have ended and whose results are wanted.
    """
    noted, past, wanted = ended_stages(note), PreviousAttempt(), set(pipeline.result)
    for stage in reversed(pipeline.stages) if noted else ():
        found = noted.get(stage.name)
        if found is not None and stage.name not in wanted:
            past.ended[stage.name] = found
            continue
        if found is not None:
            ids = [stage_job_id(job_id, stage.name, n) for n in range(found.jobs)]
            jobs = _whole(stage, await view(ids))
            if jobs is not None:
                past.ended[stage.name], past.jobs[stage.name] = found, jobs
                continue
            past.undone += ids
        wanted.update(stage.sources)
    return past


def _whole(stage: Stage, found: Sequence[Job | None]) -> list[Job] | None:
    """The jobs, where every one of them still has its result."""
    jobs = [job for job in found if job is not None and _has_result(job)]
    complete = len(jobs) == len(found) and (stage.spread or len(jobs) == 1)
    return jobs if complete else None


def _has_result(job: Job) -> bool:
    has = job.stored is not None or job.result_json is not None
    return job.state is State.SUCCEEDED and has
