"""The table of all operations: what the router serves, and what `api.openapi` describes.

docs/security.md lists the scopes. `GET` includes `HEAD`. A job of another API key does not exist
(404) on any of them, unless the caller's key has the scope `manage`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from api.auth.authenticator import Needs, Open
from api.http.messages import Answer
from api.http.problems import ProblemType
from api.routes import media
from api.routes.admin import (
    audit,
    dead_letters,
    keys,
    models,
    overview,
    profiles,
    queues,
    registry,
    runs,
    workers,
)
from api.routes.jobs import (
    bulk_status,
    bulk_submit,
    events,
    failures,
    job,
    listing,
    stream,
    submit,
    webhooks,
)
from api.routes.media import Body, Header, PathParameter, Success
from api.routes.service import documentation, health
from api.submission.waiting import WaitQuery
from headrace import errors
from headrace.access.api_key import Scope
from headrace.config.model.traffic import Traffic
from headrace.jobs.ids import ID, MODEL_NAME, VERSION
from headrace.jobs.options import JobOptions
from headrace.observability.profiles import ProfileRequest
from headrace.queue.failures import GROUP_NAME
from headrace.schema.deployment import (
    ApiKeys,
    Audit,
    CreatedApiKey,
    KeySelf,
    NewApiKey,
    Worker,
    Workers,
)
from headrace.schema.lines import JobRequest, NamedJobRequest
from headrace.schema.operation import (
    Demand,
    Discarded,
    FailureGroups,
    GroupCount,
    Profile,
    Profiles,
    Purged,
    QueuePurge,
    Queues,
    RecentDeliveries,
    Requeued,
    Retried,
    WebhookDeliveries,
    WebhookDelivery,
)
from headrace.schema.overview import AllSeries, Findings, Overview, Series
from headrace.schema.registry import ModelDifferences, ModelTraffic, Registration
from headrace.schema.runs import Run, RunReceipt, Runs, RunStatus

Answers = type | Success | Mapping[int, type | Success]
#: Takes the services, the request, and the parts of the path that the template names.
Endpoint = Callable[..., Awaitable[Answer]]


class Operation(NamedTuple):
    """One operation of the API.

    Attributes:
        endpoint: serves it; the first line of its docstring is the summary of the operation.
        path: a template; `{name}` is one part of a path, `{name:path}` is the rest of it.
        needs: the scope that an API key must have, or how far the operation is open.
        name: the OpenAPI operationId; "" for what the description leaves out.
        answers: its successful answers by status, or the only one; a type explains itself.
        problems: its errors, besides those that every such operation has.
        error: the type of its errors' JSON; None if they are problems.
        status_of: returns the status of an error, if it is not the problem's own.
        audited: whether it is an entry of the audit log; None: if it manages and changes something.
    """

    method: str
    path: str
    endpoint: Endpoint
    needs: Needs
    name: str = ""
    answers: Answers = Success("")
    problems: Sequence[type[errors.HeadraceError]] = ()
    query: Sequence[type[msgspec.Struct]] = ()
    headers: Sequence[Header] = ()
    body: type | Body | None = None
    error: type[msgspec.Struct] | None = None
    status_of: Callable[[type[errors.HeadraceError]], int] = lambda problem: problem.status
    audited: bool | None = None


def answer_headers(operation: Operation) -> list[Header]:
    """Return the headers that the successful answers of an operation have."""
    answers = operation.answers
    several = answers.values() if isinstance(answers, Mapping) else [answers]
    return [header for one in several if isinstance(one, Success) for header in one.headers]


_SUBMIT, _READ, _MANAGE = Scope.SUBMIT, Scope.READ, Scope.MANAGE
_MODELS: Final = "/api/v1/models"
_MODEL_JOBS: Final = "/api/v1/models/{model}/jobs"
_VERSION_JOBS: Final = registry.VERSION + "/jobs"
_JOBS: Final = "/api/v1/jobs"
_JOB: Final = "/api/v1/jobs/{job_id}"
_LETTERS: Final = dead_letters.PATH
_LETTER: Final = dead_letters.PATH + "/{name:path}"
_QUEUES: Final = "/api/v1/queues"
_RUNS: Final = "/api/v1/runs"

#: Why a submit may be refused.
REFUSED: Final = (
    errors.InvalidRequest, errors.InvalidInput, errors.InvalidId, errors.ModelNotFound,
    errors.Conflict, errors.PayloadTooLarge, errors.UnsupportedMedia, errors.QueueFull,
    errors.TooManyInFlight, errors.BrokerFull, errors.StoreUnavailable, errors.StoreFull,
    errors.PathNotFound,
)  # fmt: skip
REFUSED_SUBMIT: Final = (*REFUSED, errors.TooManyStreams)
#: Why a job cannot be read.
UNREAD_JOB: Final = (errors.InvalidRequest, errors.JobNotFound)
_UNREAD_BODY: Final = (errors.InvalidRequest, errors.PayloadTooLarge, errors.UnsupportedMedia)
_UNREAD_SELECTION: Final = (errors.InvalidRequest, errors.PayloadTooLarge, errors.ModelNotFound)
_UNREAD_GROUP: Final = (*_UNREAD_SELECTION, errors.Conflict)
_REGISTRY: Final = (
    errors.InvalidRequest, errors.ModelNotFound, errors.Conflict, errors.PayloadTooLarge,
)  # fmt: skip
_WAIT: Final = (WaitQuery,)
_SUBMIT_HEADERS: Final = (media.PREFER, media.IDEMPOTENCY_KEY)

#: The parameters of the paths, by name.
PATH_PARAMETERS: Final[dict[str, PathParameter]] = {
    "model": PathParameter(MODEL_NAME, "echo"),
    "job_id": PathParameter(ID, may_be_empty=True),
    "version": PathParameter(VERSION, "2.0"),
    "group": PathParameter(GROUP_NAME, "echo.0123456789ab"),
    "run_id": PathParameter(ID),
    "name": PathParameter(r"^[^\s/]{1,255}$"),
    "queue": PathParameter(MODEL_NAME.replace("^", r"^headrace\."), "headrace.echo"),
    "code": PathParameter(r"^[a-z-]{1,64}$", "queue-full"),
    "worker": PathParameter(r"^[^\s/]{1,255}$"),
    "key": PathParameter(r"^[0-9a-f]{12}$"),
    "profile_id": PathParameter(r"^[^\s/]{1,64}$"),
}

#: The operations of the core; `api.extension.operations` also has those of the extensions.
TABLE: Final[tuple[Operation, ...]] = (
    # Jobs
    *(Operation(
        method, _MODEL_JOBS, submit.submit_input, _SUBMIT, f"submit_input_{method.lower()}",
        media.SUBMITTED, REFUSED_SUBMIT, (JobOptions, WaitQuery), _SUBMIT_HEADERS, media.INPUT,
    ) for method in ("POST", "PUT")),
    *(Operation(
        method, _VERSION_JOBS, submit.submit_version_input, _SUBMIT,
        f"submit_version_input_{method.lower()}", media.SUBMITTED, REFUSED_SUBMIT,
        (JobOptions, WaitQuery), _SUBMIT_HEADERS, media.INPUT,
    ) for method in ("POST", "PUT")),
    Operation(
        "GET", _JOBS, listing.list_jobs, _READ, "list_jobs", listing.JobList,
        (errors.InvalidRequest, errors.ModelNotFound, errors.ListsOff), (listing.ListQuery,),
    ),
    Operation(
        "POST", _JOBS, submit.submit_job, _SUBMIT, "submit_job", media.SUBMITTED,
        (*REFUSED_SUBMIT, errors.InputForbidden), _WAIT, _SUBMIT_HEADERS, JobRequest,
    ),
    Operation(
        "GET", _JOB, job.get_job, _READ, "get_job", media.JOB, UNREAD_JOB,
        (job.JobQuery,), (media.PREFER,),
    ),
    Operation(
        "PUT", _JOB, submit.put_job, _SUBMIT, "put_job", media.SUBMITTED,
        (*REFUSED_SUBMIT, errors.InputForbidden), _WAIT, (media.PREFER,), NamedJobRequest,
    ),
    # Who may submit a job may also cancel it. Which of these are noted is decided there.
    Operation(
        "DELETE", _JOB, job.cancel_job, _SUBMIT, "cancel_job",
        {200: Success("It will not run, or it had ended before.", job.Cancellation),
         202: Success("It runs; its result will be discarded.", job.Cancellation)}, UNREAD_JOB,
        audited=True,
    ),
    Operation(
        "GET", _JOB + "/result", job.get_result, _READ, "get_result", media.RESULT,
        (*UNREAD_JOB, errors.ResultFreed, errors.RangeNotSatisfiable, errors.StoreUnavailable,
         errors.JobError),
        (job.JobQuery,), (media.PREFER, media.RANGE, media.IF_RANGE),
    ),
    Operation(
        "GET", _JOB + "/events", events.get_events, _READ, "get_events", media.EVENTS,
        (*UNREAD_JOB, errors.TooManyStreams), (events.EventsQuery,), (media.LAST_EVENT_ID,),
    ),
    Operation(
        "GET", _JOB + "/stream", stream.get_stream, _READ, "get_stream", media.PIECES,
        (*UNREAD_JOB, errors.TooManyStreams), (stream.StreamQuery,), (media.LAST_EVENT_ID,),
    ),
    Operation(
        "GET", _JOB + "/input", failures.get_input, _READ, "get_input", media.KEPT_INPUT,
        (*UNREAD_JOB, errors.InputGone, errors.StoreUnavailable),
    ),
    # A retry passes the limits of the API key that owns the job.
    Operation(
        "POST", _JOB + "/retry", failures.retry_job, _MANAGE, "retry_job", Retried,
        (*UNREAD_JOB, errors.Conflict),
    ),
    # The next paths are also those of jobs with such an id: no id is reserved.
    Operation(
        "POST", _JOBS + "/bulk", bulk_submit.submit_bulk, _SUBMIT, "submit_bulk",
        media.LINE_ANSWERS, (errors.InvalidRequest, errors.InvalidId, errors.UnsupportedMedia),
        (bulk_submit.BulkQuery,), (media.IDEMPOTENCY_KEY,), media.LINES,
    ),
    Operation(
        "POST", _JOBS + "/status", bulk_status.read_many, _READ, "read_many", bulk_status.Jobs,
        _UNREAD_BODY, (bulk_status.StatusQuery,), body=bulk_status.Ids,
    ),
    Operation(
        "POST", _JOBS + "/cancel", bulk_status.cancel_many, _SUBMIT, "cancel_many",
        bulk_status.Cancellations, _UNREAD_BODY, body=bulk_status.Ids, audited=True,
    ),
    Operation(
        "POST", _JOBS + "/outcomes", bulk_status.read_outcomes, _READ, "read_outcomes",
        bulk_status.Outcomes, _UNREAD_BODY, body=bulk_status.Ids,
    ),
    Operation(
        "POST", _JOBS + "/forget", bulk_status.forget_many, _SUBMIT, "forget_many",
        bulk_status.Forgotten, _UNREAD_BODY, body=bulk_status.Ids,
    ),
    # Models and queues
    Operation("GET", _MODELS, models.list_models, _READ, "list_models", models.Models),
    Operation(
        "GET", _MODELS + "/{model}", models.get_model, _READ, "get_model", models.ModelDetail,
        (errors.ModelNotFound,),
    ),
    Operation(
        "GET", _MODELS + "/{model}/demand", models.get_demand, _READ, "get_model_demand", Demand,
        (errors.ModelNotFound,),
    ),
    Operation(
        "GET", _MODELS + "/{model}/series", overview.get_series, _READ, "get_model_series", Series,
        (errors.InvalidRequest, errors.ModelNotFound), (overview.SeriesQuery,),
    ),
    # Numbers alone, so that keys that see their own jobs only may read them.
    Operation(
        "GET", "/api/v1/overview", overview.get_overview, _READ, "get_overview",
        media.watched("All models in numbers, and what is wrong.", Overview),
        headers=(media.IF_NONE_MATCH,),
    ),
    Operation(
        "GET", "/api/v1/findings", overview.list_findings, _READ, "list_findings", Findings,
    ),
    Operation(
        "GET", "/api/v1/series", overview.list_series, _READ, "list_series",
        media.watched("The last hour of all models, by minute.", AllSeries),
        headers=(media.IF_NONE_MATCH,),
    ),
    # Queues and dead letters have the jobs of all keys. The registry logs its own changes.
    Operation(
        "GET", registry.MODEL + "/versions", registry.get_registration, _READ,
        "get_model_versions", Registration, (errors.ModelNotFound,),
    ),
    Operation(
        "PUT", registry.VERSION, registry.register_version, _MANAGE, "register_model_version",
        {200: Registration, 201: Registration},
        _REGISTRY, (registry.ChangeQuery,), (media.IF_MATCH,), registry.NewVersion,
        audited=False,
    ),
    Operation(
        "PATCH", registry.MODEL, registry.change_model, _MANAGE, "change_model",
        Registration, _REGISTRY, (registry.ChangeQuery,), (media.IF_MATCH,),
        registry.ModelChange, audited=False,
    ),
    Operation(
        "POST", registry.MODEL + "/reload", registry.reload_model, _MANAGE, "reload_model",
        Registration, _REGISTRY, (registry.ReloadQuery,), (media.IF_MATCH,), audited=False,
    ),
    Operation(
        "GET", registry.MODEL + "/traffic", registry.get_traffic, _READ, "get_model_traffic",
        ModelTraffic, (errors.ModelNotFound,),
    ),
    Operation(
        "PUT", registry.MODEL + "/traffic", registry.put_traffic, _MANAGE, "put_model_traffic",
        ModelTraffic, _REGISTRY, (registry.ChangeQuery,), (media.IF_MATCH,), Traffic, audited=False,
    ),
    Operation(
        "DELETE", registry.MODEL + "/traffic", registry.delete_traffic, _MANAGE,
        "delete_model_traffic", ModelTraffic, _REGISTRY, (registry.ChangeQuery,),
        (media.IF_MATCH,), audited=False,
    ),
    Operation(
        "DELETE", registry.MODEL, registry.remove_model, _MANAGE, "remove_model",
        {202: registry.PendingRemoval, 204: Success("The model is removed.")}, _REGISTRY,
        (registry.RemovalQuery,), (media.IF_MATCH,), audited=False,
    ),
    Operation(
        "DELETE", registry.VERSION, registry.remove_version, _MANAGE, "remove_model_version",
        {
            200: Registration,
            202: registry.PendingRemoval,
            204: Success("It was the last version."),
        },
        _REGISTRY, (registry.RemovalQuery,), (media.IF_MATCH,), audited=False,
    ),
    Operation(
        "GET", registry.CHANGES, registry.list_changes, _READ, "list_model_changes",
        registry.ModelChanges, (errors.InvalidRequest,), (registry.ChangesQuery,),
    ),
    Operation(
        "GET", registry.EVENTS, registry.get_registry_events, _READ,
        "get_registry_events", media.CHANGE_EVENTS,
        (errors.InvalidRequest, errors.ModelNotFound, errors.TooManyStreams),
        (events.EventsQuery,), (media.LAST_EVENT_ID,),
    ),
    Operation(
        "GET", registry.DIFFERENCES, registry.list_differences, _READ,
        "list_model_differences", ModelDifferences,
    ),
    Operation(
        "POST", registry.MODEL + "/profile", profiles.request_profile, _MANAGE, "request_profile",
        {202: Profile}, _REGISTRY, body=Body(ProfileRequest, required=False),
    ),
    # Another client may have requested it. Names of functions and operators are in its files.
    Operation("GET", profiles.PATH, profiles.list_profiles, _MANAGE, "list_profiles", Profiles),
    Operation(
        "GET", profiles.PATH + "/{profile_id}", profiles.get_profile, _MANAGE, "get_profile",
        Profile, (errors.ProfileNotFound,),
    ),
    Operation(
        "GET", profiles.PATH + "/{profile_id}/files/{name}", profiles.get_profile_file, _MANAGE,
        "get_profile_file", media.PROFILE_FILE, (errors.ProfileNotFound,),
    ),
    Operation("GET", _QUEUES, queues.list_queues, _MANAGE, "list_queues", Queues),
    Operation(
        "POST", _QUEUES + "/{name}/pause", queues.pause_queue, _MANAGE, "pause_queue",
        queues.QueuePause, (errors.QueueNotFound,),
    ),
    Operation(
        "POST", _QUEUES + "/{name}/resume", queues.resume_queue, _MANAGE, "resume_queue",
        queues.QueuePause, (errors.QueueNotFound,),
    ),
    Operation(
        "POST", _QUEUES + "/{name}/purge", queues.purge_queue, _MANAGE, "purge_queue",
        QueuePurge, (errors.QueueNotFound,),
    ),
    # Workers, API keys, and who changed what
    Operation("GET", workers.PATH, workers.list_workers, _MANAGE, "list_workers", Workers),
    Operation(
        "POST", workers.PATH + "/{worker}/drain", workers.drain_worker, _MANAGE, "drain_worker",
        Worker, (errors.WorkerNotFound, errors.Conflict),
    ),
    Operation(
        "POST", workers.PATH + "/{worker}/resume", workers.resume_worker, _MANAGE, "resume_worker",
        Worker, (errors.WorkerNotFound,),
    ),
    Operation("GET", keys.PATH + "/self", keys.get_self, Open.ANY_KEY, "get_own_key", KeySelf),
    Operation("GET", keys.PATH, keys.list_keys, _MANAGE, "list_keys", ApiKeys),
    Operation(
        "POST", keys.PATH, keys.create_key, _MANAGE, "create_key", {201: CreatedApiKey},
        (errors.InvalidRequest, errors.Conflict, errors.PayloadTooLarge), body=NewApiKey,
    ),
    Operation(
        "DELETE", keys.PATH + "/{key}", keys.revoke_key, _MANAGE, "revoke_key",
        {204: Success("It is revoked.")}, (errors.KeyNotFound, errors.Conflict),
    ),
    Operation(
        "GET", audit.PATH, audit.list_audit, _MANAGE, "list_audit", Audit,
        (errors.InvalidRequest,), (audit.AuditQuery,),
    ),
    # The service itself; probes have no keys.
    Operation("GET", "/live", health.live, Open.ALWAYS, "live", health.Live),
    Operation(
        "GET", "/ready", health.ready, Open.ALWAYS, "ready", health.Ready,
        (errors.InvalidRequest, errors.ModelsNotReady, errors.BrokerUnavailable, errors.Stopping),
        (health.ReadyQuery,),
    ),
    Operation("GET", "/metrics", health.get_metrics, Open.METRICS, "metrics", media.METRICS),
    Operation(
        "GET", "/problems/{code}", health.problem_type, Open.DOCS, "problem_type", ProblemType,
    ),
    # Failures
    Operation(
        "GET", failures.PATH, failures.list_failures, _READ, "list_failures",
        FailureGroups, (errors.InvalidRequest, errors.ModelNotFound, errors.ListsOff),
        (failures.FailuresQuery,),
    ),
    # A retry passes the limits of the API keys that own the jobs.
    Operation(
        "POST", failures.PATH + "/{group}/retry", failures.retry_failures, _MANAGE,
        "retry_failures", Retried,
        (*_UNREAD_GROUP, errors.ListsOff), body=Body(GroupCount, required=False),
    ),
    Operation(
        "POST", failures.PATH + "/{group}/discard", failures.discard_failures, _MANAGE,
        "discard_failures", Discarded, (*_UNREAD_GROUP, errors.ListsOff), body=GroupCount,
    ),
    # Dead letters
    Operation(
        "GET", _LETTERS, dead_letters.list_dead_letters, _MANAGE, "list_dead_letters",
        dead_letters.DeadLetters, (errors.InvalidRequest, errors.ModelNotFound),
        (dead_letters.LettersQuery,),
    ),
    Operation(
        "POST", _LETTERS + "/requeue", dead_letters.requeue, _MANAGE, "requeue_dead_letters",
        Requeued, _UNREAD_SELECTION, body=dead_letters.Selection,
    ),
    Operation(
        "POST", _LETTERS + "/purge", dead_letters.purge, _MANAGE, "purge_dead_letters",
        Purged, _UNREAD_SELECTION, body=dead_letters.Selection,
    ),
    Operation(
        "GET", _LETTER, dead_letters.get_dead_letter, _MANAGE, "get_dead_letter",
        dead_letters.DeadLetterDetail, (errors.LetterNotFound, errors.ModelNotFound),
    ),
    Operation(
        "DELETE", _LETTER, dead_letters.purge_one, _MANAGE, "purge_dead_letter",
        Purged, (errors.LetterNotFound, errors.ModelNotFound),
    ),
    # Offline runs
    Operation("GET", _RUNS, runs.list_runs, _READ, "list_runs", Runs),
    Operation(
        "GET", _RUNS + "/{run_id}", runs.get_run, _READ, "get_run", Run, (errors.RunNotFound,),
    ),
    Operation(
        "PUT", _RUNS + "/{run_id}", runs.put_run, _SUBMIT, "tell_run", RunReceipt,
        (errors.InvalidRequest, errors.InvalidId, errors.RunNotFound, errors.PayloadTooLarge),
        (runs.RunQuery,), body=RunStatus,
    ),
    Operation(
        "POST", _RUNS + "/{run_id}/cancel", runs.cancel_run, _SUBMIT, "cancel_run", Run,
        (errors.RunNotFound,), audited=True,
    ),
    # Webhooks
    Operation(
        "GET", webhooks.RECENT, webhooks.list_recent, _READ, "list_recent_webhooks",
        RecentDeliveries, (errors.InvalidRequest,), (webhooks.RecentQuery,),
    ),
    Operation(
        "GET", webhooks.PATH, webhooks.list_deliveries, _READ, "list_webhooks",
        WebhookDeliveries, (errors.JobNotFound,),
    ),
    Operation(
        "POST", webhooks.PATH + "/redeliver", webhooks.redeliver, _SUBMIT, "redeliver_webhook",
        {202: WebhookDelivery},
        (errors.InvalidRequest, errors.Conflict, errors.PayloadTooLarge, errors.WebhookNotFound,
         errors.BrokerFull, errors.JobNotFound),
        body=Body(webhooks.WebhookRedelivery, required=False), audited=True,
    ),
    # Callers that may not list models get the description without them.
    Operation("GET", "/", documentation.root, Open.DOCS),
    Operation("GET", "/docs", documentation.page, Open.DOCS),
    Operation("GET", documentation.STATIC_PATH + "/{file:path}", documentation.static, Open.DOCS),
    Operation("GET", "/openapi.json", documentation.openapi, Open.DOCS),
)  # fmt: skip
