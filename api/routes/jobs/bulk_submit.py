"""`POST /api/v1/jobs/bulk`: a job per line, answered line by line while the body is received.

Four tasks run concurrently. The next lines are read while Redis works on the previous ones, and
answers are written while it works on the next. No stage waits for the client to read: unread
answers wait in a `SendBuffer`.
"""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.http.bodies import FORM_TYPE, Line, LineSplitter, batches, require_type
from api.http.messages import Message, Reply, Request, ResponseCutShort, StreamingReply, Write
from api.http.send_buffer import SendBuffer
from api.routes.event_stream import STREAM_HEADERS
from api.routes.jobs.bulk import BulkLine, BulkSubmitter
from api.routes.media import NDJSON
from api.services import Services
from api.submission.decoding import read_query
from api.submission.job_request import idempotency_key, request_trace
from headrace.errors import InvalidRequest
from headrace.jobs.ids import check_key
from headrace.jobs.job import Amount
from headrace.jobs.tokens import DEADLINE_HEADER
from headrace.redis import keys

TYPES: Final = frozenset({"", FORM_TYPE, NDJSON, "application/ndjson", "application/jsonl"})
#: The most lines of one call of jobs/submit.lua, which bounds how long it blocks Redis.
CALL_MAX_LINES: Final = 256
#: The most bytes of their lines, unless the first alone is longer.
CALL_MAX_BYTES: Final = 1024 * 1024
#: Seconds without any data after which a request is aborted. The answer has begun by then, so
#: that the connection is closed.
IDLE_MAX_S: Final = 600.0
#: Seconds in which a client that still sends must read 256 KiB of its answers, ...
UNREAD_MAX_S: Final = 600.0
#: ... or anything, once there is no room for more of them.
FULL_MAX_S: Final = 60.0

Rows = list[BulkLine]


class BulkQuery(msgspec.Struct):
    """The query of a bulk request."""

    hold: Annotated[
        Amount | UnsetType,
        Meta(
            description="Seconds for which a line without room in its queue is held back, capped "
            "at `bulk_hold_s`, the default.",
            examples=[0.5],
        ),
    ] = UNSET
    brief: Annotated[
        Literal["0", "1"],
        Meta(description="1 answers `{accepted: N}` for N accepted lines in a row."),
    ] = "0"
    quiet: Annotated[
        Literal["0", "1"],
        Meta(
            description="1 publishes no completion events: the jobs are not listed, and no Celery "
            "result is written when they succeed."
        ),
    ] = "0"


async def submit_bulk(services: Services, request: Request) -> Reply | StreamingReply:
    """Submit many jobs, one per line of JSON."""
    most_s = services.settings.bulk_hold_s
    query = read_query(request, BulkQuery)
    require_type(request, lambda kind: kind in TYPES, "Send application/x-ndjson, a job per line.")
    key = idempotency_key(request)
    if key:
        check_key(key)
    # Before the answer begins: a client that waits for `100 Continue` would never receive it.
    first = await request.receive()
    hold_s = most_s if query.hold is UNSET else min(query.hold, most_s)
    submitter = BulkSubmitter(
        services=services,
        request=request,
        trace=request_trace(request),
        key=key,
        hold_s=hold_s,
        brief=query.brief == "1",
        waiter=keys.NO_WAITER if query.quiet == "1" else "",
        deadline_s=_deadline_s(request),
    )
    exchange = _Exchange(submitter, first)

    async def run(write: Write) -> None:
        if services.spans is None:
            await exchange.run(write)
            return
        # One span for all lines of a request.
        with services.spans.submit("") as trace:
            submitter.trace = trace
            await exchange.run(write)

    return StreamingReply(200, run, NDJSON.encode(), STREAM_HEADERS)


def _deadline_s(request: Request) -> int | None:
    text = request.header(DEADLINE_HEADER.lower().encode()).decode("latin-1")
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise InvalidRequest(
            f"the header {DEADLINE_HEADER} is {text[:64]!r}",
            hint="Give whole seconds since 1970, by which the results are wanted.",
        )
    return int(text)


class _Exchange:
    def __init__(self, submitter: BulkSubmitter, first: Message) -> None:
        self._submitter = submitter
        self._services = submitter.services
        self._first = first
        self._read: asyncio.Queue[Rows | None] = asyncio.Queue(1)
        self._submitted: asyncio.Queue[Rows | None] = asyncio.Queue(1)
        self._whole = False

    async def run(self, write: Write) -> None:
        """Answer every line; lines that were read are jobs, even if the answer is cut short."""
        with self._services.send_buffers.new() as buffer:
            try:
                async with asyncio.TaskGroup() as stages:
                    stages.create_task(self._receive())
                    stages.create_task(self._submit())
                    stages.create_task(self._answer(buffer))
                    stages.create_task(_send(buffer, write))
            except* TimeoutError:
                raise ResponseCutShort from None
        if not self._whole:
            raise ResponseCutShort

    async def _receive(self) -> None:
        message = self._first
        splitter = LineSplitter(self._services.settings.body_limit_bytes)
        while not self._whole and message["type"] != "http.disconnect":
            lines = splitter.feed(message.get("body", b""))
            if not message.get("more_body"):
                lines += splitter.finish()
                self._whole = True
            lines, cut = self._within_limit(lines)
            # Lines may ask for any version of a model.
            await self._services.model_statuses.refresh()
            for batch in batches(lines, CALL_MAX_LINES, CALL_MAX_BYTES):
                await self._read.put(self._submitter.read(batch))
            if cut:
                self._whole = False
                break
            if not self._whole:
                message = await self._next()
        # An unfinished line is dropped when the client hangs up: its rest may be missing.
        await self._read.put(None)

    def _within_limit(self, lines: list[Line]) -> tuple[list[Line], bool]:
        """Return the lines within the limit and the first beyond it, and whether there was one."""
        limit = self._services.settings.bulk_limit_lines
        if not lines or lines[-1].number <= limit:
            return lines, False
        within = [line for line in lines if line.number <= limit]
        return [*within, lines[len(within)]], True

    async def _next(self) -> Message:
        """Return the next part of the body; a disconnect if this process stops or nothing comes."""
        coming = asyncio.ensure_future(self._submitter.request.receive())
        stopping = asyncio.create_task(self._services.waiters.dismissed.wait())
        try:
            await asyncio.wait(
                {coming, stopping}, timeout=IDLE_MAX_S, return_when=asyncio.FIRST_COMPLETED
            )
            return coming.result() if coming.done() else {"type": "http.disconnect"}
        finally:
            for task in (coming, stopping):
                task.cancel()

    async def _submit(self) -> None:
        while rows := await self._read.get():
            await self._submitter.submit(rows)
            await self._submitted.put(rows)
        await self._submitted.put(None)

    async def _answer(self, buffer: SendBuffer) -> None:
        while rows := await self._submitted.get():
            await buffer.put(await self._submitter.answers(rows), FULL_MAX_S)
        buffer.end()


async def _send(buffer: SendBuffer, write: Write) -> None:
    while data := await buffer.take():
        async with asyncio.timeout(UNREAD_MAX_S):
            await write(data)
