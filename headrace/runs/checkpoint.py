"""The checkpoint of a run: which inputs have their row; where it begins, or resumes."""

from __future__ import annotations

import hashlib
import time
from typing import Any, Final

import msgspec

from headrace.errors import Conflict, InvalidId
from headrace.jobs.ids import check_id
from headrace.runs.interfaces import Cursor, Mark, RunSpec, Sink, Source
from headrace.runs.range_set import RangeSet

VERSION: Final = 1
_ID_BYTES: Final = 10
#: A job's id has up to 24 more characters: `.<n>.<attempt>`.
_RUN_ID_MAX_CHARS: Final = 104


class Checkpoint(msgspec.Struct, kw_only=True):
    """The state of a run; stored in the sink's `CheckpointStore`.

    The sink itself finds the rows behind `mark`, which the checkpoint does not cover.

    Attributes:
        options: the options of every job, and whatever else the results depend on.
        cursor: of the last entry up to which every entry has its row; None if the first has none.
        n: the number of the entry behind it.
        done: the numbers from `n` on that also have their row, as ranges.
        mark: the sink's, behind all these rows.
        attempt: how often `--only-failed` has begun.
        retracting: `--only-failed` is removing rows; a process that reads this starts that again.
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
    """Read a stored checkpoint; raise Conflict if it is broken, or of another version."""
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

    It depends on the time too, because the server still has jobs of an earlier run of the same
    command. These are failed jobs, and those that ended when it was killed. Under the same ids
    these would become the results of the new run.
    """
    identity = msgspec.json.encode(
        [model, source, output, options, started_at], order="deterministic"
    )
    return f"run-{hashlib.blake2b(identity, digest_size=_ID_BYTES).hexdigest()}"


def check_run_id(run: str) -> None:
    """Check that ids of jobs can begin with the id of a run; raise InvalidId if they cannot."""
    check_id(run)
    if len(run) > _RUN_ID_MAX_CHARS:
        raise InvalidId(
            f"invalid run id {run!r}: it has {len(run)} characters",
            hint=f"The id of a run has at most {_RUN_ID_MAX_CHARS}.",
        )


def begin(spec: RunSpec, source: Source, sink: Sink) -> Checkpoint:
    """Lock the output and return the state of the run; the sink is then ready for rows.

    Raises:
        Conflict: another process writes the output, it belongs to another run, or the source has
            changed.
    """
    sink.checkpoints.acquire()
    described, output = source.describe(), sink.describe()
    data = sink.checkpoints.load()
    if data is not None:
        found = decode(data, output)
        _compare(found, spec, described, output)
        state = _resume(found, spec, sink)
        if state.ended:
            source.check_ended(state.cursor)
        return state
    if spec.only_failed:
        raise Conflict(
            f"{output}: no run exists whose failed inputs could run again",
            hint="Run it without --only-failed first.",
        )
    options, now = spec.identity(), time.time()
    run = spec.run_id or run_id(spec.model, described, output, options, now)
    check_run_id(run)
    new = Checkpoint(
        run=run, name=spec.name, model=spec.model, source=described, output=output,
        options=options, started_at=now,
    )  # fmt: skip
    sink.recover(None)
    new.mark = sink.sync()
    # Before the first row: rows without a checkpoint could not be assigned to a run.
    sink.checkpoints.save(new.encode())
    return new


def _resume(found: Checkpoint, spec: RunSpec, sink: Sink) -> Checkpoint:
    if found.retracting or (spec.only_failed and found.ended and found.failed):
        return _retract(found, sink)
    if spec.only_failed and not (found.ended or found.attempt):
        raise Conflict(
            f"the run {found.run} has not ended",
            hint="Let it end first, with the same command without --only-failed.",
        )
    done = found.done_set
    for n, succeeded in sink.recover(found.mark):
        if n < found.n or n in done:
            raise Conflict(
                f"{found.output} has the row of input {n} twice",
                hint="Restore it, or use another output.",
            )
        done.add(n)
        found.succeeded += succeeded
        found.failed += not succeeded
    found.done = done.ranges()
    return found


def _retract(found: Checkpoint, sink: Sink) -> Checkpoint:
    """Remove the rows of failed inputs, which then run again with new job ids."""
    if not found.retracting:
        found.retracting, found.ended = True, False
        found.attempt += 1
        sink.checkpoints.save(found.encode())
    kept = sink.retract()
    if len(kept) != found.succeeded:
        raise Conflict(
            f"{found.output} has {len(kept)} rows that succeeded, and its run had "
            f"{found.succeeded}",
            hint="Restore it, or use another output.",
        )
    found.mark = sink.sync()
    found.cursor, found.n, found.done = None, 0, kept.ranges()
    found.succeeded, found.failed = len(kept), 0
    found.retracting = False
    sink.checkpoints.save(found.encode())
    return found


def _compare(found: Checkpoint, spec: RunSpec, source: dict[str, Any], output: str) -> None:
    """Compare a checkpoint with the command; raise Conflict if they belong to different runs."""
    new_run = f"use another output, or remove {output} and its .run to start a new run."
    pairs: list[tuple[str, Any, Any]] = [
        ("model", found.model, spec.model),
        ("output", found.output, output),
        ("run id", found.run, spec.run_id or found.run),
        *_differences("option", found.options, spec.identity()),
    ]
    for what, was, now in pairs:
        if was != now:
            raise Conflict(
                f"{output} is the output of a run whose {what} is {_given(was)}, not {_given(now)}",
                hint=f"Repeat its command, {new_run}",
            )
    changes = [
        "its values are others"
        if what == "version" and source.get("kind") == "table"
        else "a file's name, size or time is another"
        if what == "version"
        else f"{what} {_given(was)} is now {_given(now)}"
        for what, was, now in _differences("", found.source, source)
    ]
    if changes:
        raise Conflict(
            f"the source of the run {found.run} has changed since it began: {'; '.join(changes)}",
            hint=f"Restore it, {new_run}",
        )


def _given(value: Any) -> Any:
    return "(not given)" if value is None else value


def _differences(what: str, was: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    return [(f"{what} {name}".strip(), was.get(name), now.get(name)) for name in names]
