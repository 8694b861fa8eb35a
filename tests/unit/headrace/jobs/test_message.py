"""The message as we write it, read by kombu and Celery; inputs on the wire."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from kombu import Connection
from kombu.transport.virtual import Message as KombuMessage

from headrace.errors import InvalidRequest
from headrace.jobs.ids import new_id
from headrace.jobs.message import InputSource, arguments_repr, decode_message
from headrace.jobs.options import GivenDetails, InputDetails, JobOptions, read_details
from headrace.jobs.values.encoding import binary_input, decode_input, describe_input, loads
from headrace.redis.keys import TASK_NAME, queue_name
from tests.harness.clients.messages import write_message

SAFE = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
MODELS = st.text(SAFE, min_size=1, max_size=64)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=12,
)
JSON_TEXTS = st.one_of(
    JSON_VALUES.map(lambda value: json.dumps(value).encode()),
    JSON_VALUES.map(lambda value: json.dumps(value, ensure_ascii=False, indent=1).encode()),
    st.builds(binary_input, st.binary(max_size=200), st.text(max_size=150)),
)
OPTIONS = st.builds(
    JobOptions,
    priority=st.integers(0, 9),
    max_retries=st.none() | st.integers(0, 100),
    retry_backoff=st.none() | st.floats(0, 86_400),
    retry_backoff_max=st.none() | st.floats(0, 86_400),
)
TIMEOUTS = st.none() | st.floats(1e-3, 3e6)
EXPIRES = st.none() | st.just("2026-11-21T10:00:00.000001+00:00")


def _kombu(raw: bytes) -> KombuMessage:
    """The message as a stock consumer gets it."""
    with Connection("memory://") as connection:
        channel: Any = connection.default_channel
        return KombuMessage(json.loads(raw), channel=channel, accept={"application/json"})


@given(model=MODELS, text=JSON_TEXTS, options=OPTIONS, timeout_s=TIMEOUTS, expires_at=EXPIRES)
def test_an_envelope_is_what_kombu_and_celery_expect(
    model: str, text: bytes, options: JobOptions, timeout_s: float | None, expires_at: str | None
) -> None:
    job_id = new_id()
    raw = write_message(
        job_id, model, queue_name(model), text, options, timeout_s=timeout_s, expires_at=expires_at
    )
    message = _kombu(raw)
    args, kwargs, embed = message.decode()
    assert (args, embed) == ([], {})
    assert kwargs == {"model": model, "input": json.loads(text)}
    headers: dict[str, Any] = message.headers
    assert (headers["id"], headers["root_id"], headers["task"]) == (job_id, job_id, TASK_NAME)
    assert headers["timelimit"] == [timeout_s, None]
    assert headers["expires"] == expires_at
    assert headers["eta"] is None
    properties: dict[str, Any] = message.properties
    assert properties["correlation_id"] == job_id
    assert properties["priority"] == options.priority
    assert message.delivery_info["routing_key"] == queue_name(model)
    assert message.content_type == "application/json"


@given(model=MODELS, text=JSON_TEXTS, options=OPTIONS, timeout_s=TIMEOUTS, expires_at=EXPIRES)
def test_what_is_written_is_read_back(
    model: str, text: bytes, options: JobOptions, timeout_s: float | None, expires_at: str | None
) -> None:
    raw = write_message(
        "id-1", model, queue_name(model), text, options, timeout_s=timeout_s, expires_at=expires_at
    )
    message = decode_message(raw)
    assert (message.id, message.root_id, message.model) == ("id-1", "id-1", model)
    assert message.input == text.strip(), "not a byte of the input is written anew"
    assert message.timeout_s == timeout_s
    assert message.max_retries == options.max_retries
    assert message.retry_backoff_s == options.retry_backoff
    assert message.retry_backoff_max_s == options.retry_backoff_max
    assert (message.expires_s is None) == (expires_at is None)
    assert (message.eta_s, message.ignore_result, message.retries) == (None, False, 0)
    assert (message.parent_id, message.group) == (None, None)


def test_an_envelope_has_the_ends_by_which_the_claim_knows_it() -> None:
    raw = write_message("id-1", "m", "headrace.m", b"1")
    assert raw.startswith(b'{"headers":{"id":"id-1","task":"headrace.predict",')
    assert raw.endswith(b'","content-encoding":"utf-8","content-type":"application/json"}')


def test_a_quiet_jobs_message_says_so() -> None:
    options = JobOptions(max_retries=3)
    for source in (None, InputSource(ref="redis:" + "1f" * 16, type="", size=1)):
        raw = write_message("id-1", "m", "headrace.m", b"1", options, source=source, quiet=True)
        message = decode_message(raw)
        assert (message.quiet, message.max_retries, message.source) == (True, 3, source)
        assert raw.startswith(b'{"headers":{"id":"id-1","task":"headrace.predict",')
        assert raw.endswith(b'","content-encoding":"utf-8","content-type":"application/json"}')
        assert _kombu(raw).decode() == [[], {"model": "m", "input": 1}, {}]
    assert not decode_message(write_message("id-1", "m", "headrace.m", b"1")).quiet


def test_an_input_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        write_message("id-1", "m", "headrace.m", b'"\xff"')


@given(text=JSON_TEXTS)
def test_flower_sees_type_and_size_but_no_content(text: bytes) -> None:
    shown = arguments_repr("m", text)
    assert shown.startswith("{'model': 'm', 'input': '<")
    assert len(shown) < 220


def test_descriptions_name_type_and_size() -> None:
    assert describe_input(b'{"secret": 1}') == "<json, 13 bytes>"
    assert describe_input(binary_input(b"x" * 3000, "image/png")).startswith("<image/png, 30")
    stock = json.dumps({"__type__": "base64", "__value__": "AAAA" * 100}).encode()
    assert describe_input(stock).startswith("<bytes, ")
    assert "AAAA" not in describe_input(stock)


# Inputs


@pytest.mark.parametrize(
    ("raw", "value", "kind"),
    [
        (b"[]", [], "application/json"),
        (b' {"a": 1} ', {"a": 1}, "application/json"),
        (b"123456789012345678901234567890", 123456789012345678901234567890, "application/json"),
        (b'"\\u0000\\ud83d\\ude00"', "\0\U0001f600", "application/json"),
        (b"1e999", float("inf"), "application/json"),
        (b"[-Infinity]", [float("-inf")], "application/json"),
        (binary_input(b"\x89PNG\xff", "image/png"), b"\x89PNG\xff", "image/png"),
        (binary_input(b"", "image/png"), b"", "image/png"),
        (binary_input("é".encode(), "text/plain; charset=utf-8"), "é", "text/plain; charset=utf-8"),
        (binary_input(b"[1]", "application/json"), [1], "application/json"),
        (binary_input(b"[1]", "Application/Geo+JSON"), [1], "Application/Geo+JSON"),
        (b'{"__type__":"base64","__value__":"AP8="}', b"\x00\xff", "application/octet-stream"),
        (b'{"__type__":"bytes","__value__":"abc"}', b"abc", "application/octet-stream"),
        (
            b'{"__type__":"uuid","__value__":1}',
            {"__type__": "uuid", "__value__": 1},
            "application/json",
        ),
        (
            b'{"content_type":"a","base64":"","more":1}',
            {"content_type": "a", "base64": "", "more": 1},
            "application/json",
        ),
    ],
    ids=[
        "array", "object", "big", "text", "overflow", "infinity", "png", "empty", "text-plain",
        "json-as-bytes", "plus-json", "kombu-base64", "kombu-bytes", "kombu-other", "not-ours",
    ],
)  # fmt: skip
def test_inputs_become_the_values_that_handlers_see(raw: bytes, value: object, kind: str) -> None:
    assert decode_input(raw) == (value, kind)
    assert decode_input(msgspec.Raw(raw)) == (value, kind)


@given(body=st.binary(), kind=st.text(max_size=30).filter(lambda kind: "text/" not in kind.lower()))
def test_bytes_survive_the_wire(body: bytes, kind: str) -> None:
    if kind.partition(";")[0].strip().lower().endswith(("json",)):
        return
    assert decode_input(binary_input(body, kind)) == (body, kind)


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'"\xff"', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"1" * 5000, "not JSON"),
        (b'{"content_type":"image/png","base64":"%%"}', "base64"),
        (b'{"content_type":"image/png","base64":5}', "base64"),
        (b'{"content_type":"image/png","base64":"\xc3\xa9"}', "base64"),
        (b'{"__type__":"base64","__value__":null}', "base64"),
        (binary_input(b"\xff", "text/plain"), "text/plain but is not UTF-8"),
        (binary_input(b"{", "application/json"), "not JSON"),
    ],
    ids=[
        "empty", "cut", "bytes", "deep", "digits", "alphabet", "number", "accent", "null", "text",
        "inner",
    ],
)  # fmt: skip
def test_bad_inputs_say_what_is_wrong(raw: bytes, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        decode_input(raw)


def test_nan_is_read_as_python_writes_it() -> None:
    assert str(loads(b"[NaN, Infinity]")) == "[nan, inf]"


def test_a_stock_workers_task_gets_our_arguments() -> None:
    """What a stock worker with a task of this name calls it with."""
    with Celery(broker="memory://", set_as_current=False) as app:
        seen: list[Any] = []

        @app.task(name=TASK_NAME)
        def predict(model: str, input: Any) -> None:
            seen.append((model, input))

        raw = write_message("id-1", "m", "headrace.m", b'{"a": []}', timeout_s=60.0)
        message = _kombu(raw)
        args, kwargs, _ = message.decode()
        predict(*args, **kwargs)
    assert seen == [("m", {"a": []})]


DETAILS = InputDetails(
    parameters='{"q":"é \\"x\\" %s","k":3}'.encode(),
    headers=b'{"x-tenant":"blue"}',
    metadata='{"big":123456789012345678901,"é":[]}'.encode(),
    nested=True,
)


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize(
    "source", [None, InputSource(ref=f"redis:{'0' * 32}", type="image/png", size=3)]
)
def test_what_comes_with_an_input_is_read_as_it_was_written(
    quiet: bool, source: InputSource | None
) -> None:
    for details in (
        DETAILS,
        InputDetails(parameters=DETAILS.parameters),
        InputDetails(headers=DETAILS.headers),
        InputDetails(metadata=DETAILS.metadata),
        InputDetails(nested=True),
    ):
        for options in (JobOptions(), JobOptions(max_retries=3)):
            raw = write_message(
                "id", "m", "headrace.m", b'{"a": 1}', options, source=source, quiet=quiet,
                details=details,
            )  # fmt: skip
            message = decode_message(raw)
            assert message.details == details
            assert message.input == b'{"a": 1}'
            assert (message.source is None) == (source is None)
            assert (message.quiet, message.max_retries) == (quiet, options.max_retries)
            args, kwargs, _ = _kombu(raw).decode()
            assert args == []
            assert kwargs.keys() - {"parameters"} == {"model", "input"}
            assert ("parameters" in kwargs) == bool(details.parameters)


def test_a_message_without_any_of_it_is_as_before() -> None:
    raw = write_message("id", "m", "headrace.m", b"1")
    assert decode_message(raw).details is None
    assert b'"headrace":{}' in raw
    assert b"parameters" not in raw


def test_the_text_for_a_model_process() -> None:
    given = read_details(DETAILS.text())
    assert given.parameters == {"q": 'é "x" %s', "k": 3}
    assert (given.headers, given.nested) == ({"x-tenant": "blue"}, True)
    assert given.metadata == {"big": 123456789012345678901, "é": []}
    assert read_details(InputDetails().text()) == GivenDetails()
    with pytest.raises(InvalidRequest, match="what came with the input cannot be read"):
        read_details(InputDetails(metadata=b"[1]").text())
