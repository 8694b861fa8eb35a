"""`ts.launcher` registers models as TorchServe's does."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from ts.launcher import register_model, register_model_with_params


def test_a_registration_takes_and_returns_what_requests_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[Any] = []
    answer = requests.Response()
    answer.status_code = 200

    def post(url: str, params: Any, **_: Any) -> requests.Response:
        sent.append((url, params))
        return answer

    monkeypatch.setattr(requests, "post", post)
    pairs = (("url", "a.mar"), ("url", "b.mar"))
    assert register_model_with_params(pairs).ok
    register_model("a", "a.mar")
    named = {"model_name": "a", "url": "a.mar", "initial_workers": "1", "synchronous": "true"}
    url = "http://localhost:8081/models"
    assert sent == [(url, pairs), (url, named)]
