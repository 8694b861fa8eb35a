"""The description of the API (OpenAPI 3.1), from the table of operations and the types in it.

A server's own description also has the models that declare their inputs (models.py).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from api.auth.authenticator import Needs, Open
from api.extension import api_parts, operations, path_parameters
from api.openapi.models import PATH, add_models
from api.openapi.problems import problem_examples, problem_responses, problem_schemas, typed_errors
from api.openapi.schemas import (
    answer_schemas,
    first_paragraph,
    parameter_schemas,
    ref,
    request_schemas,
)
from api.routes.media import QUEUED_JOB, STRING, Body, Header, Schema, Success
from api.routes.table import Operation
from headrace.access.api_key import Scope
from headrace.config.model.catalog import ModelConfig
from headrace.jobs.job import Time
from headrace.jobs.values.media_types import JSON_TYPE
from headrace.schema.jobs import JobObject
from headrace.webhooks.task_message import WebhookType

__all__ = ["components", "digest", "document", "written"]


class WebhookEvent(msgspec.Struct):
    """The body of a webhook."""

    type: WebhookType
    timestamp: Annotated[Time, Meta(description="The time of the event.")]
    data: Annotated[
        dict[str, Any],
        Meta(
            description="The job as `GET /api/v1/jobs/{job_id}` shows it. After its record has "
            "expired: `id`, `model`, `status`, `finished_at` and `record_expired`."
        ),
    ]


def _body_of(operation: Operation) -> Body | None:
    body = operation.body
    return Body(body) if isinstance(body, type) else body


def _answers_of(operation: Operation) -> dict[int, Success]:
    answers = operation.answers
    by_status = answers if isinstance(answers, Mapping) else {200: answers}
    return {
        status: Success(first_paragraph(one.__doc__ or ""), one) if isinstance(one, type) else one
        for status, one in by_status.items()
    }


def _types(contents: Iterable[type | Schema | None]) -> list[type]:
    return [content for content in contents if isinstance(content, type)]


@cache
def components() -> dict[str, Schema]:
    """Return every schema but those of problems, by the name of its component.

    They are made when they are first needed, as they take a fifth of the start of an API process.
    """
    return {
        **request_schemas(
            _types(body.content for body in map(_body_of, operations()) if body is not None)
        ),
        **answer_schemas(
            [
                *_types(one.content for row in operations() for one in _answers_of(row).values()),
                *dict.fromkeys(row.error for row in operations() if row.error is not None),
                WebhookEvent,
            ]
        ),
    }


_ABOUT: Final = (
    "Asynchronous inference: submit a job, then poll or wait. Every error is a problem (RFC 9457) "
    "that is explained at the path in its `type`"
    f"{''.join(f'; {part.error_form}' for part in api_parts() if part.error_form)}. "
    "Every path with `GET` has `HEAD` too."
)
_TAGS: Final = {
    "jobs": "Submit, wait, fetch, cancel.",
    "models": "Registered models and their workers.",
    "queues": "Depth and age; pause, resume, purge.",
    "runs": "Offline runs, as they last reported.",
    "dead letters": "Jobs and messages that could not run: list, requeue, remove.",
    **{name: text for part in api_parts() for name, text in part.tags.items()},
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
#: What can follow an answer with a job.
_LINKS: Final = {
    name: {"operationId": operation, "parameters": {"job_id": "$response.body#/id"}}
    for name, operation in (("job", "get_job"), ("result", "get_result"), ("cancel", "cancel_job"))
}


_REQUIRED: Final = {"in": "header", "required": True, "schema": STRING}
#: The message as a receiver has to accept it.
_WEBHOOKS: Final[dict[str, Any]] = {
    "job": {
        "post": {
            "operationId": "receive_webhook",
            "summary": "A job has begun or ended",
            "description": "Sent to the `webhook` of a submit, signed by the Standard Webhooks "
            "scheme. Any 2xx is success; it may arrive more than once, with the same id.",
            "parameters": [
                {**_REQUIRED, "name": "webhook-id", "description": "The same for each attempt."},
                {**_REQUIRED, "name": "webhook-timestamp", "description": "Seconds since 1970."},
                {**_REQUIRED, "name": "webhook-signature", "description": "`v1,` and base64."},
            ],
            "requestBody": {
                "required": True,
                "content": {JSON_TYPE: {"schema": ref("WebhookEvent")}},
            },
            "responses": {
                "2XX": {"description": "It was received."},
                "410": {"description": "The receiver wants no more: it is not sent again."},
                "default": {"description": "It is retried for a day."},
            },
        }
    }
}


def document(version: str, models: Iterable[ModelConfig] = ()) -> dict[str, Any]:
    """Return the whole description, with the declared inputs and outputs of `models`."""
    described = {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": version,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": _paths(),
        "webhooks": _WEBHOOKS,
        "components": {
            "securitySchemes": _SCHEMES,
            "schemas": {**components(), **problem_schemas()},
            "examples": problem_examples(),
        },
    }
    (submit,) = (row for row in operations() if (row.method, row.path) == ("POST", PATH))
    return add_models(described, models, partial(_operation, submit))


def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for operation in operations():
        if not operation.name:
            continue
        path = operation.path.replace(":path", "")
        if path not in paths:
            parameters = [_path_parameter(name, path) for name in re.findall(r"\{(\w+)\}", path)]
            paths[path] = {"parameters": parameters} if parameters else {}
        paths[path][operation.method.lower()] = _operation(operation, path)
    return paths


def _operation(operation: Operation, path: str) -> dict[str, Any]:
    needs = operation.needs
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": first_paragraph(operation.endpoint.__doc__ or "").removesuffix("."),
        "tags": [_tag(path, needs)],
    }
    body = _body_of(operation)
    if body is not None:
        found["requestBody"] = _body(body)
    parameters = [*_query(operation), *map(_header, operation.headers)]
    if parameters:
        found["parameters"] = parameters
    error = operation.error
    errors = problem_responses(operation) if error is None else typed_errors(operation, error)
    answers = {str(status): _answer(status, one) for status, one in _answers_of(operation).items()}
    found["responses"] = {**answers, **errors}
    if isinstance(needs, Scope):
        found["security"] = [{"bearer": [str(needs)]}, {"apiKey": [str(needs)]}, {}]
    elif needs in (Open.METRICS, Open.ANY_KEY):
        found["security"] = [{"bearer": []}, {"apiKey": []}, {}]
    return found


def _tag(path: str, needs: Needs) -> str:
    """Return the group that an operation is shown in: the resource of its path."""
    if isinstance(needs, Open) and needs is not Open.ANY_KEY:
        return "health"
    if "/dead-letters" in path:
        return "dead letters"
    # An extension may have paths without a version.
    return "jobs" if path.endswith("/jobs") else path.removeprefix("/api").split("/")[1:3][-1]


def _path_parameter(name: str, path: str) -> dict[str, Any]:
    found_as = "queue" if path.startswith("/api/v1/queues") else name
    pattern, example, _ = path_parameters()[found_as]
    schema = {"type": "string", "pattern": pattern}
    found = {"name": name, "in": "path", "required": True, "schema": schema}
    return {**found, "example": example} if example else found


def _query(operation: Operation) -> Iterator[dict[str, Any]]:
    for query in operation.query:
        for name, schema in parameter_schemas(query).items():
            found: dict[str, Any] = {"name": name, "in": "query"}
            if "description" in schema:
                found["description"] = schema.pop("description")
            if schema.get("default") == "":
                del schema["default"]
            if "examples" in schema:
                found["example"] = schema.pop("examples")[0]
            if schema.get("type") == "object":
                # An object in a query is JSON text.
                media = {JSON_TYPE: {"schema": schema, "example": {"batch": 7}}}
                yield {**found, "content": media}
            elif schema.get("type") == "array":
                # Separated by commas.
                yield {**found, "schema": schema, "style": "form", "explode": False}
            else:
                yield {**found, "schema": schema}


def _header(header: Header) -> dict[str, Any]:
    found = {"name": header.name, "in": "header", "schema": header.schema}
    return {**found, "description": header.description}


def _body(body: Body) -> dict[str, Any]:
    found = {"required": body.required, "content": _content(body.content)}
    return {**found, "description": body.description} if body.description else found


def _content(content: type | Schema) -> Schema:
    if isinstance(content, type):
        return {JSON_TYPE: {"schema": ref(content.__name__)}}
    return content


def _answer(status: int, answer: Success) -> dict[str, Any]:
    found: dict[str, Any] = {"description": answer.description}
    if answer.content is not None:
        found["content"] = _content(answer.content)
    if answer.events:
        found["content"] = {**found["content"], "text/event-stream": {"schema": {}}}
    if answer.headers:
        found["headers"] = {header.name: _answer_header(header) for header in answer.headers}
    if answer.content is JobObject:
        found["links"] = _LINKS
        if status == 202:
            found["content"][JSON_TYPE]["example"] = QUEUED_JOB
    return found


def _answer_header(header: Header) -> dict[str, Any]:
    found = {"schema": header.schema}
    return {**found, "description": header.description} if header.description else found


def written(description: dict[str, Any]) -> str:
    """Return the description as docs/openapi.json has it."""
    return json.dumps(description, indent=1, ensure_ascii=False) + "\n"


def digest(description: dict[str, Any]) -> str:
    """Return the digest that CHANGELOG.md names; it does not depend on the version."""
    same = {**description, "info": {**description["info"], "version": ""}}
    text = json.dumps(same, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
