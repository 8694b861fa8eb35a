"""The OpenAPI documents of the ports."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extensions.torchserve.api import descriptions
from extensions.torchserve.api.descriptions import document, find
from extensions.torchserve.api.endpoints import Interfaces


def test_the_metrics_port_has_a_description_and_no_root() -> None:
    metrics = Interfaces(metrics=True)
    assert find(metrics, "OPTIONS", []) is not None
    assert find(metrics, "GET", ["api-description"]) is not None
    assert find(metrics, "GET", []) is None


@pytest.mark.parametrize("segments", [[], ["api-description"]])
def test_a_description_needs_no_token(segments: list[str]) -> None:
    found = find(Interfaces(inference=True), "OPTIONS", segments)
    assert found is not None
    assert found.token == ""


def test_other_paths_are_left_to_the_interfaces() -> None:
    assert find(Interfaces(inference=True), "OPTIONS", ["predictions", "m"]) is None


@pytest.mark.parametrize(
    "operations", [descriptions._INFERENCE, descriptions._MANAGEMENT, descriptions._METRICS]
)
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
