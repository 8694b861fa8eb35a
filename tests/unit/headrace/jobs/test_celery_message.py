"""Messages that stock Celery clients write, in all their forms, and broken ones."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from celery import Celery, chain, chord, signature
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidRequest
from headrace.jobs.message import LAST_INSTANT_S, decode_message
from headrace.redis.keys import TASK_NAME
from tests.harness.clients.celery_client import caught
from tests.harness.clients.messages import write_message

QUEUE = "headrace.m"
KWARGS = {"model": "m", "input": {"x": [1, 2.5, "é", None]}}


class Client:
    """A stock client whose messages are caught as they would lie in Redis."""

    def __init__(self, app: Celery) -> None:
        self.app = app

    def send(self, task: str = TASK_NAME, **options: Any) -> bytes:
        """What `send_task` would push."""
        options.setdefault("kwargs", KWARGS)
        options.setdefault("task_id", "id-1")
        return caught(self.app, QUEUE, task, **options)


@pytest.fixture
def client() -> Iterator[Client]:
    with Celery(broker="memory://", set_as_current=False) as app:
        yield Client(app)


def test_a_plain_message(client: Client) -> None:
    message = decode_message(client.send())
    assert (message.id, message.root_id, message.model) == ("id-1", "id-1", "m")
    assert json.loads(message.input) == KWARGS["input"]
    assert (message.eta_s, message.expires_s, message.timeout_s) == (None, None, None)
    assert (message.ignore_result, message.retries, message.max_retries) == (False, 0, None)


def test_bodies_are_base64_and_that_is_read(client: Client) -> None:
    assert json.loads(client.send())["properties"]["body_encoding"] == "base64"


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("m", 1), {}),
        (("m",), {"input": 1}),
        ((), {"input": 1, "model": "m"}),
    ],
    ids=["both", "one", "none"],
)
def test_positional_arguments(
    client: Client, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    message = decode_message(client.send(args=args, kwargs=kwargs))
    assert (message.model, message.input) == ("m", b"1")


@pytest.mark.parametrize("method", ["zlib", "gzip", "bzip2", "lzma"])
def test_compression(client: Client, method: str) -> None:
    big = {"model": "m", "input": ["é"] * 5000}
    raw = client.send(kwargs=big, compression=method)
    assert len(raw) < 5000
    assert json.loads(decode_message(raw).input) == big["input"]


@pytest.mark.parametrize("name", ["eta", "expires"])
@pytest.mark.parametrize(
    "zone", [UTC, timezone(timedelta(hours=5, minutes=30))], ids=["utc", "ist"]
)
def test_instants(client: Client, name: str, zone: timezone) -> None:
    when = datetime(2037, 1, 2, 3, 4, 5, 678900, tzinfo=zone)
    options: dict[str, Any] = {name: when}
    message = decode_message(client.send(**options))
    assert (message.eta_s if name == "eta" else message.expires_s) == when.timestamp()


def test_seconds_from_now(client: Client) -> None:
    before = datetime.now(UTC).timestamp()
    message = decode_message(client.send(countdown=100, expires=200))
    after = datetime.now(UTC).timestamp()
    assert message.eta_s is not None
    assert message.expires_s is not None
    assert before + 100 <= message.eta_s <= after + 100
    assert before + 200 <= message.expires_s <= after + 200


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2026-11-21T10:00:00+00:00", 1795255200.0),
        ("2026-11-21T10:00:00Z", 1795255200.0),
        ("2026-11-21T10:00:00", 1795255200.0),
        (1795255200, 1795255200.0),
        (1795255200.25, 1795255200.25),
        ("9999-12-31T23:59:59-12:00", LAST_INSTANT_S),
        (1e300, LAST_INSTANT_S),
        ("0001-01-01T00:00:00+14:00", 0),
        (-1e300, 0),
    ],
    ids=["offset", "z", "naive", "integer", "float", "last", "never", "first", "ever"],
)
def test_forms_of_an_instant(client: Client, value: object, seconds: float) -> None:
    message = json.loads(client.send())
    message["headers"]["expires"] = value
    assert decode_message(json.dumps(message).encode()).expires_s == seconds


def test_limits_results_and_retries(client: Client) -> None:
    assert decode_message(client.send(time_limit=30)).timeout_s == 30
    assert decode_message(client.send(soft_time_limit=20)).timeout_s == 20
    assert decode_message(client.send(time_limit=30, soft_time_limit=20)).timeout_s == 30
    assert decode_message(client.send(ignore_result=True)).ignore_result
    assert decode_message(client.send(retries=4)).retries == 4


def test_relations_of_a_message(client: Client) -> None:
    message = decode_message(client.send(root_id="r", parent_id="p", group_id="g"))
    assert (message.root_id, message.parent_id, message.group) == ("r", "p", "g")


def test_bytes_as_kombu_writes_them(client: Client) -> None:
    message = decode_message(client.send(kwargs={"model": "m", "input": b"\xff\x00"}))
    assert json.loads(message.input) == {"__type__": "base64", "__value__": "/wA="}


def test_numbers_that_only_python_writes(client: Client) -> None:
    raw = client.send(kwargs={"model": "m", "input": [math.nan, math.inf, 2**70, "é"]})
    value = json.loads(decode_message(raw).input)
    assert math.isnan(value[0])
    assert value[1:] == [math.inf, 2**70, "é"]


def test_user_json_is_taken_over_as_it_was_written(client: Client) -> None:
    message = json.loads(client.send())
    text = (
        b'[[], {"model": "m", "input": { "a" : [] , "n": 1.0e-300,"n":123456789012345678901}}, {}]'
    )
    message["body"] = base64.b64encode(text).decode()
    read = decode_message(json.dumps(message).encode())
    assert read.input == b'{ "a" : [] , "n": 1.0e-300,"n":123456789012345678901}'


@pytest.mark.parametrize("kind", ["link", "error", "chain", "chord"])
def test_what_follows_a_task_is_seen(client: Client, kind: str) -> None:
    follow = signature("other", app=client.app)
    follows: dict[str, dict[str, Any]] = {
        "link": {"link": follow},
        "error": {"link_error": follow},
        "chain": {"chain": chain(follow, follow, app=client.app).tasks},
        "chord": {"chord": chord([follow], follow, app=client.app).body},
    }
    assert decode_message(client.send(**follows[kind])).has_callbacks
    assert not decode_message(client.send()).has_callbacks


def test_the_input_is_what_the_task_before_gave(client: Client) -> None:
    message = decode_message(client.send(args=([1, 2],), kwargs={"model": "m"}))
    assert (message.model, message.input) == ("m", b"[1, 2]")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kwargs": {}}, "requires model and input"),
        ({"kwargs": {"model": "m"}}, "requires input"),
        ({"args": ("m", 1, 2), "kwargs": {}}, "not 3 arguments"),
        ({"args": ("m",), "kwargs": {"model": "m", "input": 1}}, "given twice: input"),
        ({"args": ("m", 1), "kwargs": {"model": "m"}}, "not 3 arguments"),
        ({"kwargs": {"model": "m", "input": 1, "b": 1, "a": 2}}, "unknown: a, b"),
        ({"kwargs": {"model": 5, "input": 1}}, "model must be a string, not int"),
    ],
    ids=["nothing", "no-input", "three", "twice", "too many", "unknown", "model"],
)
def test_wrong_arguments_say_what_is_wrong(
    client: Client, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        decode_message(client.send(**options))


BROKEN: dict[str, dict[str, Any]] = {
    "body-not-base64": {"body": "%%%"},
    "body-not-json": {"body": base64.b64encode(b"[[], {").decode()},
    "body-two-parts": {"body": base64.b64encode(b"[[], {}]").decode()},
    "body-number": {"body": base64.b64encode(b"5").decode()},
    "body-nan": {"body": base64.b64encode(b"NaN").decode()},
    "body-nan-args": {"body": base64.b64encode(b'[NaN, {"model": "m"}, {}]').decode()},
    "body-nan-kwargs": {"body": base64.b64encode(b"[[NaN], [NaN], {}]").decode()},
    "body-not-utf8": {"body": base64.b64encode(b'[["\xff"], {"model": "m"}, 5]').decode()},
    "body-deep": {"body": base64.b64encode(b"[" * 100_000).decode()},
    "body-missing": {"body": None},
    "encoding": {"content-encoding": "no-such-code"},
    "no-text-encoding": {"content-encoding": "hex"},
    "compression": {"headers": {"compression": "application/x-brotli"}},
    "not-compressed": {"headers": {"compression": "application/x-gzip"}},
    "eta": {"headers": {"eta": "tomorrow"}},
    "expires": {"headers": {"expires": {"in": 5}}},
    "expires-far": {"headers": {"expires": "2026-13-41"}},
    "timelimit": {"headers": {"timelimit": "soon"}},
    "retries": {"headers": {"retries": "many"}},
    "own": {"headers": {"headrace": {"max_retries": "x"}}},
    "own-backoff": {"headers": {"headrace": {"retry_backoff": -1}}},
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_messages_are_that_jobs_own_error(client: Client, name: str) -> None:
    message = json.loads(client.send())
    changes = dict(BROKEN[name])
    message["headers"].update(changes.pop("headers", {}))
    message.update(changes)
    with pytest.raises(InvalidRequest) as refused:
        decode_message(json.dumps(message).encode())
    assert 15 < len(refused.value.message) < 400


OURS = write_message("id-1", "m", QUEUE, b'{"a": [1, "\\u00e9"]}', timeout_s=1.0)


@given(data=st.data())
def test_damage_to_a_message_is_never_worse_than_a_bad_request(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(OURS) - 1))
    length = data.draw(st.integers(0, 12))
    damaged = OURS[:at] + data.draw(st.binary(max_size=6)) + OURS[at + length :]
    try:
        message = decode_message(damaged)
    except InvalidRequest:
        return
    assert isinstance(message.model, str)
    msgspec.json.encode(message.id)


@given(value=st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4))
def test_bodies_of_any_shape_are_never_worse_than_a_bad_request(value: object) -> None:
    message = json.loads(OURS)
    for body in (value, json.dumps(value), json.dumps([value, value, value])):
        message["body"] = body
        with pytest.raises(InvalidRequest):
            decode_message(json.dumps(message).encode())
