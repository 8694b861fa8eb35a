"""The limits of an OpenAI request that has several jobs."""

from __future__ import annotations

from typing import Any

import pytest

from extensions.openai.api.limits import check_in_flight, check_tokens
from extensions.openai.schema.requests import CompletionRequest
from headrace.access.api_key import Caller
from headrace.config.model.catalog import ModelConfig
from headrace.errors import InvalidParameter

MODEL = ModelConfig(name="m", handler="language_model", schedule="tokens")
#: The input of a job, `{"prompt":"abc","max_tokens":92}`, counts as 8 tokens, the new ones are 92.
EACH = 100


def fits(count: int, limit: int, model: ModelConfig = MODEL, inline_limit_bytes: int = 32) -> bool:
    caller = Caller("k", sees_all=False, tokens_per_minute=limit)
    for fields in ({"prompt": ["abc"] * count}, {"prompt": "abc", "n": count}):
        asked = CompletionRequest(model="m", max_tokens=92, **fields)
        try:
            check_tokens(asked, asked.inputs(), model, caller, inline_limit_bytes)
        except InvalidParameter:
            return False
    return True


def test_jobs_that_need_as_many_tokens_as_there_are_fit() -> None:
    assert fits(3, 3 * EACH)
    assert not fits(3, 3 * EACH - 1)
    assert fits(3, 0), "the key has no limit"


def test_an_input_that_is_stored_counts_by_its_length() -> None:
    # The model's default are 256 new tokens.
    assert fits(2, 2 * (8 + 256), inline_limit_bytes=31)
    assert not fits(2, 2 * (8 + 256) - 1, inline_limit_bytes=31)


@pytest.mark.parametrize(
    ("count", "changes"), [(1, {}), (3, {"model": ModelConfig(name="m", handler="language_model")})]
)
def test_a_job_alone_and_jobs_without_tokens_always_fit(
    count: int, changes: dict[str, Any]
) -> None:
    assert fits(count, 1, **changes)


@pytest.mark.parametrize("in_flight", [0, 3])
def test_jobs_that_may_be_in_flight_together_are_accepted(in_flight: int) -> None:
    caller = Caller("k", sees_all=False, in_flight=in_flight)
    check_in_flight(CompletionRequest(model="m", prompt=["a"] * 3), 3, caller)


def test_more_jobs_than_may_be_in_flight_are_refused_by_their_field() -> None:
    caller = Caller("k", sees_all=False, in_flight=2)
    with pytest.raises(InvalidParameter, match="3 jobs, and API key k may have 2 in flight") as one:
        check_in_flight(CompletionRequest(model="m", prompt=["a"] * 3), 3, caller)
    assert one.value.param == "prompt"
