"""What the parts of a run promise each other: entries in, rows out, and where a run stands.

The engine calls a source from two threads that take turns, and a sink and its checkpoints from
another, never one of them from two at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from headrace.client.models import Failure
from headrace.runs.range_set import RangeSet

#: JSON by which a source finds its way: see `Source.entries`.
Cursor: TypeAlias = Any
#: JSON by which a sink does: see `Sink.sync`.
Mark: TypeAlias = Any
Carried: TypeAlias = dict[str, msgspec.Raw]

#: What every row has; a column of the source of such a name is carried under another: `carry`.
OWN_COLUMNS: Final = ("n", "key", "status", "result", "error", "attempts", "timings")
#: The status of a row that has a result, and all that there are.
SUCCEEDED: Final = "succeeded"
STATUSES: Final = (SUCCEEDED, "failed", "expired", "cancelled", "rejected")
_OTHER_NAMES: Final = {name: f"input.{name}" for name in OWN_COLUMNS}
NOTHING_CARRIED: Final[Carried] = {}


class Entry(msgspec.Struct, gc=False):
    """One input of a run.

    Attributes:
        n: its number, from 0; the same in each reading of the source.
        key: what people know it by: a path, a line, a row.
        input: `msgspec.Raw` is JSON text on one line, sent as it is; anything else is what the SDK
            takes (`pathlib.Path`, bytes, ...: headrace/client/inputs.py); a `HeadraceError` says
            why it cannot be sent, and becomes its row; a callable makes its whole line from the
            job's id, where an input has a model and options of its own.
        carried: what its row brings along, by column; JSON values without a line feed.
        cursor: from where `Source.entries` goes on with the one behind it.
        content_type: what the input is, where its kind does not say so.
    """

    n: int
    key: str
    input: Any
    carried: Carried
    cursor: Cursor
    content_type: str | None = None


class Row(msgspec.Struct, gc=False):
    """What came of one input.

    Attributes:
        n: the number of its entry.
        key: the key of its entry.
        status: `succeeded`, `failed`, `expired`, `cancelled`; `rejected` where no job was made.
        attempts: how often the job was handed to a model process.
        timings: milliseconds by stage, as a JSON object; None where it never ran.
        result: the result as JSON, one that is not JSON as `{"content_type", "base64"}`; None
            unless it succeeded, and where the handler's result was not kept.
        error: why there is no result.
        carried: as its entry has it.
    """

    n: int
    key: str
    status: str
    attempts: int = 0
    timings: msgspec.Raw | None = None
    result: msgspec.Raw | None = None
    error: Failure | None = None
    carried: Carried = NOTHING_CARRIED

    @property
    def succeeded(self) -> bool:
        """Whether it has a result."""
        return self.status == SUCCEEDED


class Source(Protocol):
    """Where the inputs of a run come from."""

    def describe(self) -> dict[str, Any]:
        """JSON that is equal if and only if it is the same source with the same entries.

        A run is not gone on with where this has changed. `kind` and, where there is one, `path`
        are for people; it holds no secret.
        """

    def count(self) -> int | None:
        """How many entries there are, for progress; None where that is not known beforehand."""

    def entries(self, after: Cursor | None, n: int) -> Iterator[Entry]:
        """The entries in their order, which is the same each time.

        Args:
            after: the cursor of the entry behind which to begin; None for the first. What lies
                before it is not read again where the source can seek.
            n: the number of the first that is given; each next one has one more.

        Raises:
            HeadraceError: the source cannot be read on, and the run stops there. Of an input that
                alone is bad an entry tells, as its `input`.
        """


class CheckpointStore(Protocol):
    """Keeps a run's checkpoint (checkpoint.py), and keeps other runs away from its output."""

    def acquire(self) -> None:
        """Take the output for this process; the death of the process gives it back.

        Raises:
            Conflict: another run has it.
        """

    def release(self) -> None:
        """Give it back."""

    def load(self) -> bytes | None:
        """What was saved last; None where nothing was."""

    def save(self, data: bytes) -> None:
        """Keep this in place of what was saved before: wholly or not at all, also over a crash."""


class Sink(Protocol):
    """Where the rows of a run go. `recover`, or `retract`, is called first, and once.

    Attributes:
        checkpoints: where the run's checkpoint lies.
    """

    @property
    def checkpoints(self) -> CheckpointStore:
        """Where the run's checkpoint lies, beside the rows."""

    def describe(self) -> str:
        """The output as the user knows it, in one form only: an absolute path, a URL."""

    def recover(self, mark: Mark | None) -> Iterable[tuple[int, bool]]:
        """Go on behind a mark: what is half-written behind it is repaired.

        Args:
            mark: what `sync` gave last; None where this is a new run.

        Returns:
            The `n` of each whole row that stands behind the mark, and whether it succeeded. It is
            in the output, and stays.

        Raises:
            Conflict: there is an output already, which is not this run's; or what the mark covers
                is gone.
        """

    def append(self, rows: Sequence[Row]) -> None:
        """Take rows; they need not be safe until `sync`."""

    def sync(self) -> Mark:
        """Make all rows safe, also over a crash of the machine.

        Returns:
            JSON by which `recover` finds where the rows so far end.
        """

    def finish(self) -> Mark:
        """All rows are there: `sync`, and bring the output into its last form."""

    def retract(self) -> RangeSet:
        """Remove the rows of all inputs that did not succeed, so that these can be run again.

        Called in place of `recover`, and again after a crash within; the output has all rows or
        none of those to be removed, at any moment. `sync` follows.

        Returns:
            The `n` of the rows that are left.
        """

    def close(self) -> None:
        """Let go of files and connections; nothing is made safe by it."""


def carry(columns: Carried) -> Carried:
    """The columns that a row brings along, none of them under a name that every row has."""
    if _OTHER_NAMES.keys().isdisjoint(columns):
        return columns
    return {carried_as(name): value for name, value in columns.items()}


def carried_as(name: str) -> str:
    """The name under which a row brings a column along."""
    return _OTHER_NAMES.get(name, name)
