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
from headrace.jobs.message import InputSource, quiet_message, quiet_pieces, write_message
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
        shared: the `submit_run` that it can share with similar jobs.
        own: its own part: id, message, and the hash of the request, if it has one; with tokens also
            those, behind the hash or "".
    """

    id: str
    model: str
    shared: tuple[Arg, ...]
    own: tuple[Arg, ...]
    size_bytes: int


class Receipt(NamedTuple):
    """The reply of jobs/submit.lua for one job.

    Attributes:
        created_us: when it was first submitted, by Redis' clock.
        repeated: the id was known already, and nothing was enqueued.
    """

    created_us: int
    repeated: bool


def submission(
    job_id: str,
    model: ModelConfig,
    input_json: bytes,
    options: JobOptions = DEFAULT_OPTIONS,
    *,
    now_s: float,
    result_ttl_s: int,
    waiter: str = "",
    request_hash: str = "",
    source: InputSource | None = None,
    caller: Caller = EVERYBODY,
    quiet: bool = False,
    trace: Trace | None = None,
    details: InputDetails | None = None,
    shadow_of: str = "",
    deadline_s: float | None = None,
) -> JobSubmission:
    """Return the submission of one job.

    Args:
        job_id: the id, new or from an earlier try.
        options: what the client requested.
        now_s: seconds since 1970 by Redis' clock; `expires` counts from then.
        result_ttl_s: for jobs without their own.
        waiter: id of the API process that waits for the end, or "".
        source: where the input is stored, if not in the message; input_json is `null` then.
        request_hash: see `hash_request`; a repeat of the id under another hash is a conflict.
        caller: the owner of the job.
        quiet: its end is not published; it has no Celery result, and is not listed.
        details: what comes with the input; the metadata is taken from the options.
        shadow_of: the job of which this is a copy for a shadow version, or "".
        deadline_s: by when its result is wanted, in seconds since 1970; None if only its `expires`
            counts, or the usual deadline. Offline jobs of a schedule by tokens run in this order.
    """
    if model.expires_s is not None and options.expires is None and not shadow_of:
        options = msgspec.structs.replace(options, expires=model.expires_s)
    tokens = ""
    if model.counts_tokens:
        tokens = _tokens(
            model, input_json, source, options, now_s, deadline_s, caller.tokens_per_minute
        )
    width = _width(request_hash, tokens)
    alike = quiet and source is None and trace is None and details is None and not shadow_of
    if alike and _is_plain(options):
        shared, pieces = _quiet_kind(
            model.name, model.version, model.asked_version, model.max_queue_depth, model.timeout_s,
            options, result_ttl_s, width, caller, model.max_queued_tokens or 0,
        )  # fmt: skip
        message = quiet_message(pieces, job_id, input_json)
    else:
        if options.metadata is not None:
            text = msgspec.json.encode(options.metadata)
            details = msgspec.structs.replace(details or NO_DETAILS, metadata=text)
        queue = model.queue
        message = write_message(
            job_id, model.name, queue, input_json, options,
            timeout_s=model.timeout_s if options.timeout is None else options.timeout,
            expires_at=_expires_at(options, now_s), source=source, quiet=quiet, trace=trace,
            details=details, version=model.asked_version,
        )  # fmt: skip
        rare = _rare_fields(job_id, model, options, source, caller, shadow_of)
        # No other job has the same webhook or original: it must not displace entries of the cache.
        kind = _shared.__wrapped__ if options.webhook or shadow_of else _shared
        shared = kind(
            model.name, model.version, model.asked_version, queue, _STEPS[options.priority],
            model.max_queue_depth, _us(options.countdown), _begin_us(options), width,
            options.result_ttl or result_ttl_s, keys.NO_WAITER if quiet else waiter, rare, caller,
            model.max_queued_tokens or 0,
        )  # fmt: skip
        if trace is not None:
            shared = job_scripts.with_field(shared, JobField.TRACE, trace.trace_id)
    own = _own(job_id, message, request_hash, tokens)
    return JobSubmission(job_id, model.name, shared, own, len(message))


def _own(job_id: str, message: bytes, request_hash: str, tokens: str) -> tuple[Arg, ...]:
    if tokens:
        return (job_id, message, request_hash, tokens)
    return (job_id, message, request_hash) if request_hash else (job_id, message)


def _width(request_hash: str, tokens: str) -> int:
    """Return the length of `_own`."""
    return 4 if tokens else 3 if request_hash else 2


def _tokens(
    model: ModelConfig,
    input_json: bytes,
    source: InputSource | None,
    options: JobOptions,
    now_s: float,
    deadline_s: float | None,
    tokens_per_minute: int,
) -> str:
    """Return the record's `tk` of a job."""
    stored_bytes = None if source is None else max(0, source.size)
    tokens, prefix = estimate(
        input_json, stored_bytes, model.options, model.handler, tokens_per_minute
    )
    if options.priority < keys.OFFLINE_STEP:
        return token_field(tokens, NO_PREFIX, None)
    if options.expires is not None:
        expires_at = now_s + options.expires
        deadline_s = expires_at if deadline_s is None else min(deadline_s, expires_at)
    if deadline_s is None:
        deadline_s = usual_deadline_s(now_s)
    return token_field(tokens, prefix, deadline_s)


def _expires_at(options: JobOptions, now_s: float) -> str | None:
    return None if options.expires is None else iso(int((now_s + options.expires) * US_PER_S))


def _us(seconds: float | None) -> int:
    return int((seconds or 0) * US_PER_S)


def _begin_us(options: JobOptions) -> int:
    """Return within which time a job must have begun; 0 if it may begin at any time."""
    return 0 if options.expires is None else max(1, int(options.expires * US_PER_S))


def _is_plain(options: JobOptions) -> bool:
    """Return whether such jobs differ in their input alone, and have no rare fields."""
    return (
        options.expires is None
        and options.metadata is None
        and not options.webhook
        and options.retry_backoff is None
        and options.retry_backoff_max is None
    )


@lru_cache(maxsize=1024)
def _quiet_kind(
    model: str,
    version: str,
    asked_version: str,
    max_depth: int,
    timeout_s: float | None,
    options: JobOptions,
    result_ttl_s: int,
    width: int,
    caller: Caller,
    max_tokens: int,
) -> tuple[tuple[Arg, ...], tuple[bytes, ...]]:
    """Return what plain quiet jobs of a request share: their run, and most of the message."""
    queue = keys.version_queue(model, asked_version) if asked_version else keys.queue_name(model)
    shared = _shared(
        model,
        version,
        asked_version,
        queue,
        _STEPS[options.priority],
        max_depth,
        _us(options.countdown),
        0,
        width,
        options.result_ttl or result_ttl_s,
        keys.NO_WAITER,
        (),
        caller,
        max_tokens,
    )
    limit_s = options.timeout if options.timeout is not None else timeout_s
    return shared, quiet_pieces(model, queue, options, limit_s, asked_version)


@lru_cache(maxsize=1024)
def _shared(
    model: str,
    version: str,
    asked_version: str,
    queue: str,
    step: str,
    max_depth: int,
    delay_us: int,
    begin_us: int,
    width: int,
    ttl_s: int,
    waiter: str,
    rare: tuple[Arg, ...],
    caller: Caller,
    max_tokens: int,
) -> tuple[Arg, ...]:
    """Return the `submit_run` of such jobs: one object for many, so that runs compare quickly."""
    fields: list[Arg] = [JobField.MODEL, model, JobField.VERSION, version]
    if asked_version:
        fields += (JobField.ASKED_VERSION, asked_version)
    if ttl_s != keys.DEFAULT_TTL_S:
        fields += (JobField.TTL, ttl_s)
    owner = ""
    if waiter:
        fields += (JobField.WAITER, waiter)
    if caller.key_id:
        fields += (JobField.KEY, caller.key_id)
        limits = (caller.in_flight, int(caller.sees_all), caller.tokens_per_minute)
        owner = " ".join(map(str, (caller.key_id, *limits)))
    fields += rare
    return job_scripts.submit_run(
        queue, step, max_depth=max_depth, delay_us=delay_us, expires_us=begin_us,
        listed=waiter != keys.NO_WAITER, owner=owner, values_per_job=width, fields=fields,
        max_tokens=max_tokens,
    )  # fmt: skip


def _rare_fields(
    job_id: str,
    model: ModelConfig,
    options: JobOptions,
    source: InputSource | None,
    caller: Caller,
    shadow_of: str,
) -> tuple[Arg, ...]:
    """Return those fields of a record that most records lack."""
    if options is DEFAULT_OPTIONS and source is None and not shadow_of:
        return ()
    fields: list[Arg] = []
    if source is not None and source.ref:
        fields += (JobField.INPUT_REF, source.ref)
    if options.retry_backoff is not None or options.retry_backoff_max is not None:
        fields += (JobField.BACKOFF, _backoff(options, model))
    if options.metadata is not None:
        fields += (JobField.METADATA, msgspec.json.encode(options.metadata))
    if options.webhook:
        fields += webhook_fields(job_id, model.name, caller.key_id, options)
    if shadow_of:
        fields += (JobField.SHADOW_OF, shadow_of)
    return tuple(fields)


def _backoff(options: JobOptions, model: ModelConfig) -> str:
    """Return the record's `rb` for the scripts, which do not read messages."""
    asked = (options.retry_backoff, options.retry_backoff_max)
    usual = (model.retry_backoff_s, model.retry_backoff_max_s)
    both = (mine if own is None else own for own, mine in zip(asked, usual, strict=True))
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
        version: the version that was requested; None if any is accepted, so that a repeat matches
            after an update of the model too.
        details: what comes with the input, without the metadata, which is an option.
    """
    # Metadata cannot be hashed; without it most requests of a client differ in their input alone.
    begun = _begun_digest if options.metadata is None else _begun_digest.__wrapped__
    digest = begun(model, options, version).copy()
    if details is not None:
        # No input begins with `d`.
        text = details.text()
        digest.update(b"d%d\0%b" % (len(text), text))
    digest.update(input_json)
    return digest.hexdigest()


@lru_cache(maxsize=256)
def _begun_digest(model: str, options: JobOptions, version: str | None) -> hashlib.blake2b:
    digest = hashlib.blake2b(digest_size=16)
    # Unambiguous: a name has no NUL, and the rest is JSON.
    digest.update(b"%s\0%s\0" % (model.encode(), msgspec.json.encode(version)))
    digest.update(msgspec.json.encode(options, order="deterministic"))
    return digest


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
    for one in refused:
        receipts[one.place] = _not_queued(jobs[one.place], one)
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

    It is when there should be room, and up to a quarter more. Clients that were refused together
    must not come back together, because there is room for some of them only.
    """
    wait_s = min(max(1, -(-row.created_us // US_PER_S)), RETRY_MAX_S)
    return wait_s + random.randint(0, wait_s // 4)  # noqa: S311 - no secret


def answer_to_repeat(
    job: Job, request_hash: str, caller: Caller = EVERYBODY
) -> Job | Conflict | JobNotFound:
    """Return the answer to a request with the id of a known job, as jobs/submit.lua decides it.

    It is for requests whose input cannot be stored again, so that they are not submitted.
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
