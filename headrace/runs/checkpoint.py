"""The checkpoint of a run: which inputs have their row, and where source and sink go on."""

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
    """Where a run stands; kept in the sink's `CheckpointStore`.

    What is not covered by it is found by the sink itself: the rows behind `mark`.

    Attributes:
        run: the run's id.
        name: what its user calls it.
        model: the model.
        source: what the source said of itself.
        output: what the sink did.
        options: of every job, and whatever else the results depend on.
        cursor: of the last entry before which, itself included, every entry has its row; None
            where the first has none yet.
        n: the number of the entry behind it.
        done: the numbers from `n` on that have their row too, as ranges.
        mark: the sink's, after all these rows.
        succeeded: how many rows have a result.
        failed: how many have none.
        attempt: how often `--only-failed` has begun.
        retracting: rows are being removed for that; whoever finds this begins with it anew.
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
    def numbers(self) -> RangeSet:
        """`done` as a set."""
        return RangeSet(self.done)

    def encode(self) -> bytes:
        """As it is kept."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    def job_id(self, n: int) -> str:
        """The id of an input's job: it follows from run and input, so that a repeat is known."""
        return f"{self.run}.{n}.{self.attempt}" if self.attempt else f"{self.run}.{n}"


def decode(data: bytes, output: str) -> Checkpoint:
    """A checkpoint as it was kept.

    Args:
        data: what the store had.
        output: for the error message.

    Raises:
        Conflict: it cannot be read, or a later version wrote it.
    """
    try:
        found = msgspec.json.decode(data, type=Checkpoint)
    except msgspec.DecodeError as error:
        raise Conflict(
            f"the checkpoint of {output} cannot be read: {error}",
            hint="Was it changed by hand? Name another output, and begin anew.",
        ) from None
    if found.version != VERSION:
        raise Conflict(
            f"the checkpoint of {output} has version {found.version}, not {VERSION}",
            hint="Go on with the version of headrace that wrote it, or name another output.",
        )
    return found


def run_id(
    model: str, source: dict[str, Any], output: str, options: dict[str, Any], started_at: float
) -> str:
    """The id of a run: another for any other command, and for the same one that is begun anew.

    The moment counts too, as the server still has jobs of the run before: what failed, and what had
    ended when it was killed. Under their ids they would be the answers of the new one.
    """
    what = [model, source, output, options, started_at]
    said = msgspec.json.encode(what, order="deterministic")
    return f"run-{hashlib.blake2b(said, digest_size=_ID_BYTES).hexdigest()}"
