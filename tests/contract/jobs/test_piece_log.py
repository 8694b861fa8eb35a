"""Piece logs: jobs/append_pieces.lua writes pieces in order, each once, only for the holder."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.redis import keys
from headrace.redis.scripts import jobs as job_scripts
from tests.harness.clients.script_calls import TTL_S, Leased, Queue
from tests.harness.wait import wait_until


def append(queue: Queue, job: Leased, first: int, count: int, text: str) -> int:
    row = (job.id, job.token, first, count, text.encode(), b"")
    return int(queue.send(job_scripts.append_pieces("m", [row])))


def log(
    queue: Queue, job_id: str, after: int = 0, most: int = 100, most_bytes: int = 1_000_000
) -> list[tuple[int, str]]:
    (flat,) = queue.send(job_scripts.read_pieces(most, most_bytes, [(job_id, after)]))
    values = iter(flat)
    rows = zip(values, values, values, strict=True)
    return [(int(last), text.decode()) for last, text, _ in rows]


def test_pieces_are_read_behind_an_index(queue: Queue) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one()
    assert append(queue, leased, 1, 1, '["a"]') == 0
    assert append(queue, leased, 2, 3, '["b","c","d"]') == 0
    assert log(queue, job_id) == [(1, '["a"]'), (4, '["b","c","d"]')]
    assert log(queue, job_id, 1) == [(4, '["b","c","d"]')]
    assert log(queue, job_id, 2) == [(4, '["b","c","d"]')]
    assert log(queue, job_id, 4) == []
    assert log(queue, job_id, most=1) == [(1, '["a"]')]
    assert queue.settle(leased) == [1]


def test_a_long_log_is_read_in_parts(queue: Queue) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one()
    entries = [(n, f'["{"x" * n}"]') for n in range(1, 41)]
    for n, text in entries:
        append(queue, leased, n, 1, text)
    assert log(queue, job_id) == entries
    assert log(queue, job_id, most=33) == entries[:33]
    assert log(queue, job_id, most=32) == entries[:32]
    sizes = [len(text) for _, text in entries]
    assert log(queue, job_id, 20, most_bytes=sum(sizes[20:38])) == entries[20:38]
    assert log(queue, job_id, 20, most_bytes=sum(sizes[20:38]) - 1) == entries[20:37]
    assert log(queue, job_id, 39, most_bytes=1) == entries[39:]
    assert log(queue, "unknown") == []
    queue.settle(leased)


def test_an_entry_has_the_head_of_its_response_or_tokens(queue: Queue) -> None:
    client: Any = queue.client
    job_id = queue.submit_one()
    leased = queue.claim_one()
    rows = [
        (job_id, leased.token, 1, 1, b'["a"]', b'{"status":201}'),
        (job_id, leased.token, 2, 1, b'["b"]', b"[7]"),
    ]
    assert queue.send(job_scripts.append_pieces("m", rows)) == 0
    (flat,) = queue.send(job_scripts.read_pieces(10, 1000, [(job_id, 0)]))
    assert flat == [b"1", b'["a"]', b'{"status":201}', b"2", b'["b"]', b""]
    entries = dict(client.xrange(keys.pieces(job_id)))
    assert entries == {
        b"1-0": {b"p": b'["a"]', b"h": b'{"status":201}'},
        b"2-0": {b"p": b'["b"]', b"t": b"[7]"},
    }
    queue.settle(leased)


def test_a_repeated_call_adds_nothing(queue: Queue) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one()
    for _ in range(2):
        append(queue, leased, 1, 2, '["a","b"]')
        append(queue, leased, 3, 1, '["c"]')
    append(queue, leased, 1, 2, '["a","b"]')
    assert log(queue, job_id) == [(2, '["a","b"]'), (3, '["c"]')]
    queue.settle(leased)


def test_the_next_attempt_begins_with_a_mark_and_the_last_one_writes_nothing(queue: Queue) -> None:
    job_id = queue.submit_one()
    paused = queue.claim_one(lease_us=0)
    append(queue, paused, 1, 2, '["a","b"]')
    queue.release(paused)
    assert append(queue, paused, 3, 1, '["late"]') == 1
    leased = queue.claim_one()
    assert append(queue, paused, 3, 1, '["late"]') == 1
    append(queue, leased, 1, 1, '["a"]')
    assert append(queue, paused, 3, 1, '["late"]') == 1
    append(queue, leased, 1, 1, '["a"]')
    assert log(queue, job_id) == [(2, '["a","b"]'), (3, ""), (4, '["a"]')]
    queue.settle(leased)
    assert append(queue, leased, 2, 1, '["late"]') == 1


def test_an_attempt_without_pieces_leaves_the_log_as_it_is(queue: Queue) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one(lease_us=0)
    queue.release(leased)
    leased = queue.claim_one()
    append(queue, leased, 1, 1, '["a"]')
    assert log(queue, job_id) == [(1, '["a"]')]
    queue.settle(leased)


@pytest.mark.parametrize("end", ["settled", "cancelled"])
def test_a_log_expires_with_its_job(queue: Queue, end: str) -> None:
    client: Any = queue.client
    job_id = queue.submit_one()
    leased = queue.claim_one()
    append(queue, leased, 1, 1, '["a"]')
    assert client.ttl(keys.pieces(job_id)) > keys.PIECES_TTL_S / 2
    if end == "cancelled":
        queue.cancel(job_id)
    queue.settle(leased)
    assert TTL_S - 60 < client.ttl(keys.pieces(job_id)) <= TTL_S
    assert TTL_S - 60 < client.ttl(keys.job(job_id)) <= TTL_S


def test_a_log_is_deleted_with_its_job(queue: Queue) -> None:
    client: Any = queue.client
    job_id = queue.submit_one()
    leased = queue.claim_one()
    append(queue, leased, 1, 1, '["a"]')
    queue.settle(leased)
    assert queue.send(job_scripts.delete([job_id], None)) == [1]
    assert not client.exists(keys.pieces(job_id))


def test_one_call_publishes_the_jobs_once(queue: Queue) -> None:
    client: Any = queue.client
    ids = [queue.submit_one() for _ in range(2)]
    one, other = queue.claim_one(), queue.claim_one()
    channel = keys.piece_channel("m")
    with client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(channel)
        wait_until(lambda: client.pubsub_channels() == [channel.encode()], "it listens")
        rows = [
            (one.id, one.token, 1, 1, b'["a"]', b""),
            (other.id, other.token, 1, 1, b'["b"]', b""),
            (one.id, one.token, 2, 1, b"", b""),
            (one.id, one.token, 3, 1, b'["a"]', b""),
            (other.id, "0", 2, 1, b'["late"]', b""),
        ]
        assert queue.send(job_scripts.append_pieces("m", rows)) == 1
        found = wait_until(lambda: heard.get_message(timeout=1), "it is published")
    assert sorted(found["data"].decode().split(" ")) == sorted(ids)
    assert log(queue, one.id) == [(1, '["a"]'), (2, ""), (3, '["a"]')]
    queue.settle(one)
    queue.settle(other)


def test_a_log_keeps_its_newest_entries(queue: Queue) -> None:
    client: Any = queue.client
    job_id = queue.submit_one()
    leased = queue.claim_one()
    count = keys.PIECES_MAX + 500
    rows = [(leased.id, leased.token, n, 1, b"[1]", b"") for n in range(1, count + 1)]
    for at in range(0, count, 1000):
        queue.send(job_scripts.append_pieces("m", rows[at : at + 1000]))
    assert keys.PIECES_MAX <= client.xlen(keys.pieces(job_id)) < count
    assert log(queue, job_id, count - 1) == [(count, "[1]")]
    queue.settle(leased)


def test_a_key_of_another_type_harms_no_other_job(queue: Queue) -> None:
    client: Any = queue.client
    ids = [queue.submit_one() for _ in range(2)]
    one, other = queue.claim_one(), queue.claim_one()
    client.set(keys.pieces(one.id), "x")
    rows = [(job.id, job.token, 1, 1, b"[1]", b"") for job in (one, other)]
    assert queue.send(job_scripts.append_pieces("m", rows)) == 1
    assert log(queue, one.id) == []
    assert log(queue, other.id) == [(1, "[1]")]
    queue.settle(one)
    queue.settle(other)
    client.delete(*map(keys.pieces, ids))
