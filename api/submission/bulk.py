"""The lines of a bulk request on their way into the queue. Knows no HTTP."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import repeat
from typing import Final

import msgspec

from api.auth.authenticator import rate_limited
from api.http.bodies import Payload
from api.http.ndjson import Line
from api.http.problems import problem, unexpected
from api.routes.jobs.submit import fresh_job, fresh_state, submission_of
from api.services import Services
from api.submission.job_request import (
    LINE,
    JobIdentity,
    ValidatedRequest,
    asked_by,
    identity_of,
    identity_under,
    in_trace,
    model_for,
    read_job_request,
)
from api.submission.payloads import StoredInput
from headrace.access.api_key import EVERYBODY, Caller
from headrace.errors import BrokerUnavailable, HeadraceError, PayloadTooLarge, StoreUnavailable
from headrace.jobs.job import Job, new_ids
from headrace.jobs.serialization import fresh_line, job_object
from headrace.jobs.trace_context import Trace, read_trace
from headrace.payloads.stores import THREADS
from headrace.queue.job_queue import VIEW_MAX_JOBS
from headrace.queue.submission import JobSubmission, Receipt, of_another, repeat_of

#: Between two tries of lines that are held back, in seconds; doubled while nothing moves.
HOLD_MIN_S: Final = 0.02
HOLD_MAX_S: Final = 0.5
#: A try while lines are held back takes so many of them first, and more while there is room.
PROBE: Final = 16
#: After so many seconds a try begins to keep no more inputs: of a store that hangs each would wait.
KEEP_MAX_S: Final = 10.0


class BulkLine(msgspec.Struct, gc=False):
    """One line and what has become of it.

    Attributes:
        asked: what it asks for; None where it cannot be read.
        job: the same for jobs/submit.lua; None also until its input is kept.
        kept: where its input lies, if that does not go in its message.
        outcome: a receipt (queued), a job (of an earlier request), or why there is none.
    """

    number: int
    asked: ValidatedRequest | None = None
    job: JobSubmission | None = None
    kept: StoredInput | None = None
    outcome: Receipt | Job | HeadraceError | None = None


class BulkSubmitter:
    """Reads lines, submits them together, and says what became of each.

    Args:
        services: what the routes share.
        path: of the request, for problems.
        key: its idempotency key; "" for none.
        hold_s: how long lines that find no room are held back.
        caller: on whose behalf.
        trace: of the request, which its jobs are part of whose line names none.
        brief: say only how many lines were accepted, between those that were not.
        quiet: nobody but who asks hears of the jobs' ends.
    """

    def __init__(
        self,
        services: Services,
        path: str,
        key: str,
        hold_s: float,
        caller: Caller = EVERYBODY,
        *,
        trace: Trace | None = None,
        brief: bool = False,
        quiet: bool = False,
    ) -> None:
        self.trace = trace
        self._services = services
        self._caller = caller
        self._path = path
        self._key = key
        self._hold_s = hold_s
        self._brief = brief
        self._quiet = quiet

    def read(self, lines: Sequence[Line]) -> list[BulkLine]:
        """What lines ask for; a bad one hinders no other."""
        now_s = self._services.queue.clock.now_s()
        fresh = repeat("") if self._key else new_ids(len(lines))
        return [self._read(line, job_id, now_s) for line, job_id in zip(lines, fresh, strict=False)]

    async def submit(self, rows: Sequence[BulkLine]) -> None:
        """Submit what can be; what finds no room, or no answer, is held back and tried again."""
        todo = await self._within_rate([row for row in rows if row.outcome is None])
        if todo:
            held = await self._try(todo)
            if held:
                await self._hold(held)
        large = [(row, row.kept) for row in todo if row.kept is not None]
        if large:
            await asyncio.gather(*(self._drop(row, kept) for row, kept in large))
        self._count(rows)

    async def _within_rate(self, rows: Sequence[BulkLine]) -> Sequence[BulkLine]:
        """The lines that the key's rate has room for; the rest is held back, then refused."""
        door, caller = self._services.authenticator, self._caller
        if door is None or not caller.rate:
            return rows
        clock, stopping = asyncio.get_running_loop().time, self._services.waiters.dismissed
        until, taken = clock() + self._hold_s, 0
        while True:
            try:
                more, wait_s = await door.spend(caller, len(rows) - taken)
            except HeadraceError as error:
                refused: HeadraceError = error
                break
            taken += more
            refused = rate_limited(caller, wait_s)
            if taken == len(rows) or clock() + wait_s > until or stopping.is_set():
                break
            await asyncio.sleep(wait_s)
        for row in rows[taken:]:
            row.outcome = refused
        return rows[:taken]

    async def answers(self, rows: Sequence[BulkLine]) -> bytes:
        """What became of each, a line each; where that is enough, a line for many."""
        if self._brief:
            return self._brief_answers(rows)
        names = {row.asked.model.name for row in rows if row.asked is not None}
        ready = {name: await self._services.model_statuses.has_ready(name) for name in names}
        return b"\n".join([*(self._answer(row, ready) for row in rows), b""])

    def _brief_answers(self, rows: Sequence[BulkLine]) -> bytes:
        said, accepted = [], 0
        for row in rows:
            if isinstance(row.outcome, (Receipt, Job)):
                accepted += 1
                continue
            if accepted:
                said.append(b'{"accepted":%d}' % accepted)
                accepted = 0
            said.append(self._answer(row, {}))
        if accepted:
            said.append(b'{"accepted":%d}' % accepted)
        return b"\n".join([*said, b""])

    def _read(self, line: Line, fresh_id: str, now_s: float) -> BulkLine:
        services, row = self._services, BulkLine(line.number)
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
            said = read_job_request(line.text, LINE)
            services.webhook_policy.check(said.options)
            model = model_for(services.catalog, said)
            identity = self._identity(said.id, line.number, fresh_id)
            limit_bytes = services.settings.inline_limit_bytes
            asked = asked_by(said, model, identity, limit_bytes, self._caller)
            trace = self.trace
            if said.traceparent is not None:
                # What is none is passed over, as in a header.
                trace = read_trace(said.traceparent) or trace
            row.asked = in_trace(asked, trace)
            if not row.asked.elsewhere:
                row.job = submission_of(services, row.asked, now_s, quiet=self._quiet)
        except HeadraceError as error:
            row.outcome = error
        return row

    def _identity(self, given_id: str | None, number: int, fresh_id: str) -> JobIdentity:
        if given_id is None and self._key:
            # The key was checked as it came; of its longest ones this is longer than a key may be.
            return identity_under(f"{self._key}/{number}", self._caller.key_id)
        return identity_of(given_id, "", fresh_id)

    async def _keep_all(self, rows: Sequence[tuple[BulkLine, ValidatedRequest]]) -> None:
        together: list[tuple[BulkLine, ValidatedRequest, Payload]] = []
        alone: Sequence[tuple[BulkLine, ValidatedRequest]] = rows
        if self._services.input_store.together:
            together = [(*one, one[1].payload) for one in rows if one[1].payload is not None]
            alone = [one for one in rows if one[1].payload is None]
        turns = asyncio.Semaphore(THREADS)
        until = asyncio.get_running_loop().time() + KEEP_MAX_S
        keeping = [self._keep(*one, turns, until) for one in alone]
        if together:
            keeping.append(self._keep_together(together))
        await asyncio.gather(*keeping)

    async def _keep(
        self, row: BulkLine, asked: ValidatedRequest, turns: asyncio.Semaphore, until: float
    ) -> None:
        """Write the line's input to the payload store, or look at the file that it names."""
        async with turns:
            if asyncio.get_running_loop().time() >= until:
                row.outcome = row.outcome or StoreUnavailable(
                    "other inputs have kept the payload store busy for too long",
                    hint="Try again later.",
                )
                return
            try:
                kept = await self._services.input_store.keep(asked)
            except HeadraceError as error:
                row.outcome = error
                return
        self._is_kept(row, asked, kept)

    async def _keep_together(
        self, rows: Sequence[tuple[BulkLine, ValidatedRequest, Payload]]
    ) -> None:
        """Write the lines' inputs to a payload store that takes many in one call."""
        found = await self._services.input_store.keep_all(
            [(asked, payload) for _, asked, payload in rows]
        )
        for (row, asked, _), kept in zip(rows, found, strict=True):
            if isinstance(kept, HeadraceError):
                row.outcome = kept
            else:
                self._is_kept(row, asked, kept)

    def _is_kept(self, row: BulkLine, asked: ValidatedRequest, kept: StoredInput) -> None:
        row.kept = kept
        now_s = self._services.queue.clock.now_s()
        row.job = submission_of(self._services, asked, now_s, source=kept.source, quiet=self._quiet)

    async def _drop(self, row: BulkLine, kept: StoredInput) -> None:
        """Of what was not enqueued the input is not needed; an outcome that is unknown keeps it."""
        known = isinstance(row.outcome, (Job, HeadraceError))
        if known and not isinstance(row.outcome, BrokerUnavailable):
            await self._services.input_store.drop(kept)

    async def _try(self, rows: Sequence[BulkLine]) -> list[BulkLine]:
        """Submit in one call; those that are to be tried again."""
        unkept = [(row, row.asked) for row in rows if row.job is None and row.asked is not None]
        if unkept:
            await self._keep_all(unkept)
        await self._enqueue([row for row in rows if row.job is not None] if unkept else rows)
        # After their neighbours, which may be the earlier request.
        refused = [row for row in unkept if row[0].job is None and row[1].identity.chosen]
        for at in range(0, len(refused), VIEW_MAX_JOBS):
            await self._look_up_refused(refused[at : at + VIEW_MAX_JOBS])
        return [row for row in rows if _again(row)]

    async def _enqueue(self, rows: Sequence[BulkLine]) -> None:
        jobs = [row.job for row in rows if row.job is not None]
        if not jobs:
            return
        answers = await self._services.queue.submit_many(jobs)
        known = []
        for row, answer in zip(rows, answers, strict=True):
            row.outcome = answer
            # Where no client can repeat, only a call whose answer was lost did.
            if isinstance(answer, Receipt) and answer.repeated and _chosen(row):
                known.append(row)
        for at in range(0, len(known), VIEW_MAX_JOBS):
            await self._look_up(known[at : at + VIEW_MAX_JOBS])

    async def _look_up(self, rows: Sequence[BulkLine]) -> None:
        """Find the jobs of earlier requests, as they are now; None where a record just ran out."""
        ids = [row.job.id for row in rows if row.job is not None]
        found: Sequence[Job | HeadraceError | None]
        try:
            found = await self._services.queue.view(ids)
        except HeadraceError as error:
            found = [error for _ in ids]
        for row, job in zip(rows, found, strict=True):
            if isinstance(job, Job) and not self._caller.may_see(job.key):
                row.outcome = of_another(job.id)
            else:
                row.outcome = job

    async def _look_up_refused(self, refused: Sequence[tuple[BulkLine, ValidatedRequest]]) -> None:
        """Find the jobs of earlier requests, of which the repeats' inputs cannot be kept again."""
        try:
            found = await self._services.queue.view([asked.identity.job_id for _, asked in refused])
        except HeadraceError as error:
            for row, _ in refused:
                row.outcome = error
            return
        for (row, asked), job in zip(refused, found, strict=True):
            if job is not None:
                row.outcome = repeat_of(job, asked.request_hash, self._caller)

    async def _hold(self, held: list[BulkLine]) -> None:
        """Try again until the time is up; meanwhile nothing more is read from the client."""
        clock, stopping = asyncio.get_running_loop().time, self._services.waiters.dismissed
        until = clock() + self._hold_s
        pause_s, probe = HOLD_MIN_S, PROBE
        while held and clock() < until and not stopping.is_set():
            try:
                async with asyncio.timeout(min(pause_s, max(0.0, until - clock()))):
                    await stopping.wait()
            except TimeoutError:
                pass
            # The last try is for all, so that a queue with room is not refused for another's sake.
            part = len(held) if clock() >= until else probe
            refused = await self._try(held[:part])
            moved = min(part, len(held)) - len(refused)
            held = refused + held[part:]
            pause_s = HOLD_MIN_S if moved else min(pause_s * 2, HOLD_MAX_S)
            probe = max(PROBE, 2 * moved)

    def _count(self, rows: Sequence[BulkLine]) -> None:
        admitted: Counter[str] = Counter()
        for row in rows:
            if row.asked is None:
                continue
            if isinstance(row.outcome, Receipt):
                admitted[row.asked.model.name] += 1
            elif isinstance(row.outcome, HeadraceError):
                self._services.counters.refused(row.asked.model.name, row.outcome.code)
        for name, count in admitted.items():
            self._services.counters.admitted(name, count)

    def _answer(self, row: BulkLine, ready: dict[str, bool]) -> bytes:
        outcome = row.outcome
        if isinstance(outcome, Receipt) and row.asked is not None:
            has_replica = ready[row.asked.model.name]
            return _fresh(row.asked, outcome.created_us, has_replica)
        if isinstance(outcome, Job):
            has_replica = ready.get(outcome.model, True)
            return job_object(outcome, has_replica=has_replica)
        members = {"line": row.number} | ({"job": row.job.id} if row.job is not None else {})
        if isinstance(outcome, HeadraceError):
            said = problem(outcome, self._path, **members)
        else:
            said = unexpected(RuntimeError(f"line {row.number} has no outcome"), self._path)
        return b'{"error":%s}' % said.body


def _fresh(asked: ValidatedRequest, created_us: int, has_replica: bool) -> bytes:
    if asked.options.metadata is not None:
        return job_object(fresh_job(asked, created_us), has_replica=has_replica)
    model, state = asked.model, fresh_state(asked.options)
    return fresh_line(
        asked.identity.job_id, model.name, model.version, state, created_us, has_replica
    )


def _chosen(row: BulkLine) -> bool:
    return row.asked is not None and row.asked.identity.chosen


def _again(row: BulkLine) -> bool:
    """Whether another try can help: no room, no Redis, or a record that ran out meanwhile."""
    return row.outcome is None or (isinstance(row.outcome, HeadraceError) and row.outcome.retryable)
