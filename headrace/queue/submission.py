"""Job submissions: the arguments and the reply of jobs/submit.lua. Independent of Redis."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from headrace.access.api_key import EVERYBODY, Caller
from headrace.config.model.catalog import ModelConfig
from headrace.errors import (
    BrokerUnavailable,
    Conflict,
    HeadraceError,
    JobNotFound,
    QueueFull,
    TokensUsed,
    TooManyInFlight,
)
from headrace.jobs.job import Job, iso
from headrace.jobs.message import InputSource
from headrace.jobs.message_writer import Blank, blank_message, write_message
from headrace.jobs.options import DEFAULT_OPTIONS, NO_DETAILS, InputDetails, JobOptions
from headrace.jobs.tokens import NO_PREFIX, estimate, token_field, usual_deadline_s
from headrace.jobs.trace_context import Trace
from headrace.redis import keys
from headrace.redis.clock import US_PER_S
from headrace.redis.fields import JobField
from headrace.redis.scripts import Arg
from headrace.redis.scripts import jobs as job_scripts
from headrace.redis.scripts.jobs import NotQueued, SubmitCode
from headrace.webhooks.task_message import webhook_fields

#: The longest Retry-After of a job that was refused for its tokens, before the random part.
RETRY_MAX_S: Final = 3600
#: The step of each priority, rounded down as kombu does.
_STEPS: Final = tuple(str(max(s for s in keys.STEPS if s <= p)) for p in range(10))


# gc=False: no field can lead back to it (CONTRIBUTING.md, Rules).
class JobSubmission(msgspec.Struct, frozen=True, gc=False):
    """One job to be submitted.

    Attributes:
        shared: the `submit_run` of similar jobs.
        own: the values of this job alone: its id and its message, then the hash of the request, if
            it has one. A job with tokens has the hash or "", and then its tokens.
    """

    id: str
    model: str
    shared: tuple[Arg, ...]
    own: tuple[Arg, ...]
    size_bytes: int


class Receipt(NamedTuple):
    """The reply of submit.lua for a job: its first submit by Redis' clock, and if `repeated`."""

    created_us: int
    repeated: bool


class SubmitKind(msgspec.Struct, frozen=True):
    """What many jobs share; they differ in the other arguments of `submission`.

    Attributes:
        result_ttl_s: for jobs whose options have none.
        waiter: id of the API process that waits for the ends, or "". The end of a quiet job
            (`keys.NO_WAITER`) is not published; it has no Celery result, and is not listed.
        caller: the owner of the jobs.
    """

    model: ModelConfig
    result_ttl_s: int
    options: JobOptions = DEFAULT_OPTIONS
    waiter: str = ""
    caller: Caller = EVERYBODY


# gc=False: no field can lead back to it (CONTRIBUTING.md, Rules).
class Extras(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What few jobs have.

    Attributes:
        source: where the input is stored, if not in the message; the input is `null` then.
        details: what comes with the input, without the metadata, which the options have.
        deadline_s: by when its result is wanted, in seconds since 1970. Offline jobs of a schedule
            by tokens run in this order. None: by its `expires`, or by the usual deadline.
        fields: more names and values of the record.
    """

    source: InputSource | None = None
    trace: Trace | None = None
    details: InputDetails | None = None
    deadline_s: float | None = None
    fields: tuple[Arg, ...] = ()


NO_EXTRAS: Final = Extras()


def submission(
    kind: SubmitKind,
    job_id: str,
    input_json: bytes,
    *,
    now_s: float,
    request_hash: str = "",
    extras: Extras = NO_EXTRAS,
) -> JobSubmission:
    """Return the submission of one job.

    Args:
        now_s: seconds since 1970 by Redis' clock; `expires` counts from then.
        request_hash: see `hash_request`; a repeat of the id under another hash is a conflict.
    """
    model, options = kind.model, kind.options
    own: tuple[Arg, ...] = (request_hash,) if request_hash else ()
    if model.counts_tokens:
        own = (request_hash, _tokens(kind, input_json, now_s, extras))
    details, fields = extras.details, extras.fields
    if options.metadata is not None:
        text = msgspec.json.encode(options.metadata)
        details = msgspec.structs.replace(details or NO_DETAILS, metadata=text)
        fields += (JobField.METADATA, text)
    fields += _own_fields(kind, job_id, extras)
    if options.metadata is not None or options.webhook:
        # Few jobs have the same ones, and metadata cannot be hashed.
        options = msgspec.structs.replace(options, metadata=None, webhook=None, webhook_events=None)
        kind = msgspec.structs.replace(kind, options=options)
    shared, blank = _shared(kind, 2 + len(own))
    if fields:
        shared = job_scripts.with_fields(shared, *fields)
    expires_s = _expires_s(kind)
    message = write_message(
        blank, job_id, input_json,
        expires_at=None if expires_s is None else iso(int((now_s + expires_s) * US_PER_S)),
        source=extras.source, trace=extras.trace, details=details,
    )  # fmt: skip
    return JobSubmission(job_id, model.name, shared, (job_id, message, *own), len(message))


def _expires_s(kind: SubmitKind) -> float | None:
    expires_s = kind.options.expires
    return kind.model.expires_s if expires_s is None else expires_s


def _tokens(kind: SubmitKind, input_json: bytes, now_s: float, extras: Extras) -> str:
    """Return the record's `tk` of a job."""
    model = kind.model
    stored_bytes = None if extras.source is None else max(0, extras.source.size)
    tokens, prefix = estimate(
        input_json, stored_bytes, model.options, model.handler, kind.caller.tokens_per_minute
    )
    if kind.options.priority < keys.OFFLINE_STEP:
        return token_field(tokens, NO_PREFIX, None)
    expires_s, deadline_s = _expires_s(kind), extras.deadline_s
    if expires_s is not None:
        expires_at = now_s + expires_s
        deadline_s = expires_at if deadline_s is None else min(deadline_s, expires_at)
    if deadline_s is None:
        deadline_s = usual_deadline_s(now_s)
    return token_field(tokens, prefix, deadline_s)


def _own_fields(kind: SubmitKind, job_id: str, extras: Extras) -> tuple[Arg, ...]:
    """Return the fields of a record that few jobs have in common."""
    fields: tuple[Arg, ...] = ()
    if extras.source is not None and extras.source.ref:
        fields += (JobField.INPUT_REF, extras.source.ref)
    if kind.options.webhook:
        fields += (*webhook_fields(job_id, kind.model.name, kind.caller.key_id, kind.options),)
    if extras.trace is not None:
        fields += (JobField.TRACE, extras.trace.trace_id)
    return fields


@lru_cache(maxsize=1024)
def _shared(kind: SubmitKind, width: int) -> tuple[tuple[Arg, ...], Blank]:
    """Return the `submit_run` of jobs of a kind, and their message without what differs.

    The cache saves 71 % of the CPU of a `submission` (`python -m benchmarks.job_path.pieces_cpu`).

    Args:
        width: the number of values in `JobSubmission.own`.
    """
    model, options, waiter, caller = kind.model, kind.options, kind.waiter, kind.caller
    fields: list[Arg] = [JobField.MODEL, model.name, JobField.VERSION, model.version]
    if model.asked_version:
        fields += (JobField.ASKED_VERSION, model.asked_version)
    ttl_s = options.result_ttl or kind.result_ttl_s
    if ttl_s != keys.DEFAULT_TTL_S:
        fields += (JobField.TTL, ttl_s)
    if waiter:
        fields += (JobField.WAITER, waiter)
    owner = ""
    if caller.key_id:
        fields += (JobField.KEY, caller.key_id)
        limits = (caller.in_flight, int(caller.sees_all), caller.tokens_per_minute)
        owner = " ".join(map(str, (caller.key_id, *limits)))
    if options.retry_backoff is not None or options.retry_backoff_max is not None:
        fields += (JobField.BACKOFF, _backoff(options, model))
    expires_s, quiet = _expires_s(kind), waiter == keys.NO_WAITER
    run = job_scripts.submit_run(
        model.queue, _STEPS[options.priority], max_depth=model.max_queue_depth,
        delay_us=int((options.countdown or 0) * US_PER_S),
        expires_us=0 if expires_s is None else max(1, int(expires_s * US_PER_S)),
        listed=not quiet, owner=owner, values_per_job=width, fields=fields,
        max_tokens=model.max_queued_tokens or 0,
    )  # fmt: skip
    timeout_s = model.timeout_s if options.timeout is None else options.timeout
    return run, blank_message(
        model.name, model.queue, options,
        timeout_s=timeout_s, quiet=quiet, version=model.asked_version,
    )  # fmt: skip


def _backoff(options: JobOptions, model: ModelConfig) -> str:
    """Return the record's `rb` for the scripts, which do not read messages."""
    given = (options.retry_backoff, options.retry_backoff_max)
    defaults = (model.retry_backoff_s, model.retry_backoff_max_s)
    both = (own if own is not None else usual for own, usual in zip(given, defaults, strict=True))
    return " ".join(str(int(seconds * US_PER_S)) for seconds in both)


def hash_request(
    model: str,
    input_json: bytes,
    options: JobOptions = DEFAULT_OPTIONS,
    version: str | None = None,
    details: InputDetails | None = None,
) -> str:
    """Return a short digest of a request, which is the same for a repeat and for no other.

    Args:
        version: the version that was requested; None if none was, so that a repeat after an update
            of the model has the same digest.
        details: what comes with the input, without the metadata, which is an option.
    """
    digest = hashlib.blake2b(digest_size=16)
    # Unambiguous: a name has no NUL, and the rest is JSON.
    digest.update(b"%s\0%s\0" % (model.encode(), msgspec.json.encode(version)))
    digest.update(msgspec.json.encode(options, order="deterministic"))
    if details is not None:
        # No input begins with `d`.
        text = details.text()
        digest.update(b"d%d\0%b" % (len(text), text))
    digest.update(input_json)
    return digest.hexdigest()


def submit_arguments(jobs: Iterable[JobSubmission]) -> list[Arg]:
    """Return the runs of these jobs for `job_scripts.submit`, in their order."""
    arguments: list[Arg] = []
    for shared, run in groupby(jobs, attrgetter("shared")):
        own = [job.own for job in run]
        arguments += shared
        arguments.append(len(own))
        arguments += chain.from_iterable(own)
    return arguments


def read_receipts(
    jobs: Sequence[JobSubmission], answer: Sequence[Any]
) -> list[Receipt | HeadraceError]:
    """Read the reply of jobs/submit.lua, job by job; an error is returned, not raised."""
    now_us, refused = job_scripts.read_submit(answer)
    receipts: list[Receipt | HeadraceError] = [Receipt(now_us, repeated=False)] * len(jobs)
    for row in refused:
        receipts[row.place] = _not_queued(jobs[row.place], row)
    return receipts


def _not_queued(job: JobSubmission, row: NotQueued) -> Receipt | HeadraceError:
    if row.code == SubmitCode.KNOWN:
        return Receipt(row.created_us, repeated=True)
    if row.code == SubmitCode.QUEUE_FULL:
        return QueueFull(
            f"the queue of model {job.model} holds {row.depth} jobs, its max_queue_depth",
            hint="Try again after Retry-After, or raise max_queue_depth in the models file.",
        )
    if row.code == SubmitCode.TOKENS_FULL:
        wait_s = _wait_s(row)
        return QueueFull(
            f"the jobs of model {job.model} that have not ended need about {row.depth} tokens, and "
            "with this one more than max_queued_tokens",
            hint=f"Try again in {wait_s} s, or raise max_queued_tokens in the models file.",
            retry_after_s=wait_s,
        )
    if row.code == SubmitCode.OTHER_REQUEST:
        return _conflict(job.id)
    if row.code == SubmitCode.OTHER_KEY:
        return id_unavailable(job.id)
    if row.code == SubmitCode.IN_FLIGHT_LIMIT:
        return TooManyInFlight(
            f"this API key has {row.depth} jobs in flight, its limit",
            hint="Try again when some of them have ended.",
        )
    if row.code == SubmitCode.TOKENS_USED:
        return _tokens_used(job, row)
    return BrokerUnavailable(
        f"the queue of model {job.model} is unusable: its key in Redis is not a list",
        hint="Remove the key, or give Headrace a Redis database of its own.",
    )


def _tokens_used(job: JobSubmission, row: NotQueued) -> TokensUsed:
    key_id, *_, limit = str(job.shared[job_scripts.OWNER_AT]).split()
    needed = str(job.own[-1]).partition(" ")[0]
    wait_s = _wait_s(row)
    return TokensUsed(
        f"the job needs about {needed} tokens, and API key {key_id} has {row.depth} left of its "
        f"{limit} tokens a minute",
        hint=f"Try again in {wait_s} s, or use a key with a higher limit, which an operator "
        "creates with `headrace keys create --tokens-per-minute`.",
        retry_after_s=wait_s,
        limit=int(limit),
        left=row.depth,
    )


def _wait_s(row: NotQueued) -> int:
    """Return in how many seconds to try again after a refusal for tokens.

    By then there should be room. Up to a quarter is added by chance: of clients that were refused
    together, only some find room, so that they must not come back together.
    """
    wait_s = min(max(1, -(-row.created_us // US_PER_S)), RETRY_MAX_S)
    return wait_s + random.randint(0, wait_s // 4)  # noqa: S311 - no secret


def answer_to_repeat(
    job: Job, request_hash: str, caller: Caller = EVERYBODY
) -> Job | Conflict | JobNotFound:
    """Return the answer to a repeated request that is not submitted, as jobs/submit.lua has it.

    The input of such a request cannot be stored again.
    """
    if not caller.may_see(job.key):
        return id_unavailable(job.id)
    return job if job.request_hash == request_hash else _conflict(job.id)


def id_unavailable(job_id: str) -> JobNotFound:
    """Return the error for an id of a job that the caller cannot see."""
    return JobNotFound(
        f"the job id {job_id[:128]!r} is not available to this API key",
        hint="Choose another id.",
    )


def _conflict(job_id: str) -> Conflict:
    return Conflict(
        f"the id {job_id} was used before for another request",
        hint="Use a new id or key for a new request; repeat a request just as it was.",
    )
