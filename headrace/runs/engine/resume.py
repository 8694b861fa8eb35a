"""How a run begins, or goes on: what its checkpoint says, against what is asked."""

from __future__ import annotations

import time
from typing import Any, Final

from headrace.errors import Conflict
from headrace.jobs.ids import check_id
from headrace.runs import checkpoint as checkpoints
from headrace.runs.checkpoint import Checkpoint
from headrace.runs.engine.spec import RunSpec
from headrace.runs.interfaces import Sink, Source

#: What a job's id has behind that of its run: `.<n>.<try>`.
_ROOM: Final = 24


def begin(order: RunSpec, source: Source, sink: Sink) -> Checkpoint:
    """Take the output, and find where the run stands; the sink is ready for rows.

    Raises:
        Conflict: another process writes there, the output is another run's, or its source has
            changed.
    """
    sink.checkpoints.acquire()
    described, output = source.describe(), sink.describe()
    data = sink.checkpoints.load()
    if data is not None:
        found = checkpoints.decode(data, output)
        _compare(found, order, described, output)
        return _go_on(found, order, sink)
    if order.only_failed:
        raise Conflict(
            f"{output}: there is no run of which anything could have failed",
            hint="Run it without --only-failed first.",
        )
    options, now = order.identity(), time.time()
    run = order.run_id or checkpoints.run_id(order.model, described, output, options, now)
    check_id(run + "." * _ROOM)
    fresh = Checkpoint(
        run=run, name=order.name, model=order.model, source=described, output=output,
        options=options, started_at=now,
    )  # fmt: skip
    sink.recover(None)
    fresh.mark = sink.sync()
    # Before the first row: rows without a checkpoint are nobody's.
    sink.checkpoints.save(fresh.encode())
    return fresh


def _go_on(found: Checkpoint, order: RunSpec, sink: Sink) -> Checkpoint:
    if found.retracting or (order.only_failed and found.ended and found.failed):
        return _again(found, sink)
    if order.only_failed and not (found.ended or found.attempt):
        raise Conflict(
            f"the run {found.run} has not ended",
            hint="Let the same command without --only-failed end it first.",
        )
    done = found.numbers
    for n, succeeded in sink.recover(found.mark):
        if n < found.n or n in done:
            raise Conflict(
                f"{found.output} has the row of input {n} twice",
                hint="Was it changed? Bring it back, or name another output.",
            )
        done.add(n)
        found.succeeded += succeeded
        found.failed += not succeeded
    found.done = done.ranges()
    return found


def _again(found: Checkpoint, sink: Sink) -> Checkpoint:
    """Take the rows of what failed out, so that it runs again under ids of its own."""
    if not found.retracting:
        found.retracting, found.ended = True, False
        found.attempt += 1
        sink.checkpoints.save(found.encode())
    kept = sink.retract()
    if len(kept) != found.succeeded:
        raise Conflict(
            f"{found.output} has {len(kept)} rows that succeeded, and its run had "
            f"{found.succeeded}",
            hint="Was it changed? Bring it back, or name another output.",
        )
    found.mark = sink.sync()
    found.cursor, found.n, found.done = None, 0, kept.ranges()
    found.succeeded, found.failed = len(kept), 0
    found.retracting = False
    sink.checkpoints.save(found.encode())
    return found


def _compare(found: Checkpoint, order: RunSpec, source: dict[str, Any], output: str) -> None:
    """Refuse to go on with a run that is another one.

    Raises:
        Conflict: it is.
    """
    anew = f"Name another output, or remove {output} and its .run to begin anew."
    pairs: list[tuple[str, Any, Any]] = [
        ("model", found.model, order.model),
        ("output", found.output, output),
        ("run id", found.run, order.run_id or found.run),
        *_differing("option", found.options, order.identity()),
    ]
    for what, was, now in pairs:
        if was != now:
            raise Conflict(
                f"{output} is the output of a run whose {what} is {was}, not {now}", hint=anew
            )
    changes = [
        f"{what} {was} is now {now}" for what, was, now in _differing("", found.source, source)
    ]
    if changes:
        raise Conflict(
            f"the source of the run {found.run} has changed since it began: {'; '.join(changes)}",
            hint=f"Bring it back as it was. {anew}",
        )


def _differing(what: str, was: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    return [(f"{what} {name}".strip(), was.get(name), now.get(name)) for name in names]
