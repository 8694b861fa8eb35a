"""The description of the API (OpenAPI 3.1), written by hand.

FastAPI sees neither the hot routes nor the problems. A test holds that every route stands here, and
another lets a tool call the server by this description and compares.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from api.auth.authenticator import Open
from api.openapi.batches import BATCH_SCHEMAS, batch_paths
from api.openapi.bulk import MANY_SCHEMAS, many_paths
from api.openapi.dead_letters import LETTER_SCHEMAS, letter_paths
from api.openapi.files import FILE_SCHEMAS, file_paths
from api.openapi.job_schemas import JOB_SCHEMAS
from api.openapi.jobs import job_paths
from api.openapi.problems import problem_examples, problem_schemas
from api.openapi.runs import RUN_SCHEMAS, run_paths
from api.openapi.view_schemas import VIEW_SCHEMAS
from api.openapi.views import view_paths
from api.openapi.webhooks import WEBHOOK_SCHEMAS, webhook_paths, webhooks
from api.routes.table import TABLE
from headrace.access.api_key import Scope

__all__ = ["SCHEMAS", "digest", "document", "written"]

#: Every schema but those of problems, by the name of its component.
SCHEMAS: Final = {
    **JOB_SCHEMAS,
    **MANY_SCHEMAS,
    **VIEW_SCHEMAS,
    **LETTER_SCHEMAS,
    **RUN_SCHEMAS,
    **WEBHOOK_SCHEMAS,
    **FILE_SCHEMAS,
    **BATCH_SCHEMAS,
}

_ABOUT: Final = (
    "Asynchronous inference: submit a job, then poll or wait. Every error is a problem (RFC 9457) "
    "whose `type` says at its own path what it means; below `/v1/` it is written as OpenAI's API "
    "does. Whatever answers `GET` answers `HEAD`."
)
_TAGS: Final = {
    "jobs": "Submit, wait, fetch, cancel.",
    "models": "What is served, and by whom.",
    "queues": "What waits; pause, resume, purge.",
    "runs": "Offline runs, as they tell of themselves.",
    "dead letters": "What could not run: look, put back, remove.",
    "files": "By OpenAI's conventions, for its SDK: what batches read and write.",
    "batches": "By OpenAI's conventions: files of requests, run in the background.",
    "health": "For probes, Prometheus and whoever met a problem.",
}


_KEY: Final = (
    "An API key, where this server asks for one (the setting `auth`); docs/security.md says what "
    "its scopes open."
)
_SCHEMES: Final[dict[str, Any]] = {
    "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "hr_…", "description": _KEY},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": _KEY},
}


def _guarded(paths: dict[str, Any]) -> dict[str, Any]:
    """Say of each operation which scope it wants, where keys are asked for at all."""
    wanted = {(one.method, one.path.replace(":path", "")): one.needs for one in TABLE}
    for path, operations in paths.items():
        for method, found in operations.items():
            need = wanted.get((method.upper(), path))
            if isinstance(need, Scope):
                found["security"] = [{"bearer": [str(need)]}, {"apiKey": [str(need)]}, {}]
            elif need is Open.METRICS:
                found["security"] = [{"bearer": []}, {"apiKey": []}, {}]
    return paths


def document(version: str) -> dict[str, Any]:
    """The whole description."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": version,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": _guarded(
            {
                **job_paths(),
                **many_paths(),
                **view_paths(),
                **letter_paths(),
                **run_paths(),
                **webhook_paths(),
                **file_paths(),
                **batch_paths(),
            }
        ),
        "webhooks": webhooks(),
        "components": {
            "securitySchemes": _SCHEMES,
            "schemas": {**SCHEMAS, **problem_schemas()},
            "examples": problem_examples(),
        },
    }


def written(description: dict[str, Any]) -> str:
    """The description as docs/openapi.json has it."""
    return json.dumps(description, indent=1, ensure_ascii=False) + "\n"


def digest(description: dict[str, Any]) -> str:
    """What CHANGELOG.md names, so that no change of the API goes unsaid; not of the version."""
    same = {**description, "info": {**description["info"], "version": ""}}
    text = json.dumps(same, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
