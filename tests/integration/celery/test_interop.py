"""A stock Celery client against a real worker: one test per row of the table in docs/celery.md."""

from __future__ import annotations

import base64
import json
import pickle
import re
import threading
from datetime import UTC, date, datetime, timedelta
from datetime import time as dtime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from celery import Celery, Signature, chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError
from celery.exceptions import TimeoutError as CeleryTimeoutError

from headrace import errors
from headrace.jobs.ids import new_id
from headrace.jobs.job import State
from headrace.redis import keys
from tests.harness.clients.celery_client import GET_TIMEOUT_S, raw_message, send, state_of
from tests.harness.deployments.deployment import Deployment
from tests.harness.wait import wait_until
from tests.harness.workers.worker import ROOT

QUEUE = keys.queue_name("tricky")


def signature(app: Celery, value: Any, model: str = "tricky") -> Signature[Any]:
    kwargs = {"model": model, "input": value}
    return app.signature("headrace.predict", kwargs=kwargs, queue=keys.queue_name(model))


def following(app: Celery, model: str = "tricky") -> Signature[Any]:
    """A job that takes what comes before it."""
    queue = keys.queue_name(model)
    return app.signature("headrace.predict", kwargs={"model": model}, queue=queue)


def wait_for_children(result: Any) -> list[Any]:
    """What was sent after the task, once it has ended."""
    result.get(timeout=GET_TIMEOUT_S)
    children: list[Any] = result.children
    return children


# The rows of the table, in its order.


def test_keyword_arguments(app: Celery) -> None:
    value = {"x": [1, 2.5, "é", None, True], "big": 123456789012345678, "empty": []}
    result = send(app, "tricky", value)
    assert result.get(timeout=GET_TIMEOUT_S) == value
    assert state_of(result) == "SUCCESS"


def test_positional_arguments(app: Celery) -> None:
    sent = send(app, "tricky", args=["tricky", {"x": 1}], kwargs={})
    assert sent.get(timeout=GET_TIMEOUT_S) == {"x": 1}


def test_parameters(app: Celery) -> None:
    # tests/integration/jobs/submit/test_parameters.py has those that a model declares.
    kwargs: dict[str, Any] = {"model": "tricky", "input": 1, "parameters": None}
    assert send(app, "tricky", kwargs=kwargs).get(timeout=GET_TIMEOUT_S) == 1
    kwargs["parameters"] = {"top_k": 5}
    with pytest.raises(errors.InvalidRequest, match="unknown parameter 'top_k'"):
        send(app, "tricky", kwargs=kwargs).get(timeout=GET_TIMEOUT_S)


@pytest.mark.parametrize("body", [b"\x89PNG\x00", b"ascii", b""])
def test_bytes(app: Celery, body: bytes) -> None:
    assert send(app, "tricky", body).get(timeout=GET_TIMEOUT_S) == body


def test_celerys_types(app: Celery) -> None:
    values = [
        datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), date(2026, 1, 2), dtime(3, 4), UUID(int=7),
        Decimal("0.10"), b"\xff", b"text", {"deep": [datetime(2026, 1, 2, tzinfo=UTC)]},
    ]  # fmt: skip
    sent = send(app, "tricky", {"do": "ascii", "value": values})
    assert sent.get(timeout=GET_TIMEOUT_S) == ascii(values)
    assert send(app, "echo", Decimal("0.10")).get(timeout=GET_TIMEOUT_S) == "0.10"
    unknown = {"do": "ascii", "value": {"__type__": "set", "__value__": [1]}}
    with pytest.raises(errors.InputError, match="type 'set', which Celery's JSON does not have"):
        send(app, "tricky", unknown).get(timeout=GET_TIMEOUT_S)


def test_bytes_with_a_content_type(app: Celery) -> None:
    text = {"content_type": "text/plain", "base64": base64.b64encode("é".encode()).decode()}
    assert send(app, "tricky", text).get(timeout=GET_TIMEOUT_S) == "é"


def test_nan(app: Celery) -> None:
    assert send(app, "tricky", [float("nan"), float("inf"), 1.5]).get(timeout=GET_TIMEOUT_S) == [
        None,
        None,
        1.5,
    ]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"model": "tricky"},
        {"input": 1},
        {"model": "tricky", "input": 1, "top_k": 5},
        {"model": 7, "input": 1},
    ],
    ids=["no input", "no model", "one too many", "model no string"],
)
def test_wrong_arguments(app: Celery, kwargs: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidRequest, match=r"headrace\.predict|model"):
        send(app, "tricky", kwargs=kwargs).get(timeout=GET_TIMEOUT_S)


def test_a_model_that_does_not_fit_the_queue(app: Celery) -> None:
    with pytest.raises(errors.InvalidRequest, match=r"the queue headrace\.tricky serves"):
        send(app, "echo", 1, queue=QUEUE).get(timeout=GET_TIMEOUT_S)


def test_a_custom_id(app: Celery, site: Deployment) -> None:
    result = send(app, "tricky", 1, task_id="order-7:photo_2@eu/1")
    assert result.id == "order-7:photo_2@eu/1"
    assert result.get(timeout=GET_TIMEOUT_S) == 1
    assert site.ours.job(result.id).state is State.SUCCEEDED


@pytest.mark.parametrize("job_id", ["ü", 'a"b', "x" * 129], ids=["letter", "quote", "length"])
def test_an_id_that_cannot_be_used(app: Celery, site: Deployment, job_id: str) -> None:
    before = len(site.letters())
    result = send(app, "tricky", 1, task_id=job_id)
    with pytest.raises(errors.InvalidRequest, match="the message has no id that can be used"):
        result.get(timeout=GET_TIMEOUT_S)
    assert len(site.letters()) > before


HALF: Final = "half an emoji: \ud83d"


@pytest.mark.parametrize(
    "options",
    [{"headers": {"note": HALF}}, {"shadow": HALF}, {"headers": {"score": float("nan")}}],
    ids=["header", "name", "nan"],
)
def test_text_in_a_header_that_only_python_reads(app: Celery, options: dict[str, Any]) -> None:
    assert send(app, "tricky", "✓ 😀", **options).get(timeout=GET_TIMEOUT_S) == "✓ 😀"


def test_half_a_character(app: Celery) -> None:
    asked = {"do": "ascii", "value": HALF}
    assert send(app, "tricky", asked).get(timeout=GET_TIMEOUT_S) == ascii(HALF)
    members = [signature(app, value) for value in ("one", HALF)]
    body = app.AsyncResult(chord(members, following(app), app=app)().id)
    with pytest.raises(ChordError, match="surrogates"):
        body.get(timeout=GET_TIMEOUT_S)


def test_protocol_1(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    amqp: Any = app.amqp
    # As with `task_protocol = 1` from the start.
    monkeypatch.setitem(vars(amqp), "create_task_message", amqp.as_task_v1)
    with pytest.raises(errors.InvalidRequest, match="set task_protocol to 2"):
        send(app, "tricky", 1).get(timeout=GET_TIMEOUT_S)
    together = chord([signature(app, n) for n in (1, 2)], following(app), app=app)()
    with pytest.raises(ChordError, match="set task_protocol to 2"):
        app.AsyncResult(together.id).get(timeout=GET_TIMEOUT_S)


def test_the_same_id_twice(app: Celery, site: Deployment) -> None:
    first = send(app, "tricky", "first", task_id="twice")
    assert first.get(timeout=GET_TIMEOUT_S) == "first"
    assert send(app, "tricky", "second", task_id="twice").get(timeout=GET_TIMEOUT_S) == "first"
    wait_until(lambda: site.ours.redis.llen(QUEUE) == 0, "the second message is taken")
    assert site.runs().count("twice") == 1


def test_priority(app: Celery, site: Deployment) -> None:
    with site.busy():
        sent = {step: send(app, "one", step, priority=step) for step in (9, 4, 1, 6, 0)}
        lists = [site.ours.redis.llen(key) for key in keys.step_keys("headrace.one")]
        assert lists == [2, 1, 1, 1]
    for result in sent.values():
        result.get(timeout=GET_TIMEOUT_S)
    order = [job_id for job_id in site.runs() if job_id in {r.id for r in sent.values()}]
    # 1 and 0 share a step, in the order in which they were sent.
    assert order == [sent[priority].id for priority in (1, 0, 4, 6, 9)]


def test_countdown_and_eta(app: Celery, site: Deployment) -> None:
    parked = keys.delayed(QUEUE)
    for delay_s in (3, 30):
        at = datetime.now(UTC) + timedelta(seconds=delay_s)
        later = [send(app, "tricky", 1, countdown=delay_s), send(app, "tricky", 1, eta=at)]
        wait_until(
            lambda at=at: site.ours.redis.zcard(parked) == 2 or datetime.now(UTC) >= at,  # type: ignore[misc]
            "both wait in Redis, in no worker",
        )
        states = [state_of(result) for result in later]
        if datetime.now(UTC) < at:
            break
        # Else the machine stood still for as long.
    assert states == ["PENDING", "PENDING"]
    for result in later:
        assert result.get(timeout=GET_TIMEOUT_S) == 1
        started = site.ours.job(result.id).started_us / 1e6
        assert started >= at.timestamp() - 0.01


@pytest.mark.parametrize("form", ["seconds", "datetime", "number"])
def test_expires(app: Celery, site: Deployment, form: str) -> None:
    at = datetime.now(UTC) + timedelta(seconds=0.2)
    if form == "number":
        job_id = new_id()
        eta = (at + timedelta(seconds=0.4)).isoformat()
        message = raw_message(
            job_id,
            json.dumps([["tricky", 1], {}, None]),
            headers={"eta": eta, "expires": at.timestamp()},
        )
        site.ours.redis.lpush(QUEUE, message)
        result = app.AsyncResult(job_id)
    else:
        expires: Any = 0.2 if form == "seconds" else at
        result = send(app, "tricky", 1, countdown=0.6, expires=expires)
    with pytest.raises(errors.JobExpired, match="not started before its `expires`"):
        result.get(timeout=GET_TIMEOUT_S)
    assert state_of(result) == "FAILURE"
    assert result.id not in site.runs()


@pytest.mark.parametrize("option", ["time_limit", "soft_time_limit"])
def test_time_limits(app: Celery, option: str) -> None:
    limit: dict[str, Any] = {option: 0.5}
    result = send(app, "tricky", {"do": "sleep", "s": 60}, **limit)
    with pytest.raises(errors.JobTimeout, match=r"timeout of 0\.5 s"):
        result.get(timeout=GET_TIMEOUT_S)


def test_ignore_result(app: Celery, site: Deployment) -> None:
    result = send(app, "tricky", 1, ignore_result=True)
    assert result.get(timeout=GET_TIMEOUT_S) is None
    (job,) = site.ours.wait(result.id)
    assert job.state is State.SUCCEEDED
    assert not site.ours.redis.exists(keys.meta(result.id))


def test_retries(app: Celery, site: Deployment) -> None:
    result = send(app, "one", {"do": "transient"}, retries=7)
    with pytest.raises(errors.TransientError):
        result.get(timeout=GET_TIMEOUT_S)
    assert site.ours.job(result.id).attempts == 2


@pytest.mark.parametrize("coding", ["base64", "utf-8"])
def test_body_encoding(app: Celery, site: Deployment, coding: str) -> None:
    job_id, body = new_id(), json.dumps([[], {"model": "tricky", "input": "é"}, {}])
    if coding == "base64":
        body = base64.b64encode(body.encode()).decode()
    site.ours.redis.lpush(QUEUE, raw_message(job_id, body, body_encoding=coding))
    assert app.AsyncResult(job_id).get(timeout=GET_TIMEOUT_S) == "é"


@pytest.mark.parametrize("method", ["zlib", "gzip", "bzip2", "lzma"])
def test_compression(app: Celery, method: str) -> None:
    big = ["é" * 100] * 50
    assert send(app, "tricky", big, compression=method).get(timeout=GET_TIMEOUT_S) == big


def test_an_unknown_compression(app: Celery, site: Deployment) -> None:
    job_id = new_id()
    body = json.dumps([["tricky", 1], {}, None])
    message = raw_message(job_id, body, headers={"compression": "application/x-brotli"})
    site.ours.redis.lpush(QUEUE, message)
    with pytest.raises(errors.InvalidRequest, match="application/x-brotli"):
        app.AsyncResult(job_id).get(timeout=GET_TIMEOUT_S)


def test_pickle(app: Celery, site: Deployment) -> None:
    touched = site.folder / "unpickled"

    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (touched,))

    job_id = new_id()
    body = base64.b64encode(pickle.dumps([["tricky", Bomb()], {}, None])).decode()
    message = raw_message(job_id, body, content_type="application/x-python-serialize")
    site.ours.redis.lpush(QUEUE, message)
    with pytest.raises(errors.InvalidRequest, match="send with the serializer json"):
        app.AsyncResult(job_id).get(timeout=GET_TIMEOUT_S)
    assert job_id in site.letters()
    assert not touched.exists()


def test_a_pickled_message_under_a_json_label(app: Celery, site: Deployment) -> None:
    job_id = new_id()
    body = base64.b64encode(pickle.dumps([["tricky", 1], {}, None])).decode()
    site.ours.redis.lpush(QUEUE, raw_message(job_id, body, body_encoding="base64"))
    with pytest.raises(errors.InvalidRequest, match="cannot be read"):
        app.AsyncResult(job_id).get(timeout=GET_TIMEOUT_S)


def test_group(app: Celery) -> None:
    together = group([signature(app, n) for n in range(5)], app=app).apply_async()
    assert together.get(timeout=GET_TIMEOUT_S) == [0, 1, 2, 3, 4]


def test_chain(app: Celery) -> None:
    steps = chain(signature(app, {"x": 1}), following(app, "echo"), following(app), app=app)
    assert steps().get(timeout=GET_TIMEOUT_S) == {"x": 1}


def test_chord(app: Celery) -> None:
    header = [signature(app, n, model) for n, model in enumerate(("tricky", "echo", "one"))]
    assert chord(header, following(app), app=app)().get(timeout=GET_TIMEOUT_S) == [0, 1, 2]


def test_link(app: Celery) -> None:
    linked = signature(app, 1)
    linked.link(following(app, "echo"))
    (called,) = wait_for_children(linked.apply_async())
    assert called.get(timeout=GET_TIMEOUT_S) == 1


def test_link_error(app: Celery) -> None:
    linked = signature(app, {"do": "raise"})
    linked.link_error(following(app, "echo").set(task_id="told-of-the-error"))
    failed = linked.apply_async()
    with pytest.raises(errors.HandlerError):
        failed.get(timeout=GET_TIMEOUT_S)
    assert app.AsyncResult("told-of-the-error").get(timeout=GET_TIMEOUT_S) == failed.id


def test_what_follows_and_cannot_be_sent(app: Celery) -> None:
    linked = signature(app, 1)
    unsendable: Any = following(app)
    linked.link(unsendable.set(expires="no time at all"))
    with pytest.raises(errors.InvalidRequest, match="callbacks cannot be sent"):
        linked.apply_async().get(timeout=GET_TIMEOUT_S)
    odd = send(app, "tricky", 1, link=[{"task": "stock.same", "options": 7}])
    with pytest.raises(errors.InvalidRequest, match="signatures of the job"):
        odd.get(timeout=GET_TIMEOUT_S)


def test_another_task(app: Celery, site: Deployment) -> None:
    result = app.send_task("shop.charge", args=[1], queue=QUEUE)
    with pytest.raises(errors.InvalidRequest, match=r"only the task headrace\.predict"):
        result.get(timeout=GET_TIMEOUT_S)
    assert result.id in site.letters()


@pytest.mark.parametrize(
    "raw", [b"not json", b'{"task": "headrace.predict", "id": "p1", "args": []}']
)
def test_a_message_that_is_no_protocol_2(site: Deployment, raw: bytes) -> None:
    before = len(site.letters())
    site.ours.redis.lpush(QUEUE, raw)
    wait_until(lambda: len(site.letters()) > before, "the message lies in the dead letters")
    held = [site.ours.redis.hget(keys.dead_letter(QUEUE, name), "raw") for name in site.letters()]
    assert raw in held


def test_parent_and_root(app: Celery, site: Deployment) -> None:
    result = send(app, "tricky", 1, root_id="the-root", parent_id="the-parent")
    assert result.get(timeout=GET_TIMEOUT_S) == 1
    meta = json.loads(site.ours.redis.get(keys.meta(result.id)))
    assert meta["parent_id"] == "the-parent"
    assert meta["children"] == []


def test_other_headers_pass_by(app: Celery) -> None:
    result = send(
        app, "tricky", 1, shadow="other.name", argsrepr="x", headers={"trace": "1"},
        reply_to="somebody", user_id="guest", delivery_mode=1,
    )  # fmt: skip
    assert result.get(timeout=GET_TIMEOUT_S) == 1


def test_an_unknown_id(app: Celery) -> None:
    result = app.AsyncResult("nobody-ever-sent-this")
    assert state_of(result) == "PENDING"
    with pytest.raises(CeleryTimeoutError):
        result.get(timeout=0.2)


def test_the_control_queue_runs_nothing(app: Celery) -> None:
    result = send(app, "tricky", 1, queue="headrace:control")
    with pytest.raises(ValueError, match=r"send headrace\.predict to headrace\.tricky"):
        result.get(timeout=GET_TIMEOUT_S)


def test_revoke(app: Celery, site: Deployment) -> None:
    with site.busy() as (running, claimed):
        waiting = send(app, "one", "never")
        (known,) = site.ours.submit("one", "never either")
        for job_id in (waiting.id, known, running.id):
            app.control.revoke(job_id, reply=True, timeout=30, limit=1)
    for job_id in (waiting.id, known, running.id):
        result = app.AsyncResult(job_id)
        with pytest.raises(TaskRevokedError, match="cancelled"):
            result.get(timeout=GET_TIMEOUT_S)
        assert state_of(result) == "REVOKED"
        assert site.ours.job(job_id).state is State.CANCELLED
    assert claimed.get(timeout=GET_TIMEOUT_S)
    assert not {waiting.id, known} & set(site.runs())


def test_what_stands_in_no_models_queue_is_left_alone(app: Celery, site: Deployment) -> None:
    lines: list[str] = []
    watching, stop = threading.Event(), threading.Event()

    def watch() -> None:
        with site.ours.redis.monitor() as monitor:
            watching.set()
            for command in monitor.listen():
                lines.append(command["command"])
                if stop.is_set():
                    return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert watching.wait(60)
        site.ours.redis.lpush("celery", raw_message("theirs", "[[], {}, null]"))
        for step in (0, 3, 6, 9):
            assert send(app, "tricky", step, priority=step).get(timeout=GET_TIMEOUT_S) == step
        site.ours.wait(*site.ours.submit("echo", *range(50)))
        wait_until(lambda: any("BRPOP" in line for line in lines), "Celery's own consumer waits")
    finally:
        stop.set()
        site.ours.redis.ping()
        watcher.join(60)
    assert site.ours.redis.llen("celery") == 1
    site.ours.redis.delete("celery")
    taking = re.compile(r"^(BRPOP|BLPOP|RPOP|LPOP|BLMOVE|LMOVE|RPOPLPUSH|BRPOPLPUSH|LMPOP|BLMPOP) ")
    taken = {word for line in lines if taking.match(line) for word in line.split()[1:]}
    assert any("headrace:control" in word for word in taken), "the pattern sees pops"
    assert not [word for word in taken if word.startswith(("headrace.", "celery"))], taken


# Not a row:


def test_each_row_of_the_table_has_its_test() -> None:
    text = (ROOT / "docs" / "celery.md").read_text("utf-8")
    table = text.partition("## Messages")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "---" not in line][1:]
    named = [re.findall(r"`(test_\w+)`", line) for line in rows]
    assert len(rows) > 20
    assert all(named), [row for row, tests in zip(rows, named, strict=True) if not tests]
    flat = [name for names in named for name in names]
    assert len(flat) == len(set(flat)), "a test stands in two rows"
    source = Path(__file__).read_text("utf-8").partition("# Not a row:")[0]
    assert set(flat) == set(re.findall(r"^def (test_\w+)", source, re.MULTILINE))
