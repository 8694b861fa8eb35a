"""The table of all operations: method, path, endpoint, required scope and OpenAPI name.

`api.router` serves it, `api.openapi` describes it, and docs/security.md lists its scopes. `GET`
includes `HEAD`. A job of another API key does not exist (404) on any of them, unless the caller's
key has the scope `manage`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from api.auth.authenticator import Needs, Open
from api.http.messages import Answer
from api.routes.admin import dead_letters, models, queues, runs
from api.routes.jobs import bulk_status, bulk_submit, events, job, listing, submit, webhooks
from api.routes.openai import batches, files
from api.routes.service import documentation, health, metrics
from headrace.access.api_key import Scope

#: Takes the services, the request, and the parts of the path that the template names.
Endpoint = Callable[..., Awaitable[Answer]]


class Operation(NamedTuple):
    """One operation of the API.

    Attributes:
        path: a template; `{name}` is one part of a path, `{name:path}` is the rest of it.
        needs: the scope that an API key must have, or how far the operation is open.
        name: the OpenAPI operationId; "" for what the description leaves out.
    """

    method: str
    path: str
    endpoint: Endpoint
    needs: Needs
    name: str = ""


_SUBMIT, _READ, _MANAGE = Scope.SUBMIT, Scope.READ, Scope.MANAGE
_MODEL_JOBS: Final = "/api/v1/models/{model}/jobs"
_JOBS: Final = "/api/v1/jobs"
_JOB: Final = "/api/v1/jobs/{job_id}"
_WEBHOOKS: Final = webhooks.PATH
_LETTERS: Final = dead_letters.PATH
_LETTER: Final = dead_letters.PATH + "/{name:path}"
_QUEUE: Final = "/api/v1/queues/{name}"
_RUN: Final = "/api/v1/runs/{run_id}"
_FILE: Final = "/v1/files/{file_id}"
_BATCH: Final = "/v1/batches/{batch_id}"

TABLE: Final[tuple[Operation, ...]] = tuple(Operation(*row) for row in (
    # Jobs
    ("POST", _MODEL_JOBS, submit.submit_input, _SUBMIT, "submit_input_post"),
    ("PUT", _MODEL_JOBS, submit.submit_input, _SUBMIT, "submit_input_put"),
    ("GET", _JOBS, listing.list_jobs, _READ, "list_jobs"),
    ("POST", _JOBS, submit.submit_job, _SUBMIT, "submit_job"),
    ("GET", _JOB, job.get_job, _READ, "get_job"),
    ("PUT", _JOB, submit.put_job, _SUBMIT, "put_job"),
    # Who may submit a job may also cancel it.
    ("DELETE", _JOB, job.cancel_job, _SUBMIT, "cancel_job"),
    ("GET", _JOB + "/result", job.get_result, _READ, "get_result"),
    ("GET", _JOB + "/events", events.get_events, _READ, "get_events"),
    # The next paths are also those of jobs with such an id: no id is reserved.
    ("POST", _JOBS + "/bulk", bulk_submit.submit_bulk, _SUBMIT, "submit_bulk"),
    ("POST", _JOBS + "/status", bulk_status.read_many, _READ, "read_many"),
    ("POST", _JOBS + "/cancel", bulk_status.cancel_many, _SUBMIT, "cancel_many"),
    ("POST", _JOBS + "/outcomes", bulk_status.read_outcomes, _READ, "read_outcomes"),
    ("POST", _JOBS + "/forget", bulk_status.forget_many, _SUBMIT, "forget_many"),
    # Models and queues
    ("GET", "/api/v1/models", models.list_models, _READ, "list_models"),
    ("GET", "/api/v1/models/{model}", models.get_model, _READ, "get_model"),
    # Queues and dead letters have the jobs of all keys.
    ("GET", "/api/v1/queues", queues.list_queues, _MANAGE, "list_queues"),
    ("POST", _QUEUE + "/pause", queues.pause_queue, _MANAGE, "pause_queue"),
    ("POST", _QUEUE + "/resume", queues.resume_queue, _MANAGE, "resume_queue"),
    ("POST", _QUEUE + "/purge", queues.purge_queue, _MANAGE, "purge_queue"),
    # The service itself; probes have no keys.
    ("GET", "/live", health.live, Open.ALWAYS, "live"),
    ("GET", "/ready", health.ready, Open.ALWAYS, "ready"),
    ("GET", "/metrics", metrics.get_metrics, Open.METRICS, "metrics"),
    ("GET", "/problems/{code}", health.problem_type, Open.DOCS, "problem_type"),
    # Dead letters
    ("GET", _LETTERS, dead_letters.list_dead_letters, _MANAGE, "list_dead_letters"),
    ("POST", _LETTERS + "/requeue", dead_letters.requeue, _MANAGE, "requeue_dead_letters"),
    ("POST", _LETTERS + "/purge", dead_letters.purge, _MANAGE, "purge_dead_letters"),
    ("GET", _LETTER, dead_letters.get_dead_letter, _MANAGE, "get_dead_letter"),
    ("DELETE", _LETTER, dead_letters.purge_one, _MANAGE, "purge_dead_letter"),
    # Offline runs
    ("GET", "/api/v1/runs", runs.list_runs, _READ, "list_runs"),
    ("GET", _RUN, runs.get_run, _READ, "get_run"),
    ("PUT", _RUN, runs.put_run, _SUBMIT, "tell_run"),
    ("POST", _RUN + "/cancel", runs.cancel_run, _SUBMIT, "cancel_run"),
    # Webhooks
    ("GET", _WEBHOOKS, webhooks.list_deliveries, _READ, "list_webhooks"),
    ("POST", _WEBHOOKS + "/redeliver", webhooks.redeliver, _SUBMIT, "redeliver_webhook"),
    # OpenAI's conventions, for its SDK
    ("GET", "/v1/files", files.list_files, _READ, "list_files"),
    ("POST", "/v1/files", files.create_file, _SUBMIT, "create_file"),
    ("GET", _FILE, files.get_file, _READ, "get_file"),
    ("DELETE", _FILE, files.delete_file, _SUBMIT, "delete_file"),
    ("GET", _FILE + "/content", files.get_content, _READ, "get_file_content"),
    ("GET", "/v1/batches", batches.list_batches, _READ, "list_batches"),
    ("POST", "/v1/batches", batches.create_batch, _SUBMIT, "create_batch"),
    ("GET", _BATCH, batches.get_batch, _READ, "get_batch"),
    ("POST", _BATCH + "/cancel", batches.cancel_batch, _SUBMIT, "cancel_batch"),
    # The documentation is the same for every deployment.
    ("GET", "/", documentation.root, Open.DOCS),
    ("GET", "/docs", documentation.page, Open.DOCS),
    ("GET", documentation.STATIC_PATH + "/{file:path}", documentation.static, Open.DOCS),
    ("GET", "/openapi.json", documentation.openapi, Open.DOCS),
))  # fmt: skip
