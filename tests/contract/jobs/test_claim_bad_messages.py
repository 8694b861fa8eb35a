"""jobs/claim.lua: what is no job of ours goes into the dead letters whole, and nothing is lost."""

from __future__ import annotations

import base64
import json
import pickle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from headrace.jobs.ids import new_id
from headrace.redis import keys
from tests.harness.clients.messages import write_message
from tests.harness.clients.script_calls import Claimed, Job, Queue, foreign

pytestmark = pytest.mark.leaves_keys

PICKLED = base64.b64encode(pickle.dumps(([], {"model": "m", "input": 1}, {}))).decode()
REFUSALS = {
    "pickle": ("not-json", b"\x80\x04\x95 not json"),
    "truncated": ("not-json", foreign()[:-1]),
    "deep": ("not-json", b"[" * 5000 + b"]" * 5000),
    "number": ("not-json", b"3"),
    "empty": ("not-json", b""),
    "object": ("no-headers", b"{}"),
    "array": ("no-headers", b"[1,2]"),
    "headers-number": ("no-headers", b'{"headers":3,"body":"x"}'),
    "id-none": ("no-id", foreign(headers={"id": None})),
    "id-number": ("no-id", foreign(headers={"id": 17})),
    "id-empty": ("no-id", foreign(headers={"id": ""})),
    "id-long": ("no-id", foreign(headers={"id": "x" * 129})),
    "id-long-in-our-form": ("no-id", write_message("x" * 129, "m", "headrace.m", b"1")),
    "id-quote": ("no-id", foreign(headers={"id": 'a"b'})),
    "id-nul": ("no-id", foreign(headers={"id": "a\x00b"})),
    "id-accent": ("no-id", foreign(headers={"id": "é"})),
    "id-list": ("no-id", foreign(headers={"id": ["x"]})),
    "body-none": ("no-body", foreign(body=None)),
    "body-object": ("no-body", foreign(body={"a": 1})),
    "pickled-body": (
        "content-type",
        foreign(body=PICKLED, **{"content-type": "application/x-python-serialize"}),
    ),
    "no-content-type": ("content-type", foreign(**{"content-type": None})),
    "other-task": ("not-our-task", foreign(headers={"task": "app.other"})),
    "no-task": ("not-our-task", foreign(headers={"task": None})),
    "odd-task": ("not-our-task", foreign(headers={"task": {"a": []}})),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_no_job_of_ours_lies_in_the_dead_letters_whole(queue: Queue, name: str) -> None:
    reason, raw = REFUSALS[name]
    before, after = queue.submit_one(), new_id()
    queue.push(raw)
    queue.submit(Job(id=after))
    claimed = queue.claim()
    assert claimed.ids == [before, after], "its neighbours are served"
    assert (claimed.refused, claimed.left) == (1, 0)
    (letter,) = queue.dead_letters().values()
    assert letter["raw"] == raw
    assert letter["reason"].decode() == reason
    assert len(letter["error"]) > 10
    assert queue.listed() == []


def test_a_refused_message_with_an_id_ends_as_failed_for_its_client(queue: Queue) -> None:
    job_id = new_id()
    queue.push(foreign(headers={"id": job_id, "task": "app.other"}))
    assert queue.claim().refused == 1
    record = queue.record(job_id)
    assert (record["s"], record["dl"], record["m"]) == ("f", "1", "m")
    assert json.loads(record["e"])["type"] == "invalid-request"
    assert "headrace.predict" in json.loads(record["e"])["message"]
    assert list(queue.dead_letters()) == [job_id]
    assert queue.client.ttl(keys.job(job_id)) > 0


def test_a_refused_message_never_touches_the_job_whose_id_it_bears(queue: Queue) -> None:
    leased_id, queued_id = queue.submit_one(), new_id()
    first = queue.claim_one()
    queue.push(foreign(headers={"id": queued_id, "task": "app.other"}))
    queue.submit(Job(id=queued_id))
    queue.push(
        foreign(headers={"id": queued_id, "task": "app.other"}),
        foreign(headers={"id": leased_id, "task": "app.other"}),
    )
    claimed = queue.claim()
    assert (claimed.ids, claimed.refused) == ([queued_id], 3)
    assert [queue.record(job_id)["s"] for job_id in (leased_id, queued_id)] == ["r", "r"]
    assert queue.settle(first, *claimed.jobs) == [1, 1]
    assert len(queue.dead_letters()) == 3


def test_a_refused_message_never_touches_the_job_that_is_claimed_with_it(queue: Queue) -> None:
    job_id = new_id()
    good, bad = foreign(headers={"id": job_id}), foreign(headers={"id": job_id, "task": "other"})
    queue.push(bad, good, bad)
    claimed = queue.claim()
    assert (claimed.ids, claimed.refused) == ([job_id], 2)
    assert queue.record(job_id)["s"] == "r"
    assert queue.client.ttl(keys.job(job_id)) == -1
    assert queue.settle(*claimed.jobs) == [1]


def test_an_id_that_is_refused_twice_ends_once(queue: Queue) -> None:
    job_id = new_id()
    queue.push(foreign(headers={"id": job_id}, body=None), foreign(headers={"id": job_id}, body=3))
    queue.push(foreign(headers={"id": job_id, "task": "other"}))
    assert queue.claim().refused == 3
    assert json.loads(queue.record(job_id)["e"])["message"] == "the message has no body"


def test_dead_letters_of_one_id_do_not_overwrite_each_other(queue: Queue) -> None:
    job_id = new_id()
    raws = [foreign(headers={"id": job_id, "task": f"app.task{n}"}) for n in range(3)]
    queue.push(*raws[:2])
    assert queue.claim().refused == 2
    queue.client.delete(keys.job(job_id), keys.meta(job_id))
    queue.push(raws[2])
    assert queue.claim().refused == 1
    assert sorted(letter["raw"] for letter in queue.dead_letters().values()) == sorted(raws)


def test_our_own_messages_are_known_without_parsing_and_forgeries_fail_later(queue: Queue) -> None:
    job = Job()
    raw = queue.message(job)
    head, _, tail = raw.partition(b'"properties"')
    forged = head + b"}{" + tail
    queue.push(forged)
    assert queue.claim().ids == [job.id], (
        "the head or tail of envelope() and of jobs/claim.lua differ"
    )
    queue.push(raw[:-30])
    claimed = queue.claim()
    assert (claimed.jobs, claimed.refused) == ([], 1), "what is cut off is not taken for ours"


ODD_IDS = st.one_of(
    st.none(), st.integers(), st.floats(), st.text(max_size=5), st.just("x" * 129),
    st.sampled_from(["a", "b", "c"]), st.lists(st.integers(), max_size=2),
)  # fmt: skip
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
WHOLE = st.builds(
    lambda job_id, task, kind, body, more: json.dumps(
        {"headers": {**more, "id": job_id, "task": task}, "content-type": kind, "body": body}
    ).encode(),
    ODD_IDS,
    st.sampled_from([keys.TASK_NAME, keys.TASK_NAME, "other", None]),
    st.sampled_from(["application/json", "application/json", "application/x-python-serialize", 1]),
    st.one_of(st.text(max_size=9), st.text(max_size=9), JSON_VALUES),
    st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=2),
)
HOSTILE = st.one_of(
    st.binary(max_size=60),
    WHOLE,
    WHOLE,
    WHOLE.flatmap(lambda raw: st.integers(0, len(raw)).map(lambda cut: raw[:cut])),
    JSON_VALUES.map(lambda value: json.dumps(value).encode()),
    st.integers(900, 1100).map(lambda depth: b"[" * depth + b"]" * depth),
    st.sampled_from(
        [b"1e999", b'{"headers":{"id":1e999}}', b'{"headers":{"id":"a"},"headers":[]}', b"-0x1p9"]
    ),
)


def _account(queue: Queue, pushed: list[bytes], claims: list[Claimed]) -> None:
    """Each message that went in is leased, buried with its bytes, or a repeat of one that is."""
    leased = {job.id: job.raw for claimed in claims for job in claimed.jobs}
    assert sum(len(claimed.jobs) for claimed in claims) == len(leased), "leased twice"
    assert queue.held() == leased
    letters = [letter["raw"] for letter in queue.dead_letters().values()]
    assert len(letters) == sum(claimed.refused for claimed in claims)
    assert queue.listed() == []
    rest = list(pushed)
    for raw in [*leased.values(), *letters]:
        rest.remove(raw)
    for raw in rest:
        assert json.loads(raw)["headers"]["id"] in leased


@settings(
    max_examples=150,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(raws=st.lists(HOSTILE, min_size=1, max_size=12), count=st.integers(1, 12))
def test_count_in_is_count_out(queue: Queue, raws: list[bytes], count: int) -> None:
    queue.client.flushall()
    for n, raw in enumerate(raws):
        queue.push(raw, step=keys.STEPS[n % 4])
    claims = [queue.claim(count)]
    while claims[-1].left:
        assert len(claims) <= len(raws), "a claim made no headway"
        claims.append(queue.claim(count))
    _account(queue, raws, claims)


@pytest.mark.parametrize("place", range(11))
def test_a_key_of_the_wrong_type_errs_before_anything_is_written(queue: Queue, place: int) -> None:
    ids = [queue.submit_one(step=step) for step in keys.STEPS]
    wrong = queue.keys[place]
    listed = queue.listed()
    kept = queue.client.dump(wrong)
    queue.client.set(wrong, "another application's")
    before = {name: queue.client.dump(name) for name in queue.client.keys("*")}
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        queue.claim()
    assert {name: queue.client.dump(name) for name in queue.client.keys("*")} == before
    queue.client.delete(wrong)
    if kept is not None:
        queue.client.restore(wrong, 0, kept)
    assert queue.listed() == listed
    assert queue.claim().ids == ids


@pytest.mark.parametrize("value", ["list", "text"])
def test_a_token_that_is_no_number_errs_before_anything_is_written(
    queue: Queue, value: str
) -> None:
    job_id = queue.submit_one()
    if value == "list":
        queue.client.lpush(keys.TOKEN, "x")
    else:
        queue.client.set(keys.TOKEN, "x")
    with pytest.raises(ResponseError):
        queue.claim()
    assert (len(queue.listed()), queue.held()) == (1, {})
    queue.client.delete(keys.TOKEN)
    assert queue.claim().ids == [job_id]


def test_a_record_of_the_wrong_type_buries_its_message_alone(queue: Queue) -> None:
    odd, good = queue.submit_one(), queue.submit_one()
    queue.client.delete(keys.job(odd))
    queue.client.lpush(keys.job(odd), "x")
    assert queue.claim().ids == [good]
    (letter,) = queue.dead_letters().values()
    assert letter["reason"] == b"record-of-another-type"
