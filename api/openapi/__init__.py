"""The description of the API (OpenAPI 3.1): the table of operations with texts and schemas.

A test compares it with the table; another lets a tool (schemathesis) call the server by it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from api.auth.authenticator import Needs, Open
from api.openapi.batches import BATCH_OPERATIONS, BATCH_SCHEMAS
from api.openapi.bulk import BULK_OPERATIONS, MANY_SCHEMAS
from api.openapi.dead_letters import LETTER_OPERATIONS, LETTER_SCHEMAS
from api.openapi.files import FILE_OPERATIONS, FILE_SCHEMAS
from api.openapi.job_schemas import JOB_SCHEMAS
from api.openapi.jobs import JOB_OPERATIONS
from api.openapi.openai import openai_errors
from api.openapi.operations import Descriptions, path_parameters, ref
from api.openapi.problems import (
    ACCESS_PROBLEMS,
    problem_examples,
    problem_responses,
    problem_schemas,
)
from api.openapi.runs import RUN_OPERATIONS, RUN_SCHEMAS
from api.openapi.views import VIEW_OPERATIONS, VIEW_SCHEMAS
from api.openapi.webhooks import WEBHOOK_OPERATIONS, WEBHOOK_SCHEMAS, webhooks
from api.routes.table import TABLE, Operation
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
    "that is explained at the path in its `type`; below `/v1/` it has the form of OpenAI's API. "
    "Every path with `GET` has `HEAD` too."
)
_TAGS: Final = {
    "jobs": "Submit, wait, fetch, cancel.",
    "models": "Registered models and their workers.",
    "queues": "Depth and age; pause, resume, purge.",
    "runs": "Offline runs, as they last reported.",
    "dead letters": "Jobs and messages that could not run: list, requeue, remove.",
    "files": "By OpenAI's conventions, for its SDK: what batches read and write.",
    "batches": "By OpenAI's conventions: files of requests, run in the background.",
    "health": "Probes, metrics and the meaning of problem types.",
}


_KEY: Final = (
    "An API key, if this server requires one (the setting `auth`); docs/security.md explains its "
    "scopes."
)
_SCHEMES: Final[dict[str, Any]] = {
    "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "hr_…", "description": _KEY},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": _KEY},
}


_OPERATIONS: Final[Descriptions] = {
    **JOB_OPERATIONS,
    **BULK_OPERATIONS,
    **VIEW_OPERATIONS,
    **LETTER_OPERATIONS,
    **RUN_OPERATIONS,
    **WEBHOOK_OPERATIONS,
    **FILE_OPERATIONS,
    **BATCH_OPERATIONS,
}


def document(version: str) -> dict[str, Any]:
    """Return the whole description."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": version,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": _paths(),
        "webhooks": webhooks(),
        "components": {
            "securitySchemes": _SCHEMES,
            "schemas": {**SCHEMAS, **problem_schemas()},
            "examples": problem_examples(),
        },
    }


def _paths() -> dict[str, Any]:
    """Return the operations of the table by path and method."""
    paths: dict[str, Any] = {}
    for operation in TABLE:
        if not operation.name:
            continue
        path = operation.path.replace(":path", "")
        if path not in paths:
            parameters = path_parameters(path)
            paths[path] = {"parameters": parameters} if parameters else {}
        paths[path][operation.method.lower()] = _operation(operation, path)
    return paths


def _operation(operation: Operation, path: str) -> dict[str, Any]:
    name, needs = operation.name, operation.needs
    summary, answers, problems, parameters, body = _OPERATIONS[name]
    found: dict[str, Any] = {"operationId": name, "summary": summary, "tags": [_tag(path, needs)]}
    if body is not None:
        found["requestBody"] = body
    if parameters:
        found["parameters"] = list(parameters)
    if path.startswith("/v1/"):
        errors = openai_errors(problems)
    else:
        common = ["not-found"] if "{" in path else []
        if isinstance(needs, Scope):
            common += ACCESS_PROBLEMS
            # A bulk request has the problem of each line in its answer.
            common += ["broker-unavailable"] if name != "submit_bulk" else []
        errors = problem_responses([*problems, *common])
    if name == "get_result":
        # A handler may fail with a code of its own.
        errors["500"]["content"]["application/problem+json"]["schema"]["anyOf"].append(
            ref("Problem")
        )
    found["responses"] = {**answers, **errors}
    if isinstance(needs, Scope):
        found["security"] = [{"bearer": [str(needs)]}, {"apiKey": [str(needs)]}, {}]
    elif needs is Open.METRICS:
        found["security"] = [{"bearer": []}, {"apiKey": []}, {}]
    return found


def _tag(path: str, needs: Needs) -> str:
    """Return the group that an operation is shown in: the resource of its path."""
    if isinstance(needs, Open):
        return "health"
    if "/dead-letters" in path:
        return "dead letters"
    return "jobs" if path.endswith("/jobs") else path.removeprefix("/api").split("/")[2]


def written(description: dict[str, Any]) -> str:
    """Return the description as docs/openapi.json has it."""
    return json.dumps(description, indent=1, ensure_ascii=False) + "\n"


def digest(description: dict[str, Any]) -> str:
    """Return the digest that CHANGELOG.md names; it does not depend on the version."""
    same = {**description, "info": {**description["info"], "version": ""}}
    text = json.dumps(same, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
