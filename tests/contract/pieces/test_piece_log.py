"""Piece logs: jobs/append_pieces.lua writes pieces in order, each once, only for the holder."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.redis import keys
from headrace.redis.scripts import jobs as job_scripts
from tests.harness.clients.script_calls import TTL_S, Leased, Queue
from tests.harness.wait import wait_until

RUN, OTHER = 7, 8


def append(queue: Queue, job: Leased, first: int, count: int, text: str, run: int = RUN) -> int:
    row = (job.id, job.token, run, first, count, text.encode(), b"")
    return int(queue.send(job_scripts.append_pieces("m", [row])))


def log(
    queue: Queue, job_id: str, after: int = 0, most: int = 100, most_bytes: int = 1_000_000
) -> list[tuple[int, str]]:
    return read(queue, job_id, after, str(RUN), most, most_bytes)[2]


def read(
    queue: Queue, job_id: str, after: int, run: str, most: int = 100, most_bytes: int = 1_000_000
) -> tuple[bool, str, list[tuple[int, str]]]:
    """Whether the log has lost the place, the run of the place, and the entries behind it."""
    logs = [(job_id, after, run)]
    ((lost, known, *flat),) = queue.send(job_scripts.read_pieces(most, most_bytes, logs))
    values = iter(flat)
    rows = zip(values, values, values, strict=True)
    entries = [(int(name.split(b"-")[0]), text.decode()) for name, text, _ in rows]
    return bool(lost), known.decode(), entries


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
        (job_id, leased.token, RUN, 1, 1, b'["a"]', b'{"status":201}'),
        (job_id, leased.token, RUN, 2, 1, b'["b"]', b"[7]"),
    ]
    assert queue.send(job_scripts.append_pieces("m", rows)) == 0
    ((_, _, *flat),) = queue.send(job_scripts.read_pieces(10, 1000, [(job_id, 0, "")]))
    assert flat == [b"1-7", b'["a"]', b'{"status":201}', b"2-7", b'["b"]', b""]
    entries = dict(client.xrange(keys.pieces(job_id)))
    assert entries == {
        b"1-7": {b"p": b'["a"]', b"h": b'{"status":201}'},
        b"2-7": {b"p": b'["b"]', b"t": b"[7]"},
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
    assert queue.call("records/delete", [], "", job_id) == [1]
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
            (one.id, one.token, RUN, 1, 1, b'["a"]', b""),
            (other.id, other.token, RUN, 1, 1, b'["b"]', b""),
            (one.id, one.token, RUN, 2, 1, b"", b""),
            (one.id, one.token, RUN, 3, 1, b'["a"]', b""),
            (other.id, "0", RUN, 2, 1, b'["late"]', b""),
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
    rows = [(leased.id, leased.token, RUN, n, 1, b"[1]", b"") for n in range(1, count + 1)]
    for at in range(0, count, 1000):
        queue.send(job_scripts.append_pieces("m", rows[at : at + 1000]))
    assert keys.PIECES_MAX <= client.xlen(keys.pieces(job_id)) < count
    assert log(queue, job_id, count - 1) == [(count, "[1]")]
    queue.settle(leased)


@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize("run", ["7", ""])
def test_a_place_that_the_log_has_lost_is_noticed(queue: Queue, kept: int, run: str) -> None:
    client: Any = queue.client
    job_id = queue.submit_one()
    leased = queue.claim_one(lease_us=0)
    for n in range(1, kept + 1):
        append(queue, leased, n, 1, f'["a{n}"]')
    dumps = {key: client.dump(key) for key in (keys.pieces(job_id), keys.job(job_id))}
    for n in range(kept + 1, 6):
        append(queue, leased, n, 1, f'["a{n}"]')
    assert read(queue, job_id, 5, run) == (False, "7", [])
    # Redis has crashed, and what it wrote last is gone.
    for key, dump in dumps.items():
        client.delete(key)
        if dump is not None:
            client.restore(key, 0, dump)
    lost, _, entries = read(queue, job_id, 5, run)
    # The run may go on, as far as a reader that knows it can see.
    assert lost == (not run)
    assert len(entries) == (kept if lost else 0)
    if kept:
        assert read(queue, job_id, 2, run) == (False, "7", [])
    queue.release(leased)
    leased = queue.claim_one()
    for n in range(1, 8):
        append(queue, leased, n, 1, f'["b{n}"]', OTHER)
        lost, _, entries = read(queue, job_id, 5, "7")
        assert lost
        assert entries == log(queue, job_id)
    if kept:
        # Its place is before the mark, so it reads the mark.
        assert read(queue, job_id, 2, "7")[0] is False
        assert log(queue, job_id, 2)[0] == (3, "")
    assert read(queue, job_id, 6, str(OTHER))[0] is False
    # A reader that knows no run cannot see that the piece is another one.
    assert read(queue, job_id, 5, "")[:2] == (False, str(OTHER))
    assert read(queue, job_id, 100, "")[0] is True
    assert read(queue, job_id, 0, "")[0] is False
    queue.settle(leased)


def test_a_place_in_a_run_that_goes_on_elsewhere_is_kept(queue: Queue) -> None:
    job_id = queue.submit_one()
    leased = queue.claim_one(lease_us=0)
    append(queue, leased, 1, 3, '["a","b","c"]')
    append(queue, leased, 4, 1, '["d"]')
    queue.release(leased)
    leased = queue.claim_one()
    append(queue, leased, 1, 0, "", OTHER)
    append(queue, leased, 1, 1, '["e"]', OTHER)
    for place, behind in ((2, [3, 4, 5]), (3, [4, 5]), (4, [5])):
        lost, run, entries = read(queue, job_id, place, str(RUN))
        assert (lost, run) == (False, str(RUN))
        assert [last for last, _ in entries] == behind[-len(entries) :]
    assert read(queue, job_id, 5, str(OTHER)) == (False, str(OTHER), [])
    # Its pieces behind 4 were lost, and the run went on without them.
    assert read(queue, job_id, 5, str(RUN))[0] is True
    queue.settle(leased)


def test_two_runs_with_one_token_do_not_mix(queue: Queue) -> None:
    """After a crash that lost a claim, the next one can have its token."""
    job_id = queue.submit_one()
    leased = queue.claim_one()
    assert append(queue, leased, 3, 1, '["c"]') == 0
    assert append(queue, leased, 1, 4, '["1","2","3","4"]', OTHER) == 1
    assert append(queue, leased, 4, 1, '["d"]') == 0
    assert log(queue, job_id) == [(3, '["c"]'), (4, '["d"]')]
    # Its worker runs the handler again for this job, and says so.
    assert append(queue, leased, 5, 1, "", OTHER) == 0
    assert append(queue, leased, 6, 1, '["a"]', OTHER) == 0
    assert append(queue, leased, 5, 1, '["late"]') == 1
    assert log(queue, job_id, 4) == [(5, ""), (6, '["a"]')]
    queue.settle(leased)


def test_a_key_of_another_type_harms_no_other_job(queue: Queue) -> None:
    client: Any = queue.client
    ids = [queue.submit_one() for _ in range(2)]
    one, other = queue.claim_one(), queue.claim_one()
    client.set(keys.pieces(one.id), "x")
    rows = [(job.id, job.token, RUN, 1, 1, b"[1]", b"") for job in (one, other)]
    assert queue.send(job_scripts.append_pieces("m", rows)) == 1
    assert log(queue, one.id) == []
    assert log(queue, other.id) == [(1, "[1]")]
    queue.settle(one)
    queue.settle(other)
    client.delete(*map(keys.pieces, ids))
