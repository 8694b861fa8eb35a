"""Copies of jobs for a shadow version, and the comparison of what they returned.

The API process that accepts a job copies it. The copy joins the queue of the shadow version at the
last step, as a quiet job without an API key. `hr:shadow` has a pair of job and copy until both have
ended, so any API process can compare them, also after a restart. A submit does not wait for this.

docs/architecture/versions.md describes the rules.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from api.submission.job_request import JobIdentity
from headrace.access.api_key import EVERYBODY
from headrace.errors import BrokerError, BrokerUnavailable, HeadraceError
from headrace.jobs.ids import new_id
from headrace.jobs.job import Job, State, error_of
from headrace.jobs.options import JobOptions
from headrace.observability.worker_report import ShadowResult, shadow_field
from headrace.queue.asyncio_tasks import cancel_and_wait, wait_at_most
from headrace.queue.submission import Extras, SubmitKind, submission
from headrace.redis import keys
from headrace.redis.fields import JobField
from headrace.redis.scripts import script

if TYPE_CHECKING:
    from api.observability.counters import Counters
    from api.submission.input_store import InputStore, StoredInput
    from api.submission.job_request import ValidatedRequest
    from headrace.queue.job_queue import JobQueue
    from headrace.queue.submission import JobSubmission

logger = logging.getLogger(__name__)

#: The most pairs that wait for a comparison, in all processes together; about 200 bytes each.
PAIRS_MAX: Final = 10_000
#: The most accepted jobs, and bytes of their inputs, that wait in one process to be copied.
OFFERED_MAX: Final = 1_000
OFFERED_MAX_BYTES: Final = 32 * 1024 * 1024
#: How many copies are submitted, and how many pairs are read, in one call.
CHUNK: Final = 64
#: Seconds within which a copy must have started, and for which its result is kept.
EXPIRES_S: Final = 3600.0
RESULT_TTL_S: Final = 3600
#: Seconds between two looks for pairs that are due.
INTERVAL_S: Final = 1.0
#: The same while no pair is open and no model has a shadow version.
IDLE_INTERVAL_S: Final = 30.0
#: Seconds until a pair is looked at again.
LOOK_MIN_S: Final = 1.0
LOOK_MAX_S: Final = 30.0
#: Seconds after which a copy without a record was never submitted.
LOST_S: Final = 60.0
#: Seconds after which a pair is given up, if its job or its copy has not ended.
GIVEN_UP_S: Final = 86_400.0
#: A stored result that is longer is not compared.
COMPARED_MAX_BYTES: Final = 4 * 1024 * 1024

#: What a generator had in its cache follows from what ran before, and not from the version.
_CACHED: Final = re.compile(rb'"cached_tokens":\d+')
#: The outcome of a job whose result cannot be read any more, and of one that did not run.
_UNREADABLE: Final = "?"
_NOT_RUN: Final = "-"


class Pair(NamedTuple):
    """A job and its copy.

    Attributes:
        begun_s: when the copy was made, in seconds of Redis' clock.
        job_outcome: how the job has ended, as `_outcome` returns it; "" while it has not.
        copy_outcome: the same of the copy.
    """

    copy: str
    job: str
    model: str
    version: str
    begun_s: float
    job_outcome: str = ""
    copy_outcome: str = ""

    @property
    def member(self) -> bytes:
        """Return it as `hr:shadow` has it."""
        return msgspec.json.encode(list(self))

    def result(self, now_s: float) -> ShadowResult | None:
        """Return how the copy compares; None while that is open."""
        job, copy = self.job_outcome, self.copy_outcome
        if _NOT_RUN in (job, copy):
            return ShadowResult.DROPPED
        if _UNREADABLE in (job, copy) or now_s - self.begun_s > GIVEN_UP_S:
            return ShadowResult.UNKNOWN
        if not job or not copy:
            return None
        if job == copy:
            return ShadowResult.EQUAL
        failed = copy.startswith(State.FAILED) and job.startswith(State.SUCCEEDED)
        return ShadowResult.FAILED if failed else ShadowResult.DIFFERENT


class ShadowCopies:
    """Makes the copies of one API process, and compares the pairs of all processes.

    Args:
        has_shadow: returns whether any model has a shadow version.

    Attributes:
        idle: no pair is open and no model has a shadow version, so it looks less often.
    """

    def __init__(
        self,
        queue: JobQueue,
        store: InputStore,
        counters: Counters,
        has_shadow: Callable[[], bool],
    ) -> None:
        self.idle = False
        self._has_shadow = has_shadow
        self._pairs = 1
        self._added = asyncio.Event()
        self._queue = queue
        self._store = store
        self._counters = counters
        self._offered: deque[ValidatedRequest] = deque()
        self._offered_bytes = 0
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start to copy and to compare in the background."""
        self._tasks = [asyncio.create_task(work()) for work in (self._copy_all, self._compare_all)]

    async def stop(self) -> None:
        """Stop; jobs that were not copied yet count as dropped."""
        for task in self._tasks:
            await cancel_and_wait(task)
        while self._offered:
            self._count(self._take(), ShadowResult.DROPPED)

    def offer(self, request: ValidatedRequest) -> None:
        """Copy an accepted job soon; drop the copy if too many wait."""
        full = self._offered_bytes + _size(request) > OFFERED_MAX_BYTES
        if full or len(self._offered) >= OFFERED_MAX:
            self._count([request], ShadowResult.DROPPED)
            return
        self._offered.append(request)
        self._offered_bytes += _size(request)
        self._wake.set()

    def _take(self) -> list[ValidatedRequest]:
        taken = [self._offered.popleft() for _ in range(min(CHUNK, len(self._offered)))]
        self._offered_bytes -= sum(map(_size, taken))
        return taken

    def _count(self, requests: Sequence[ValidatedRequest], result: ShadowResult) -> None:
        for request in requests:
            if request.shadow is not None:
                self._counters.shadowed(request.model.name, request.shadow.version, result)

    async def _copy_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._offered:
                taken = self._take()
                try:
                    await self._copy(taken)
                except HeadraceError as error:
                    logger.debug("shadow copies dropped: %s", error.message)
                    self._count(taken, ShadowResult.DROPPED)
                except Exception:
                    # The next copies must still be made.
                    logger.exception("shadow copies dropped")
                    self._count(taken, ShadowResult.DROPPED)

    async def _copy(self, requests: Sequence[ValidatedRequest]) -> None:
        (pairs,) = await self._queue.read_all([("ZCARD", keys.SHADOW)])
        room = max(0, PAIRS_MAX - int(pairs))
        self._count(requests[room:], ShadowResult.DROPPED)
        # One after the other, so that the input of a client waits for a single copy at most.
        made = [await self._copy_of(request) for request in requests[:room]]
        copies = [copy for copy in made if copy is not None]
        if not copies:
            return
        # The pair is written first: if the process ends in between, no copy is without its pair.
        due_s = self._queue.clock.now_s() + LOOK_MIN_S
        members = [part for copy in copies for part in (str(due_s), copy.pair.member)]
        await self._queue.call(("ZADD", keys.SHADOW, *members))
        self._added.set()
        answers = await self._queue.submit_many([copy.submission for copy in copies])
        for copy, answer in zip(copies, answers, strict=True):
            # Without a reply the copy may be queued; the comparison shows that later.
            if isinstance(answer, HeadraceError) and not isinstance(answer, BrokerUnavailable):
                if copy.stored is not None:
                    await self._store.drop(copy.stored)
                await self._count_pair(copy.pair, copy.pair.member, ShadowResult.DROPPED)

    async def _copy_of(self, request: ValidatedRequest) -> _Copy | None:
        """Store the input of a copy and return it; count a failure and return None."""
        model = request.shadow
        if model is None:
            return None
        # Half of the queue is left to jobs.
        model = msgspec.structs.replace(
            model,
            max_queue_depth=max(1, model.max_queue_depth // 2),
            max_queued_tokens=model.max_queued_tokens and max(1, model.max_queued_tokens // 2),
        )
        copy = msgspec.structs.replace(
            request, model=model, identity=JobIdentity(new_id(), chosen=False),
            options=_options(request.options), caller=EVERYBODY, trace=None, shadow=None,
        )  # fmt: skip
        stored = None
        if copy.stored_separately:
            try:
                stored = await self._store.keep(copy, spare=True)
            except HeadraceError:
                self._count([request], ShadowResult.DROPPED)
                return None
        extras = Extras(
            source=None if stored is None else stored.source,
            details=copy.details,
            fields=(JobField.SHADOW_OF, request.identity.job_id),
        )
        now_s, copy_id = self._queue.clock.now_s(), copy.identity.job_id
        kind = SubmitKind(model, RESULT_TTL_S, copy.options, keys.NO_WAITER)
        made = submission(kind, copy_id, copy.input_json, now_s=now_s, extras=extras)
        pair = Pair(copy_id, request.identity.job_id, model.name, model.version, now_s)
        return _Copy(pair, made, stored)

    async def _compare_all(self) -> None:
        while True:
            self._added.clear()
            self._pairs = 1  # until it is read
            try:
                while await self._compare_due():
                    pass
            except HeadraceError as error:
                logger.debug("shadow copies not compared: %s", error.message)
            except Exception:
                # One pair was the cause; it is looked at again after the others.
                logger.exception("shadow copies not compared")
            await self._pause()

    async def _pause(self) -> None:
        self.idle = not (self._pairs or self._added.is_set() or self._has_shadow())
        if not self.idle:
            await asyncio.sleep(INTERVAL_S)
            return
        # A process that makes pairs looks at them too. If it ends, this look finds them.
        await wait_at_most(IDLE_INTERVAL_S, self._added)

    async def _compare_due(self) -> bool:
        """Look at the pairs that are due; return whether there may be more."""
        now_s = self._queue.clock.now_s()
        self._pairs, members = await self._queue.read_all(
            [
                ("ZCARD", keys.SHADOW),
                ("ZRANGEBYSCORE", keys.SHADOW, "-inf", str(now_s), "LIMIT", 0, CHUNK),
            ]
        )
        if not members:
            return False
        # Other processes leave these pairs alone for LOOK_MAX_S seconds.
        later = [part for member in members for part in (str(now_s + LOOK_MAX_S), member)]
        await self._queue.call(("ZADD", keys.SHADOW, "XX", *later))
        pairs = [
            (member, pair) for member in members if (pair := await self._read(member)) is not None
        ]
        if pairs:
            ids = [id for _, pair in pairs for id in (pair.job, pair.copy)]
            jobs = await self._queue.view(ids)
            for n, (member, pair) in enumerate(pairs):
                await self._compare(pair, member, jobs[2 * n], jobs[2 * n + 1], now_s)
        return len(members) == CHUNK

    async def _read(self, member: bytes) -> Pair | None:
        """Return the pair of a member; if it cannot be read, remove it and return None."""
        try:
            return msgspec.json.decode(member, type=Pair)
        except (ValueError, RecursionError):
            if await self._queue.call_once(("ZREM", keys.SHADOW, member)):
                logger.warning("a shadow copy is not compared: its pair cannot be read")
            return None

    async def _compare(
        self, pair: Pair, member: bytes, job: Job | None, copy: Job | None, now_s: float
    ) -> None:
        age_s = now_s - pair.begun_s
        lost = copy is None and age_s > LOST_S
        seen = pair._replace(
            job_outcome=pair.job_outcome or await self._outcome(job, gone=True),
            copy_outcome=pair.copy_outcome or await self._outcome(copy, gone=lost),
        )
        result = seen.result(now_s)
        if result is None:
            due_s = now_s + min(LOOK_MAX_S, max(LOOK_MIN_S, age_s / 2))
            if seen == pair:
                await self._queue.call(("ZADD", keys.SHADOW, "XX", str(due_s), member))
            else:
                await self._end_pair(member, "", seen.member, str(due_s))
            return
        if copy is not None and not copy.state.final:
            await self._queue.cancel([pair.copy])
        await self._count_pair(pair, member, result)
        # If this process ends before, the copy expires.
        await self._queue.forget([pair.copy])

    async def _count_pair(self, pair: Pair, member: bytes, result: ShadowResult) -> None:
        """Remove a pair and count it, unless another process has."""
        await self._end_pair(member, pair.model, shadow_field(pair.version, result))

    async def _end_pair(self, *arguments: bytes | str) -> None:
        await self._queue.call_once(script("registry/end_pair").call([], *arguments))

    async def _outcome(self, job: Job | None, *, gone: bool) -> str:
        """Return how a job has ended, the same text for the same outcome; "" while it has not.

        `gone` means that a job without a record has ended; else it is a copy that comes later.
        """
        if job is None:
            return _UNREADABLE if gone else ""
        if not job.state.final:
            return ""
        if job.state is State.FAILED:
            failure = error_of(job)
            return f"{State.FAILED}{failure.type if failure is not None else ''}"
        if job.state is not State.SUCCEEDED:
            return _NOT_RUN
        try:
            text = await self._result(job)
        except BrokerError:
            raise
        except (HeadraceError, msgspec.MsgspecError, RecursionError):
            text = None
        if text is None:
            return _UNREADABLE
        compared = _CACHED.sub(b"", text)
        digest = hashlib.sha256(b"%s\0%s" % (job.result_type.encode(), compared))
        return f"{State.SUCCEEDED}{digest.hexdigest()[:32]}"

    async def _result(self, job: Job) -> bytes | None:
        """Return the result, with the keys of JSON sorted; None if it cannot be compared."""
        if job.stored is not None:
            if job.stored.size > COMPARED_MAX_BYTES:
                return None
            return await self._store.read_whole(job.stored)
        text = job.result_json
        if text is None:
            return None
        return msgspec.json.encode(msgspec.json.decode(text), order="sorted")


class _Copy(NamedTuple):
    pair: Pair
    submission: JobSubmission
    stored: StoredInput | None


def _options(given: JobOptions) -> JobOptions:
    """Return the options of a copy: offline, without webhooks and delays, and kept for an hour."""
    return JobOptions(
        priority=keys.OFFLINE_STEP,
        expires=EXPIRES_S,
        timeout=given.timeout,
        result_ttl=RESULT_TTL_S,
        max_retries=given.max_retries,
        metadata=given.metadata,
    )


def _size(request: ValidatedRequest) -> int:
    payload = request.payload
    return len(request.input_json) + (0 if payload is None else len(payload.body))
