"""The table: what a path of each port asks for, and the OpenAPI documents of the ports."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, NamedTuple

import pytest

from extensions.torchserve.api import table
from extensions.torchserve.api.app import Interfaces, stripped
from extensions.torchserve.api.descriptions import Endpoint, document
from extensions.torchserve.api.predictions.predict import predict
from extensions.torchserve.api.table import ANY, in_table, paths_of

INFERENCE: Interfaces = frozenset({"inference"})
MANAGEMENT: Interfaces = frozenset({"management"})
METRICS: Interfaces = frozenset({"metrics"})


class Found(NamedTuple):
    label: str
    token: str
    endpoint: Endpoint
    of: tuple[str, ...]


def found_at(path: str, method: str = "POST", on: Interfaces = INFERENCE) -> Found | None:
    segments = stripped(path.split("/"))
    if "inference" in on:
        segments = in_table(segments)
    rows = paths_of(on).find(segments)
    route = rows and (rows.by_method.get(method) or rows.by_method.get(ANY))
    if not route:
        return None
    return Found(
        route.label, route.row.token, route.row.endpoint, tuple(route.parameters(segments))
    )


def token_at(path: str, method: str, on: Interfaces) -> str:
    found = found_at(path, method, on)
    assert found is not None
    return found.token


@pytest.mark.parametrize(
    ("path", "label", "target"),
    [
        ("/predictions/m", "/predictions/{model}", ("m",)),
        ("/predictions/m/", "/predictions/{model}", ("m",)),
        ("/predictions/m/2.0", "/predictions/{model}/{version}", ("m", "2.0",)),
        ("/predictions/m/2.0/v1/completions", "/predictions/{model}/{version}",
         ("m", "2.0", "v1/completions",)),
        ("/explanations/m", "/explanations/{model}", ("m", "explain")),
        ("/explanations/m/1.0", "/explanations/{model}/{version}",
         ("m", "1.0", "explain")),
        ("/models/m/invoke", "/models/{model}/invoke", ("m", "with_query")),
        ("/m/predict", "/{model}/predict", ("m", "with_query")),
        ("/m/3/predict", "/{model}/{version}/predict", ("m", "3", "with_query")),
        ("/v1/models/m:predict", "/v1/models/{model}:predict", ("m",)),
        ("/v1/models/m:explain", "/v1/models/{model}:explain", ("m", "explain")),
        ("/v2/models/m/infer", "/v2/models/{model}/infer", ("m",)),
        ("/v2/models/m/explain", "/v2/models/{model}/explain", ("m", "explain")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_every_method_predicts(method: str, path: str, label: str, target: tuple[Any, ...]) -> None:
    found = found_at(path, method)
    assert found is not None
    assert found.label == label
    run = found.endpoint
    kinds = run.keywords if isinstance(run, partial) else {}
    assert (run.func if isinstance(run, partial) else run) is predict
    assert (*found.of, *kinds) == target


@pytest.mark.parametrize(
    "path",
    [
        "/predictions", "/explanations", "/ping/x", "/invocations/x", "/models", "/models/m",
        "/models/m/1.0", "/wfpredict", "/wfpredict/w/x", "/v1/models/m", "/v1/models/:predict",
        "/v1/models/m:train", "/v2/models/m", "/v2/health", "/m", "/m/1/x/predict", "/m/train",
        "/predict", "/models/predict", "/predictions/m".replace("predictions", "prediction"),
    ],
)  # fmt: skip
def test_other_paths_are_unknown(path: str) -> None:
    assert found_at(path) is None


@pytest.mark.parametrize(
    ("path", "on", "token"),
    [
        ("/ping", INFERENCE, ""),
        ("/predictions/m", INFERENCE, "inference"),
        ("/api-description", INFERENCE, ""),
        ("/models/m/invoke", INFERENCE | MANAGEMENT, "inference"),
        ("/models", MANAGEMENT, "management"),
        ("/token", MANAGEMENT, ""),
        ("/metrics", METRICS, ""),
    ],
)
def test_the_table_names_the_token_that_a_path_needs(path: str, on: Interfaces, token: str) -> None:
    assert token_at(path, "GET", on) == token


def test_options_describe_a_prediction_instead_of_making_one() -> None:
    found = found_at("/predictions/m", "OPTIONS")
    assert found is not None
    assert (found.endpoint, found.of) == (table._describe_prediction, ("m",))


def test_the_metrics_port_has_a_description_and_no_root() -> None:
    assert found_at("/", "OPTIONS", METRICS) is not None
    assert found_at("/api-description/below", "GET", METRICS) is not None
    assert found_at("/", "GET", METRICS) is None


@pytest.mark.parametrize("path", ["/models/m/invoke", "/predictions/m", "/metrics", "/ping"])
def test_a_port_serves_only_the_paths_of_its_interfaces(path: str) -> None:
    assert found_at(path, "GET", MANAGEMENT) is None


def test_a_version_of_the_open_inference_protocol_may_be_anywhere_below_v2() -> None:
    for path in ("/v2/models/m/versions/1", "/v2/models/m/versions/1/infer", "/v2/a/b/c/versions"):
        found = found_at(path, "GET")
        assert found is not None
        assert found.label == "/v2/models/{model}/versions/{version}"


@pytest.mark.parametrize("operations", [table._INFERENCE, table._MANAGEMENT, table._METRICS])
def test_an_operation_names_each_parameter_of_its_path(operations: Any) -> None:
    described = json.loads(json.dumps(document("x", "1", operations)))
    assert described["openapi"] == "3.0.1"
    names = []
    for path, methods in described["paths"].items():
        for operation in methods.values():
            names.append(operation["operationId"])
            wanted = [part.partition("}")[0] for part in path.split("{")[1:]]
            own = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"]
            assert own == wanted, path
            assert "200" in operation["responses"]
    assert len(names) == len(set(names))
