"""A sink whose output cannot be appended to: rows go to a spool, and at the end into their form.

The spool is a local file of JSON lines that jsonl_sink.py writes and repairs, so that a run is gone
on with as exactly as one into a `.jsonl` file. When all rows are there the output is made from it,
whole, and put into its place in one step (`Target.publish`). A kill before that step leaves the
spool, and the output is made anew; behind it the checkpoint is still to be saved, and until it is
the spool stays. Only then is it removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from typing_extensions import override

from headrace.errors import ConfigError, Conflict
from headrace.runs.checkpoint_file import LocalCheckpoints, sync_folder
from headrace.runs.interfaces import Mark, Row
from headrace.runs.range_set import RangeSet
from headrace.runs.sinks.jsonl import JsonlSink

PUBLISHED: Final = "published"


class Target(Protocol):
    """Where the output goes in the end, and what it is made from."""

    def describe(self) -> str:
        """The output: an absolute path, a URL."""

    def look(self) -> Any:
        """JSON that changes when the output does; None where there is none.

        Raises:
            HeadraceError: it cannot be seen.
        """

    def check(self) -> None:
        """Find what would be in the way of writing it at the end.

        Raises:
            HeadraceError: it cannot be written.
        """

    def publish(self, spool: Path) -> Any:
        """Make the output from the rows of a spool, and put it into its place in one step.

        Returns:
            What `look` says of it.
        """

    def withdraw(self, out: BinaryIO) -> None:
        """Write the output's rows as the spool had them."""


class SpoolCheckpoints(LocalCheckpoints):
    """Tells when a checkpoint is safe.

    Args:
        output: the path that it lies beside.
        then: called after each save.
    """

    def __init__(self, output: Path, then: Callable[[], None]) -> None:
        super().__init__(output)
        self._then = then

    @override
    def save(self, data: bytes) -> None:
        super().save(data)
        self._then()


class SpooledSink:
    """Rows into a spool, and from there into a target.

    Args:
        target: where they go in the end.
        beside: the path that spool and checkpoint lie beside.
    """

    def __init__(self, target: Target, beside: Path) -> None:
        beside = beside.parent.resolve() / beside.name
        self._target = target
        self._spool_path = beside.with_name(f"{beside.name}.rows")
        self._spool = JsonlSink(self._spool_path)
        self._over = False
        self.checkpoints = SpoolCheckpoints(beside, self._saved)

    def describe(self) -> str:
        """The output."""
        return self._target.describe()

    def recover(self, mark: Mark | None) -> Iterable[tuple[int, bool]]:
        """Go on with the spool; where the output was made from it already, there is nothing to do.

        Raises:
            Conflict: there is an output that is not this run's, or this run's is gone.
            ConfigError: it cannot be written.
        """
        published = mark.get(PUBLISHED) if isinstance(mark, dict) else None
        if published is not None:
            if self._target.look() != published:
                raise Conflict(
                    f"{self.describe()} is not what its run has written",
                    hint="Bring it back, or name another output.",
                )
            self._over = True
            self._saved()
            return ()
        found = self._target.look()
        if mark is None and found is not None:
            raise Conflict(
                f"{self.describe()} exists already, and belongs to no run that is known here",
                hint="Name another output, or remove it.",
            )
        if mark is None:
            self._target.check()
        return self._spool.recover(mark)

    def append(self, rows: Sequence[Row]) -> None:
        """Write them to the spool."""
        self._spool.append(rows)

    def sync(self) -> Mark:
        """Have them on the disk."""
        return self._spool.sync()

    def finish(self) -> Mark:
        """Make the output, and put it into its place."""
        mark = self._spool.sync()
        published = self._target.publish(self._spool_path)
        self._over = True
        return {**mark, PUBLISHED: published}

    def retract(self) -> RangeSet:
        """Remove rows from the spool; where that is gone, make it again from the output first."""
        self._over = False
        if not self._spool_path.exists():
            if self._target.look() is None:
                raise Conflict(
                    f"{self.describe()} is gone, and so are the rows of its run",
                    hint="Bring it back, or name another output.",
                )
            part = self._spool_path.with_name(f"{self._spool_path.name}.new")
            try:
                with part.open("wb") as out:
                    self._target.withdraw(out)
                    out.flush()
                    os.fsync(out.fileno())
            except OSError as error:
                raise ConfigError(f"{part}: cannot be written: {error.strerror}") from None
            os.replace(part, self._spool_path)
            sync_folder(part.parent)
        return self._spool.retract()

    def close(self) -> None:
        """Close the spool."""
        self._spool.close()

    def _saved(self) -> None:
        """A checkpoint is safe: one that says that the output is made makes the spool useless."""
        if self._over:
            self._spool.close()
            self._spool_path.unlink(missing_ok=True)
