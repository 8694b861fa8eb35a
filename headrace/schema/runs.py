"""Offline runs: what a run reports, and what the API returns of it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headrace.schema.members import Moment, Word

_Count = Annotated[int, Meta(ge=0, lt=2**53)]


class RunFields(msgspec.Struct, frozen=True, kw_only=True):
    """What both have."""

    model: str
    name: Annotated[str, Meta(description="The name that its user has given.")] = ""
    source: Annotated[str, Meta(description="The source of its inputs.")] = ""
    output: Annotated[str, Meta(description="The destination of its rows.")] = ""
    total: Annotated[_Count | None, Meta(description="The number of inputs, if known.")] = None
    succeeded: Annotated[_Count, Meta(description="Rows with a result.")] = 0
    failed: Annotated[_Count, Meta(description="Rows without one.")] = 0
    in_flight: _Count = 0
    per_second: Annotated[
        float, Meta(ge=0, description="Inputs that ended per second since its process began.")
    ] = 0.0
    command: Annotated[list[str], Meta(description="The command that resumes it.")] = []
    host: Annotated[str, Meta(description="Where its process runs.")] = ""
    folder: Annotated[str, Meta(description="Its working directory on the host.")] = ""
    error: Annotated[str, Meta(description="Why it failed.")] = ""


class RunStatus(
    RunFields, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What a run reports about itself."""

    state: Literal["running", "ended", "stopped", "cancelled", "failed"] = "running"
    started_at: Annotated[float, Meta(ge=0, le=1e11, description="Seconds since 1970.")] = 0.0


class Run(RunFields, frozen=True, kw_only=True):
    """A run as it last reported; `lost` if it runs and has not reported for 30 s."""

    id: str
    state: Annotated[
        Word,
        Meta(
            extra_json_schema={
                "enum": ["cancelled", "ended", "failed", "lost", "running", "stopped"]
            }
        ),
    ]
    started_at: Moment
    told_at: Moment
    cancel_requested: bool

    @property
    def ended(self) -> int:
        """Return the number of inputs that have a row."""
        return self.succeeded + self.failed


class Runs(msgspec.Struct):
    """Offline runs."""

    runs: list[Run]


class RunReceipt(msgspec.Struct):
    """The answer to a report."""

    id: str
    cancel_requested: bool
