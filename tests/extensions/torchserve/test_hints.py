"""What a client of TorchServe reads where its URLs are not served."""

from __future__ import annotations

import pytest

from api.extension import hint_of


@pytest.mark.parametrize(
    ("path", "use"),
    [
        ("/predictions/m", "POST /api/v1/models/{model}/jobs?wait=30;"),
        ("/explanations/m", "POST /api/v1/models/{model}/jobs?wait=30;"),
        ("/invocations", "POST /api/v1/models/{model}/jobs?wait=30;"),
        ("/wfpredict/flow", "POST /api/v1/models/{model}/jobs?wait=30;"),
        ("/ping", "GET /ready,"),
        ("/models/m", "GET /api/v1/models;"),
    ],
)
def test_a_path_of_torchserve_has_a_hint(path: str, use: str) -> None:
    hint = hint_of("GET", path)
    assert use in hint
    assert hint.endswith("see docs/torchserve.md.")


@pytest.mark.parametrize("path", ["/", "/pings", "/modelsx", "/api/v1/predictions/m"])
def test_another_path_has_none(path: str) -> None:
    assert "torchserve" not in hint_of("GET", path)
