"""The checkpoint of a run: which inputs have their row, and where source and sink continue."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from headrace.errors import Conflict
from headrace.runs.interfaces import Cursor, Mark
from headrace.runs.range_set import RangeSet

VERSION: Final = 1
_ID_BYTES: Final = 10


class Checkpoint(msgspec.Struct, kw_only=True):
    """The state of a run; stored in the sink's `CheckpointStore`.

    The sink itself finds the rows behind `mark`, which the checkpoint does not cover.

    Attributes:
        run: the run's id.
        name: the user's name for it.
        model: the model.
        source: what the source described itself as.
        output: what the sink described itself as.
        options: the options of every job, and whatever else the results depend on.
        cursor: of the last entry up to which every entry has its row; None if the first has none.
        n: the number of the entry behind it.
        done: the numbers from `n` on that also have their row, as ranges.
        mark: the sink's, behind all these rows.
        succeeded: how many rows have a result.
        failed: how many have none.
        attempt: how often `--only-failed` has begun.
        retracting: `--only-failed` is removing rows; a process that reads this starts that again.
        ended: every entry has its row.
        started_at: when the run first began, in seconds since 1970.
    """

    version: int = VERSION
    run: str
    name: str = ""
    model: str
    source: dict[str, Any]
    output: str
    options: dict[str, Any]
    cursor: Cursor | None = None
    n: int = 0
    done: list[tuple[int, int]] = []
    mark: Mark | None = None
    succeeded: int = 0
    failed: int = 0
    attempt: int = 0
    retracting: bool = False
    ended: bool = False
    started_at: float = 0.0

    @property
    def done_set(self) -> RangeSet:
        """`done` as a set."""
        return RangeSet(self.done)

    def encode(self) -> bytes:
        """Return the checkpoint as it is stored."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    def job_id(self, n: int) -> str:
        """Return the id of an input's job.

        It follows from run and input, so that the server recognises a repeated submit.
        """
        return f"{self.run}.{n}.{self.attempt}" if self.attempt else f"{self.run}.{n}"


def decode(data: bytes, output: str) -> Checkpoint:
    """Read a stored checkpoint.

    Args:
        data: what the store has.
        output: the output, for the error message.

    Raises:
        Conflict: it cannot be read, or another version of it was written.
    """
    try:
        found = msgspec.json.decode(data, type=Checkpoint)
    except msgspec.DecodeError as error:
        raise Conflict(
            f"the checkpoint of {output} cannot be read: {error}",
            hint="Restore it if it was edited, or start a new run with another output.",
        ) from None
    if found.version != VERSION:
        raise Conflict(
            f"the checkpoint of {output} has version {found.version}, not {VERSION}",
            hint="Resume with the version of headrace that wrote it, or use another output.",
        )
    return found


def run_id(
    model: str, source: dict[str, Any], output: str, options: dict[str, Any], started_at: float
) -> str:
    """Return the id of a new run.

    It depends on the time too: the server still has jobs of an earlier run of the same command
    (failed ones, and those that ended when it was killed). Under the same ids these would become
    the results of the new run.
    """
    identity = msgspec.json.encode(
        [model, source, output, options, started_at], order="deterministic"
    )
    return f"run-{hashlib.blake2b(identity, digest_size=_ID_BYTES).hexdigest()}"
