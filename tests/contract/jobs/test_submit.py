"""jobs/submit.lua: idempotency, admission, delay, and neighbours that fail apart."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.jobs.ids import new_id
from headrace.redis import keys
from tests.harness.clients.script_calls import Job, Queue, foreign
from tests.harness.servers.redis_servers import RedisServer

pytestmark = pytest.mark.leaves_keys

QUEUED, KNOWN, FULL, CONFLICT, BROKEN = 1, 2, 0, 3, 4


def test_a_record_stands_before_its_message_can_be_taken(queue: Queue) -> None:
    job = Job(step=6, waiter="api-1", ttl_s=50, request_hash="abc")
    ((code, created, ticket),) = queue.submit(job)
    assert (code, ticket) == (QUEUED, 1)
    expected = {
        "s": "q", "c": str(created), "p": "6", "n": "1", "m": "m", "v": "1.0", "l": "50",
        "w": "api-1", "h": "abc",
    }  # fmt: skip
    assert queue.record(job.id) == expected
    assert queue.client.lrange(keys.step_key(queue.name, 6), 0, -1) == [queue.message(job)]
    assert queue.client.ttl(keys.job(job.id)) == -1


def test_a_record_that_does_not_say_how_long_is_kept_a_day_from_any_end(queue: Queue) -> None:
    late = Job(ttl_s=0, begin_us=1)
    queue.submit(late)
    assert queue.expire() == 1
    ended, failed, asked, waiting, purged = jobs = [Job(ttl_s=0) for _ in range(5)]
    queue.submit(*jobs)
    first, second, third = queue.claim(3).jobs
    assert queue.cancel(asked.id, waiting.id) == ["asked", "removed"]
    assert queue.purge()[0] == 1
    assert queue.settle(first, extra=("r", "1"), meta="") + queue.settle(third) == [1, 3]
    assert queue.settle(second, state="f", extra=("e", "{}")) == [1]
    kept = {job.id: queue.client.ttl(keys.job(job.id)) for job in (late, *jobs)}
    assert all(keys.DEFAULT_TTL_S - 60 < ttl <= keys.DEFAULT_TTL_S for ttl in kept.values()), kept
    states = [queue.record(job.id)["s"] for job in (ended, failed, asked, waiting, purged, late)]
    assert states == ["s", "f", "c", "c", "c", "x"]


def test_a_repeat_is_known_and_enqueues_nothing(queue: Queue) -> None:
    job = Job(request_hash="abc")
    ((_, created, _),) = queue.submit(job)
    assert queue.submit(job) == [(KNOWN, created, 0)]
    assert len(queue.listed()) == 1
    leased = queue.claim_one()
    assert queue.submit(job) == [(KNOWN, created, 0)]
    queue.settle(leased)
    assert queue.submit(job) == [(KNOWN, created, 0)]
    assert queue.listed() == []
    assert queue.record(job.id)["s"] == "s"


def test_a_repeat_within_one_call_is_known(queue: Queue) -> None:
    job = Job()
    codes = [code for code, _, _ in queue.submit(job, job, Job(id=job.id, request_hash="x"))]
    assert codes == [QUEUED, KNOWN, CONFLICT]


def test_an_id_with_another_request_is_a_conflict(queue: Queue) -> None:
    job = Job(request_hash="abc")
    queue.submit(job)
    for other in ("abd", ""):
        ((code, _, _),) = queue.submit(Job(id=job.id, request_hash=other))
        assert code == CONFLICT
    assert queue.record(job.id)["h"] == "abc"


def test_idempotency_comes_before_admission(queue: Queue) -> None:
    job = Job(max_depth=1)
    queue.submit(job)
    ((code, _, _),) = queue.submit(job)
    assert code == KNOWN, "a repeat of what was admitted is never refused"


def test_what_is_refused_leaves_nothing_behind(queue: Queue) -> None:
    queue.submit_one()
    job = Job(max_depth=1)
    ((code, _, depth),) = queue.submit(job)
    assert (code, depth) == (FULL, 1)
    assert queue.record(job.id) == {}
    queue.settle(*queue.claim().jobs)
    assert queue.submit(job)[0][0] == QUEUED, "refused once, it may come again"


def test_admission_counts_all_steps_and_the_delayed_but_not_the_leased(queue: Queue) -> None:
    queue.submit(Job(step=0), Job(step=9), Job(delay_us=10**12), Job())
    queue.claim(1)
    codes = [code for code, _, _ in queue.submit(*(Job(max_depth=5) for _ in range(4)))]
    assert codes == [QUEUED, QUEUED, FULL, FULL]
    ((code, _, depth),) = queue.submit(Job(max_depth=5, delay_us=10**12))
    assert (code, depth) == (FULL, 5)


def test_admission_does_not_count_the_cancelled(queue: Queue) -> None:
    ids = [queue.submit_one(max_depth=3) for _ in range(3)]
    assert queue.submit(Job(max_depth=3))[0][0] == FULL
    queue.cancel(ids[1])
    codes = [code for code, _, _ in queue.submit(Job(max_depth=3), Job(max_depth=3))]
    assert codes == [QUEUED, FULL]


def test_admission_is_exact_under_concurrency(queue: Queue, any_redis: RedisServer) -> None:
    limit, threads, rounds = 100, 8, 10

    def submit_many(thread: int) -> list[int]:
        with any_redis.client() as client:
            mine = Queue(client)
            calls = [
                mine.submit(*(Job(max_depth=limit) for _ in range(1 + thread % 4)))
                for _ in range(rounds)
            ]
        return [code for answers in calls for code, _, _ in answers]

    with ThreadPoolExecutor(threads) as pool:
        codes = [code for codes in pool.map(submit_many, range(threads)) for code in codes]
    assert codes.count(QUEUED) == limit
    assert codes.count(FULL) == len(codes) - limit
    assert len(queue.listed()) == limit


def test_neighbours_fail_apart(queue: Queue) -> None:
    other, broken = Queue(queue.client, "other"), Queue(queue.client, "broken")
    queue.client.set(keys.queue_name("broken"), "another application's")
    known, odd = Job(request_hash="1"), new_id()
    queue.submit(known)
    queue.client.set(keys.job(odd), "no record")
    jobs = [
        (queue, Job(), QUEUED),
        (queue, Job(id=known.id, request_hash="2"), CONFLICT),
        (broken, Job(), BROKEN),
        (other, Job(max_depth=0), FULL),
        (queue, Job(id=odd), CONFLICT),
        (other, Job(), QUEUED),
        (queue, known, KNOWN),
    ]
    arguments = [argument for where, job, _ in jobs for argument in where.run(job)]
    answer = queue.call("jobs/submit", [], 0, *arguments)
    answers = queue.read_submit([job for _, job, _ in jobs], answer)
    assert [code for code, _, _ in answers] == [code for _, _, code in jobs]
    assert (len(queue.listed()), len(other.listed())) == (2, 1)


def test_the_jobs_of_a_run_fail_apart(queue: Queue) -> None:
    known, entombed, odd = Job(request_hash="1", max_depth=4), new_id(), new_id()
    queue.submit(known, Job(id=entombed))
    queue.entomb(entombed)
    queue.client.delete(keys.job(entombed))
    queue.client.set(keys.job(odd), "no record")
    new = [Job(request_hash="1", max_depth=4) for _ in range(4)]
    run = [
        (new[0], QUEUED),
        (known, KNOWN),
        (Job(id=known.id, request_hash="2"), CONFLICT),
        (Job(id=entombed, request_hash="1"), CONFLICT),
        (new[1], QUEUED),
        (new[0], KNOWN),
        (Job(id=odd, request_hash="1"), CONFLICT),
        (new[2], QUEUED),
        (new[3], FULL),
        (new[2], KNOWN),
    ]
    answers = queue.submit_runs([job for job, _ in run])
    assert [code for code, _, _ in answers] == [code for _, code in run]
    assert answers[8][2] == 4, "the depth that it was refused for"
    assert queue.claim().ids == [known.id, *(job.id for job in new[:3])]
    assert queue.record(new[2].id)["h"] == "1"
    assert queue.record(new[3].id) == {}


@pytest.mark.parametrize("delay_us", [0, 60_000_000])
def test_a_run_of_any_length_is_queued_whole_and_in_order(queue: Queue, delay_us: int) -> None:
    queue.index_max = 10_000
    run = [Job(delay_us=delay_us, raw=b"%d" % at) for at in range(2500)]
    answers = queue.submit_runs(run)
    assert {code for code, _, _ in answers} == {QUEUED}
    assert queue.client.zcard(keys.job_index(queue.model)) == len(run)
    if delay_us:
        assert queue.parked() == {job.id: job.raw for job in run}
        assert queue.client.zcard(keys.delayed(queue.name)) == len(run)
        assert {number for _, _, number in answers} == {0}
    else:
        assert queue.listed() == [job.raw for job in run]
        assert [number for _, _, number in answers] == list(range(1, len(run) + 1))


def test_runs_of_one_queue_differ_in_step_delay_and_fields(queue: Queue) -> None:
    runs = [
        [Job(), Job()],
        [Job(step=9, waiter="api-1")],
        [Job(delay_us=10**9, ttl_s=7, request_hash="x"), Job(delay_us=10**9, request_hash="y")],
        [Job(), Job()],
    ]
    answers = queue.submit_runs(*runs)
    assert [number for _, _, number in answers] == [1, 2, 1, 0, 0, 3, 4]
    records = [[queue.record(job.id) for job in run] for run in runs]
    assert [record["p"] for run in records for record in run] == list("0090000")
    assert [record["s"] for run in records for record in run] == list("qqqddqq")
    assert records[1][0]["w"] == "api-1"
    assert [record.get("h") for record in records[2]] == ["x", "y"]
    assert [record["l"] for record in records[2]] == ["7", "7"], "a run has its fields in common"
    expected = [queue.message(job) for run in (runs[0], runs[3]) for job in run]
    assert queue.client.lrange(queue.name, 0, -1) == expected[::-1]


@pytest.mark.parametrize(
    "name",
    ["count", "delayed", "parked", "tomb"],
)
def test_a_queue_with_a_key_of_the_wrong_type_is_refused_whole(queue: Queue, name: str) -> None:
    wrong = getattr(keys, name)(queue.name)
    queue.client.set(wrong, "another application's")
    answers = queue.submit(Job(), Job(delay_us=1000))
    assert [code for code, _, _ in answers] == [BROKEN, BROKEN]
    assert queue.client.keys("*") == [wrong.encode()]
    queue.client.delete(wrong)


def test_a_delayed_job_waits_beside_its_queue(queue: Queue) -> None:
    job = Job(delay_us=60_000_000, step=3)
    ((code, created, ticket),) = queue.submit(job)
    assert (code, ticket) == (QUEUED, 0)
    assert queue.parked() == {job.id: queue.message(job)}
    due = queue.client.zscore(keys.delayed(queue.name), job.id)
    assert due == created + 60_000_000
    assert queue.record(job.id)["s"] == "d"
    assert queue.submit(job) == [(KNOWN, created, 0)]


def test_tickets_count_up_within_one_call_and_between_calls(queue: Queue) -> None:
    assert [n for _, _, n in queue.submit(Job(), Job(step=3), Job())] == [1, 1, 2]
    queue.settle(*queue.claim(2).jobs)
    assert [n for _, _, n in queue.submit(Job(), Job(step=3))] == [3, 2]


def test_an_id_whose_cancelled_message_is_still_listed_is_not_taken_again(queue: Queue) -> None:
    job = Job()
    queue.submit(job)
    queue.entomb(job.id)
    queue.client.delete(keys.job(job.id))
    assert queue.submit(job)[0][0] == CONFLICT
    assert queue.claim().jobs == []
    assert queue.submit(job)[0][0] == QUEUED
    assert queue.claim().ids == [job.id]


def test_a_record_without_a_digest_is_nobodys_repeat(queue: Queue) -> None:
    plain, raw = Job(), foreign()
    queue.submit(plain)
    queue.push(raw)
    leased = queue.claim()
    for job_id in leased.ids:
        assert "h" not in queue.record(job_id)
        assert queue.submit(Job(id=job_id, request_hash="abc"))[0][0] == CONFLICT
    assert len(leased.ids) == 2
    queue.settle(*leased.jobs)
    for job_id in leased.ids:
        assert queue.submit(Job(id=job_id, request_hash="abc"))[0][0] == CONFLICT
    assert queue.listed() == []


def test_of_rivals_under_one_id_exactly_one_is_queued(queue: Queue, any_redis: RedisServer) -> None:
    rivals = 8

    def submit_same(_: int) -> list[int]:
        with any_redis.client() as client:
            mine = Queue(client)
            same = [Job(id=f"same-{n}", request_hash="abc", max_depth=20) for n in range(20)]
            return [code for code, _, _ in mine.submit(*same)]

    with ThreadPoolExecutor(rivals) as pool:
        codes = [code for codes in pool.map(submit_same, range(rivals)) for code in codes]
    assert codes.count(QUEUED) == 20
    assert codes.count(KNOWN) == 20 * (rivals - 1), "the queue was full, and no repeat refused"
    assert len(queue.listed()) == 20
