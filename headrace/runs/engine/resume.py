"""Begin a run, or resume it: compare its checkpoint with the command."""

from __future__ import annotations

import time
from typing import Any, Final

from headrace.errors import Conflict
from headrace.jobs.ids import check_id
from headrace.runs import checkpoint as checkpoints
from headrace.runs.checkpoint import Checkpoint
from headrace.runs.engine.spec import RunSpec
from headrace.runs.interfaces import Sink, Source

#: Characters that a job's id has behind the run's: `.<n>.<attempt>`.
_SUFFIX_CHARS: Final = 24


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
        found = checkpoints.decode(data, output)
        _compare(found, spec, described, output)
        return _resume(found, spec, sink)
    if spec.only_failed:
        raise Conflict(
            f"{output}: no run exists whose failed inputs could run again",
            hint="Run it without --only-failed first.",
        )
    options, now = spec.identity(), time.time()
    run = spec.run_id or checkpoints.run_id(spec.model, described, output, options, now)
    check_id(run + "." * _SUFFIX_CHARS)
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
    """Compare a checkpoint with the command.

    Raises:
        Conflict: they belong to different runs.
    """
    new_run = f"Use another output, or remove {output} and its .run to start a new run."
    pairs: list[tuple[str, Any, Any]] = [
        ("model", found.model, spec.model),
        ("output", found.output, output),
        ("run id", found.run, spec.run_id or found.run),
        *_differences("option", found.options, spec.identity()),
    ]
    for what, was, now in pairs:
        if was != now:
            raise Conflict(
                f"{output} is the output of a run whose {what} is {was}, not {now}", hint=new_run
            )
    changes = [
        f"{what} {was} is now {now}" for what, was, now in _differences("", found.source, source)
    ]
    if changes:
        raise Conflict(
            f"the source of the run {found.run} has changed since it began: {'; '.join(changes)}",
            hint=f"Restore it. {new_run}",
        )


def _differences(what: str, was: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    return [(f"{what} {name}".strip(), was.get(name), now.get(name)) for name in names]
