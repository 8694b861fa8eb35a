"""The engine of a run: entries out of a source, through a model, rows into a sink.

Threads share the work: the feeder's two read and submit, the caller's own reads what has ended,
writes rows and checkpoints, one asks for the next ends meanwhile, and another has jobs forgotten
whose rows are safe. Each pack of inputs is one request, and so is each look at what has ended;
nothing is asked once per input, and nothing is kept of an input that has its row.

A crash at any moment loses nothing: the checkpoint says what was safe, the sink finds the rows
behind it, and what was under way is said again under the same ids.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TypeVar

from headrace.client.bulk import LOOKUP_JOBS, cancel_many
from headrace.client.models import ENDED, Failure
from headrace.client.requests import job_request
from headrace.client.retries import exchange
from headrace.client.sansio import HttpRequest, Pause, Plan
from headrace.client.sync_client import Client, send_once
from headrace.errors import (
    ConfigError,
    Forbidden,
    HeadraceError,
    JobNotFound,
    RequestError,
    Throttled,
    Unauthorized,
)
from headrace.runs.checkpoint import Checkpoint
from headrace.runs.engine import api_calls
from headrace.runs.engine.cleanup import JobCleanup
from headrace.runs.engine.in_flight import InFlight, PendingInput
from headrace.runs.engine.outcome_prefetch import Found, OutcomePrefetch
from headrace.runs.engine.page_size import AdaptivePageSize
from headrace.runs.engine.resume import begin
from headrace.runs.engine.spec import RunProgress, RunSpec
from headrace.runs.engine.submitter import Lines, Stopping, Submitter
from headrace.runs.interfaces import SUCCEEDED, Entry, Row, Sink, Source

T = TypeVar("T")

#: Rows are made safe so often.
CHECKPOINT_S: Final = 2.0
#: Whoever watches is told so often.
WATCH_S: Final = 0.25
#: A wait for the end of one job lasts so long at the most, and so a stop.
POLL_S: Final = 1.0
#: How often a job that Redis has lost is submitted again.
RESUBMITS: Final = 10

State = Literal["ended", "stopped", "cancelled"]


class Engine:
    """One run, from where its checkpoint stands to its end.

    Args:
        client: the server. Its `retry_s` is how long an outage is borne.
        order: what is to be run.
        source: where inputs come from.
        sink: where rows go.

    Attributes:
        checkpoint: where the run stands, once `open` has been called.
        progress: how far it is.
    """

    checkpoint: Checkpoint
    _forgetter: JobCleanup
    _ahead: OutcomePrefetch

    def __init__(self, client: Client, order: RunSpec, source: Source, sink: Sink) -> None:
        self._client = client
        self._order = order
        self._source = source
        self._sink = sink
        self._stop = threading.Event()
        self._cancel = False
        self._refused: deque[tuple[PendingInput, Row]] = deque()
        self._unsafe: list[str] = []
        self._pace = AdaptivePageSize()
        self._room = api_calls.ServerLimits()
        self.progress = RunProgress(total=None)

    def open(self) -> Checkpoint:
        """Take the output, and find where the run stands.

        Raises:
            Conflict: another process writes there, the output is another run's, or its source has
                changed.
            ConfigError: source or output cannot be used.
        """
        found = self.checkpoint = begin(self._order, self._source, self._sink)
        self.progress.total = None if found.ended else self._source.count()
        self.progress.succeeded, self.progress.failed = found.succeeded, found.failed
        self.progress.before = self.progress.ended
        if found.ended:
            self.progress.total = self.progress.ended
        return found

    def stop(self, *, cancel: bool = False) -> None:
        """End the run where it is; may be called from any thread, and by a signal.

        Args:
            cancel: cancel what is under way. Else that goes on, and a later start reads its ends.
        """
        self._cancel = self._cancel or cancel
        self._stop.set()

    def run(self, watch: Callable[[RunProgress], None] | None = None) -> State:
        """Run to the end, or until `stop`; `open` comes first, and `close` after it.

        Args:
            watch: called a few times a second, between two steps.

        Raises:
            HeadraceError: the server was away for too long, there is no such model, or the source
                cannot be read on. The same run can be started again.
            OSError: the output cannot be written.
        """
        found = self.checkpoint
        if found.ended:
            return "ended"
        flight = InFlight(self._order.in_flight, found.cursor, found.n, found.numbers)
        feeder = Submitter(
            self._source, flight, (found.cursor, found.n, found.numbers), Lines(self._order),
            found.job_id, self._submit, self._refused.extend,
        )  # fmt: skip
        self._forgetter = JobCleanup(lambda ids: self._perform(api_calls.forget, ids))
        self._ahead = OutcomePrefetch(
            lambda part: self._perform(api_calls.outcomes, [item.job_id for item in part])
        )
        threads = (feeder, self._forgetter, self._ahead)
        try:
            for thread in threads:
                thread.start()
            self._collect(flight, feeder, watch or (lambda _: None))
            state = self._end(flight, feeder)
        finally:
            self._stop.set()
            flight.stop()
            self._forgetter.end(drop=True)
            self._ahead.end()
            for thread in threads:
                with suppress(RuntimeError):  # it could not be started
                    thread.join(api_calls.HOLD_S)
        return state

    def close(self) -> None:
        """Let go of the output. What is not safe yet is found by whoever goes on."""
        self._sink.close()
        self._sink.checkpoints.release()

    def _collect(
        self, flight: InFlight, feeder: Submitter, watch: Callable[[RunProgress], None]
    ) -> None:
        """Read what ends and write its rows, until all has ended, or the run stops."""
        saved = watched = time.monotonic()
        while not flight.finished and not self._stop.is_set():
            with suppress(Stopping):
                self._look(flight)
            if self._forgetter.error is not None and not self._stop.is_set():
                raise self._forgetter.error
            now = time.monotonic()
            if now - saved >= CHECKPOINT_S:
                self._save(flight)
                saved = time.monotonic()
            if now - watched >= WATCH_S:
                self.progress.in_flight, watched = flight.open, now
                watch(self.progress)
            if feeder.error is not None and not feeder.from_source:
                break

    def _end(self, flight: InFlight, feeder: Submitter) -> State:
        """Make safe what there is, and say how the run ended."""
        error = feeder.error
        if self._stop.is_set() or not flight.finished:
            flight.stop()
            # What it is submitting is to be cancelled too.
            feeder.join(2 * api_calls.HOLD_S)
            if self._cancel:
                with suppress(Stopping):  # asked to stop in the middle of it
                    self._cancel_all(flight)
            self._save(flight)
            self.progress.in_flight = flight.open
            if error is not None:
                raise error
            return "cancelled" if self._cancel else "stopped"
        self.progress.total, self.progress.in_flight = self.progress.ended, 0
        self._save(flight, last=error is None)
        if error is not None:
            raise error
        # What could not be forgotten goes after its result_ttl.
        self._forgetter.finish()
        return "ended"

    def _look(self, flight: InFlight) -> None:
        """Read what has ended, once some has, and write its rows."""
        self._write(flight, [self._refused.popleft() for _ in range(len(self._refused))])
        aim = flight.oldest(self._pace.goal)
        if not aim:
            flight.wait(WATCH_S)
            return
        pace = self._pace
        pace.begin()
        if not pace.behind:
            with suppress(JobNotFound):
                # One that is lost is known by the lookup too.
                self._perform(_wait_for, aim[-1].job_id)
        sweep = pace.waited()
        everything = sweep or pace.behind
        looked = flight.all_sent() if everything else flight.oldest(2 * pace.goal)
        pace.read(*self._read(flight, looked, whole=sweep))

    def _read(
        self, flight: InFlight, looked: list[PendingInput], *, whole: bool
    ) -> tuple[int, int]:
        """Write the rows of what has ended: how many, and of how many that were looked at.

        Args:
            flight: what is under way.
            looked: of it, the oldest first.
            whole: look at all of them; else at those behind only where all before have ended.
        """
        parts = [looked[at : at + LOOKUP_JOBS] for at in range(0, len(looked), LOOKUP_JOBS)]
        ended = seen = 0
        lost: list[PendingInput] = []
        for part, found in self._ahead.each(parts, whole=whole):
            ended += self._read_part(flight, part, found, lost)
            seen += len(part)
        if lost:
            self._again(flight, lost)
        return ended, seen

    def _read_part(
        self, flight: InFlight, part: Sequence[PendingInput], found: Found, lost: list[PendingInput]
    ) -> int:
        ended: list[tuple[PendingInput, Row]] = []
        slow: list[PendingInput] = []
        overtaken = 0
        for item, outcome in zip(part, found, strict=True):
            if outcome is None:
                lost.append(item)
            elif outcome.status in ENDED:
                overtaken = len(slow)
                ended.append((item, row_of(item.entry, item.job_id, outcome, self._perform)))
            else:
                slow.append(item)
        flight.overtake(slow[:overtaken])
        self._write(flight, ended)
        return len(ended)

    def _write(self, flight: InFlight, ended: list[tuple[PendingInput, Row]]) -> None:
        if not ended:
            return
        self._sink.append([row for _, row in ended])
        flight.end([item for item, _ in ended])
        well = [item.job_id for item, row in ended if row.status == SUCCEEDED]
        self.progress.succeeded += len(well)
        self.progress.failed += len(ended) - len(well)
        if self._order.forget:
            self._unsafe += well

    def _again(self, flight: InFlight, lost: list[PendingInput]) -> None:
        """Submit again what the server knew and knows no more: Redis has lost data."""
        flight.unsend(lost)
        line = Lines(self._order)
        for item in lost:
            item.lost += 1
        again = [item for item in lost if item.lost <= RESUBMITS]
        gone = [item for item in lost if item.lost > RESUBMITS]
        lines = [line(item.entry, item.job_id) for item in again]
        errors = self._submit(lines, line.quiet) if lines else []
        refused = []
        for item, error in zip(again, errors, strict=True):
            if error is None:
                flight.sent([item])
            else:
                refused.append((item, _lost_row(item, error)))
        advice = "Is its result_ttl long enough, and does Redis keep its data?"
        for item in gone:
            error = JobNotFound(f"the record of job {item.job_id} is gone, again. {advice}")
            refused.append((item, _lost_row(item, error)))
        self._write(flight, refused)

    def _save(self, flight: InFlight, *, last: bool = False) -> None:
        """Make rows safe, then say so in the checkpoint; their jobs may then be forgotten."""
        kept = self.checkpoint
        kept.mark = self._sink.finish() if last else self._sink.sync()
        kept.cursor, kept.n, kept.done = flight.position()
        kept.succeeded, kept.failed = self.progress.succeeded, self.progress.failed
        kept.ended = last
        self._sink.checkpoints.save(kept.encode())
        self._forgetter.add(self._unsafe)
        self._unsafe.clear()

    def _cancel_all(self, flight: InFlight) -> None:
        """Cancel what is under way, and write the rows of what has ended by that."""
        under_way = flight.all_sent()
        self._stop.clear()
        self._perform(cancel_many, [item.job_id for item in under_way])
        self._read(flight, under_way, whole=True)
        self._stop.set()

    def _submit(self, lines: list[bytes], quiet: bool) -> list[HeadraceError | None]:
        return self._perform(api_calls.submit, lines, quiet, self._room)

    def _perform(self, plan: Callable[..., Plan[T]], *arguments: Any) -> T:
        """Run a plan; what it waits for ends with the run.

        Raises:
            Stopping: the run stops.
        """
        steps = plan(self._client.session, *arguments)
        came: object = None
        while True:
            try:
                step = steps.send(came)
            except StopIteration as ended:
                value: T = ended.value
                return value
            if isinstance(step, HttpRequest):
                came = send_once(self._client, step)
            elif isinstance(step, Pause):
                came = None
                if self._stop.wait(step.seconds):
                    raise Stopping
            else:
                raise ConfigError(f"a run takes no {type(step).__name__} step")


def row_of(
    entry: Entry, job_id: str, outcome: api_calls.Outcome, perform: Callable[..., Any]
) -> Row:
    """The row of an entry whose job has ended; a long result is fetched for it.

    Args:
        entry: the entry.
        job_id: its job.
        outcome: how that has ended.
        perform: runs a plan.
    """
    result, error, status = outcome.result, outcome.error, outcome.status
    if outcome.result_size is not None:
        try:
            result = perform(api_calls.long_result, job_id)
        except (Unauthorized, Forbidden, Throttled):
            raise  # nothing is wrong with this one
        except RequestError as gone:
            status, result = "failed", api_calls.NO_JSON
            error = Failure(type=gone.code, message=gone.message, retryable=True)
    elif status != "succeeded":
        error = error or Failure(message=f"the job is {status}")
    return Row(
        entry.n, entry.key, status, outcome.attempts, outcome.timings or None, result or None,
        error, entry.carried,
    )  # fmt: skip


def _wait_for(session: Any, job_id: str) -> Plan[None]:
    yield from exchange(session, job_request("GET", job_id, wait_s=POLL_S))


def _lost_row(item: PendingInput, error: HeadraceError) -> Row:
    failure = Failure(type=error.code, message=error.message, retryable=error.retryable)
    return Row(item.entry.n, item.entry.key, "failed", error=failure, carried=item.entry.carried)
