"""Submit the lines of a bulk request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from api.auth.rate_limit import RateLimiter, rate_limited
from api.http.bodies import Line
from api.http.messages import Request
from api.http.problems import internal_error, problem
from api.routes.jobs.submission import fresh_job, fresh_state, submission_of, validated
from api.services import Services
from api.submission.input_store import StoredInput
from api.submission.job_request import (
    LINE,
    JobIdentity,
    ValidatedRequest,
    identity_from_key,
    identity_of,
    requested_model,
    trace_id_of,
    with_trace,
)
from headrace.errors import (
    BrokerUnavailable,
    HeadraceError,
    PayloadTooLarge,
    StoreUnavailable,
    Throttled,
)
from headrace.jobs.ids import ids_on_demand
from headrace.jobs.job import Job
from headrace.jobs.trace_context import Trace, read_trace
from headrace.jobs.values.encoding import without_line_ends
from headrace.queue.asyncio_tasks import wait_at_most
from headrace.queue.job_queue import VIEW_MAX_JOBS
from headrace.queue.submission import JobSubmission, Receipt, answer_to_repeat, id_unavailable
from headrace.redis.scripts import pages_of
from headrace.schema.serialization import Waiting, fresh_object, job_object

#: Seconds between two tries of lines that are held back; doubled while no line is accepted.
HOLD_MIN_S: Final = 0.02
HOLD_MAX_S: Final = 0.5
#: Lines in the first try while lines are held back; more while the queue has room.
PROBE: Final = 16


class BulkLine(msgspec.Struct):
    """One line and its outcome; tracked by the garbage collector, as an error may refer to it.

    Attributes:
        number: 1 for the first line of the body.
        line: the line until it is read; then None.
        request: the request of the line; None where the line is not valid.
        job: the request as arguments of jobs/submit.lua; None until its input is stored.
        stored: where its input is stored, unless the message carries it.
        outcome: a receipt (queued), a job (of an earlier request), or an error.
    """

    number: int
    line: Line | None = None
    request: ValidatedRequest | None = None
    job: JobSubmission | None = None
    stored: StoredInput | None = None
    outcome: Receipt | Job | HeadraceError | None = None


@dataclass(kw_only=True)
class BulkSubmitter:
    """Validates lines, submits them together, and writes the answer of each.

    Attributes:
        trace: the trace of the request, for lines that name none.
        key: the idempotency key of the request; "" for none.
        hold_s: seconds for which lines without room in their queue are held back.
        brief: answer with the number of accepted lines, and in full only for the others.
        waiter: as in `SubmitKind`.
        deadline_s: by when the results are wanted, in seconds since 1970; None for no deadline.
    """

    services: Services
    request: Request
    trace: Trace | None
    key: str
    hold_s: float
    brief: bool
    waiter: str
    deadline_s: float | None

    @property
    def _rates(self) -> RateLimiter | None:
        authenticator, rate = self.services.authenticator, self.request.caller.rate
        return authenticator.rates if authenticator is not None and rate else None

    def read(self, lines: Sequence[Line]) -> list[BulkLine]:
        """Return the rows of lines; those of a key with a rate are validated when it has paid."""
        rows = [BulkLine(line.number, line) for line in lines]
        if self._rates is None:
            self._validate(rows)
        return rows

    async def submit(self, rows: Sequence[BulkLine]) -> None:
        """Submit the valid lines; hold back and retry lines without room or without a reply."""
        todo: list[BulkLine] = []
        held: list[BulkLine] = []
        async for allowed in self._within_rate(rows):
            if self._rates is not None:
                self._validate(allowed)
            part = [row for row in allowed if row.outcome is None]
            todo += part
            if part:
                # Those without room again too, so that no later line takes their place.
                held = await self._try([*held, *part])
        if held:
            await self._hold(held)
        stored = [(row, row.stored) for row in todo if row.stored is not None]
        if stored:
            await asyncio.gather(*(self._drop(row, where) for row, where in stored))
        self._count(rows)

    async def answers(self, rows: Sequence[BulkLine]) -> bytes:
        """Return the answers, a line each; a brief answer counts accepted lines together."""
        if self.brief:
            return self._brief_answers(rows)
        asked = {
            (row.request.model.name, row.request.model.asked_version)
            for row in rows
            if row.request is not None
        }
        waits = {
            target: await self.services.model_statuses.waiting_for(*target) for target in asked
        }
        return without_line_ends(b"\n".join([*(self._answer(row, waits) for row in rows), b""]))

    def _brief_answers(self, rows: Sequence[BulkLine]) -> bytes:
        lines, accepted = [], 0
        for row in rows:
            if isinstance(row.outcome, (Receipt, Job)):
                accepted += 1
                continue
            if accepted:
                lines.append(b'{"accepted":%d}' % accepted)
                accepted = 0
            lines.append(self._answer(row, {}))
        if accepted:
            lines.append(b'{"accepted":%d}' % accepted)
        return without_line_ends(b"\n".join([*lines, b""]))

    async def _within_rate(self, rows: Sequence[BulkLine]) -> AsyncIterator[Sequence[BulkLine]]:
        """Yield the lines as the key's rate allows them; after `hold_s` refuse those that are left.

        Lines that are not valid count too: checking them is work.
        """
        rates, caller = self._rates, self.request.caller
        if rates is None:
            yield rows
            return
        clock, stopping = asyncio.get_running_loop().time, self.services.waiters.dismissed
        until, taken = clock() + self.hold_s, 0
        while True:
            try:
                more, wait_s = await rates.spend(caller, len(rows) - taken)
            except HeadraceError as error:
                refused: HeadraceError = error
                break
            yield rows[taken : taken + more]
            taken += more
            refused = rate_limited(caller, wait_s)
            if taken == len(rows) or clock() + wait_s > until or stopping.is_set():
                break
            await asyncio.sleep(wait_s)
        for row in rows[taken:]:
            row.line, row.outcome = None, refused.kept()

    def _validate(self, rows: Sequence[BulkLine]) -> None:
        now_s = self.services.queue.clock.now_s()
        fresh_ids = ids_on_demand()
        for row in rows:
            line, row.line = row.line, None
            if line is not None:
                self._read(row, line, fresh_ids, now_s)

    def _read(self, row: BulkLine, line: Line, fresh_ids: Iterator[str], now_s: float) -> None:
        services = self.services
        try:
            if line.number > services.settings.bulk_limit_lines:
                raise PayloadTooLarge(
                    f"the request has more than {services.settings.bulk_limit_lines} lines",
                    hint="Send the rest in another request, or raise bulk_limit_lines.",
                )
            if line.text is None:
                limit = services.settings.body_limit_bytes
                raise PayloadTooLarge(
                    f"the line has more than {limit} bytes",
                    hint="Send a smaller input, or raise body_limit_bytes.",
                )
            fields = LINE.decode(line.text)
            model = requested_model(services.catalog, services.model_statuses, fields)
            identity = self._identity(fields.id, line.number, fresh_ids)
            request = validated(services, self.request, fields, model, identity)
            trace = self.trace
            if fields.traceparent is not None:
                # An invalid one is ignored, as in a header.
                trace = read_trace(fields.traceparent) or trace
            row.request = with_trace(request, trace)
            if not row.request.stored_separately:
                row.job = submission_of(
                    services, row.request, now_s, self.waiter, None, self.deadline_s
                )
        except HeadraceError as error:
            row.outcome = error.kept()

    def _identity(self, given_id: str | None, number: int, fresh_ids: Iterator[str]) -> JobIdentity:
        if given_id is not None:
            return identity_of(given_id, "", self.request.caller.key_id)
        if self.key:
            # The key was checked as it came; with the line's number it may exceed the limit.
            return identity_from_key(f"{self.key}/{number}", self.request.caller.key_id)
        return JobIdentity(next(fresh_ids), chosen=False)

    async def _keep(self, rows: Sequence[tuple[BulkLine, ValidatedRequest]]) -> None:
        """Write the inputs of these lines to the payload store, or check the files they name."""
        places = await self.services.input_store.keep_all([request for _, request in rows])
        now_s = self.services.queue.clock.now_s()
        for (row, request), stored in zip(rows, places, strict=True):
            if isinstance(stored, StoredInput):
                row.stored = stored
                row.job = submission_of(
                    self.services, request, now_s, self.waiter, stored.source, self.deadline_s
                )
            elif stored is not None:
                row.outcome = stored.kept()
            elif row.outcome is None:
                row.outcome = StoreUnavailable(
                    "other inputs have kept the payload store busy for too long",
                    hint="Try again later.",
                )

    async def _drop(self, row: BulkLine, stored: StoredInput) -> None:
        """Delete the input of a job that was not enqueued; keep it where that is unknown."""
        known = isinstance(row.outcome, (Job, HeadraceError))
        if known and not isinstance(row.outcome, BrokerUnavailable):
            await self.services.input_store.drop(stored)

    async def _try(self, rows: Sequence[BulkLine]) -> list[BulkLine]:
        """Submit the lines in a single call; return those to try again."""
        unstored = [(row, row.request) for row in rows if row.job is None and row.request]
        if unstored:
            await self._keep(unstored)
        await self._enqueue([row for row in rows if row.job is not None] if unstored else rows)
        # After the other lines, as one of these may be the earlier request.
        refused = [pair for pair in unstored if pair[0].job is None and pair[1].identity.chosen]
        earlier = await self._view([request.identity.job_id for _, request in refused])
        for (row, request), job in zip(refused, earlier, strict=True):
            if isinstance(job, Job):
                row.outcome = answer_to_repeat(job, request.request_hash, self.request.caller)
            elif job is not None:
                row.outcome = job
        return [row for row in rows if _retryable(row)]

    async def _enqueue(self, rows: Sequence[BulkLine]) -> None:
        jobs = [row.job for row in rows if row.job is not None]
        if not jobs:
            return
        answers = await self.services.queue.submit_many(jobs)
        known: list[tuple[BulkLine, str]] = []
        for row, job, answer in zip(rows, jobs, answers, strict=True):
            row.outcome = answer.kept() if isinstance(answer, HeadraceError) else answer
            # Without an id of the client, only a resend after a lost reply can repeat a job.
            if isinstance(answer, Receipt) and answer.repeated and _chosen(row):
                known.append((row, job.id))
        earlier = await self._view([job_id for _, job_id in known])
        for (row, job_id), found in zip(known, earlier, strict=True):
            if isinstance(found, Job) and not self.request.caller.may_see(found.key):
                row.outcome = id_unavailable(job_id)
            else:
                row.outcome = found

    async def _view(self, ids: Sequence[str]) -> list[Job | HeadraceError | None]:
        """Read the jobs of earlier requests; None where a record has just expired."""
        jobs: list[Job | HeadraceError | None] = []
        for page in pages_of(ids, VIEW_MAX_JOBS):
            try:
                jobs += await self.services.queue.view(page)
            except HeadraceError as error:
                jobs += [error.kept()] * len(page)
        return jobs

    async def _hold(self, held: list[BulkLine]) -> None:
        """Try again for `hold_s` seconds; meanwhile nothing more is read from the client."""
        clock, stopping = asyncio.get_running_loop().time, self.services.waiters.dismissed
        until = clock() + self.hold_s
        pause_s, probe = HOLD_MIN_S, PROBE
        while held and clock() < until and not stopping.is_set():
            await wait_at_most(min(pause_s, max(0.0, until - clock())), stopping)
            # The last try includes all lines: a full queue must not refuse the lines of another.
            part = len(held) if clock() >= until else probe
            refused = await self._try(held[:part])
            moved = min(part, len(held)) - len(refused)
            held = refused + held[part:]
            pause_s = HOLD_MIN_S if moved else min(pause_s * 2, HOLD_MAX_S)
            probe = max(PROBE, 2 * moved)

    def _count(self, rows: Sequence[BulkLine]) -> None:
        admitted: Counter[tuple[str, str]] = Counter()
        for row in rows:
            if row.request is None:
                continue
            if isinstance(row.outcome, Receipt):
                if row.request.shadow is not None and not row.outcome.repeated:
                    self.services.shadow_copies.offer(row.request)
                admitted[row.request.model.name, row.request.model.asked_version] += 1
            elif isinstance(row.outcome, HeadraceError):
                self.services.counters.refused(row.request.model.name, row.outcome.code)
        for (name, version), count in admitted.items():
            self.services.counters.admitted(name, version, count)

    def _answer(self, row: BulkLine, waits: dict[tuple[str, str], Waiting | None]) -> bytes:
        outcome = row.outcome
        if isinstance(outcome, Receipt) and row.request is not None:
            model = row.request.model
            waiting_for = waits[model.name, model.asked_version]
            return _fresh(row.request, outcome.created_us, waiting_for)
        if isinstance(outcome, Job):
            waiting_for = waits.get((outcome.model, outcome.asked_version))
            return job_object(outcome, waiting_for=waiting_for, replayed=True)
        members = {"line": row.number} | ({"job": row.job.id} if row.job is not None else {})
        if isinstance(outcome, HeadraceError):
            # A line has no header for it.
            if isinstance(outcome, Throttled) and outcome.retry_after_s > 1:
                members["retry_after"] = outcome.retry_after_s
            reply = problem(outcome, self.request.path, **members)
        else:
            error = RuntimeError(f"line {row.number} has no outcome")
            failure, error_id = internal_error(error, self.request.path)
            reply = problem(failure, self.request.path, id=error_id)
        return b'{"error":%s}' % reply.body


def _fresh(request: ValidatedRequest, created_us: int, waiting_for: Waiting | None) -> bytes:
    if request.options.metadata is not None:
        return job_object(fresh_job(request, created_us), waiting_for=waiting_for)
    model, state = request.model, fresh_state(request.options)
    shown = fresh_object(
        model.name, model.version, state, created_us, waiting_for, model.asked_version,
        trace_id_of(request),
    )  # fmt: skip
    return shown(request.identity.job_id)


def _chosen(row: BulkLine) -> bool:
    return row.request is not None and row.request.identity.chosen


def _retryable(row: BulkLine) -> bool:
    """Whether another try can help: no room, no Redis, or a record that has just expired."""
    return row.outcome is None or (isinstance(row.outcome, HeadraceError) and row.outcome.retryable)
