"""How far the stages of a pipeline's job have come, as its record notes it. Knows no Redis."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final, Self

import msgspec

from headrace.jobs.job import Job

_NAMES: Final = ("queued", "hold", "preprocess", "inference", "postprocess")
_SUCCEEDED: Final = "succeeded"


class SavedStage(msgspec.Struct):
    """A stage as it was noted; see `StageState.told`."""

    name: str
    status: str
    jobs: int = 0
    timings: dict[str, float] | None = None


_NOTE: Final = msgspec.json.Decoder(list[SavedStage])


def ended_stages(note: bytes) -> dict[str, SavedStage]:
    """The stages that had ended, by name; none where the note says nothing that can be read."""
    try:
        stages = _NOTE.decode(note) if note else []
    except msgspec.MsgspecError:
        return {}
    return {stage.name: stage for stage in stages if stage.status == _SUCCEEDED}


@dataclass(slots=True)
class StageState:
    """How far a stage has come.

    Attributes:
        jobs: how many it has; 0 while that is not known.
        done: how many of them have ended with a result.
        began_s, ended_s: when its first was submitted and its last has ended, since 1970.
        sums: of the timings of those that are done, in ms.
        failed: one has ended otherwise.
    """

    model: str
    jobs: int = 0
    done: int = 0
    began_s: float = 0.0
    ended_s: float = 0.0
    sums: list[float] = field(default_factory=lambda: [0.0] * len(_NAMES))
    failed: bool = False

    @classmethod
    def of(cls, model: str, noted: SavedStage) -> Self:
        """A stage that had ended, which tells of itself what was noted."""
        now, timings = time.time(), noted.timings or {}
        began_s = now - timings.get("total", 0.0) / 1000
        sums = [timings.get(name, 0.0) * noted.jobs for name in _NAMES]
        return cls(model, noted.jobs, noted.jobs, began_s, now, sums)

    def add(self, job: Job) -> None:
        """One of its jobs has ended with a result."""
        self.done += 1
        if job.timings:
            for n, part in enumerate(job.timings.split(",")):
                self.sums[n] += float(part)

    def told(self, name: str) -> dict[str, Any]:
        """As the job object says it; its timings are the means over its jobs."""
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
