"""The jobs of an OpenAI request and the limits of its API key."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from api.http.bodies import Payload
from api.routes.openai.jobs import check_in_flight, check_tokens
from api.submission.job_request import JobIdentity, ValidatedRequest
from headrace.access.api_key import Caller
from headrace.config.model_catalog import ModelConfig
from headrace.errors import InvalidParameter
from headrace.jobs.options import DEFAULT_OPTIONS
from headrace.openai.requests import CompletionRequest

MODEL = ModelConfig(name="m", handler="language_model", schedule="tokens")
#: 32 bytes count as 8 tokens, and the new ones are 92.
INPUT = b'{"prompt":"abc","max_tokens":92}'
EACH = 100


def jobs(count: int, limit: int, **changes: Any) -> list[ValidatedRequest]:
    caller = Caller("k", sees_all=False, tokens_per_minute=limit)
    one = ValidatedRequest(
        MODEL, INPUT, DEFAULT_OPTIONS, JobIdentity("a", chosen=False), caller=caller
    )
    return [msgspec.structs.replace(one, **changes)] * count


def fits(*requests: ValidatedRequest) -> bool:
    asked = CompletionRequest(model="m", prompt=["a"] * len(requests))
    try:
        check_tokens(asked, requests)
    except InvalidParameter:
        return False
    return True


def test_jobs_that_need_as_many_tokens_as_there_are_fit() -> None:
    assert fits(*jobs(3, 3 * EACH))
    assert not fits(*jobs(3, 3 * EACH - 1))
    assert fits(*jobs(3, 0)), "the key has no limit"


def test_an_input_that_is_stored_counts_by_its_length() -> None:
    payload = Payload(b"x" * 4 * EACH, "")
    changes: dict[str, Any] = {"input_json": b"null", "payload": payload}
    # The model's default are 256 new tokens.
    assert fits(*jobs(2, 2 * (EACH + 256), **changes))
    assert not fits(*jobs(2, 2 * (EACH + 256) - 1, **changes))


@pytest.mark.parametrize(
    ("count", "changes"),
    [
        (1, {}),
        (3, {"identity": JobIdentity("a", chosen=True)}),
        (3, {"model": ModelConfig(name="m", handler="language_model")}),
    ],
)
def test_a_job_alone_jobs_that_stay_and_jobs_without_tokens_always_fit(
    count: int, changes: dict[str, Any]
) -> None:
    assert fits(*jobs(count, 1, **changes))


@pytest.mark.parametrize(("in_flight", "chosen"), [(0, False), (3, False), (2, True)])
def test_jobs_that_may_be_in_flight_together_are_accepted(in_flight: int, chosen: bool) -> None:
    caller = Caller("k", sees_all=False, in_flight=in_flight)
    requests = jobs(3, 0, caller=caller, identity=JobIdentity("a", chosen=chosen))
    check_in_flight(CompletionRequest(model="m", prompt=["a"] * 3), requests)


def test_more_jobs_than_may_be_in_flight_are_refused_by_their_field() -> None:
    requests = jobs(3, 0, caller=Caller("k", sees_all=False, in_flight=2))
    with pytest.raises(InvalidParameter, match="3 jobs, and API key k may have 2 in flight") as one:
        check_in_flight(CompletionRequest(model="m", prompt=["a"] * 3), requests)
    assert one.value.param == "prompt"
