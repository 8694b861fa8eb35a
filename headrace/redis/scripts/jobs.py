"""The scripts in jobs/: what each call is sent, and what it replies.

The order of ARGV and of replies is written down here and in the Lua file, and nowhere else. A row
that is read once for each job is a plain tuple, whose type names its fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from headrace.errors import NOT_STARTED, JobExpired
from headrace.redis import keys
from headrace.redis.scripts import Arg, Command, fields_of, script

#: The most bytes of messages that one claim takes, unless its first message alone is larger.
CLAIM_MAX_BYTES: Final = 1024 * 1024
#: The most jobs that one call of jobs/expire.lua looks at, which limits how long it blocks Redis.
EXPIRE_MAX_JOBS: Final = 200

#: The codes of jobs/settle.lua for a job, in order. The lease is lost. The job has ended. The same
#: token settled it before. It ended as cancelled. It waits for a retry.
FENCED: Final = 0
SETTLED: Final = 1
SETTLED_BEFORE: Final = 2
CANCELLED: Final = 3
POSTPONED: Final = 4
#: What jobs/renew.lua replies for a job, besides FENCED: the lease is renewed; it is renewed, and
#: the job was cancelled meanwhile.
RENEWED: Final = 1
CANCEL_REQUESTED: Final = 2
#: The scopes of jobs/isolate.lua: nothing else runs in the job's model process, or in its worker.
#: The last scope is the second if no other job of the host has it, else the first. A worker is
#: reserved while what runs in it ends.
IN_PROCESS: Final = "process"
RESERVED: Final = "reserve"
IN_WORKER: Final = "worker"
IN_EITHER: Final = "either"
#: The same argument for a job that has left its model process.
ISOLATION_ENDS: Final = "end"
#: What jobs/isolate.lua replies, besides FENCED: the job may run isolated, or exclusively; another
#: job of its host runs exclusively.
ISOLATED: Final = 1
EXCLUSIVE: Final = 2
HOST_TAKEN: Final = 3
#: `Settlement.retry_us` of a job whose retries are used up: its message goes to the dead letters.
DEAD: Final = "dead"
#: What jobs/canvas_begin.lua replies, besides FENCED and CANCELLED: the callbacks may be sent.
SEND_CALLBACKS: Final = 1

#: One job of a claim: raw message ("" if it is withheld), id, token, when it was created or "",
#: attempts, `JobField.ALONE` or "", retries or "", and its priority step; behind that, after a
#: space, since when it waits in its list, if not since it was created.
ClaimedRow = tuple[bytes, bytes, bytes, bytes, int, bytes, bytes, bytes]
_CLAIM_HEAD: Final = 6
_CLAIM_ROW: Final = 8
_SUBMIT_HEAD: Final = 9
OWNER_AT: Final = 6
_SUBMIT_ROW: Final = 4
_NOTICE_ROW: Final = 3


class Leased(Protocol):
    """A job that its caller has leased."""

    @property
    def id(self) -> str:
        """The job's id."""

    @property
    def token(self) -> str:
        """The fencing token of its claim."""


class Run(NamedTuple):
    """How an attempt ran that returned nothing, as its record has it.

    Attributes:
        began: when it began, in us.
        device_wait: for how many ms it waited for its device before that.
        timings: the record's `tm`.
    """

    began: str
    device_wait: str
    timings: str


UNKNOWN: Final = Run("", "", "")


def _pairs(jobs: Iterable[Leased]) -> list[str]:
    return [text for job in jobs for text in (job.id, job.token)]


class SubmitCode:
    """Why jobs/submit.lua did not enqueue a job."""

    QUEUE_FULL: Final = 0
    KNOWN: Final = 2
    OTHER_REQUEST: Final = 3
    UNUSABLE_QUEUE: Final = 4
    OTHER_KEY: Final = 5
    IN_FLIGHT_LIMIT: Final = 6
    TOKENS_FULL: Final = 7
    TOKENS_USED: Final = 8


class NotQueued(NamedTuple):
    """A job that jobs/submit.lua did not enqueue.

    Attributes:
        place: its place among the submitted jobs, from 0.
        code: one of `SubmitCode`.
        created_us: when it was first submitted, if it is known. For TOKENS_FULL and TOKENS_USED: in
            how many us there is room, 0 if that is unknown.
        depth: of its queue, in jobs or tokens; or its key's jobs in flight, or tokens left.
    """

    place: int
    code: int
    created_us: int
    depth: int


def submit_run(
    queue: str,
    step: str,
    *,
    max_depth: int,
    delay_us: int,
    expires_us: int,
    listed: bool,
    owner: str,
    values_per_job: int,
    fields: Sequence[Arg],
    max_tokens: int = 0,
) -> tuple[Arg, ...]:
    """Return how a run of similar jobs begins in the arguments of `submit`.

    Args:
        delay_us: after how long the jobs join the queue.
        expires_us: in how long they must have started; 0 for no limit.
        listed: whether they are in the index of their model.
        owner: "" or the API key as "id max_in_flight sees_all tokens_per_minute".
        values_per_job: 2 (id and message), 3 with the hash of the request, or 4 with the hash or ""
            and the tokens (`JobField.TOKENS`).
        fields: names and values of the record that all of them share.
        max_tokens: how many tokens jobs of the queue may have that have not ended; 0 for no limit.
    """
    head = (queue, step, max_depth, delay_us, expires_us, int(listed), owner, values_per_job)
    return (*head, max_tokens, len(fields), *fields)


def with_fields(run: tuple[Arg, ...], *more: Arg) -> tuple[Arg, ...]:
    """Return a `submit_run` whose jobs have more names and values in their records."""
    fields = (*run[_SUBMIT_HEAD + 1 :], *more)
    return (*run[:_SUBMIT_HEAD], len(fields), *fields)


def submit(job_index_max: int, runs: Iterable[Arg]) -> Command:
    """Submit jobs of any queues.

    Args:
        job_index_max: how many of a model's newest jobs are indexed; 0 for none.
        runs: for each run its `submit_run`, the number of its jobs, and the values of each job.
    """
    return script("jobs/submit").call([], job_index_max, *runs)


def read_submit(reply: Sequence[Any]) -> tuple[int, list[NotQueued]]:
    """Return Redis' time in us, and the jobs that were not enqueued; all others were."""
    now, *flat = map(int, reply)
    rows = (flat[at : at + _SUBMIT_ROW] for at in range(0, len(flat), _SUBMIT_ROW))
    return now, [NotQueued(place - 1, *rest) for place, *rest in rows]


def claim(
    queue: str,
    model: str,
    version: str,
    rooms: Sequence[int],
    *,
    lease_us: int,
    owner: str,
    result_ttl_s: int,
    job_index_max: int,
    yield_us: int,
    max_bytes: int = CLAIM_MAX_BYTES,
    failures_kept: str = "",
) -> Command:
    """Lease jobs of a queue, the best priority first.

    Args:
        version: of the caller's model; the records of the jobs then name it.
        rooms: for each priority step, how many jobs there may be when jobs of it are taken.
        owner: this incarnation of the worker.
        result_ttl_s: how long the result of a refused job, or of one without a record, is kept.
        job_index_max: as for `submit`.
        yield_us: a job that waits longer is taken even if better jobs leave no room; 0 for never.
        max_bytes: the most bytes of messages, unless the first alone is larger.
        failures_kept: `Settings.failures_kept`; "" keeps no failures.
    """
    return script("jobs/claim").on(
        queue, model, version, rooms[0], max_bytes, lease_us, owner,
        keys.TASK_NAME, result_ttl_s, job_index_max, *rooms[1:], yield_us,
        failures_kept,
    )  # fmt: skip


class ClaimReply:
    """The reply of jobs/claim.lua.

    Attributes:
        waiting: how many jobs are left in the list of each priority step; the first is -1 if the
            queue is paused.
        refused: how many messages were no jobs, and are dead letters now.
    """

    __slots__ = ("jobs", "now_us", "refused", "waiting")

    def __init__(self, reply: Sequence[Any]) -> None:
        self.now_us = int(reply[0])
        self.waiting = [int(count) for count in reply[1 : _CLAIM_HEAD - 1]]
        self.refused = int(reply[_CLAIM_HEAD - 1])
        values = iter(reply[_CLAIM_HEAD:])
        self.jobs: list[ClaimedRow] = list(zip(*[values] * _CLAIM_ROW, strict=True))


class Settlement(NamedTuple):
    """How one job ends, as jobs/settle.lua takes it.

    Attributes:
        state: the letter of its new state.
        meta: its Celery result as JSON; empty for none.
        batch: how many jobs ran together.
        timings: the record's `tm`.
        extra: one more field of the record; "" for none.
        retry_us: after how many us it is tried again; "" if it ends, DEAD if its message also
            goes to the dead letters.
        started: when it began, in us; "" if it has not begun.
        device_wait: for how many ms it waited for the device.
        used: how many tokens it used; "" if that is unknown.
    """

    id: str
    token: str
    state: str
    meta: bytes
    batch: Arg
    timings: str
    extra: str
    value: Arg
    retry_us: str
    started: str = ""
    device_wait: str = "0.0"
    used: str = ""

    @property
    def retried(self) -> bool:
        """Whether the job waits for another try instead of ending."""
        return self.retry_us not in ("", DEAD)


def settle(
    queue: str, version: str, settlements: Iterable[Settlement], failures_kept: str = ""
) -> Command:
    """End leased jobs; the reply has one code per job, FENCED to POSTPONED.

    Args:
        version: of the model that ran them; it is published with their ends.
        failures_kept: `Settings.failures_kept`; "" keeps no failures.
    """
    ended = chain.from_iterable(settlements)
    return script("jobs/settle").on(queue, version, failures_kept, *ended)


def move(queue: str, version: str, jobs: Iterable[Leased]) -> Command:
    """Move leased jobs to the queue of the version that they ask for, uncharged.

    The reply has one word per job: `moved`, `cancelled`, `gone` or `fenced`.
    """
    return script("jobs/move").on(queue, version, *_pairs(jobs))


def renew(queue: str, lease_us: int, jobs: Iterable[Leased]) -> Command:
    """Renew leases; the reply has RENEWED, CANCEL_REQUESTED or FENCED per job."""
    return script("jobs/renew").call(keys.queue_keys(queue), lease_us, *_pairs(jobs))


def release(
    queue: str,
    mode: str,
    losses: str,
    jobs: Iterable[Leased],
    how: str = "",
    traceback: str = "",
    runs: Mapping[str, Run] | None = None,
) -> Command:
    """Return leased jobs to the head of their queue; the reply has one word per job.

    Args:
        mode: `free`, `alone`, `crash` or `lost`. `free` is an orderly release, which is not
            counted. With the others the jobs must run isolated. After `crash` (their model process
            died by itself) a job that was isolated is charged. After `lost` (the cause can be
            elsewhere) only a job that ran exclusively is charged.
        losses: how many charged crashes a job survives and the bounds of the wait after one, in
            us: "max base most". `Settings.failures_kept` may follow, after a space.
        how: how the model process ended, without quotes and backslashes.
        runs: how the attempts of these jobs ran, by token, as far as it is known.
    """
    known = runs or {}
    rows = [value for job in jobs for value in (job.id, job.token, *known.get(job.token, UNKNOWN))]
    return script("jobs/release").on(queue, mode, losses, how, traceback, *rows)


def release_owner(queue: str, mode: str, losses: str, owner: str, *kept: str) -> Command:
    """Release what an owner has leased of a queue, except for the tokens `kept`.

    The reply is how many jobs were released. For `mode` and `losses` see `release`.
    """
    return script("jobs/release_owner").on(queue, mode, losses, owner, *kept)


def expire(max_jobs: int = EXPIRE_MAX_JOBS) -> Command:
    """End waiting jobs of any queue that must have started by now."""
    return script("jobs/expire").call(
        [], max_jobs, JobExpired.code, JobExpired.__name__, NOT_STARTED
    )


def read_expire(reply: Sequence[Any]) -> tuple[int, int]:
    """Return how many jobs were looked at, and Redis' time in us."""
    looked_at, now_us = reply
    return int(looked_at), int(now_us)


def cancel(
    ids: Iterable[str],
    *,
    remember_s: int = 0,
    parent: tuple[str, str] | None = None,
    name: str = "",
) -> Command:
    """Cancel jobs; the reply has `unknown`, `removed`, `asked` or `ended` per job.

    Args:
        ids: the jobs; "id key" cancels a job only if it belongs to that API key.
        remember_s: for how long a later message of an unknown id is not run.
        parent: id and token of the job on whose behalf they are cancelled. If that job has ended
            or has another token, nothing is done and the reply is nil.
        name: of this call; a repeat under the same name replies as the call did.
    """
    head = f"{remember_s}#{name}" if name else str(remember_s)
    if parent:
        head += f" {parent[0]} {parent[1]}"
    return script("jobs/cancel").call([], head, *ids)


def read_words(reply: Iterable[bytes]) -> list[str]:
    """Return the words of a reply that has one per job."""
    return [word.decode() for word in reply]


class CancelNotice(NamedTuple):
    """A running job that was cancelled, as jobs/cancel.lua publishes it to its worker."""

    model: str
    job_id: str
    token: str


def read_cancel_notices(message: bytes) -> list[CancelNotice]:
    """Read a message on a worker's cancel channel; raise ValueError if it cannot be read."""
    values = iter(msgspec.msgpack.decode(message, type=list[str]))
    return [CancelNotice(*row) for row in zip(*[values] * _NOTICE_ROW, strict=True)]


def append_pieces(
    model: str, rows: Iterable[tuple[str, str, int, int, int, bytes, bytes]]
) -> Command:
    """Append pieces to the logs of leased jobs; the reply is how many rows were of lost leases.

    Args:
        rows: id, token, run, number of the first piece in its attempt (from 1), how many pieces,
            and a JSON array of them. The last value is an array of their tokens, or the JSON of a
            `ResponseDetails` that begins with them, or b"". One piece and b"" are a restart mark.
            No piece, as the first row of an attempt: it goes on where the last one ended.
    """
    return script("pieces/append_pieces").call([], model, *(value for row in rows for value in row))


def read_pieces(most: int, most_bytes: int, logs: Iterable[tuple[str, int, str]]) -> Command:
    """Read at most so many entries and bytes of each log behind a place: id, index and run."""
    return script("pieces/read_pieces").call(
        [], most, most_bytes, *(v for log in logs for v in log)
    )


def read_entries(reply: Sequence[Any]) -> list[tuple[int, bytes, bytes]]:
    """Return the entries of a log: index of the last piece, JSON of pieces and of tokens."""
    entries = []
    for name, flat in reply:
        fields = fields_of(flat)
        last = int(name.partition(b"-")[0])
        entries.append((last, fields.get(b"p", b""), fields.get(b"t", b"")))
    return entries
