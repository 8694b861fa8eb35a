"""The lines of a bulk request on their way into the queue. Knows no HTTP."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from api.asked import Asked, asked_by, identity_of, model_for, read_job_request
from api.lines import Line
from api.payloads import Kept
from api.problems import problem, unexpected
from api.routes.submit import fresh_job, submission_of
from api.services import Services
from api.wire import fresh_object, job_object
from headrace.errors import BrokerUnavailable, HeadraceError, PayloadTooLarge
from headrace.jobs import Job
from headrace.queue import VIEW_MAX_JOBS
from headrace.submission import Receipt, Submission

#: Between two tries of lines that are held back, in seconds; doubled while nothing moves.
HOLD_MIN_S: Final = 0.02
HOLD_MAX_S: Final = 0.5
#: A try while lines are held back takes so many of them first, and more while there is room.
PROBE: Final = 16


class Row:
    """One line and what has become of it.

    Attributes:
        asked: what it asks for; None where it cannot be read.
        job: the same for submit.lua.
        kept: where its input lies, if that does not go in its message.
        outcome: a receipt (queued), a job (of an earlier request), or why there is none.
    """

    __slots__ = ("asked", "job", "kept", "number", "outcome")

    asked: Asked | None
    job: Submission | None
    kept: Kept | None
    outcome: Receipt | Job | HeadraceError | None

    def __init__(self, number: int) -> None:
        self.number = number
        self.asked = None
        self.job = None
        self.kept = None
        self.outcome = None


class BulkSubmitter:
    """Reads lines, submits them together, and says what became of each.

    Args:
        services: what the routes share.
        path: of the request, for problems.
        key: its idempotency key; "" for none.
    """

    def __init__(self, services: Services, path: str, key: str) -> None:
        self._services = services
        self._path = path
        self._key = key

    def read(self, lines: Sequence[Line]) -> list[Row]:
        """What lines ask for; a bad one hinders no other."""
        now_s = time.time()
        return [self._read(line, now_s) for line in lines]

    async def submit(self, rows: Sequence[Row]) -> None:
        """Submit what can be; who finds no room, or no Redis, is held back and tried again."""
        large = [row for row in rows if row.job is None and row.outcome is None]
        if large:
            await asyncio.gather(*(self._keep(row) for row in large))
        todo = [row for row in rows if row.job is not None]
        if todo:
            held = await self._try(todo)
            if held:
                await self._hold(held)
        if large:
            await asyncio.gather(*(self._drop(row) for row in large))
        self._count(rows)

    async def answers(self, rows: Sequence[Row]) -> bytes:
        """What became of each, a line each."""
        names = {row.asked.model.name for row in rows if row.asked is not None}
        ready = {name: await self._services.fleet.has_ready(name) for name in names}
        return b"\n".join([*(self._answer(row, ready) for row in rows), b""])

    def _read(self, line: Line, now_s: float) -> Row:
        row = Row(line.number)
        try:
            if line.text is None:
                limit = self._services.settings.body_limit_bytes
                raise PayloadTooLarge(
                    f"the line has more than {limit} bytes",
                    hint="Send a smaller input, or raise body_limit_bytes.",
                )
            said = read_job_request(line.text)
            model = model_for(self._services.catalog, said)
            key = f"{self._key}/{line.number}" if self._key and said.id is None else ""
            limit = self._services.settings.inline_limit_bytes
            row.asked = asked_by(said, model, identity_of(said.id, key), limit)
            if not row.asked.elsewhere:
                row.job = submission_of(self._services, row.asked, now_s)
        except HeadraceError as error:
            row.outcome = error
        return row

    async def _keep(self, row: Row) -> None:
        """Write the line's input to the payload store, or look at the file that it names."""
        if row.asked is None:
            return
        try:
            row.kept = await self._services.payloads.keep(row.asked)
        except HeadraceError as error:
            row.outcome = error
            return
        source = row.kept.source
        row.job = submission_of(self._services, row.asked, time.time(), source=source)

    async def _drop(self, row: Row) -> None:
        """Of what was not enqueued the input is not needed; an outcome that is unknown keeps it."""
        known = isinstance(row.outcome, (Job, HeadraceError))
        if row.kept is not None and known and not isinstance(row.outcome, BrokerUnavailable):
            await self._services.payloads.drop(row.kept)

    async def _try(self, rows: Sequence[Row]) -> list[Row]:
        """Submit in one call; those that are to be tried again."""
        jobs = [row.job for row in rows if row.job is not None]
        answers = await self._services.queue.submit_many(jobs)
        known = []
        for row, answer in zip(rows, answers, strict=True):
            row.outcome = answer
            # Where no client can repeat, only a call whose answer was lost did.
            if isinstance(answer, Receipt) and answer.repeated and _chosen(row):
                known.append(row)
        for at in range(0, len(known), VIEW_MAX_JOBS):
            await self._look_up(known[at : at + VIEW_MAX_JOBS])
        return [row for row in rows if _again(row)]

    async def _look_up(self, rows: Sequence[Row]) -> None:
        """Find the jobs of earlier requests, as they are now; None where a record just ran out."""
        ids = [row.job.id for row in rows if row.job is not None]
        found: Sequence[Job | HeadraceError | None]
        try:
            found = await self._services.queue.view(ids)
        except HeadraceError as error:
            found = [error for _ in ids]
        for row, job in zip(rows, found, strict=True):
            row.outcome = job

    async def _hold(self, held: list[Row]) -> None:
        """Try again until the time is up; meanwhile nothing more is read from the client."""
        clock, stopping = asyncio.get_running_loop().time, self._services.waiters.dismissed
        until = clock() + self._services.settings.bulk_hold_s
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

    def _count(self, rows: Sequence[Row]) -> None:
        admitted: Counter[str] = Counter()
        for row in rows:
            if row.asked is not None and isinstance(row.outcome, Receipt):
                admitted[row.asked.model.name] += 1
            elif row.asked is not None and isinstance(row.outcome, HeadraceError):
                self._services.counters.refused(row.asked.model.name, row.outcome.code)
        for name, count in admitted.items():
            self._services.counters.admitted(name, count)

    def _answer(self, row: Row, ready: dict[str, bool]) -> bytes:
        outcome = row.outcome
        if isinstance(outcome, Receipt) and row.asked is not None:
            has_replica = ready[row.asked.model.name]
            return fresh_object(fresh_job(row.asked, outcome.created_us), has_replica=has_replica)
        if isinstance(outcome, Job):
            has_replica = ready.get(outcome.model, True)
            return job_object(outcome, has_replica=has_replica)
        members = {"line": row.number} | ({"job": row.job.id} if row.job is not None else {})
        if isinstance(outcome, HeadraceError):
            said = problem(outcome, self._path, **members)
        else:
            said = unexpected(RuntimeError(f"line {row.number} has no outcome"), self._path)
        return b'{"error":%s}' % said.body


def _chosen(row: Row) -> bool:
    return row.asked is not None and row.asked.identity.chosen


def _again(row: Row) -> bool:
    """Whether another try can help: no room, no Redis, or a record that ran out meanwhile."""
    return row.outcome is None or (isinstance(row.outcome, HeadraceError) and row.outcome.retryable)
