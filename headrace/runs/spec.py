"""The specification of a run, and its progress."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headrace.client.inputs import Options

IN_FLIGHT: Final = 4000
#: The priority of a run's jobs: online jobs of any model go first.
BATCH_PRIORITY: Final = 9


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a run does with its source.

    Attributes:
        version: run only with this version of it.
        content_type: the media type of inputs that do not have one themselves.
        run_id: the run's id; None for one that is made from the command.
        name: the user's name for the run.
        in_flight: the most inputs in flight.
        only_failed: run the inputs again that failed in a run that has ended.
        forget: delete the jobs that succeeded from the server once their rows are durable.
        by_ref: send references to files, which the server reads.
        deadline_s: by when the results are wanted, in seconds since 1970; None for no deadline.
    """

    model: str
    version: str | None = None
    options: Options = {}
    parameters: dict[str, Any] = {}
    content_type: str | None = None
    run_id: str | None = None
    name: str = ""
    in_flight: int = IN_FLIGHT
    only_failed: bool = False
    forget: bool = True
    by_ref: bool = False
    deadline_s: int | None = None

    def identity(self) -> dict[str, Any]:
        """Return what the results depend on, besides model, source and output."""
        # A parameter that is null is as if it were not given.
        parameters = {name: value for name, value in self.parameters.items() if value is not None}
        values = {
            "version": self.version, "content_type": self.content_type,
            # A repeated submit must have the same content as the first.
            "by_ref": self.by_ref or None,
            "parameters": parameters or None,
            **self.options,
        }  # fmt: skip
        return {name: value for name, value in values.items() if value is not None}
