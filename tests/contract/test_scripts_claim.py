"""claim.lua: what is taken, in which order and how much, and what becomes of everything else."""

from __future__ import annotations

import base64
import json
import pickle
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from redis.exceptions import ResponseError

from headrace import keys
from headrace.jobs import new_id
from tests.harness.calls import Claimed, Job, Queue

pytestmark = pytest.mark.leaves_keys


def foreign(**changes: Any) -> bytes:
    """A message as another Celery client writes it; `headers` are merged, None removes a key."""
    headers = {"id": new_id(), "task": keys.TASK_NAME, "lang": "py", **changes.pop("headers", {})}
    message = {
        "body": base64.b64encode(b'[[], {"model": "m", "input": 1}, {}]').decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {name: value for name, value in headers.items() if value is not None},
        "properties": {"body_encoding": "base64"},
        **changes,
    }
    return json.dumps({key: value for key, value in message.items() if value is not None}).encode()


def test_first_in_is_first_out(queue: Queue) -> None:
    ids = [queue.submit_one() for _ in range(10)]
    assert queue.claim(4).ids == ids[:4]
    assert queue.claim(4).ids == ids[4:8]
    claimed = queue.claim(4)
    assert claimed.ids == ids[8:]
    assert claimed.left == 0


def test_better_priorities_go_first_and_share_a_batch(queue: Queue) -> None:
    ids = {step: [queue.submit_one(step=step) for _ in range(3)] for step in (9, 3, 0, 6)}
    in_order = ids[0] + ids[3] + ids[6] + ids[9]
    first = queue.claim(7)
    assert first.ids == in_order[:7]
    assert first.left == 5
    assert queue.claim(7).ids == in_order[7:]


def test_an_empty_queue_gives_nothing_and_writes_nothing(queue: Queue) -> None:
    claimed = queue.claim()
    assert (claimed.left, claimed.refused, claimed.jobs) == (0, 0, [])
    assert queue.client.dbsize() == 0


def test_a_claim_leases_and_says_what_a_worker_needs(queue: Queue) -> None:
    job = Job(ttl_s=77)
    ((_, created, _),) = queue.submit(job)
    leased = queue.claim_one(owner="worker-1")
    assert leased.raw == queue.message(job)
    assert (leased.id, leased.created, leased.attempts) == (job.id, str(created), 1)
    assert (leased.alone, leased.ttl) == (False, "77")
    assert queue.held() == {job.id: leased.raw}
    record = queue.record(job.id)
    assert (record["s"], record["t"], record["o"]) == ("r", leased.token, "worker-1")
    assert int(record["st"]) >= created


def test_a_stock_clients_message_gets_a_record_and_no_time(queue: Queue) -> None:
    raw = foreign()
    queue.push(raw, step=3)
    leased = queue.claim_one()
    assert leased.raw == raw
    assert (leased.created, leased.ttl, leased.attempts) == ("", "", 1)
    record = queue.record(leased.id)
    assert (record["m"], record["v"], record["p"], record["s"]) == ("m", "1.0", "3", "r")


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        "123456789012345678901234567890",
        "1.0000000000000000001e-300",
        '"\\u0000 \\ud83d\\ude00 é \\/ 中"',
        '{"a":[],"b":{},"c":[[]],"":null}',
        " [ 1 , 2 ]\n",
    ],
)
def test_no_input_is_encoded_again(queue: Queue, text: str) -> None:
    job = Job(input_json=text.encode())
    queue.submit(job)
    for _ in range(2):
        leased = queue.claim_one()
        assert leased.raw == queue.message(job)
        assert f'"input":{text}}}' in json.loads(leased.raw)["body"]
        queue.release(leased)


def test_a_claim_is_bounded_by_bytes(queue: Queue) -> None:
    big = b'"' + b"x" * 400_000 + b'"'
    ids = [queue.submit_one(input_json=big) for _ in range(5)]
    assert queue.claim(100).ids == ids[:2]
    assert queue.claim(100, max_bytes=100).ids == ids[2:3], "a message larger than all goes alone"
    assert queue.claim(100, max_bytes=900_000).ids == ids[3:]


def test_a_claim_stops_at_a_message_that_does_not_fit(queue: Queue) -> None:
    small, big = queue.submit_one(), queue.submit_one(input_json=b'"' + b"x" * 5000 + b'"')
    later = queue.submit_one(step=9)
    first = queue.claim(100, max_bytes=4000)
    assert (first.ids, first.left) == ([small], 2)
    assert queue.claim(100).ids == [big, later]


def test_what_is_dropped_in_one_claim_is_bounded_too(queue: Queue) -> None:
    ids = [queue.submit_one() for _ in range(700)]
    queue.cancel(*ids)
    assert queue.depth().waiting == 0
    first = queue.claim(1)
    assert 0 < first.left < 700
    assert queue.claim(1).left < first.left
    queue.submit_one()
    while not (claimed := queue.claim(1)).jobs:
        assert claimed.left
    assert queue.depth().waiting == 0


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
    (letter,) = queue.letters().values()
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
    assert list(queue.letters()) == [job_id]
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
    assert len(queue.letters()) == 3


def test_letters_of_one_id_do_not_overwrite_each_other(queue: Queue) -> None:
    job_id = new_id()
    raws = [foreign(headers={"id": job_id, "task": f"app.task{n}"}) for n in range(3)]
    queue.push(*raws[:2])
    assert queue.claim().refused == 2
    queue.client.delete(keys.job(job_id), keys.meta(job_id))
    queue.push(raws[2])
    assert queue.claim().refused == 1
    assert sorted(letter["raw"] for letter in queue.letters().values()) == sorted(raws)


def test_repeats_are_dropped(queue: Queue) -> None:
    raw = foreign()
    queue.push(raw, raw)
    leased = queue.claim_one()
    queue.push(raw)
    assert queue.claim().jobs == [], "leased already"
    queue.settle(leased)
    queue.push(raw)
    claimed = queue.claim()
    assert (claimed.jobs, claimed.refused, claimed.left) == ([], 0, 0), "ended already"
    assert queue.letters() == {}


def test_a_repeat_of_a_delayed_message_is_dropped(queue: Queue) -> None:
    job = Job(delay_us=3_600_000_000)
    queue.submit(job)
    queue.push(queue.message(job))
    assert queue.claim().jobs == []
    assert list(queue.parked()) == [job.id]


def test_an_id_that_is_another_models_job_is_refused(queue: Queue) -> None:
    other = Queue(queue.client, "other")
    job_id = other.submit_one()
    queue.push(foreign(headers={"id": job_id}))
    claimed = queue.claim()
    assert (claimed.jobs, claimed.refused) == ([], 1)
    (letter,) = queue.letters().values()
    assert letter["reason"] == b"id-in-another-queue"
    leased = other.claim_one()
    queue.push(foreign(headers={"id": job_id}))
    assert queue.claim().jobs == [], "nor while that is leased"
    assert other.settle(leased) == [1]


def test_our_own_messages_are_known_without_parsing_and_forgeries_fail_later(queue: Queue) -> None:
    job = Job()
    raw = queue.message(job)
    head, _, tail = raw.partition(b'"properties"')
    forged = head + b"}{" + tail
    queue.push(forged)
    assert queue.claim().ids == [job.id], "the head or tail of envelope() and of claim.lua differ"
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
    letters = [letter["raw"] for letter in queue.letters().values()]
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
    (letter,) = queue.letters().values()
    assert letter["reason"] == b"record-of-another-type"
