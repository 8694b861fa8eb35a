"""What follows a job as it is read from a stock client's message, and the ids that it gets."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.canvas import Signature

from tests.harness.clients.celery_client import caught
from workers.canvas.celery_client import signature_of
from workers.canvas.sender import as_json
from workers.celery.task_events import result_text
from workers.jobs.canvas import DEPTH_MAX, Canvas, read_canvas

QUEUE = "q"
SHAPES = ["task", "group", "chain", "chord", "upgraded", "nested", "inner"]


@pytest.fixture
def app() -> Iterator[Celery]:
    with Celery(broker="memory://", backend="cache+memory://", set_as_current=False) as app:
        yield app


def message(app: Celery, **options: Any) -> bytes:
    """What `send_task` would push."""
    return caught(app, QUEUE, task_id="id-1", **options)


def sig(app: Celery, task: str, **options: Any) -> Any:
    return app.signature(task, options=options)


def shape(app: Celery, kind: str) -> Any:
    """A signature of a kind, with no ids."""
    a, b, c, d = (sig(app, task) for task in "abcd")
    shapes: dict[str, Callable[[], Any]] = {
        "task": lambda: a,
        "group": lambda: group([a, group([b, c], app=app)], app=app),
        "chain": lambda: chain(a, b, group([c, d], app=app), app=app),
        "chord": lambda: chord([a, b], chain(c, d, app=app), app=app),
        "upgraded": lambda: chain(group([a, b], app=app), c, app=app),
        "nested": lambda: chord(
            [chain(a, b, app=app), chord([c], d, app=app)], group([a, b], app=app), app=app
        ),
        "inner": lambda: chain(
            a,
            chain(b, group([c, chord([a, b], d, app=app)], app=app), app=app),
            group([a, b], app=app),
            chord([a, chain(group([b, c], app=app), d, app=app)], d, app=app),
            app=app,
        ),
    }
    return shapes[kind]()


def read(raw: bytes) -> Canvas:
    canvas = read_canvas(raw)
    assert canvas is not None
    return canvas


def ids_in(value: Any) -> list[str]:
    """All task ids in a signature, in their order."""
    if isinstance(value, dict):
        own = [value["task_id"]] if "task_id" in value else []
        return own + [found for part in value.values() for found in ids_in(part)]
    if isinstance(value, (list, tuple)):
        return [found for part in value for found in ids_in(part)]
    return []


def test_nothing_follows(app: Celery) -> None:
    assert read_canvas(message(app)) is None
    assert read_canvas(b"no message") is None
    assert read_canvas(b'{"headers":{"id":"x"},"body":"[[],{},7]"}') is None


@pytest.mark.parametrize("kind", SHAPES[:6])
def test_each_reading_gives_the_same_ids(app: Celery, kind: str) -> None:
    first, second = (
        read(message(app, link=shape(app, kind), link_error=shape(app, kind))) for _ in range(2)
    )
    assert first == second
    found = ids_in(first.callbacks) + ids_in(first.errbacks)
    leaves = 2 * {"task": 1, "upgraded": 3, "nested": 6}.get(kind, 3 + (kind in ("chain", "chord")))
    assert len(set(found)) >= leaves, "no two tasks share an id"
    assert not set(ids_in(first.callbacks)) & set(ids_in(first.errbacks))


Made = Callable[[dict[str, Any], Celery], Any]


def sent(
    app: Celery, callback: dict[str, Any], monkeypatch: pytest.MonkeyPatch, made: Made
) -> list[tuple[str, Any]]:
    """All that Celery sends for a callback: messages by task, and the sizes of chords."""
    found: list[tuple[str, Any]] = []

    def take(_: Any, name: str, message: Any, **__: Any) -> None:
        headers = {key: message.headers[key] for key in ("id", "group", "parent_id", "root_id")}
        found.append((name, [headers, without_thread(json.loads(json.dumps(message.body)))]))

    def count(group_id: str, size: int) -> None:
        found.append((f"chord of {size}", group_id))

    app.set_current()
    with monkeypatch.context() as patch:
        patch.setattr(app.amqp, "send_task_message", take)
        patch.setattr(app.backend, "set_chord_size", count)
        made(callback, app).apply_async((1,), parent_id="id-1", root_id="id-1")
    return found


def stock_signature(callback: dict[str, Any], app: Celery) -> Any:
    return Signature.from_dict(copy.deepcopy(callback), app=app)


def without_thread(found: Any) -> Any:
    """The same without the id of the thread that waits for results."""
    if isinstance(found, dict):
        return {key: without_thread(one) for key, one in found.items() if key != "reply_to"}
    return [without_thread(one) for one in found] if isinstance(found, list | tuple) else found


@pytest.mark.parametrize("kind", SHAPES)
def test_celery_sends_a_signature_twice_under_the_same_ids(
    app: Celery, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (callback,) = read(message(app, link=shape(app, kind))).callbacks
    before = copy.deepcopy(callback)
    first, second = (sent(app, callback, monkeypatch, signature_of) for _ in range(2))
    assert first == second
    assert callback == before
    assert "headrace" not in json.dumps(first), "a type of our own is never in a message"
    theirs = [sent(app, callback, monkeypatch, stock_signature) for _ in range(2)]
    assert [name for name, _ in first] == [name for name, _ in theirs[0]]
    # Where this fails Celery has become exact by itself, and `celery_client.py` may be simpler.
    assert (theirs[0] == theirs[1]) == (kind in ("task", "group", "chain", "chord"))


def test_ids_that_are_there_are_kept(app: Celery) -> None:
    steps = chain(sig(app, "a", task_id="mine"), sig(app, "b"), app=app)
    whole = chain(sig(app, "a"), sig(app, "b"), app=app).set(task_id="the-chain")
    body = chord([sig(app, "a")], sig(app, "b"), app=app).set(task_id="the-chord")
    given, last, chorded = read(message(app, link=[steps, whole, body])).callbacks
    assert given["kwargs"]["tasks"][0]["options"]["task_id"] == "mine"
    # Awaiting a chain is awaiting its last task, and awaiting a chord its body.
    assert last["kwargs"]["tasks"][-1]["options"]["task_id"] == "the-chain"
    assert chorded["kwargs"]["body"]["options"]["task_id"] == "the-chord"


def test_members_of_a_chord_come_to_the_same_body(app: Celery) -> None:
    body = sig(app, "body")
    body.link_error(sig(app, "errback"))
    options = {"chord": body, "group_id": "the-group"}
    first = read(message(app, **options, group_index=0))
    second = read(message(app, **options, group_index=1))
    assert (first.group, first.group_index, second.group_index) == ("the-group", 0, 1)
    assert first.chord == second.chord
    assert first.chord is not None
    assert first.chord["options"]["link_error"][0]["options"]["task_id"]


def test_what_follows_is_read_though_the_task_cannot_run(app: Celery) -> None:
    raw = message(app, args=(1, 2, 3), link_error=sig(app, "errback"), countdown=1)
    broken = json.loads(raw)
    broken["headers"]["eta"] = {"no": "time"}
    (errback,) = read(json.dumps(broken).encode()).errbacks
    assert errback["task"] == "errback"


def test_what_is_no_signature_is_not_read(app: Celery) -> None:
    deep: Any = {"task": "a", "kwargs": {}, "options": {}}
    for _ in range(DEPTH_MAX + 1):
        deep = {"task": "g", "subtask_type": "group", "kwargs": {"tasks": [deep]}, "options": {}}
    empty = {"task": "c", "subtask_type": "chain", "kwargs": {"tasks": []}, "options": {}}
    for odd in (deep, {"options": 7}, {"subtask_type": "group", "kwargs": {}}):
        assert read_canvas(message(app, link=[odd])) is None
    assert read(message(app, link=[empty])).callbacks == [empty]


def test_children_of_a_result_can_be_read_whatever_a_message_called_them() -> None:
    children = as_json([[["\ud800", None], None], [[float("inf"), "\u00e9"], []]])
    assert json.loads(children) == [[["?", None], None], [[None, "\u00e9"], []]]
    meta = b'{"result": 1, "children": %s}' % children
    # The worker itself reads it again, for the event of the job's end.
    assert result_text(meta, "") == "1"
