"""The engine of a run: entries from a source, through a model, become rows in a sink.

Several threads share the work:
* Two threads of the submitter read the source and submit inputs.
* The caller's thread reads outcomes, and writes rows and checkpoints.
* A thread reads the next page of outcomes meanwhile.
* A thread submits again the jobs that the server has lost.
* A thread deletes the jobs whose rows are durable.

A page of inputs is one request, and so is a page of outcomes; there is no request per input.
Nothing is kept of an input that has its row.

A crash loses nothing at any moment. The checkpoint names the durable rows, and the sink finds those
behind it. Inputs in in_flight are submitted again under the same ids.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import zip_longest
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from headrace.client.bulk import LOOKUP_JOBS, cancel_many
from headrace.client.http.retries import exchange, outlasting_limits
from headrace.client.inputs import job_request
from headrace.client.map import AdaptivePageSize
from headrace.client.models import ENDED
from headrace.client.offline import RowError, RunProgress
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
from headrace.runs import api_calls
from headrace.runs.checkpoint import Checkpoint, begin
from headrace.runs.in_flight import InFlight, PendingInput
from headrace.runs.interfaces import SUCCEEDED, Entry, Row, RunSpec, Sink, Source
from headrace.runs.submitter import Accepted, Lines, Stopping, Submitter
from headrace.runs.threads import JobCleanup, Resubmitter, lost_row

T = TypeVar("T")
Page: TypeAlias = Sequence[PendingInput]
Outcomes: TypeAlias = Sequence[api_calls.Outcome | None]

#: Seconds between two checkpoints.
CHECKPOINT_S: Final = 2.0
#: Seconds between two calls of `watch`.
WATCH_S: Final = 0.25
#: The longest wait for the end of one job, and so for a stop.
POLL_S: Final = 1.0
#: How often a job that Redis has lost is submitted again.
RESUBMITS: Final = 10
#: The least time between two looks whether jobs have ended while a limit is waited for.
LIMIT_S: Final = 1.0

State = Literal["ended", "stopped", "cancelled"]


class Engine:
    """One run, from its checkpoint to its end.

    It survives an outage of the client's `retry_s`, and waits for limits (429) without end.

    Args:
        job_id: returns the id of an input's job by its number; None for ids of the run.
    """

    checkpoint: Checkpoint
    _cleanup: JobCleanup
    _resubmitter: Resubmitter

    def __init__(
        self,
        client: Client,
        spec: RunSpec,
        source: Source,
        sink: Sink,
        job_id: Callable[[int], str] | None = None,
    ) -> None:
        self._client = client
        self._job_id = job_id
        self._spec = spec
        self._source = source
        self._sink = sink
        self._stop = threading.Event()
        self._cancel = False
        self._refused: deque[tuple[PendingInput, Row]] = deque()
        self._undeleted: list[str] = []
        self._page_size = AdaptivePageSize(growth=4, most=LOOKUP_JOBS)
        self._accepts = api_calls.AcceptCount()
        # The limits for which requests wait, by thread.
        self._limits: dict[int, str] = {}
        self.progress = RunProgress(total=None)

    def open(self) -> Checkpoint:
        """Lock the output, and find the state of the run.

        Raises:
            Conflict: another process writes the output, it belongs to another run, or the source
                has changed.
            ConfigError: source or output cannot be used.
        """
        found = self.checkpoint = begin(self._spec, self._source, self._sink)
        self.progress.total = None if found.ended else self._source.count()
        self.progress.succeeded, self.progress.failed = found.succeeded, found.failed
        self.progress.before = self.progress.ended
        if found.ended:
            self.progress.total = self.progress.ended
        return found

    def stop(self, *, cancel: bool = False) -> None:
        """Stop the run, from any thread or signal handler; `cancel` its jobs, or let them go on."""
        self._cancel = self._cancel or cancel
        self._stop.set()

    def run(self, watch: Callable[[RunProgress], object] | None = None) -> State:
        """Run to the end, or until `stop`. Call `open` before and `close` afterwards.

        Raises:
            HeadraceError: the server was away for too long, the model does not exist, or the source
                cannot be read further. The same run can be started again.
            OSError: the output cannot be written.
        """
        found = self.checkpoint
        if found.ended:
            return "ended"
        in_flight = InFlight(self._spec.in_flight, found.cursor, found.n, found.done_set)
        submitter = Submitter(
            self._source, in_flight, (found.cursor, found.n, found.done_set), Lines(self._spec),
            self._job_id or found.job_id, self._submit, self._refused.extend,
        )  # fmt: skip
        self._cleanup = JobCleanup(lambda ids: self._perform(api_calls.forget, ids))
        self._resubmitter = Resubmitter(
            in_flight, Lines(self._spec), self._submit, self._refused.extend
        )
        threads = (submitter, self._cleanup, self._resubmitter)
        try:
            for thread in threads:
                thread.start()
            self._collect(in_flight, submitter, watch or (lambda _: None))
            state = self._end(in_flight, submitter)
        finally:
            self._stop.set()
            in_flight.stop()
            self._cleanup.end(drop=True)
            self._resubmitter.end()
            for thread in threads:
                with suppress(RuntimeError):  # it could not be started
                    thread.join(api_calls.HOLD_S)
        return state

    def close(self) -> None:
        """Unlock the output. The next process finds the rows that are not durable yet."""
        self._sink.close()
        self._sink.checkpoints.release()

    def _collect(
        self, in_flight: InFlight, submitter: Submitter, watch: Callable[[RunProgress], object]
    ) -> None:
        """Read outcomes and write their rows until all have ended or the run stops."""
        saved = watched = time.monotonic()
        while not in_flight.finished and not self._stop.is_set():
            with suppress(Stopping):
                self._poll(in_flight)
            for error in (self._cleanup.error, self._resubmitter.error):
                if error is not None and not self._stop.is_set():
                    raise error
            now = time.monotonic()
            if now - saved >= CHECKPOINT_S:
                self._save(in_flight)
                saved = time.monotonic()
            if now - watched >= WATCH_S:
                self.progress.in_flight, watched = in_flight.count, now
                self.progress.limit = next(iter([*self._limits.values()]), "")
                watch(self.progress)
            if submitter.error is not None and not submitter.from_source:
                break

    def _end(self, in_flight: InFlight, submitter: Submitter) -> State:
        """Write the last checkpoint, and return how the run ended."""
        error = submitter.error
        if self._stop.is_set() or not in_flight.finished:
            in_flight.stop()
            self._resubmitter.end()
            # The jobs that they are submitting must be cancelled too.
            submitter.join(2 * api_calls.HOLD_S)
            self._resubmitter.join(2 * api_calls.HOLD_S)
            if self._cancel:
                with suppress(Stopping):  # a second stop in the middle of it
                    self._cancel_all(in_flight)
            self._save(in_flight)
            # The server has no jobs of those that still wait for a limit.
            self.progress.in_flight = len(in_flight.all_sent())
            if error is not None:
                raise error
            return "cancelled" if self._cancel else "stopped"
        self.progress.total, self.progress.in_flight = self.progress.ended, 0
        self._save(in_flight, last=error is None)
        if error is not None:
            raise error
        # Jobs that cannot be deleted expire after their result_ttl.
        self._cleanup.finish()
        return "ended"

    def _poll(self, in_flight: InFlight) -> None:
        """Wait until some jobs have ended, and write their rows."""
        self._write(in_flight, [self._refused.popleft() for _ in range(len(self._refused))])
        page_size = self._page_size
        page = in_flight.oldest(page_size.goal)
        if not page:
            in_flight.wait(WATCH_S)
            return
        page_size.begin()
        if not page_size.behind:
            with suppress(JobNotFound):  # the lookup finds a lost job too
                self._perform(_wait_for, page[-1].job_id)
        sweep = page_size.waited()
        everything = sweep or page_size.behind
        inputs = in_flight.all_sent() if everything else in_flight.oldest(2 * page_size.goal)
        page_size.read(*self._read(in_flight, inputs, whole=sweep))

    def _read(
        self, in_flight: InFlight, inputs: list[PendingInput], *, whole: bool
    ) -> tuple[int, int]:
        """Look up inputs and write the rows of those that have ended.

        Args:
            inputs: some of them, the oldest first.
            whole: look up all pages; otherwise end with the first in which not all have ended.

        Returns:
            How many have ended, and how many were looked up.
        """
        pages = [inputs[at : at + LOOKUP_JOBS] for at in range(0, len(inputs), LOOKUP_JOBS)]
        ended = looked_up = 0
        lost: list[PendingInput] = []
        for page, outcomes in prefetched(self._outcomes, pages, whole=whole):
            ended += self._read_page(in_flight, page, outcomes, lost)
            looked_up += len(page)
        if lost:
            self._resubmit(in_flight, lost)
        return ended, looked_up

    def _outcomes(self, page: Page) -> Outcomes:
        return self._perform(api_calls.outcomes, [one.job_id for one in page])

    def _read_page(
        self, in_flight: InFlight, page: Page, outcomes: Outcomes, lost: list[PendingInput]
    ) -> int:
        ended: list[tuple[PendingInput, Row]] = []
        slow: list[PendingInput] = []
        overtaken = 0
        for pending, outcome in zip(page, outcomes, strict=True):
            if outcome is None:
                lost.append(pending)
            elif outcome.status in ENDED:
                overtaken = len(slow)
                row = row_of(pending.entry, pending.job_id, outcome, self._perform)
                ended.append((pending, row))
            else:
                slow.append(pending)
        in_flight.mark_overtaken(slow[:overtaken])
        self._write(in_flight, ended)
        return len(ended)

    def _write(self, in_flight: InFlight, ended: list[tuple[PendingInput, Row]]) -> None:
        if not ended:
            return
        self._sink.append([row for _, row in ended])
        in_flight.remove([pending for pending, _ in ended])
        succeeded = [pending.job_id for pending, row in ended if row.status == SUCCEEDED]
        self.progress.succeeded += len(succeeded)
        if len(succeeded) < len(ended):
            self._count_failures([row for _, row in ended if row.status != SUCCEEDED])
        if self._spec.forget:
            self._undeleted += succeeded

    def _count_failures(self, rows: list[Row]) -> None:
        self.progress.failed += len(rows)
        if not self.progress.first_failure:
            error = rows[0].error
            reason = error.message if error else rows[0].status
            if isinstance(error, RowError) and error.where:
                reason += f" ({error.where})"
            if isinstance(error, RowError) and error.job:
                reason += f"; see headrace jobs {error.job}"
            self.progress.first_failure = f"{rows[0].key}: {reason}"

    def _resubmit(self, in_flight: InFlight, lost: list[PendingInput]) -> None:
        """Have jobs that the server has lost submitted again; write the rows of hopeless ones."""
        in_flight.mark_lost(lost)
        for pending in lost:
            pending.lost += 1
        self._resubmitter.add([pending for pending in lost if pending.lost <= RESUBMITS])
        advice = "Increase --result-ttl, and check that Redis keeps its data."
        gone = []
        for pending in lost:
            if pending.lost > RESUBMITS:
                error = JobNotFound(f"the record of job {pending.job_id} was lost again. {advice}")
                gone.append((pending, lost_row(pending, error)))
        self._write(in_flight, gone)

    def _save(self, in_flight: InFlight, *, last: bool = False) -> None:
        """Make rows durable, then write the checkpoint; their jobs may then be deleted."""
        checkpoint = self.checkpoint
        checkpoint.mark = self._sink.finish() if last else self._sink.sync()
        checkpoint.cursor, checkpoint.n, checkpoint.done = in_flight.position()
        checkpoint.succeeded = self.progress.succeeded
        checkpoint.failed = self.progress.failed
        checkpoint.ended = last
        self._sink.checkpoints.save(checkpoint.encode())
        self._cleanup.add(self._undeleted)
        self._undeleted.clear()

    def _cancel_all(self, in_flight: InFlight) -> None:
        """Cancel the jobs in flight, and write the rows of those that have ended by then."""
        inputs = in_flight.all_sent()
        # A new event: a submitter that is still inside a request must not go on after it.
        self._stop = threading.Event()
        self._perform(cancel_many, [pending.job_id for pending in inputs])
        self._read(in_flight, inputs, whole=True)
        self._stop.set()

    def _submit(
        self, lines: list[bytes], quiet: bool, accepted: Accepted
    ) -> list[HeadraceError | None]:
        deadline_s = self._spec.deadline_s
        return self._perform(api_calls.submit, lines, quiet, self._accepts, deadline_s, accepted)

    def _perform(self, plan: Callable[..., Plan[T]], *arguments: Any) -> T:
        """Run a plan, whose waits end when the run stops; then raise Stopping."""
        session, stop = self._client.session, self._stop
        steps = outlasting_limits(session, plan(session, *arguments))
        response: object = None
        ended = self.progress.ended
        try:
            while True:
                try:
                    step = steps.send(response)
                except StopIteration as stopped:
                    value: T = stopped.value
                    return value
                if isinstance(step, HttpRequest):
                    ended = self.progress.ended
                    response = send_once(self._client, step)
                elif isinstance(step, Pause):
                    response = None
                    self._wait(step, ended, stop)
                else:
                    raise ConfigError(f"a run cannot perform a {type(step).__name__} step")
        finally:
            self._limits.pop(threading.get_ident(), None)

    def _wait(self, pause: Pause, ended: int, stop: threading.Event) -> None:
        """Wait; for a limit only until a job of the run ends, which may make room.

        It gives back its place, and the tokens that it was expected to need and has not used.
        `ended` is how many inputs had ended before the request was sent.

        Raises:
            Stopping: the run stops.
        """
        if pause.limit:
            self._limits[threading.get_ident()] = pause.limit
        else:
            self._limits.pop(threading.get_ident(), None)
        until = time.monotonic() + pause.seconds
        while (left_s := until - time.monotonic()) > 0:
            if stop.wait(min(left_s, LIMIT_S) if pause.limit else left_s):
                raise Stopping
            if pause.limit and self.progress.ended != ended:
                return


def prefetched(
    read: Callable[[Page], Outcomes], pages: Sequence[Page], *, whole: bool
) -> Iterator[tuple[Page, Outcomes]]:
    """Yield each page with its outcomes, while a thread reads those of the next page.

    Args:
        pages: the oldest inputs first.
        whole: read the next page even if not every job of a page has ended.

    Raises:
        HeadraceError, Stopping: as `read` does.
    """
    outcomes = read(pages[0]) if pages else ()
    for page, following in zip_longest(pages, pages[1:]):
        all_ended = all(one is not None and one.status in ENDED for one in outcomes)
        result: Future[Outcomes] | None = None
        if following is not None and (whole or all_ended):
            result = _in_thread(read, following)
        yield page, outcomes
        if result is None:
            return
        outcomes = result.result()


def _in_thread(read: Callable[[Page], Outcomes], page: Page) -> Future[Outcomes]:
    """Read a page in a thread of its own, which keeps no process alive."""
    result: Future[Outcomes] = Future()

    def run() -> None:
        try:
            result.set_result(read(page))
        except BaseException as error:  # noqa: BLE001 - raised again by `prefetched`
            result.set_exception(error)

    threading.Thread(target=run, name="headrace-prefetch", daemon=True).start()
    return result


def row_of(
    entry: Entry, job_id: str, outcome: api_calls.Outcome, perform: Callable[..., Any]
) -> Row:
    """Return the row of an entry whose job has ended; a long result is read from the server."""
    result, error, status = outcome.result, outcome.error, outcome.status
    if outcome.result_size is not None:
        try:
            result = perform(api_calls.long_result, job_id)
        except (Unauthorized, Forbidden, Throttled):
            raise  # concerns every result
        except RequestError as gone:
            status, result = "failed", api_calls.NO_JSON
            error = RowError(type=gone.code, message=gone.message, retryable=True, job=job_id)
    elif status != SUCCEEDED:
        error = error or RowError(message=f"the job is {status}")
        error = msgspec.structs.replace(error, job=job_id)
    return Row(
        entry.n, entry.key, status, outcome.attempts, outcome.timings or None, result or None,
        error, entry.carried,
    )  # fmt: skip


def _wait_for(session: Any, job_id: str) -> Plan[None]:
    yield from exchange(session, job_request("GET", job_id, wait_s=POLL_S))
