"""A sink whose output cannot be appended to: rows go to a spool, which becomes the output.

The spool is a local file of JSON lines, written and repaired by jsonl.py. So a run resumes as
exactly as one with a `.jsonl` output. When it has all rows, the output is made from it and put into
place in one step (`Target.publish`). After a kill before that step the output is made again. The
spool is removed when the checkpoint that names the output is saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from typing_extensions import override

from extensions.runs.checkpoint_file import LocalCheckpoints, replacing
from extensions.runs.sinks.jsonl import JsonlSink
from headrace.errors import ConfigError, Conflict
from headrace.runs.interfaces import Mark, Row, Sink
from headrace.runs.range_set import RangeSet

PUBLISHED: Final = "published"


class Target(Protocol):
    """The output that a spool becomes."""

    def describe(self) -> str:
        """Return the output: an absolute path, a URL."""

    def state(self) -> Any:
        """Return JSON that changes when the output does; None if it does not exist.

        Raises:
            HeadraceError: it cannot be examined.
        """

    def check(self) -> None:
        """Check at the start that the output can be written at the end.

        Raises:
            HeadraceError: it cannot be written.
        """

    def publish(self, spool: Path) -> Any:
        """Make the output from the rows of a spool, and put it into place in one step.

        Returns:
            What `state` returns for it.
        """

    def withdraw(self, out: BinaryIO) -> None:
        """Write the output's rows as the spool had them."""


class SpooledSink(Sink):
    """Writes rows to a spool, and makes the output from it.

    Args:
        path: the spool and the checkpoint are next to this path.
    """

    def __init__(self, target: Target, path: Path) -> None:
        path = path.parent.resolve() / path.name
        self._target = target
        self._spool_path = path.with_name(f"{path.name}.rows")
        self._spool = JsonlSink(self._spool_path)
        self._published = False
        self.checkpoints = LocalCheckpoints(path, self._remove_spool)

    @override
    def describe(self) -> str:
        return self._target.describe()

    @override
    def recover(self, mark: Mark | None) -> Iterable[tuple[int, bool]]:
        """Continue with the spool, unless the output was already made from it."""
        published = mark.get(PUBLISHED) if isinstance(mark, dict) else None
        if published is not None:
            if self._target.state() != published:
                raise Conflict(
                    f"{self.describe()} is not what its run has written",
                    hint="Restore it, or use another output.",
                )
            self._published = True
            self._remove_spool()
            return ()
        found = self._target.state()
        if mark is None and found is not None:
            raise Conflict(
                f"{self.describe()} already exists, and belongs to no run that is known here",
                hint="Use another output, or remove it.",
            )
        if mark is None:
            self._target.check()
        return self._spool.recover(mark)

    @override
    def append(self, rows: Sequence[Row]) -> None:
        self._spool.append(rows)

    @override
    def sync(self) -> Mark:
        return self._spool.sync()

    @override
    def finish(self) -> Mark:
        mark = self._spool.sync()
        published = self._target.publish(self._spool_path)
        self._published = True
        return {**mark, PUBLISHED: published}

    @override
    def retract(self) -> RangeSet:
        """Remove rows from the spool; if it is gone, make it again from the output first."""
        self._published = False
        if not self._spool_path.exists():
            if self._target.state() is None:
                raise Conflict(
                    f"{self.describe()} is gone, and so are the rows of its run",
                    hint="Restore it, or use another output.",
                )
            try:
                with replacing(self._spool_path) as out:
                    self._target.withdraw(out)
            except OSError as error:
                raise ConfigError(
                    f"{self._spool_path}: cannot be written: {error.strerror}"
                ) from None
        return self._spool.retract()

    @override
    def close(self) -> None:
        self._spool.close()

    def _remove_spool(self) -> None:
        """Remove the spool once a checkpoint names the output."""
        if self._published:
            self._spool.close()
            self._spool_path.unlink(missing_ok=True)
