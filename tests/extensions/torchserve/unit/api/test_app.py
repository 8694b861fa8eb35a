"""Which interface and which endpoint a request reaches."""

from __future__ import annotations

import pytest

from extensions.torchserve.api.app import Interfaces, interfaces_by_port, is_native, stripped
from extensions.torchserve.config.settings import TorchServeConfig


def test_each_interface_has_its_port() -> None:
    assert interfaces_by_port(TorchServeConfig()) == {
        8080: {"inference"},
        8081: {"management"},
        8082: {"metrics"},
    }


def test_interfaces_of_one_address_share_a_port() -> None:
    one = "http://0.0.0.0:9090"
    shared = TorchServeConfig(inference_address=one, management_address=one)
    assert interfaces_by_port(shared)[9090] == {"inference", "management"}


def test_a_port_without_metrics_is_not_served() -> None:
    assert 8082 not in interfaces_by_port(TorchServeConfig(enable_metrics_api=False))


def test_an_address_without_a_port_has_that_of_its_scheme() -> None:
    config = TorchServeConfig(
        inference_address="https://localhost",
        management_address="http://localhost",
        metrics_address="unix:/tmp/metrics.sock",
    )
    assert list(interfaces_by_port(config)) == [443, 80, None]


@pytest.mark.parametrize(
    ("path", "segments"),
    [
        ("/", [""]),
        ("/models/", ["", "models"]),
        ("/models/x//", ["", "models", "x"]),
        ("/models//x", ["", "models", "", "x"]),
        ("//predictions", ["", "", "predictions"]),
    ],
)
def test_empty_segments_at_the_end_of_a_path_do_not_count(path: str, segments: list[str]) -> None:
    assert stripped(path.split("/")) == segments


INFERENCE: Interfaces = frozenset({"inference"})


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/models", "/api/predict", "/v1/files", "/v1/batches/x", "/docs", "/docs/static/x",
        "/openapi.json", "/live", "/ready", "/metrics", "/problems/timeout",
        "/v1/chat/completions", "/v1/models", "/v1/models/m",
    ],
)  # fmt: skip
def test_paths_of_the_native_api_are_left_to_it(path: str) -> None:
    assert is_native(stripped(path.split("/")), INFERENCE)


@pytest.mark.parametrize(
    "path", ["/", "/ping", "/predictions/m", "/m/predict", "/v1/models/m:predict", "/v1", "/v2"]
)
def test_other_paths_are_those_of_torchserve(path: str) -> None:
    assert not is_native(stripped(path.split("/")), INFERENCE)


def test_a_model_of_v1_is_kserves_where_management_is_served() -> None:
    management: Interfaces = frozenset({"management"})
    assert not is_native(["", "v1", "models", "m"], management)
    assert is_native(["", "v1", "models"], management)


def test_metrics_are_native_where_torchserves_have_another_port() -> None:
    assert not is_native(["", "metrics"], INFERENCE | {"metrics"})
