"""Plans for operators: queues, failures, webhooks, runs, profiles, workers, API keys, the audit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from headrace.client.calls import Page, list_pages, query_of
from headrace.client.http.retries import Session, decoded, exchange, fetch
from headrace.client.inputs import job_request, json_request
from headrace.client.models import DeadLetter, Job, decode_output
from headrace.client.sansio import HttpRequest, HttpResponse, Plan, Stream
from headrace.errors import InvalidRequest
from headrace.redis import keys
from headrace.schema.deployment import (
    ApiKeyEntry,
    ApiKeys,
    Audit,
    AuditEntry,
    CreatedApiKey,
    KeySelf,
    Worker,
    Workers,
)
from headrace.schema.operation import (
    Discarded,
    FailureGroups,
    FailuresOfGroup,
    Profile,
    Profiles,
    Purged,
    Queue,
    QueuePurge,
    RecentDeliveries,
    RecentDelivery,
    Requeued,
    Retried,
    VersionQueue,
    WebhookDeliveries,
    WebhookDelivery,
)
from headrace.schema.runs import Run, RunReceipt, Runs

_WORKERS: Final = "/api/v1/workers"
_KEYS: Final = "/api/v1/keys"
_AUDIT: Final = "/api/v1/audit"
_RUNS: Final = "/api/v1/runs"
_FAILURES: Final = "/api/v1/failures"
_PROFILES: Final = "/api/v1/profiles"
_WEBHOOKS: Final = "/api/v1/webhooks"
#: Maximum number of dead letters in one request.
DEAD_LETTERS_AT_ONCE: Final = 10_000
#: Seconds that a request for a long queue may take before its timeout counts.
LONG_REQUEST_S: Final = 120.0

DeadLetters: TypeAlias = str | DeadLetter | Iterable[str | DeadLetter] | None


class _DeadLetterPage(msgspec.Struct):
    dead_letters: list[DeadLetter]
    cursor: str | None = None


def pause_queue(session: Session, queue: str | Queue | VersionQueue) -> Plan[None]:
    """Stop workers from claiming jobs of a model's queue until it is resumed, also after restarts.

    Submits are still accepted, and running jobs continue.

    Args:
        queue: the model's name or an item of `queues()`, for all jobs of the model. Or
            `model@version` or one of its `versions`, for the jobs that ask for this version.

    Raises:
        QueueNotFound: the model does not exist.
    """
    yield from _change_queue(session, queue, "pause")


def resume_queue(session: Session, queue: str | Queue | VersionQueue) -> Plan[None]:
    """Let workers claim jobs of a model's queue again; it takes effect within a second.

    Raises:
        QueueNotFound: the model does not exist.
    """
    yield from _change_queue(session, queue, "resume")


def purge_queue(session: Session, queue: str | Queue | VersionQueue) -> Plan[int]:
    """Cancel all waiting and scheduled jobs of a model's queue; running jobs continue.

    Returns:
        The number of cancelled jobs. If an answer was lost and the request was repeated, jobs that
        the first request cancelled are not counted.

    Raises:
        QueueNotFound: the model does not exist.
    """
    answer = yield from _change_queue(session, queue, "purge")
    return decoded(answer, QueuePurge).cancelled


def failures(
    session: Session,
    model: str | None = None,
    *,
    since: datetime | float | str | None = None,
    error: str | None = None,
    bucket_s: int | None = None,
    limit: int | None = None,
) -> Plan[list[FailuresOfGroup]]:
    """Return why jobs failed: groups of failures, the one that failed last first.

    Args:
        model: only failures of this model.
        since: only jobs that failed at this time or later; as for `jobs`.
        error: only groups with this text in type, message, exception or line.
        bucket_s: also count each group's failures by parts of the time of this length.
        limit: maximum number of groups, at most 1,000; None for the server's default.

    Raises:
        ModelNotFound: the model does not exist.
        ListsOff: the server keeps no failures.
    """
    query = query_of(model=model, since=since, error=error, bucket_s=bucket_s, limit=limit)
    request = HttpRequest("GET", _FAILURES, query=query)
    return (yield from fetch(session, request, FailureGroups)).failures


def discard_failures(
    session: Session, group: str | FailuresOfGroup, count: int | None = None
) -> Plan[int]:
    """Let all failures of a group go, with their dead letters; return how many.

    The jobs stay failed, and are kept as long as other results.

    Args:
        count: how many failures it must have; by default that of `group`, an item of `failures()`.

    Raises:
        Conflict: it has another number by now; nothing was done.
        ModelNotFound: the model of the group does not exist.
    """
    if count is None:
        if isinstance(group, str):
            raise InvalidRequest("the name of a group is given without its count")
        count = group.count
    name = group if isinstance(group, str) else group.group
    path = f"{_FAILURES}/{quote(name, safe='')}/discard"
    request = json_request("POST", path, {"count": count}, wait_s=LONG_REQUEST_S)
    return (yield from fetch(session, request, Discarded)).discarded


def retry_failures(session: Session, group: str | FailuresOfGroup) -> Plan[Retried]:
    """Put all jobs of a group back at the end of their queues as the same jobs.

    A job keeps its id, its input and its metadata; its attempts start at 0.

    Returns:
        How many are retried, and which are not and why. If an answer was lost and the request was
        repeated, those of the first request are not counted.

    Raises:
        ModelNotFound: the model of the group does not exist.
    """
    name = group if isinstance(group, str) else group.group
    path = f"{_FAILURES}/{quote(name, safe='')}/retry"
    return (yield from fetch(session, HttpRequest("POST", path), Retried))


def retry(session: Session, job: str | Job) -> Plan[None]:
    """Put a failed job back at the end of its queue as the same job.

    It keeps its id, its input and its metadata; its attempts start at 0.

    Raises:
        JobNotFound: no job has this id.
        Conflict: it has not failed, or its input is not kept any more. Also if an answer was lost
            and the request was repeated.
    """
    yield from fetch(session, job_request("POST", job, below="/retry"), Retried)


def job_input(session: Session, job: str | Job) -> Plan[Any]:
    """Return the input of a job that has not ended, or that has failed, decoded as a result is.

    Raises:
        JobNotFound: no job has this id.
        InputGone: it is not kept.
    """
    answer = yield from exchange(session, job_request("GET", job, below="/input"))
    return decode_output(answer.body, answer.headers.get("content-type", ""))


def dead_letters(session: Session, model: str, *, limit: int | None = None) -> Stream[DeadLetter]:
    """List the dead letters of a model, newest first, page by page.

    Args:
        limit: maximum number; None for all.

    Yields:
        Dead letters without traceback and message; `dead_letter` returns those.

    Raises:
        ModelNotFound: the model does not exist.
    """

    def read(answer: HttpResponse) -> Page[DeadLetter]:
        page = decoded(answer, _DeadLetterPage)
        return [replace(dead, model=model) for dead in page.dead_letters], page.cursor

    return list_pages(session, _dead_letters_path(model), read, limit=limit)


def dead_letter(session: Session, model: str, id: str) -> Plan[DeadLetter]:
    """Return one dead letter with the handler's traceback and the task message.

    Raises:
        ModelNotFound: the model does not exist.
        LetterNotFound: the model has no dead letter with this id.
    """
    path = f"{_dead_letters_path(model)}/{quote(id, safe='')}"
    return replace((yield from fetch(session, HttpRequest("GET", path), DeadLetter)), model=model)


def requeue_dead_letters(
    session: Session, model: str, letters: DeadLetters = None, *, all: bool = False
) -> Plan[Requeued]:
    """Put dead letters back at the end of their queue as the same jobs.

    A job keeps its id, its input and its metadata; its attempts start at 0.

    Args:
        letters: one or several dead letters, or their ids.
        all: all dead letters that exist now, instead of `letters`.

    Returns:
        How many were requeued, and which were not and why. If an answer was lost and the request
        was repeated, those of the first request are `unknown`.

    Raises:
        ModelNotFound: the model does not exist.
        InvalidRequest: neither `letters` nor `all` is given, or both are.
    """
    count, left = 0, {}
    for request in _selections(model, "requeue", letters, all=all):
        done = yield from fetch(session, request, Requeued)
        count += done.requeued
        left.update(done.left)
    return Requeued(requeued=count, left=left)


def purge_dead_letters(
    session: Session, model: str, letters: DeadLetters = None, *, all: bool = False
) -> Plan[int]:
    """Delete dead letters permanently; their jobs stay failed.

    Args:
        letters: one or several dead letters, or their ids.
        all: all dead letters that exist now, instead of `letters`.

    Returns:
        How many were deleted; ids that do not exist are not counted.

    Raises:
        ModelNotFound: the model does not exist.
        InvalidRequest: neither `letters` nor `all` is given, or both are.
    """
    count = 0
    for request in _selections(model, "purge", letters, all=all):
        count += (yield from fetch(session, request, Purged)).purged
    return count


def _change_queue(
    session: Session, queue: str | Queue | VersionQueue, verb: str
) -> Plan[HttpResponse]:
    name = keys.queue_name(queue) if isinstance(queue, str) else queue.name
    path = f"/api/v1/queues/{quote(name, safe='')}/{verb}"
    return (yield from exchange(session, HttpRequest("POST", path, wait_s=LONG_REQUEST_S)))


def _dead_letters_path(model: str) -> str:
    return f"/api/v1/models/{quote(model, safe='')}/dead-letters"


def _selections(model: str, verb: str, letters: DeadLetters, *, all: bool) -> Iterator[HttpRequest]:
    """Yield the requests that do this to these dead letters, each id once."""
    if all == (letters is not None):
        raise InvalidRequest(
            "letters and all are both given" if all else "no dead letters are given",
            hint="Give dead letters or their ids, or all=True for all of them.",
        )
    selections: list[dict[str, Any]] = [{"all": True}]
    if letters is not None:
        some: Iterable[Any] = [letters] if isinstance(letters, (str, DeadLetter)) else letters
        ids = list(dict.fromkeys(one if isinstance(one, str) else one.id for one in some))
        most = DEAD_LETTERS_AT_ONCE
        selections = [{"ids": ids[at : at + most]} for at in range(0, len(ids), most)]
    path = f"{_dead_letters_path(model)}/{verb}"
    for selection in selections:
        yield json_request("POST", path, selection, wait_s=LONG_REQUEST_S)


def webhooks(session: Session, job: str | Job) -> Plan[list[WebhookDelivery]]:
    """Return a job's webhook deliveries, oldest first; they outlive the job's record for a while.

    Raises:
        JobNotFound: no job has this id.
    """
    request = job_request("GET", job, below="/webhooks")
    return (yield from fetch(session, request, WebhookDeliveries)).deliveries


def recent_webhooks(
    session: Session, *, state: str | None = None, limit: int | None = None
) -> Plan[list[RecentDelivery]]:
    """Return the webhooks of all jobs that were sent last: failing ones first, then the newest.

    Args:
        state: only those that are `pending`, `delivered` or `failed`.
        limit: maximum number, at most 1,000; None for the server's default.
    """
    request = HttpRequest("GET", _WEBHOOKS, query=query_of(state=state, limit=limit))
    return (yield from fetch(session, request, RecentDeliveries)).deliveries


def redeliver_webhook(
    session: Session, job: str | Job, delivery: str | WebhookDelivery | None = None
) -> Plan[WebhookDelivery]:
    """Send a webhook again with the same id.

    Args:
        delivery: the delivery, or its id; None for the newest.

    Raises:
        JobNotFound: no job has this id.
        WebhookNotFound: the job has no such delivery.
    """
    delivery_id = delivery.id if isinstance(delivery, WebhookDelivery) else delivery
    path = job_request("POST", job, below="/webhooks/redeliver").path
    request = json_request("POST", path, {} if delivery_id is None else {"id": delivery_id})
    return (yield from fetch(session, request, WebhookDelivery))


def runs(session: Session) -> Plan[list[Run]]:
    """Return the offline runs that this server knows, latest report first."""
    return (yield from fetch(session, HttpRequest("GET", _RUNS), Runs)).runs


def run_record(session: Session, run_id: str) -> Plan[Run]:
    """Return the last report of one offline run.

    Raises:
        RunNotFound: no run has this id.
    """
    return (yield from fetch(session, HttpRequest("GET", _run_path(run_id)), Run))


def cancel_run(session: Session, run_id: str) -> Plan[Run]:
    """Request the cancellation of an offline run; its process stops within seconds.

    Raises:
        RunNotFound: no run has this id.
    """
    return (yield from fetch(session, HttpRequest("POST", f"{_run_path(run_id)}/cancel"), Run))


def report_run(session: Session, run_id: str, record: Any, *, begun: bool) -> Plan[bool]:
    """Write a run's record; return whether its cancellation was requested."""
    query = {"begun": "1"} if begun else {}
    request = json_request("PUT", _run_path(run_id), record, query)
    return (yield from fetch(session, request, RunReceipt)).cancel_requested


def _run_path(run_id: str) -> str:
    return f"{_RUNS}/{quote(run_id, safe='')}"


def request_profile(
    session: Session,
    model: str,
    *,
    kind: str = "trace",
    batches: int = 5,
    seconds: float = 10.0,
    version: str = "",
) -> Plan[Profile]:
    """Request a profile of a model process that is running; read it with `profile`.

    Args:
        kind: `trace`: PyTorch's trace of the next batches; `stack`: samples of the verbs' stacks.
        batches: how many batches a trace has.
        seconds: how long a trace waits for its batches, or how long stacks are sampled.
        version: the version; by default the default version.

    Raises:
        ModelNotFound: the model or the version is not registered.
        Conflict: no model process is loaded, or it is being profiled.
    """
    body = {"kind": kind, "batches": batches, "seconds": seconds, "version": version}
    request = json_request("POST", f"/api/v1/models/{quote(model, safe='')}/profile", body)
    return (yield from fetch(session, request, Profile))


def profiles(session: Session) -> Plan[list[Profile]]:
    """Return the newest profiles of all models, the last one first."""
    return (yield from fetch(session, HttpRequest("GET", _PROFILES), Profiles)).profiles


def profile(session: Session, id: str) -> Plan[Profile]:
    """Return how far a profile is, and which files it has.

    Raises:
        ProfileNotFound: no profile has this id, or it has expired.
    """
    request = HttpRequest("GET", f"{_PROFILES}/{quote(id, safe='')}")
    return (yield from fetch(session, request, Profile))


def profile_file(session: Session, id: str, name: str) -> Plan[bytes]:
    """Return a file of a profile.

    Raises:
        ProfileNotFound: the profile has no such file, or has expired.
    """
    path = f"{_PROFILES}/{quote(id, safe='')}/files/{quote(name, safe='')}"
    return (yield from exchange(session, HttpRequest("GET", path))).body


def workers(session: Session) -> Plan[list[Worker]]:
    """Return the live workers with their devices, models and processes, by node."""
    return (yield from fetch(session, HttpRequest("GET", _WORKERS), Workers)).workers


def drain_worker(session: Session, worker: str | Worker) -> Plan[Worker]:
    """Let a worker claim nothing more; it finishes what runs, and keeps running.

    Args:
        worker: an item of `workers()`, its name, or that of its node.

    Raises:
        WorkerNotFound: no such worker runs.
        Conflict: it is a background worker, or of an older version.
    """
    return (yield from _change_worker(session, worker, "drain"))


def resume_worker(session: Session, worker: str | Worker) -> Plan[Worker]:
    """Let a drained worker claim jobs again; it takes effect within a second.

    Raises:
        WorkerNotFound: no such worker runs.
    """
    return (yield from _change_worker(session, worker, "resume"))


def _change_worker(session: Session, worker: str | Worker, verb: str) -> Plan[Worker]:
    name = worker if isinstance(worker, str) else worker.worker
    path = f"{_WORKERS}/{quote(name, safe='')}/{verb}"
    return (yield from fetch(session, HttpRequest("POST", path), Worker))


def own_key(session: Session) -> Plan[KeySelf]:
    """Return what this client's API key allows."""
    return (yield from fetch(session, HttpRequest("GET", f"{_KEYS}/self"), KeySelf))


def api_keys(session: Session) -> Plan[list[ApiKeyEntry]]:
    """Return the API keys without their secrets, the oldest first."""
    return (yield from fetch(session, HttpRequest("GET", _KEYS), ApiKeys)).keys


def create_api_key(
    session: Session,
    name: str,
    scopes: Sequence[str] = ("submit", "read"),
    *,
    rate: float = 0.0,
    max_in_flight: int = 0,
    tokens_per_minute: int = 0,
    expires_in_s: int = 0,
) -> Plan[CreatedApiKey]:
    """Make an API key. Its text, `key`, cannot be read again. A limit of 0 is no limit.

    If an answer was lost and the request was repeated, there are two keys.

    Raises:
        InvalidRequest: the name or a limit is not valid.
        Conflict: the server requires no API keys.
    """
    body: dict[str, Any] = {
        "name": name,
        "scopes": list(scopes),
        "rate": rate,
        "max_in_flight": max_in_flight,
        "tokens_per_minute": tokens_per_minute,
        "expires_in_s": expires_in_s,
    }
    return (yield from fetch(session, json_request("POST", _KEYS, body), CreatedApiKey))


def revoke_api_key(session: Session, key: str | ApiKeyEntry) -> Plan[None]:
    """Revoke an API key at once; its jobs continue.

    Raises:
        KeyNotFound: no API key has this id.
        Conflict: a component of the deployment uses it, or the server requires no API keys.
    """
    name = key if isinstance(key, str) else key.id
    yield from exchange(session, HttpRequest("DELETE", f"{_KEYS}/{quote(name, safe='')}"))


def audit(
    session: Session,
    *,
    by: str | None = None,
    target: str | None = None,
    limit: int | None = None,
) -> Stream[AuditEntry]:
    """List who changed what, the newest first, page by page.

    Args:
        by: only changes by this API key.
        target: only changes of this queue, model, key or worker.
        limit: maximum number; None for all.
    """

    def read(answer: HttpResponse) -> Page[AuditEntry]:
        page = decoded(answer, Audit)
        return page.entries, page.cursor

    return list_pages(session, _AUDIT, read, limit=limit, query=query_of(by=by, target=target))
