"""What `OPTIONS` and `/api-description` answer: the interfaces of a port, as OpenAPI 3.0.1."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from api.http.messages import Reply, Request
from api.services import Services
from extensions.torchserve.api.endpoints import Found, Interfaces
from extensions.torchserve.api.errors import METHOD_NOT_ALLOWED, TorchServeError
from extensions.torchserve.api.replies import json_reply

OPENAPI_VERSION: Final = "3.0.1"
#: The version of TorchServe whose interfaces these are.
TORCHSERVE_VERSION: Final = "0.12.0"

_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["code", "type", "message"],
    "properties": {
        "code": {"type": "integer", "description": "The HTTP status."},
        "type": {"type": "string", "description": "The name of the error."},
        "message": {"type": "string", "description": "What is wrong, and what to do."},
    },
}
_STATUS: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["status"],
    "properties": {"status": {"type": "string"}},
}
_ANYTHING: Final[dict[str, Any]] = {"type": "object"}
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


class _Operation(NamedTuple):
    """An operation of an interface.

    Attributes:
        body: it has a body of any type.
        success: the content of its answer; None for any bytes.
        accepts: it can answer 202 before it has ended.
    """

    method: str
    path: str
    name: str
    summary: str
    errors: Sequence[int]
    query: Sequence[tuple[str, str]] = ()
    body: bool = False
    success: dict[str, Any] | None = None
    accepts: bool = False


_FAILURES: Final = (400, 404, 500, 503, 507)
_INFERENCE: Final = (
    _Operation("get", "/ping", "ping", "Return whether the models are healthy.", (500,),
               success=_STATUS),
    *(
        _Operation("post", path, name, summary, _FAILURES, query, body=True)
        for path, name, summary, query in (
            ("/predictions/{model_name}", "predictions", "Predict with a model.", ()),
            ("/predictions/{model_name}/{model_version}", "version_predictions",
             "Predict with one version of a model.", ()),
            ("/explanations/{model_name}", "explanations", "Explain a prediction.", ()),
            ("/explanations/{model_name}/{model_version}", "version_explanations",
             "Explain a prediction of one version of a model.", ()),
            ("/invocations", "invocations", "Predict with a model that the request names.",
             (("model_name", "string"),)),
            ("/models/{model_name}/invoke", "invoke", "Predict with a model.", ()),
            ("/v1/models/{model_name}:predict", "kserve_v1_predict", "Predict by KServe v1.", ()),
            ("/v1/models/{model_name}:explain", "kserve_v1_explain", "Explain by KServe v1.", ()),
            ("/v2/models/{model_name}/infer", "kserve_v2_infer", "Predict by KServe v2.", ()),
            ("/v2/models/{model_name}/explain", "kserve_v2_explain", "Explain by KServe v2.", ()),
            ("/wfpredict/{workflow_name}", "workflow_predict", "Predict with a workflow.", ()),
        )
    ),
)  # fmt: skip
_MANAGEMENT: Final = (
    _Operation("get", "/models", "listModels", "List the models.", (400,),
               (("limit", "integer"), ("next_page_token", "string")), success=_ANYTHING),
    _Operation("post", "/models", "registerModel", "Register a model.", (400, 404, 409, 500),
               (("url", "string"), ("model_name", "string"), ("handler", "string"),
                ("runtime", "string"), ("batch_size", "integer"), ("max_batch_delay", "integer"),
                ("response_timeout", "integer"), ("startup_timeout", "integer"),
                ("initial_workers", "integer"), ("synchronous", "boolean")), success=_STATUS,
               accepts=True),
    *(
        operation
        for path, suffix in (("/models/{model_name}", ""),
                             ("/models/{model_name}/{model_version}", "Version"))
        for operation in (
            _Operation("get", path, f"describeModel{suffix}", "Describe a model.", (404, 503),
                       (("customized", "boolean"),), success=_ANYTHING),
            _Operation("put", path, f"scaleModel{suffix}", "Set the number of workers.",
                       (400, 404, 500),
                       (("min_worker", "integer"), ("max_worker", "integer"),
                        ("synchronous", "boolean")), success=_STATUS, accepts=True),
            _Operation("delete", path, f"unregisterModel{suffix}", "Unregister a model.",
                       (404, 408), success=_STATUS),
        )
    ),
    _Operation("put", "/models/{model_name}/{model_version}/set-default", "setDefault",
               "Choose the default version.", (404,), success=_STATUS),
)  # fmt: skip
_METRICS: Final = (
    _Operation("get", "/metrics", "metrics", "Return the metrics.", (), (("name[]", "array"),)),
)
_API: Final = tuple(
    _Operation(method, path, name, "Return this description.", (), success=_ANYTHING)
    for method, path, name in (
        ("options", "/", "apiDescription"),
        ("get", "/api-description", "getApiDescription"),
    )
)


def find(interfaces: Interfaces, method: str, segments: Sequence[str]) -> Found | None:
    """Return the endpoint of a request for the description of a port; None for another path."""
    if not segments:
        if method != "OPTIONS" and not (interfaces.inference or interfaces.management):
            return None
        return Found(partial(_root, interfaces, method), "/", "")
    if segments[0] == "api-description":
        return Found(partial(_describe, interfaces), "/api-description", "")
    return None


async def _root(interfaces: Interfaces, method: str, services: Services, request: Request) -> Reply:
    if method == "OPTIONS":
        return await _describe(interfaces, services, request)
    raise TorchServeError(
        405,
        METHOD_NOT_ALLOWED,
        f"{method[:32]} is not allowed on /. OPTIONS / describes the API of this port, and "
        "GET /docs on the inference port that of Headrace",
    )


async def _describe(interfaces: Interfaces, _services: Services, _: Request) -> Reply:
    operations = (
        *(_INFERENCE if interfaces.inference else ()),
        *(_MANAGEMENT if interfaces.management else ()),
        *(_METRICS if interfaces.metrics else ()),
    )
    return json_reply(document("TorchServe APIs", TORCHSERVE_VERSION, (*_API, *operations)))


async def prediction(model: str, services: Services, _: Request) -> Reply:
    """Describe how to predict with a model.

    Raises:
        ModelNotFound: there is no such model.
    """
    config = services.catalog.get(model)
    path = f"/predictions/{model}"
    operations = (
        _Operation("post", path, "predictions", f"Predict with {model}.", _FAILURES, body=True),
        _Operation("options", path, "describe", "Return this description.", (404,),
                   success=_ANYTHING),
    )  # fmt: skip
    return json_reply(document(f"RESTful API for: {model}", config.version, operations))


def management(model: str) -> Reply:
    """Return the description of how to manage a model."""
    operations = [one for one in _MANAGEMENT if "{model_name}" in one.path]
    title = f"RESTful Management API for: {model}"
    return json_reply(document(title, TORCHSERVE_VERSION, operations))


def document(title: str, version: str, operations: Sequence[_Operation]) -> dict[str, Any]:
    """Return operations as an OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method] = _described(one)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": title, "version": version},
        "paths": paths,
    }


def _described(one: _Operation) -> dict[str, Any]:
    in_path = [part.split("}")[0] for part in one.path.split("{")[1:]]
    parameters = [
        {"in": "path", "name": name, "required": True, "schema": {"type": "string"}}
        for name in in_path
    ]
    parameters += [
        {"in": "query", "name": name, "required": False, "schema": _schema(kind)}
        for name, kind in one.query
    ]
    described: dict[str, Any] = {"summary": one.summary, "operationId": one.name}
    if parameters:
        described["parameters"] = parameters
    if one.body:
        described["requestBody"] = {
            "description": "The input of the handler: JSON, text, a form or any other bytes.",
            "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
            "required": True,
        }
    answer: dict[str, Any] = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
    if one.success is not None:
        answer = {"application/json": {"schema": one.success}}
    described["responses"] = {
        "200": {"description": "The answer.", "content": answer},
        **({"202": {"description": "It goes on.", "content": answer}} if one.accepts else {}),
        **{
            str(status): {
                "description": _ERRORS[status],
                "content": {"application/json": {"schema": _ERROR}},
            }
            for status in one.errors
        },
    }
    return described


def _schema(kind: str) -> dict[str, Any]:
    return {"type": kind, "items": {"type": "string"}} if kind == "array" else {"type": kind}
