"""The table of all operations, by interface: what a port serves, and what `OPTIONS /` describes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Final

from api.http.messages import Answer, Reply, Request
from api.routes.paths import Paths
from api.services import Services
from extensions.torchserve.api.descriptions import (
    ANYTHING,
    STATUS,
    Endpoint,
    Interface,
    Row,
    document,
)
from extensions.torchserve.api.management import endpoints as management
from extensions.torchserve.api.management.changes import model_of, registry_of
from extensions.torchserve.api.management.registration import register_model
from extensions.torchserve.api.metrics import get_metrics
from extensions.torchserve.api.parts import config_of
from extensions.torchserve.api.predictions import predict
from extensions.torchserve.api.replies import Kind, TorchServeError, json_reply
from extensions.torchserve.api.tokens import new_token
from extensions.torchserve.config.settings import TORCHSERVE_VERSION

#: The key of the row that serves each method for which its path has no other row.
ANY: Final = "*"
_REST: Final = "/{rest:path}"
#: The parameters of the paths, which may all be empty: that is an unknown model.
_NAMES: Final = ("model_name", "model_version", "workflow_name")


async def _describe_prediction(services: Services, _: Request, model: str, *_of: str) -> Reply:
    version = services.catalog.get(model).version
    summary = f"Predict with {model}."
    post, options = _predicts(f"/predictions/{model}", predict.predict, "predictions", summary)
    rows = (post, options._replace(name="describe"))
    return json_reply(document(f"RESTful API for: {model}", version, rows))


async def _describe_model(services: Services, _: Request, name: str, *_of: str) -> Reply:
    name = model_of(await registry_of(services).read(), name).name
    rows = [row for row in _MANAGEMENT if "{model_name}" in row.path]
    return json_reply(document(f"RESTful Management API for: {name}", TORCHSERVE_VERSION, rows))


async def _describe_port(rows: Sequence[Row], _services: Services, _: Request, *_of: str) -> Reply:
    return json_reply(document("TorchServe APIs", TORCHSERVE_VERSION, rows))


async def _refuse_root(_: Services, request: Request) -> Answer:
    raise TorchServeError(
        Kind.METHOD_NOT_ALLOWED,
        f"{request.method[:32]} is not allowed on /. OPTIONS / describes the API of this port, and "
        "GET /docs on the inference port that of Headrace",
    )


def _if_allowed(endpoint: Endpoint) -> Endpoint:
    """Return an endpoint that needs `enable_model_api`."""

    async def checked(services: Services, request: Request, *of: str) -> Answer:
        if not config_of(services).enable_model_api:
            raise TorchServeError(
                Kind.METHOD_NOT_ALLOWED,
                "Models cannot be registered or unregistered here. Start the server with "
                "--enable-model-api, or set enable_model_api=true",
            )
        return await endpoint(services, request, *of)

    return checked


def _predicts(
    path: str,
    endpoint: Endpoint,
    name: str = "",
    summary: str = "Predict with a model.",
    query: Sequence[tuple[str, str]] = (),
) -> tuple[Row, Row]:
    """Return the rows of a path that predicts with any method but OPTIONS, which describes it."""
    return (
        Row("inference", "post", path, endpoint, "inference", name, summary,
            (400, 404, 500, 503, 507), query, body=True, any_method=True),
        Row("inference", "options", path, _describe_prediction, "inference",
            summary="Return this description.", errors=(404,), success=ANYTHING),
    )  # fmt: skip


def _open(path: str, endpoint: Endpoint) -> Row:
    """Return the row of a path that is not described, and needs no token for any method."""
    return Row("inference", "get", path, endpoint, any_method=True)


_EXPLAIN: Final = partial(predict.predict, explain=True)
_WITH_QUERY: Final = partial(predict.predict, with_query=True)
_INFERENCE: Final = (
    Row("inference", "get", "/ping", predict.ping, "", "ping",
        "Return whether the models are healthy.", (500,), success=STATUS, any_method=True),
    *_predicts("/predictions/{model_name}", predict.predict, "predictions"),
    *_predicts("/predictions/{model_name}/{model_version}", predict.predict, "version_predictions",
               "Predict with one version of a model."),
    *_predicts("/predictions/{model_name}/{model_version}" + _REST, predict.predict),
    *_predicts("/explanations/{model_name}", _EXPLAIN, "explanations", "Explain a prediction."),
    *_predicts("/explanations/{model_name}/{model_version}", _EXPLAIN, "version_explanations",
               "Explain a prediction of one version of a model."),
    *_predicts("/explanations/{model_name}/{model_version}" + _REST, _EXPLAIN),
    _predicts("/invocations", predict.invoke, "invocations",
              "Predict with a model that the request names.", (("model_name", "string"),))[0],
    *_predicts("/models/{model_name}/invoke", _WITH_QUERY, "invoke"),
    *_predicts("/v1/models/{model_name}:predict", predict.predict, "kserve_v1_predict",
               "Predict by KServe v1."),
    *_predicts("/v1/models/{model_name}:explain", _EXPLAIN, "kserve_v1_explain",
               "Explain by KServe v1."),
    *_predicts("/v2/models/{model_name}/infer", predict.predict, "kserve_v2_infer",
               "Predict by KServe v2."),
    *_predicts("/v2/models/{model_name}/explain", _EXPLAIN, "kserve_v2_explain",
               "Explain by KServe v2."),
    _open("/v2", predict.oip_server),
    _open("/v2/health/live", partial(predict.oip_health, "live")),
    _open("/v2/health/ready", partial(predict.oip_health, "ready")),
    _open("/v2/models/{model_name}/versions/{model_version}", predict.oip_versions),
    *_predicts("/wfpredict/{workflow_name}", predict.predict_workflow, "workflow_predict",
               "Predict with a workflow."),
    *_predicts("/{model_name}/predict", _WITH_QUERY),
    *_predicts("/{model_name}/{model_version}/predict", _WITH_QUERY),
    _open("/", _refuse_root),
)  # fmt: skip

_manages: Final = partial(Row, "management", token="management")  # noqa: S106 - a kind of token
_SYNCHRONOUS: Final = ("synchronous", "boolean")


def _manages_model(path: str, suffix: str) -> tuple[Row, ...]:
    return (
        _manages("get", path, management.describe_model, name=f"describeModel{suffix}",
                 summary="Describe a model.", errors=(404, 503),
                 query=(("customized", "boolean"),), success=ANYTHING),
        _manages("put", path, management.scale, name=f"scaleModel{suffix}",
                 summary="Set the number of workers.", errors=(400, 404, 500),
                 query=(("min_worker", "integer"), ("max_worker", "integer"), _SYNCHRONOUS),
                 success=STATUS, accepts=True),
        _manages("delete", path, _if_allowed(management.unregister_model),
                 name=f"unregisterModel{suffix}", summary="Unregister a model.",
                 errors=(404, 408), success=STATUS),
        _manages("options", path, _describe_model),
    )  # fmt: skip


_MANAGEMENT: Final = (
    _manages("get", "/models", management.list_models, name="listModels",
             summary="List the models.", errors=(400,),
             query=(("limit", "integer"), ("next_page_token", "string")), success=ANYTHING),
    _manages("post", "/models", _if_allowed(register_model), name="registerModel",
             summary="Register a model.", errors=(400, 404, 409, 500),
             query=(("url", "string"), ("model_name", "string"), ("handler", "string"),
                    ("runtime", "string"), ("batch_size", "integer"),
                    ("max_batch_delay", "integer"), ("response_timeout", "integer"),
                    ("startup_timeout", "integer"), ("initial_workers", "integer"), _SYNCHRONOUS),
             success=STATUS, accepts=True),
    *_manages_model("/models/{model_name}", ""),
    *_manages_model("/models/{model_name}/{model_version}", "Version"),
    _manages("put", "/models/{model_name}/{model_version}/set-default", management.set_default,
             name="setDefault", summary="Choose the default version.", errors=(404,),
             success=STATUS),
    _manages("get", "/workflows", management.list_workflows),
    _manages("post", "/workflows", management.register_workflow),
    _manages("get", "/v1/models/{model_name}", management.readiness),
    Row("management", "get", "/token", new_token, any_method=True),
    _open("/", _refuse_root)._replace(interface="management"),
)  # fmt: skip

_METRICS: Final = (
    Row("metrics", "get", "/metrics", get_metrics, "", "metrics", "Return the metrics.", (),
        (("name[]", "array"),), any_method=True),
    Row("metrics", "get", "/metrics" + _REST, get_metrics, any_method=True),
)  # fmt: skip

_TABLE: Final = (*_INFERENCE, *_MANAGEMENT, *_METRICS)


@cache
def paths_of(interfaces: frozenset[Interface]) -> Paths[Row]:
    """Return what a port with these interfaces serves."""
    rows: list[Row] = []
    describe = Row(
        None, "options", "/", partial(_describe_port, rows), "", "apiDescription",
        "Return this description.", success=ANYTHING,
    )  # fmt: skip
    below = describe._replace(method="get", path="/api-description", any_method=True)
    rows += [describe, below._replace(name="getApiDescription")]
    rows += [below._replace(path=below.path + _REST, name="")]
    paths: Paths[Row] = Paths(_NAMES)
    for row in _TABLE:
        if row.interface in interfaces:
            rows.append(row)
        elif not row.path.startswith("/{"):
            # It is not on this port, and names no model in `/{model}/predict` either.
            paths.reserve(_path_in_tree(row))
    for row in rows:
        label = row.path.removesuffix(_REST).replace("_name}", "}").replace("{model_v", "{v")
        method = ANY if row.any_method else row.method.upper()
        for each in ("GET", "HEAD") if method == "GET" else (method,):
            paths.add(each, _path_in_tree(row), row, label)
    return paths


def _path_in_tree(row: Row) -> str:
    # A slash at the end does not count, and KServe's verb is a segment; see `in_table`.
    return row.path.rstrip("/").replace("}:", "}/:")


def in_table(segments: list[str]) -> list[str]:
    """Return the segments of a path on a port for predictions as the table has them."""
    match segments:
        case ["", "v1", "models", last]:
            model, _, verb = last.rpartition(":")
            if model and verb in ("predict", "explain"):
                return ["", "v1", "models", model, f":{verb}"]
        case ["", "v1", "models", _, _]:
            return []  # a path with a verb as a segment is unknown
        case ["", "v2", _, _, _, _, *_] if "versions" in segments:
            # TorchServe takes each such path for one of a version.
            return ["", "v2", "models", "", "versions", ""]
    return segments
