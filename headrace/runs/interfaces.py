"""What a run is given: its specification, a source of entries, a sink of rows, checkpoints.

The engine calls a source from two threads that take turns, and a sink and its checkpoints from
another one. It never calls one of them from two threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from typing_extensions import override

from headrace.client.inputs import Options
from headrace.jobs.job import JobFailure
from headrace.runs.range_set import RangeSet

IN_FLIGHT: Final = 4000
#: The priority of a run's jobs: online jobs of any model go first.
BATCH_PRIORITY: Final = 9
#: JSON that marks a place in a source: see `Source.entries`.
Cursor: TypeAlias = Any
#: JSON that marks a place in a sink: see `Sink.sync`.
Mark: TypeAlias = Any
Carried: TypeAlias = dict[str, msgspec.Raw]

#: The status of a row with a result.
SUCCEEDED: Final = "succeeded"
NOTHING_CARRIED: Final[Carried] = {}


class Entry(msgspec.Struct):
    """One input of a run; tracked by the garbage collector, as its input may be an error.

    Attributes:
        n: its number, from 0; the same in each reading of the source.
        key: its name for people: a path, a line, a row.
        input: `msgspec.Raw` is JSON text on one line and is sent unchanged. A `HeadraceError`
            is the reason why the input cannot be sent, and becomes its row. A callable makes the
            line of a bulk submit from the job's id, for an input with its own model and options.
            Anything else is what the SDK takes (`pathlib.Path`, bytes, ...).
        carried: the columns that its row carries, as JSON without line feeds.
        cursor: where `Source.entries` continues behind this entry.
        content_type: the media type of the input, if neither the source nor the name shows it.
    """

    n: int
    key: str
    input: Any
    carried: Carried
    cursor: Cursor
    content_type: str | None = None


# gc=False: no field can lead back to it (CONTRIBUTING.md, Rules).
class Row(msgspec.Struct, gc=False):
    """The outcome of one input.

    Attributes:
        n: the number of its entry.
        status: `succeeded`, `failed`, `expired`, `cancelled`; `rejected` if no job was created.
        attempts: how often the job has begun.
        timings: milliseconds by stage, as a JSON object; None if the job never ran.
        result: the result as JSON, one that is not JSON as `{"content_type", "base64"}`; None
            unless the job succeeded, or if the handler's result was not kept.
        error: why there is no result.
        carried: the carried columns of its entry.
    """

    n: int
    key: str
    status: str
    attempts: int = 0
    timings: msgspec.Raw | None = None
    result: msgspec.Raw | None = None
    error: JobFailure | None = None
    carried: Carried = NOTHING_CARRIED

    @property
    def succeeded(self) -> bool:
        """Whether it has a result."""
        return self.status == SUCCEEDED


class Source(Protocol):
    """Where the inputs of a run come from."""

    def describe(self) -> dict[str, Any]:
        """Return JSON that is equal if and only if the source has the same entries.

        A run does not resume if this has changed. `kind` and, where it exists, `path` are for
        people. Contains no secret.
        """

    def count(self) -> int | None:
        """Return the number of entries, for progress; None if it is not known beforehand."""

    def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
        """Yield the entries in their order, which is the same each time.

        Args:
            after: the cursor of the last entry to skip; None for the first. A source that can seek
                does not read what comes before.
            n: the number of the first entry; each next one has one more.

        Raises:
            HeadraceError: the source cannot be read further, and the run stops there. A single bad
                input is an entry whose `input` is the error.
        """

    def check_ended(self, end: Cursor | None, *, whole: bool = True) -> None:
        """Check the entries of an ended run, where equal descriptions may have other entries.

        Args:
            end: the cursor of the last entry; None if the run had no entries.
            whole: the run had all entries of the source, and not a part by a limit.

        Raises:
            Conflict: the source has other entries now.
        """
        return


class CheckpointStore(Protocol):
    """Stores a run's checkpoint (checkpoint.py), and locks its output against other runs."""

    def acquire(self) -> None:
        """Lock the output; the lock ends with the process.

        Raises:
            Conflict: another run has it.
            ConfigError: it cannot be locked.
        """

    def release(self) -> None:
        """Unlock the output."""

    def load(self) -> bytes | None:
        """Return what was saved last, None if nothing was; raise ConfigError if unreadable."""

    def save(self, data: bytes) -> None:
        """Replace what was saved: completely or not at all, even if the machine crashes.

        Raises:
            OSError: the disk is full or cannot be written.
        """


class Sink(Protocol):
    """Where the rows of a run go. `recover` or `retract` is called first, and once.

    Attributes:
        checkpoints: where the run's checkpoint is stored, next to the rows.
    """

    checkpoints: CheckpointStore

    def describe(self) -> str:
        """Return the output as the user knows it, in one form only: an absolute path, a URL."""

    def recover(self, mark: Mark | None) -> Iterable[tuple[int, bool]]:
        """Continue behind a mark, and repair a half-written row there.

        Args:
            mark: what `sync` returned last; None for a new run.

        Returns:
            The `n` of each whole row behind the mark, and whether it succeeded. Such a row is part
            of the output.

        Raises:
            Conflict: the output exists and belongs to another run, or rows before the mark are
                gone.
            ConfigError: it cannot be written.
        """

    def append(self, rows: Sequence[Row]) -> None:
        """Write rows; they need not be durable before `sync`."""

    def sync(self) -> Mark:
        """Make all rows durable, even if the machine crashes.

        Returns:
            JSON by which `recover` finds where the rows end so far.

        Raises:
            Conflict: the output was removed or replaced.
        """

    def finish(self) -> Mark:
        """Do what `sync` does, and bring the complete output into its last form."""

    def retract(self) -> RangeSet:
        """Remove the rows of all inputs that did not succeed, so that these can run again.

        Called in place of `recover`, and again after a crash within it. At any moment the output
        has all rows or none of those to remove. `sync` follows.

        Returns:
            The `n` of the rows that are left.
        """

    def close(self) -> None:
        """Close files and connections; this makes nothing durable."""


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


class MemorySink(Sink):
    """Hands rows to a function, which may block: the run then waits with what is in flight.

    It stores nothing, so its run cannot resume.
    """

    def __init__(self, take: Callable[[Sequence[Row]], object]) -> None:
        self._take = take
        self.checkpoints = _NoCheckpoints()

    @override
    def describe(self) -> str:
        return "memory"

    @override
    def recover(self, mark: Mark | None) -> Iterable[tuple[int, bool]]:
        return ()

    @override
    def append(self, rows: Sequence[Row]) -> None:
        self._take(rows)

    @override
    def sync(self) -> Mark:
        return None

    @override
    def finish(self) -> Mark:
        return None

    @override
    def retract(self) -> RangeSet:
        return RangeSet()

    @override
    def close(self) -> None:
        pass


class _NoCheckpoints(CheckpointStore):
    @override
    def acquire(self) -> None:
        pass

    @override
    def release(self) -> None:
        pass

    @override
    def load(self) -> bytes | None:
        return None

    @override
    def save(self, data: bytes) -> None:
        pass
