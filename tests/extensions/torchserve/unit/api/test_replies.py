"""JSON for people, the headers of every answer, and errors as clients of TorchServe know them."""

from __future__ import annotations

import json
import uuid

import pytest

from extensions.torchserve.api.replies import (
    Kind,
    TorchServeError,
    answer_of,
    answer_of_failure,
    fixed_headers,
    new_request_id,
    reply_to,
    status_reply,
)
from extensions.torchserve.config.settings import TorchServeConfig
from headrace import errors
from headrace.errors import HeadraceError
from headrace.jobs.job import JobFailure


def test_json_is_indented_and_ends_with_a_newline() -> None:
    assert status_reply("Healthy").body == b'{\n  "status": "Healthy"\n}\n'


def test_no_answer_may_be_kept() -> None:
    assert fixed_headers(TorchServeConfig()) == (
        (b"pragma", b"no-cache"),
        (b"cache-control", b"no-cache; no-store, must-revalidate, private"),
        (b"expires", b"Thu, 01 Jan 1970 00:00:00 UTC"),
    )


def test_headers_for_pages_of_other_origins_are_sent_where_they_are_set() -> None:
    config = TorchServeConfig(cors_allowed_origin="*", cors_allowed_methods="GET, POST")
    assert fixed_headers(config)[3:] == (
        (b"access-control-allow-origin", b"*"),
        (b"access-control-allow-methods", b"GET, POST"),
    )


def test_a_request_id_is_a_uuid4() -> None:
    name, value = new_request_id()
    assert name == b"x-request-id"
    assert uuid.UUID(value.decode()).version == 4


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (errors.ModelNotFound, (404, "ModelNotFoundException")),
        (errors.PathNotFound, (404, "ResourceNotFoundException")),
        (errors.MethodNotAllowed, (405, "MethodNotAllowedException")),
        (errors.InvalidRequest, (400, "BadRequestException")),
        (errors.UnsupportedMedia, (400, "BadRequestException")),
        (errors.InvalidInput, (400, "BadRequestException")),
        (errors.Conflict, (409, "ConflictStatusException")),
        (errors.Unauthorized, (400, "InvalidKeyException")),
        (errors.QueueFull, (503, "QueueFullException")),
        (errors.RateLimited, (429, "TooManyRequestsException")),
        (errors.BrokerUnavailable, (503, "ServiceUnavailableException")),
        (errors.StoreFull, (503, "ServiceUnavailableException")),
        (errors.InternalError, (500, "InternalServerException")),
    ],
)
def test_each_error_has_a_code_and_a_type(
    error: type[HeadraceError], answer: tuple[int, str]
) -> None:
    assert answer_of(error).value == answer


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("handler-error", (503, "InternalServerException")),
        ("transient-error", (503, "InternalServerException")),
        ("out-of-memory", (507, "InternalServerException")),
        ("timeout", (500, "InternalServerException")),
        ("replica-lost", (500, "InternalServerException")),
        ("expired", (408, "RequestTimeoutException")),
        ("of-a-newer-version", (500, "InternalServerException")),
    ],
)
def test_each_failure_of_a_job_has_a_code_and_a_type(code: str, answer: tuple[int, str]) -> None:
    assert answer_of_failure(JobFailure(code)).value == answer


def test_a_model_process_that_was_killed_was_out_of_memory() -> None:
    """As TorchServe takes it."""
    failure = JobFailure("replica-lost", "the model process died; the last time by SIGKILL")
    assert answer_of_failure(failure).value == (507, "InternalServerException")


def test_every_error_has_an_answer() -> None:
    for error in errors.BY_CODE.values():
        status, type_ = answer_of(error).value
        assert 400 <= status < 600
        assert type_.endswith("Exception")


def test_an_error_is_indented_json_with_a_newline_at_its_end() -> None:
    reply = reply_to(TorchServeError(Kind.MODEL_NOT_FOUND, "no model x"))
    assert reply.status == 404
    assert reply.content_type == b"application/json"
    assert reply.body == (
        b'{\n  "code": 404,\n  "type": "ModelNotFoundException",\n  "message": "no model x"\n}\n'
    )


def test_a_full_queue_says_when_to_try_again() -> None:
    reply = reply_to(errors.QueueFull("the queue is full", hint="Try later.", retry_after_s=3))
    assert json.loads(reply.body)["message"] == "the queue is full. Try later."
    assert reply.headers == ((b"retry-after", b"3"),)


def test_a_body_over_the_limit_has_an_answer_without_a_body() -> None:
    reply = reply_to(errors.PayloadTooLarge("the body has 9 bytes"))
    assert (reply.status, reply.body, reply.content_type) == (413, b"", b"")
