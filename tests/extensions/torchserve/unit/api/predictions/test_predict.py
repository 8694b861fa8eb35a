"""Which models run a handler of TorchServe."""

from __future__ import annotations

import pytest

from extensions.torchserve.api.predictions.predict import runs_torchserve
from headrace.config.model.catalog import ModelConfig


@pytest.mark.parametrize(
    ("handler", "runs"),
    [("torchserve:handler.py:handle", True), ("echo", False), ("", True)],
)
def test_a_model_whose_handler_is_unknown_counts_as_one_of_torchserve(
    handler: str, runs: bool
) -> None:
    assert runs_torchserve(ModelConfig(name="m", handler=handler)) is runs
