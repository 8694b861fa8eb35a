"""Descriptions of the interfaces as OpenAPI 3.0.1."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

from api.http.messages import Answer

Interface = Literal["inference", "management", "metrics"]
#: The token that a request needs; "" for none.
TokenKind = Literal["inference", "management", ""]
#: Takes the services, the request, and the parts of the path that the template names. It may raise
#: a TorchServeError or a HeadraceError.
Endpoint = Callable[..., Awaitable[Answer]]

_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["code", "type", "message"],
    "properties": {
        "code": {"type": "integer", "description": "The HTTP status."},
        "type": {"type": "string", "description": "The name of the error."},
        "message": {"type": "string", "description": "What is wrong, and what to do."},
    },
}
STATUS: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"type": "string"}},
}
ANYTHING: Final[dict[str, Any]] = {"type": "object"}
#: The statuses of errors, by the path or method that has them.
_ERRORS: Final = {
    400: "The request is not valid.",
    404: "There is no such model or version.",
    408: "The model did not end in time.",
    409: "This version of the model is registered.",
    500: "The server or the model process failed.",
    503: "The model has no worker, its queue is full, or its handler failed.",
    507: "The model is out of memory.",
}


class Row(NamedTuple):
    """An operation of an interface.

    Attributes:
        interface: None for all of them.
        path: a template; `{name}` is one part of a path, `{name:path}` is the rest of it.
        token: what all methods of the path need.
        name: "" for what the description leaves out.
        success: the content of its answer; None for any bytes.
        accepts: it can answer 202 before it has ended.
        any_method: it serves each method for which its path has no other row.
    """

    interface: Interface | None
    method: str
    path: str
    endpoint: Endpoint
    token: TokenKind = ""
    name: str = ""
    summary: str = ""
    errors: Sequence[int] = ()
    query: Sequence[tuple[str, str]] = ()
    body: bool = False
    success: dict[str, Any] | None = None
    accepts: bool = False
    any_method: bool = False


def document(title: str, version: str, rows: Iterable[Row]) -> dict[str, Any]:
    """Return operations as an OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row.name:
            paths.setdefault(row.path, {})[row.method] = _described(row)
    return {
        "openapi": "3.0.1",
        "info": {"title": title, "version": version},
        "paths": paths,
    }


def _described(row: Row) -> dict[str, Any]:
    in_path = [part.split("}")[0] for part in row.path.split("{")[1:]]
    parameters = [
        {"in": "path", "name": name, "required": True, "schema": {"type": "string"}}
        for name in in_path
    ]
    parameters += [
        {"in": "query", "name": name, "required": False, "schema": _schema(kind)}
        for name, kind in row.query
    ]
    described: dict[str, Any] = {"summary": row.summary, "operationId": row.name}
    if parameters:
        described["parameters"] = parameters
    if row.body:
        described["requestBody"] = {
            "description": "The input of the handler: JSON, text, a form or any other bytes.",
            "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
            "required": True,
        }
    answer: dict[str, Any] = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
    if row.success is not None:
        answer = {"application/json": {"schema": row.success}}
    described["responses"] = {
        "200": {"description": "The answer.", "content": answer},
        **({"202": {"description": "It goes on.", "content": answer}} if row.accepts else {}),
        **{
            str(status): {
                "description": _ERRORS[status],
                "content": {"application/json": {"schema": _ERROR}},
            }
            for status in row.errors
        },
    }
    return described


def _schema(kind: str) -> dict[str, Any]:
    return {"type": kind, "items": {"type": "string"}} if kind == "array" else {"type": kind}
