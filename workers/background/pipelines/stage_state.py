"""The states of a pipeline job's stages, as its record stores them. Independent of Redis."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final, Self

import msgspec

from headrace.jobs.job import Job

_NAMES: Final = ("queued", "hold", "preprocess", "inference", "postprocess")
_SUCCEEDED: Final = "succeeded"


class SavedStage(msgspec.Struct):
    """The saved state of a stage; see `StageState.stage_json`."""

    name: str
    status: str
    jobs: int = 0
    timings: dict[str, float] | None = None


_NOTE: Final = msgspec.json.Decoder(list[SavedStage])


def ended_stages(note: bytes) -> dict[str, SavedStage]:
    """Return the saved stages that have ended, by name; empty if the note cannot be read."""
    try:
        stages = _NOTE.decode(note) if note else []
    except msgspec.MsgspecError:
        return {}
    return {stage.name: stage for stage in stages if stage.status == _SUCCEEDED}


@dataclass(slots=True)
class StageState:
    """The state of a stage.

    Attributes:
        model: the model that it runs.
        jobs: how many jobs it has; 0 while the number is not known.
        done: how many of them have succeeded.
        began_s, ended_s: when its first job was submitted and its last ended, in seconds since
            1970; 0 before that.
        sums: the summed timings of its succeeded jobs, in ms.
        failed: one of its jobs has ended without a result.
    """

    model: str
    jobs: int = 0
    done: int = 0
    began_s: float = 0.0
    ended_s: float = 0.0
    sums: list[float] = field(default_factory=lambda: [0.0] * len(_NAMES))
    failed: bool = False

    @classmethod
    def of(cls, model: str, saved_stages: SavedStage) -> Self:
        """Return the state of a stage that had ended before, from its saved state."""
        now, timings = time.time(), saved_stages.timings or {}
        began_s = now - timings.get("total", 0.0) / 1000
        sums = [timings.get(name, 0.0) * saved_stages.jobs for name in _NAMES]
        return cls(model, saved_stages.jobs, saved_stages.jobs, began_s, now, sums)

    def add(self, job: Job) -> None:
        """Add a job that has succeeded."""
        self.done += 1
        if job.timings:
            for n, part in enumerate(job.timings.split(",")):
                self.sums[n] += float(part)

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
            timings = dict(zip(_NAMES, means, strict=True))
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
