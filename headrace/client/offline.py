"""Offline runs from Python: what `Client.offline` takes and returns.

The extension `runs` does the work, and finds the kind of each source and sink. docs/offline.md
describes the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

import msgspec

from headrace.client.inputs import Options
from headrace.config.extensions import exported
from headrace.jobs.job import JobFailure


class RowError(JobFailure, frozen=True, kw_only=True):
    """Why an input has no result.

    Attributes:
        job: the id of its job, for `headrace jobs ID`; unset if no job was made.
        where: the line of the handler's own code that raised, such as `words.py:7`, if one did.
    """

    job: str | msgspec.UnsetType = msgspec.UNSET
    where: str | msgspec.UnsetType = msgspec.UNSET


class OfflineRow(msgspec.Struct, frozen=True, kw_only=True):
    """The row of one input, as in an output of JSON lines.

    Attributes:
        n: the number of the input, from 0.
        key: its name: a path, a line, a row.
        status: `succeeded`, `failed`, `expired`, `cancelled`; `rejected` if no job was made.
        result: the result; None unless it succeeded.
        error: why there is no result.
        attempts: how often the job has begun.
        timings: milliseconds by stage; None if the job never ran.
        carried: the other columns of the input's row.
    """

    n: int
    key: str
    status: str
    result: Any = None
    error: RowError | None = None
    attempts: int = 0
    timings: dict[str, float] | None = None
    carried: dict[str, Any] = {}

    @property
    def succeeded(self) -> bool:
        """Whether it has a result."""
        return self.status == "succeeded"


class RunProgress(msgspec.Struct, kw_only=True):
    """The progress of a run.

    Attributes:
        total: the number of inputs; None if it is unknown.
        before: rows that existed when this process began.
        succeeded: rows with a result, in all.
        failed: rows without one, in all.
        first_failure: the key and the error of the first input that failed in this process.
        limit: the code of the limit (429) for which requests wait; empty if none does.
    """

    total: int | None
    before: int = 0
    succeeded: int = 0
    failed: int = 0
    in_flight: int = 0
    first_failure: str = ""
    limit: str = ""

    @property
    def ended(self) -> int:
        """The number of rows."""
        return self.succeeded + self.failed


class OfflineRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run into a file that has ended.

    Attributes:
        id: the run's id; those of its jobs begin with it.
        output: the file or object, as an absolute path or a URL.
        before: rows that an earlier call had written.
        succeeded: rows with a result, in all.
        failed: rows without one, in all.
    """

    id: str
    output: str
    before: int
    succeeded: int
    failed: int

    def rows(self) -> Iterator[OfflineRow]:
        """Read the rows of the output, in the order in which the inputs ended.

        Raises:
            ConfigError: the output cannot be read.
        """
        read = cast("Callable[[str], Iterator[OfflineRow]]", exported(__name__, "read_rows"))
        return read(self.output)

    def failures(self) -> Iterator[OfflineRow]:
        """Read the rows that have no result: each has its `error`, with the id of its job."""
        return (row for row in self.rows() if not row.succeeded)


class ArrowStream(Protocol):
    """A table that Arrow can read: a DataFrame of pandas or polars, a table of pyarrow, ..."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the table as a PyCapsule."""


Table = TypeVar("Table", bound=ArrowStream)
#: True shows a bar of tqdm. A function gets the progress a few times a second, and at the end.
Progress: TypeAlias = bool | Callable[[RunProgress], object]


class OfflineOptions(Options, total=False):
    """How a run reads its source and sends its jobs, besides the options of each job.

    Attributes:
        progress: shows or takes the progress.
        input: the column that is the input, or several with commas.
        key: the column with the key of an input.
        glob: only files of a folder that match one of these.
        content_type: the media type of the inputs.
        delimiter: what separates the columns of CSV.
        limit: run only so many inputs.
        by_ref: send file names to a server that shares the disk.
        only_failed: run the failed inputs of an ended run again.
        run_id: the run's id; None for a new one.
        in_flight: the most inputs in flight.
        version: the version of the model that must run the jobs.
        parameters: values for the parameters that the model declares.
    """

    progress: Progress
    input: str | None
    key: str | None
    glob: Sequence[str]
    content_type: str | None
    delimiter: str | None
    limit: int | None
    by_ref: bool
    only_failed: bool
    run_id: str | None
    in_flight: int
    version: str | None
    parameters: Mapping[str, Any] | None


RUN: Final = "run"
RUN_ASYNC: Final = "run_async"


def implementation(name: str) -> Callable[..., Any]:
    """Return RUN or RUN_ASYNC of the extension `runs`; raise AttributeError if it is missing."""
    return cast("Callable[..., Any]", exported(__name__, name))
