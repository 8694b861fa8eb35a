"""What a run is asked to do, and what it tells of itself."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.client.requests import Options

IN_FLIGHT: Final = 4000


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run over a source.

    Attributes:
        model: the model's name.
        version: only this version of it.
        options: of every job.
        content_type: what every input is, where neither its kind nor its entry says so.
        run_id: in place of the id that follows from the command.
        name: what the user calls the run.
        in_flight: how many inputs are under way at the most.
        only_failed: run again what has failed in a run that has ended.
        forget: let the server forget jobs that succeeded, once their rows are safe.
        by_ref: files are named to the server, which reads them by itself.
    """

    model: str
    version: str | None = None
    options: Options = {}
    content_type: str | None = None
    run_id: str | None = None
    name: str = ""
    in_flight: int = IN_FLIGHT
    only_failed: bool = False
    forget: bool = True
    by_ref: bool = False

    def identity(self) -> dict[str, Any]:
        """What the results depend on, beside model, source and output."""
        said = {
            "version": self.version, "content_type": self.content_type,
            # The jobs under way are known by what they say.
            "by_ref": self.by_ref or None,
            **self.options,
        }  # fmt: skip
        return {name: value for name, value in said.items() if value is not None}


class RunProgress(msgspec.Struct, kw_only=True):
    """How far a run is.

    Attributes:
        total: how many inputs there are; None where nobody knows.
        before: how many had their row when this process began.
        succeeded: rows with a result, in all.
        failed: rows without one, in all.
        in_flight: inputs that are under way.
    """

    total: int | None
    before: int = 0
    succeeded: int = 0
    failed: int = 0
    in_flight: int = 0

    @property
    def ended(self) -> int:
        """How many have their row."""
        return self.succeeded + self.failed
