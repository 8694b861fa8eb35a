"""What each route wants of whoever asks, where API keys are asked for: the one table.

A route that does not stand here is refused to everybody, so that nothing is ever open by accident;
a test holds the table to the routes. `GET` stands for `HEAD` too.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from headrace.access.api_key import Scope


class Open(Enum):
    """Routes that want no key, or do by a setting."""

    ALWAYS = "nobody is asked"
    METRICS = "nobody is asked unless auth_metrics"
    DOCS = "nobody is asked unless auth_docs"


Needs = Scope | Open

_SUBMIT, _READ, _MANAGE = Scope.SUBMIT, Scope.READ, Scope.MANAGE
_LETTERS: Final = "/api/v1/models/{model}/dead-letters"

#: By method and path. A job of another key is none (404) on each of them, unless the key manages.
ROUTES: Final[dict[tuple[str, str], Needs]] = {
    ("POST", "/api/v1/models/{model}/jobs"): _SUBMIT,
    ("PUT", "/api/v1/models/{model}/jobs"): _SUBMIT,
    ("POST", "/api/v1/jobs"): _SUBMIT,
    ("PUT", "/api/v1/jobs/{job_id}"): _SUBMIT,
    ("POST", "/api/v1/jobs/bulk"): _SUBMIT,
    # Whoever may ask for a job may do without it.
    ("DELETE", "/api/v1/jobs/{job_id}"): _SUBMIT,
    ("POST", "/api/v1/jobs/cancel"): _SUBMIT,
    ("GET", "/api/v1/jobs"): _READ,
    ("GET", "/api/v1/jobs/{job_id}"): _READ,
    ("GET", "/api/v1/jobs/{job_id}/result"): _READ,
    ("GET", "/api/v1/jobs/{job_id}/events"): _READ,
    ("GET", "/api/v1/jobs/{job_id}/webhooks"): _READ,
    ("POST", "/api/v1/jobs/{job_id}/webhooks/redeliver"): _SUBMIT,
    ("POST", "/api/v1/jobs/status"): _READ,
    ("POST", "/api/v1/jobs/outcomes"): _READ,
    ("POST", "/api/v1/jobs/forget"): _SUBMIT,
    ("GET", "/api/v1/models"): _READ,
    ("GET", "/api/v1/models/{model}"): _READ,
    ("POST", "/v1/files"): _SUBMIT,
    ("DELETE", "/v1/files/{file_id}"): _SUBMIT,
    ("GET", "/v1/files"): _READ,
    ("GET", "/v1/files/{file_id}"): _READ,
    ("GET", "/v1/files/{file_id}/content"): _READ,
    ("POST", "/v1/batches"): _SUBMIT,
    ("POST", "/v1/batches/{batch_id}/cancel"): _SUBMIT,
    ("GET", "/v1/batches"): _READ,
    ("GET", "/v1/batches/{batch_id}"): _READ,
    ("PUT", "/api/v1/runs/{run_id}"): _SUBMIT,
    ("POST", "/api/v1/runs/{run_id}/cancel"): _SUBMIT,
    ("GET", "/api/v1/runs"): _READ,
    ("GET", "/api/v1/runs/{run_id}"): _READ,
    # What waits is everybody's, and so are dead letters.
    ("GET", "/api/v1/queues"): _MANAGE,
    ("POST", "/api/v1/queues/{name}/pause"): _MANAGE,
    ("POST", "/api/v1/queues/{name}/resume"): _MANAGE,
    ("POST", "/api/v1/queues/{name}/purge"): _MANAGE,
    ("GET", _LETTERS): _MANAGE,
    ("GET", _LETTERS + "/{name:path}"): _MANAGE,
    ("POST", _LETTERS + "/requeue"): _MANAGE,
    ("POST", _LETTERS + "/purge"): _MANAGE,
    ("DELETE", _LETTERS + "/{name:path}"): _MANAGE,
    # For probes, which have no keys.
    ("GET", "/live"): Open.ALWAYS,
    ("GET", "/ready"): Open.ALWAYS,
    ("GET", "/metrics"): Open.METRICS,
    # They say nothing of this deployment.
    ("GET", "/"): Open.DOCS,
    ("GET", "/docs"): Open.DOCS,
    ("GET", "/docs/static"): Open.DOCS,
    ("GET", "/openapi.json"): Open.DOCS,
    ("GET", "/problems/{code}"): Open.DOCS,
}
