"""The status and the headers of a handler's response, in the content type of its result."""

from __future__ import annotations

import msgspec
import pytest

from headrace.errors import HandlerError
from headrace.handler import Response
from headrace.jobs.job import Job, State
from headrace.jobs.values.encoding import kombu_bytes
from headrace.redis.scripts.jobs import Run
from headrace.response import (
    HEADERS_MAX,
    HEADERS_MAX_BYTES,
    NO_DETAILS,
    ErrorResponse,
    ResponseDetails,
    error_response,
    split_details,
    with_details,
)
from headrace.schema.serialization import job_object, raw_result
from workers.jobs.leased_job import LeasedJob
from workers.jobs.settlement import failed, succeeded
from workers.model_process.outcomes import encode_result, failure, outcomes_of

DETAILS = ResponseDetails(299, {"x-a": 'b;c="ä"', "content-type": "text/plain; charset=x"})


def leased() -> LeasedJob:
    return LeasedJob("a", "1", None, 1, 0.0, 0.0, 1)


def test_details_travel_in_the_content_type() -> None:
    kind = with_details("text/plain; charset=x", DETAILS)
    assert kind.isascii()
    assert " " not in kind.partition("x-response")[2]
    assert split_details(kind) == ("text/plain; charset=x", DETAILS)


def test_without_details_the_content_type_is_as_it_was() -> None:
    assert with_details("image/png", NO_DETAILS) == "image/png"
    assert split_details("image/png") == ("image/png", NO_DETAILS)


@pytest.mark.parametrize("text", ["!", "e30", "bnVsbA", "AAAA", "e"])
def test_details_that_cannot_be_read_are_dropped(text: str) -> None:
    assert split_details(f"image/png;x-response={text}") == ("image/png", NO_DETAILS)


def test_a_native_client_sees_the_content_type_alone() -> None:
    outcome = encode_result(Response(b"ab", "text/plain", status=299, headers=DETAILS.headers))
    body = kombu_bytes(outcome[1])
    settlement = succeeded(leased(), body, outcome[2], 1, Run("1", "0", "0"), "now")
    kind = str(settlement.value)
    assert split_details(kind) == ("text/plain", DETAILS)
    job = Job("a", "m", "1", State.SUCCEEDED, 1, ended_us=2, result_type=kind)
    job.meta = bytes(settlement.meta).decode()
    assert raw_result(job) == (b"ab", "text/plain")
    assert b'"result":{"content_type":"text/plain","base64":"YWI="}' in job_object(job)


def test_the_response_of_an_error_is_in_its_record() -> None:
    response = ErrorResponse(507, {"a": "b"}, b"\xff")
    _, code, message, retryable, _, text = failure(HandlerError("no", response=response))
    settlement = failed(leased(), code, message, retryable=retryable, response=text)
    assert isinstance(settlement.value, bytes)
    error = settlement.value.decode()
    assert error_response(error) == response
    assert msgspec.json.decode(error)["type"] == "handler-error"
    assert error_response("") is None
    assert error_response('{"type":"timeout"}') is None
    assert error_response("{") is None


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ({f"x-{n}": "" for n in range(HEADERS_MAX + 1)}, "the handler set 65 headers"),
        ({"x": "ü" * (HEADERS_MAX_BYTES // 2)}, "the handler set headers of 8193 bytes"),
    ],
)
def test_too_many_headers_fail_the_item_that_has_them(
    headers: dict[str, str], problem: str
) -> None:
    """Of a result as of an error."""
    one = Response(b"", headers=headers)
    found = outcomes_of([one, Response(b"", headers={"x": "1"})], lambda _: None)
    assert [outcome[0] for outcome in found] == [False, True]
    assert problem in found[0][2]
    outcome = failure(HandlerError("no", response=ErrorResponse(404, headers)))
    assert (outcome[0], outcome[1], len(outcome)) == (False, "handler-error", 5)
    assert outcome[2].startswith(problem)


def test_as_many_headers_as_may_be_are_sent() -> None:
    headers = {f"x-{n:02}": "" for n in range(HEADERS_MAX - 1)}
    headers["x"] = "1" * (HEADERS_MAX_BYTES - 1 - 4 * (HEADERS_MAX - 1))
    (outcome,) = outcomes_of([Response(b"", headers=headers)], lambda _: None)
    assert split_details(outcome[2])[1].headers == headers
