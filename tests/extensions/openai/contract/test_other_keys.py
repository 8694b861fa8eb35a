"""Another application's keys in the place of those of files and batches."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import NoScriptError

from extensions.openai.redis import SCRIPTS, script
from extensions.openai.redis import keys as batch_keys
from headrace.redis import keys
from headrace.redis.scripts import Arg
from tests.contract.test_keys_of_another_type import in_its_place, refused_whole
from tests.harness.clients.script_calls import Queue

LEASE_US = 60_000_000


def call(queue: Queue, name: str, *arguments: Arg) -> Any:
    return queue.send(script(name).call([], *arguments))


def batch(queue: Queue, batch_id: str) -> None:
    call(queue, "batches/create", batch_id, "{}", 60, 60, "k")


def claimed(queue: Queue, before_s: int | str = "") -> list[Any]:
    return list(call(queue, "batches/claim", LEASE_US, "runner", before_s))


def test_the_batch_whose_window_ends_first_is_leased_first(queue: Queue) -> None:
    for batch_id, window_s in (("late", 9000), ("soon", 100), ("later", 9999)):
        call(queue, "batches/create", batch_id, "{}", window_s, 60, "k")
    end_s = int(queue.client.hget(batch_keys.batch("late"), "expires_at") or 0)
    assert claimed(queue, end_s - 9000) == [], "none ends before that"
    assert claimed(queue, end_s)[0] == b"soon"
    assert claimed(queue, end_s) == []
    assert [claimed(queue)[0] for _ in range(2)] == [b"late", b"later"]
    assert claimed(queue) == []


def test_a_batch_whose_record_is_anothers_keeps_no_runner_from_the_next(queue: Queue) -> None:
    for batch_id in ("a", "b", "c"):
        batch(queue, batch_id)
    with in_its_place(queue.client, batch_keys.batch("a")):
        with refused_whole(queue.client, keys.TOKEN):
            claimed(queue)
        assert claimed(queue)[0] == b"b"
        assert claimed(queue)[0] == b"c"
        assert claimed(queue) == []
        assert queue.client.zrange(batch_keys.OPEN_BATCHES, 0, -1) == [b"b", b"c"]
    with in_its_place(queue.client, batch_keys.batch("c")):
        assert call(queue, "batches/release", "runner") == [1]
    assert claimed(queue)[0] == b"b"


def test_a_batch_is_not_saved_by_half(queue: Queue) -> None:
    batch(queue, "a")
    _, token, *_ = claimed(queue)
    file = ("output", "-", 3, 60, "", 1, "redis:0a", 0)
    said = ("a", token, LEASE_US, "in_progress", 60, 2, "total", 5, "f1", *file, "f2", *file)
    lists = (batch_keys.FILES, batch_keys.files_of("-"))
    for name in (*lists, keys.file("f2"), keys.file_parts("f2")):
        with refused_whole(queue.client, name):
            call(queue, "batches/save", *said)
    assert call(queue, "batches/save", *said)[0] == 1
    assert queue.client.hget(batch_keys.batch("a"), "total") == b"5"
    assert queue.client.zcard(keys.file_parts("f2")) == 1


def test_an_id_is_in_every_list_of_its_kind_or_in_none(queue: Queue) -> None:
    call(queue, "files/begin", "f", 60_000, "n", "in", "k", "me", "b", 0)
    for name in (batch_keys.FILES, batch_keys.files_of("me")):
        with refused_whole(queue.client, name):
            call(queue, "files/finish", "f", "batch", 60)
    call(queue, "files/finish", "f", "batch", 60)
    for name in (batch_keys.BATCHES, batch_keys.batches_of("k"), batch_keys.OPEN_BATCHES):
        with refused_whole(queue.client, name):
            batch(queue, "a")
    batch(queue, "a")
    for name in (batch_keys.files_of("me"), batch_keys.batches_of("k")):
        assert queue.client.zcard(name) == 1


@pytest.mark.parametrize("name", SCRIPTS.names)
def test_a_server_that_knows_no_script_of_ours_is_told(queue: Queue, name: str) -> None:
    arguments: dict[str, list[Arg]] = {
        "files/begin": ["f", 0], "files/part": ["f", "redis:0", 0, 1, 1, 1],
        "files/finish": ["f", "batch", 1],
        "batches/create": ["b", "{}", 0, 0, "k"], "batches/cancel": ["b"],
        "batches/claim": [1, "r"], "batches/save": ["b", 1, 1, "", 1, 0],
        "batches/release": ["r"],
    }  # fmt: skip
    known = script(name)
    queue.client.script_flush()
    command = known.call([], *arguments[name])
    with pytest.raises(NoScriptError):
        queue.execute(*command)
    assert queue.execute(*known.load_command()).decode() == known.sha
    queue.execute(*command)
    queue.client.delete(batch_keys.BATCHES, batch_keys.batches_of("k"), batch_keys.OPEN_BATCHES)
    assert queue.client.dbsize() == 0
