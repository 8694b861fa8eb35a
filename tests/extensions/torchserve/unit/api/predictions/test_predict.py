"""Which URLs predict, explain, describe or report, and what they ask for."""

from __future__ import annotations

from functools import partial

import pytest

from extensions.torchserve.api import descriptions
from extensions.torchserve.api.app import stripped
from extensions.torchserve.api.predictions import predict
from extensions.torchserve.api.predictions.predict import Target, runs_torchserve
from headrace.config.model.catalog import ModelConfig


def found_at(path: str, method: str = "POST") -> tuple[str, object]:
    found = predict.find(method, stripped(path.split("/")))
    assert found is not None, path
    run = found.run
    return found.label, run.args[0] if isinstance(run, partial) else run


@pytest.mark.parametrize(
    ("path", "label", "target"),
    [
        ("/predictions/m", "/predictions/{model}", Target("m")),
        ("/predictions/m/", "/predictions/{model}", Target("m")),
        ("/predictions/m/2.0", "/predictions/{model}/{version}", Target("m", "2.0")),
        ("/predictions/m/2.0/v1/completions", "/predictions/{model}/{version}",
         Target("m", "2.0", "v1/completions")),
        ("/explanations/m", "/explanations/{model}", Target("m", explain=True)),
        ("/explanations/m/1.0", "/explanations/{model}/{version}",
         Target("m", "1.0", explain=True)),
        ("/models/m/invoke", "/models/{model}/invoke", Target("m", with_query=True)),
        ("/m/predict", "/{model}/predict", Target("m", with_query=True)),
        ("/m/3/predict", "/{model}/{version}/predict", Target("m", "3", with_query=True)),
        ("/v1/models/m:predict", "/v1/models/{model}:predict", Target("m")),
        ("/v1/models/m:explain", "/v1/models/{model}:explain", Target("m", explain=True)),
        ("/v2/models/m/infer", "/v2/models/{model}/infer", Target("m")),
        ("/v2/models/m/explain", "/v2/models/{model}/explain", Target("m", explain=True)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_every_method_predicts(method: str, path: str, label: str, target: Target) -> None:
    assert found_at(path, method) == (label, target)


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
    assert predict.find("POST", stripped(path.split("/"))) is None


def test_health_needs_no_token_and_a_prediction_does() -> None:
    ping = predict.find("GET", ["ping"])
    prediction = predict.find("GET", ["predictions", "m"])
    assert ping is not None
    assert prediction is not None
    assert (ping.token, prediction.token) == ("", "inference")


def test_options_describe_a_prediction_instead_of_making_one() -> None:
    found = predict.find("OPTIONS", ["predictions", "m"])
    assert found is not None
    assert isinstance(found.run, partial)
    assert (found.run.func, found.run.args) == (descriptions.prediction, ("m",))


@pytest.mark.parametrize(
    ("handler", "runs"),
    [("torchserve:handler.py:handle", True), ("echo", False), ("", True)],
)
def test_a_model_whose_handler_is_unknown_counts_as_one_of_torchserve(
    handler: str, runs: bool
) -> None:
    assert runs_torchserve(ModelConfig(name="m", handler=handler)) is runs
