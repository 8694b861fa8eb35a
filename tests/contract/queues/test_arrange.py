"""queues/arrange.lua brings the next jobs of a schedule by tokens to the head of their list.

It loses, doubles and changes no message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test
from redis.exceptions import ResponseError

from headrace.jobs.ids import new_id
from headrace.redis import keys
from tests.contract.test_random_histories import STEPS, History, drain
from tests.harness.clients.script_calls import Job, Queue, foreign
from tests.harness.servers.redis_servers import RedisServer

pytestmark = pytest.mark.leaves_keys

A, B = "a" * 12, "b" * 12
OFFLINE = 9


def jobs_of(key: str, count: int, tokens: int = 100, **more: Any) -> list[Job]:
    return [Job(key=key, tokens=f"{tokens} ~ -", **more) for _ in range(count)]


def offline(
    count: int, deadline: int | None = None, *, prefix: str = "-", key: str = ""
) -> list[Job]:
    until = "~" if deadline is None else f"{deadline:010d}"
    return [Job(step=OFFLINE, key=key, tokens=f"100 {until} {prefix}") for _ in range(count)]


def ids(*groups: Sequence[Job]) -> list[str]:
    return [job.id for group in groups for job in group]


def served(queue: Queue, room: int, rounds: int | None = None) -> list[str]:
    """Arrange, claim and settle until the queue is empty; return the ids in the order of claims.

    Args:
        room: how many jobs each round arranges and claims.
        rounds: stop after this many rounds.
    """
    found: list[str] = []
    while rounds is None or rounds > 0:
        queue.arrange(room)
        claimed = queue.claim(room)
        if not claimed.jobs:
            return found
        found += claimed.ids
        queue.settle(*claimed.jobs)
        rounds = None if rounds is None else rounds - 1
    return found


def messages(queue: Queue) -> Counter[bytes]:
    """Count each message in the lists, without tombstones."""
    return Counter(raw for raw in queue.listed() if b"x-headrace-cancelled" not in raw)


def test_a_queue_that_one_claim_empties_is_not_arranged(queue: Queue) -> None:
    assert queue.arrange(5) == (0, 0)
    queue.submit(*jobs_of(A, 5))
    assert queue.arrange(5) == (0, 0), "one claim takes all of them"
    assert queue.arrange(0) == (0, 0)


def test_jobs_of_one_key_run_in_order_of_arrival_and_none_moves(queue: Queue) -> None:
    jobs = jobs_of(A, 20)
    queue.submit(*jobs)
    assert queue.arrange(4) == (4, 0)
    assert queue.arrange(4) == (0, 0), "they are in order already"
    assert served(queue, 3) == ids(jobs)
    assert queue.tokens() == 0
    assert queue.order() == []


def test_a_key_with_few_jobs_gets_half_behind_the_backlog_of_another_key(queue: Queue) -> None:
    many, few = jobs_of(A, 500), jobs_of(B, 30)
    queue.submit_runs(many)
    queue.submit_runs(few)
    first = served(queue, 4, rounds=15)
    assert sum(job_id in ids(few) for job_id in first) == 30
    assert [job_id for job_id in first if job_id in ids(many)] == ids(many)[:30], "by arrival"
    assert served(queue, 64) == ids(many)[30:], "the other key gets the rest"


def test_keys_get_equal_tokens_and_not_equal_numbers_of_jobs(queue: Queue) -> None:
    long, short = jobs_of(A, 40, tokens=1000), jobs_of(B, 400, tokens=100)
    queue.submit_runs(long)
    queue.submit_runs(short)
    first = served(queue, 2, rounds=55)
    by_key = {A: 0, B: 0}
    for job_id in first:
        by_key[A if job_id in ids(long) else B] += 1000 if job_id in ids(long) else 100
    assert 0.45 <= by_key[A] / sum(by_key.values()) <= 0.55, by_key


def test_an_idle_key_saves_no_share_for_later(queue: Queue) -> None:
    queue.submit_runs(jobs_of(A, 300))
    served(queue, 4, rounds=25)
    late = jobs_of(B, 100)
    queue.submit_runs(late)
    first = served(queue, 4, rounds=10)
    assert sum(job_id in ids(late) for job_id in first) in (20, 21)


def test_a_key_that_cancels_its_jobs_is_not_charged_for_them(queue: Queue) -> None:
    cancelled, others = jobs_of(A, 200), jobs_of(B, 200)
    queue.submit_runs(cancelled)
    queue.submit_runs(others)
    queue.cancel(*ids(cancelled))
    again = jobs_of(A, 20)
    queue.submit_runs(again)
    first = served(queue, 4, rounds=10)
    assert sum(job_id in ids(again) for job_id in first) == 20


def test_keys_with_one_job_each_are_served_in_order_of_arrival(queue: Queue) -> None:
    jobs = [Job(key=f"{n * 7919 % 1000:012x}", tokens="10 ~ -") for n in range(50)]
    queue.submit(*jobs)
    assert served(queue, 3) == ids(jobs)


def test_more_keys_than_one_call_reads_are_all_served(queue: Queue) -> None:
    jobs = [Job(key=f"{n:012x}", tokens="10 ~ -") for n in range(150) for _ in range(2)]
    queue.submit(*jobs)
    first = served(queue, 60, rounds=3)
    assert len({queue.record(job_id)["ky"] for job_id in first}) >= 120
    assert sorted(first + served(queue, 60)) == sorted(ids(jobs))


def test_offline_jobs_run_by_deadline_and_those_without_one_last(queue: Queue) -> None:
    none, late, soon = offline(30), offline(30, 2_000_000_000), offline(30, 1_900_000_000)
    for jobs in (none, late, soon):
        queue.submit_runs(jobs)
    assert served(queue, 7) == ids(soon, late, none)


def test_deadlines_that_the_order_of_arrival_misses_are_met(queue: Queue) -> None:
    """In this model each job takes one second, and four jobs run at the same time."""
    begin = 1_900_000_000
    batches = {
        60: offline(100, begin + 60),
        30: offline(60, begin + 30),
        10: offline(36, begin + 10),
    }
    for jobs in batches.values():
        queue.submit_runs(jobs)

    def end_s(order: list[str]) -> dict[int, int]:
        at = {job_id: n // 4 + 1 for n, job_id in enumerate(order)}
        return {window: max(at[job_id] for job_id in ids(jobs)) for window, jobs in batches.items()}

    by_arrival = end_s(ids(*batches.values()))
    assert by_arrival[30] > 30 < by_arrival[10], "the order of arrival misses two of the three"
    ended = end_s(served(queue, 4))
    assert all(seconds <= window for window, seconds in ended.items()), ended


def test_keys_share_a_deadline_and_jobs_with_one_prefix_run_together(queue: Queue) -> None:
    mixed = [job for _ in range(10) for prefix in "xyz" for job in offline(1, prefix=prefix)]
    queue.submit(*mixed)
    prefixes = [queue.record(job_id)["tk"][-1] for job_id in served(queue, 3)]
    assert prefixes == ["x"] * 10 + ["y"] * 10 + ["z"] * 10
    mine, others = offline(40, 2_000_000_000, key=A), offline(40, 2_000_000_000, key=B)
    queue.submit_runs(mine)
    queue.submit_runs(others)
    first = served(queue, 4, rounds=5)
    assert sum(job_id in ids(others) for job_id in first) == 10


def test_each_list_has_its_own_order(queue: Queue) -> None:
    online, much = jobs_of(A, 3), offline(20)
    soon = offline(2, 1_900_000_000)
    queue.submit(*much, *soon, *online)
    assert queue.arrange(5) == (2, 2), "of five places three are for online jobs"
    assert queue.claim(5).ids == ids(online, soon)


def test_tombstones_of_a_better_list_take_no_room_from_the_next_one(queue: Queue) -> None:
    queue.submit_runs(jobs_of(A, 6))
    queue.submit_runs(jobs_of(B, 3))
    queue.submit(*offline(8), *offline(2, 1_900_000_000))
    queue.arrange(3)
    queue.settle(*queue.claim(3).jobs)
    assert queue.depth().step0 == 6
    queue.arrange(7)
    assert queue.record(queue.claim(7).ids[-1])["tk"] == "100 1900000000 -"


def test_returned_jobs_come_first(queue: Queue) -> None:
    queue.submit_runs(jobs_of(A, 50))
    few = jobs_of(B, 4)
    queue.arrange(4)
    taken = queue.claim(4)
    queue.submit(*few)
    queue.release(*reversed(taken.jobs))
    queue.arrange(6)
    assert queue.claim(6).ids[:4] == taken.ids


def test_arranged_jobs_that_no_claim_has_taken_stay_first(queue: Queue) -> None:
    many = jobs_of(A, 50)
    queue.submit_runs(many)
    queue.arrange(4)
    few = jobs_of(B, 50)
    queue.submit_runs(few)
    assert queue.arrange(4) == (0, 0)
    assert queue.claim(2).ids == ids(many)[:2]
    queue.arrange(4)
    assert queue.claim(4).ids[:2] == ids(many)[2:4]


def test_places_are_exact_after_a_move_and_a_cancel_finds_the_message(queue: Queue) -> None:
    many, few = jobs_of(A, 30), jobs_of(B, 3)
    queue.submit_runs(many)
    queue.submit_runs(few)
    queue.arrange(4)
    listed = queue.listed()
    for job in (few[0], many[10], many[29], few[2]):
        found = next(n for n, raw in enumerate(listed) if job.id.encode() in raw)
        assert queue.place(job.id) == found + 1
    assert queue.cancel(few[0].id, many[10].id) == ["removed", "removed"]
    assert queue.client.exists(keys.tomb(queue.name)) == 0, "each cancel found its message"
    assert sorted(served(queue, 4)) == sorted(set(ids(many, few)) - {few[0].id, many[10].id})


def test_a_retried_job_has_its_place_in_the_order(queue: Queue) -> None:
    (first,) = jobs_of(B, 1)
    queue.submit(first)
    queue.settle(queue.claim_one(), retry_us="0", state="f", extra=("e", "{}"))
    queue.submit_runs(jobs_of(A, 40))
    assert queue.tokens() == 4100, "the job that waits for its retry counts too"
    assert queue.sweep()[0] == 1
    queue.arrange(2)
    assert first.id in queue.claim(2).ids


def test_the_tokens_of_a_dead_letter_count_again_after_requeue(queue: Queue) -> None:
    (job,) = jobs_of(A, 1)
    queue.submit(job)
    queue.settle(queue.claim_one(), state="f", extra=("e", "{}"), retry_us="dead")
    assert (queue.tokens(), queue.order()) == (0, [])
    assert queue.requeue(*queue.dead_letters()) == ["queued"]
    assert (queue.tokens(), len(queue.order())) == (100, 1)
    served(queue, 1)
    assert (queue.tokens(), queue.order()) == (0, [])


@pytest.mark.parametrize("end", ["settle", "cancel", "purge", "expire", "revoke"])
def test_each_end_of_a_job_subtracts_its_tokens(queue: Queue, end: str) -> None:
    job = Job(key=A, tokens="70 ~ -", begin_us=1 if end == "expire" else 0)
    queue.submit(job)
    assert (queue.tokens(), len(queue.order())) == (70, 1)
    if end == "settle":
        queue.settle(queue.claim_one())
    elif end == "cancel":
        queue.cancel(job.id)
    elif end == "purge":
        queue.purge()
    elif end == "expire":
        queue.expire()
    else:
        leased = queue.claim_one()
        queue.cancel(job.id)
        queue.release(leased)
    assert queue.record(job.id)["s"] in "scx"
    assert (queue.tokens(), queue.order()) == (0, [])


def test_a_sweep_clears_the_tokens_of_a_queue_that_another_program_emptied(queue: Queue) -> None:
    queue.submit(*jobs_of(A, 5))
    queue.client.delete(queue.name)
    queue.sweep()
    assert (queue.tokens(), queue.order()) == (0, [])


def test_the_limit_refuses_jobs_but_takes_a_larger_one_into_an_empty_queue(queue: Queue) -> None:
    full = 7
    huge = Job(tokens="5000 ~ -", max_tokens=1000)
    assert queue.submit(huge)[0][0] == 1, "otherwise no queue could ever take it"
    ((code, wait_us, depth),) = queue.submit(Job(tokens="1 ~ -", max_tokens=1000))
    assert (code, wait_us, depth) == (full, 0, 5000)
    queue.settle(queue.claim_one())
    fitting = [Job(tokens="400 ~ -", max_tokens=1000) for _ in range(4)]
    answers = queue.submit_runs(fitting)
    assert [code for code, _, _ in answers] == [1, 1, full, full]
    _, wait_us, depth = answers[2]
    assert depth == 800
    # 5,000 tokens have ended, within at least one second: 200 more need at most 40 ms. A slow
    # machine gets 600 times that.
    assert 0 < wait_us <= 200 / 5000 * 1_000_000 * 600
    assert queue.submit(Job(tokens="400 ~ -"))[0][0] == 1, "a job without a limit"


def test_a_queue_without_tokens_has_no_keys_for_them(queue: Queue) -> None:
    queue.submit(Job(), Job(request_hash="h"), Job(step=9))
    assert queue.arrange(1) == (0, 0)
    queue.settle(*queue.claim().jobs)
    assert queue.client.keys("hr:order:*") + queue.client.keys("hr:shares:*") == []
    assert not {b"tokens", b"pace"} & set(queue.client.hkeys(keys.count(queue.name)))


BROKEN = st.sampled_from([
    b"\x80 not json", b"", b"{}", b'{"headers":{"id":"', foreign()[:-1], b"[" * 500,
    b'{"headers":{"id":"nobody","task":"headrace.predict","x":1}}',
])  # fmt: skip
MESSAGES = st.lists(
    st.one_of(
        BROKEN,
        st.just(b"stock"),
        st.builds(
            Job, key=st.sampled_from(["", A, B]), step=st.sampled_from([0, 9]),
            tokens=st.sampled_from(["", "5 ~ -", "900 ~ x", "5 2000000000 y", "7 1900000000 -"]),
        ),
    ),
    max_size=30,
)  # fmt: skip


@settings(
    max_examples=60, deadline=None, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(MESSAGES, st.integers(0, 12), st.integers(1, 12), st.integers(1, 3))
def test_no_list_loses_doubles_or_changes_a_message(
    queue: Queue, given_messages: list[Any], cancels: int, room: int, rounds: int
) -> None:
    queue.client.flushall()
    made: list[Job] = []
    for one in given_messages:
        if isinstance(one, Job):
            # Hypothesis repeats values, but each job needs an id of its own.
            job = Job(id=new_id(), key=one.key, step=one.step, tokens=one.tokens)
            queue.submit(job)
            made.append(job)
        else:
            queue.push(foreign() if one == b"stock" else one)
    if made:
        queue.cancel(*(job.id for job in made[:cancels]))
    alive = {job.id for job in made[cancels:]}
    expected = messages(queue)
    for _ in range(rounds):
        waiting = queue.depth().waiting
        queue.arrange(room)
        assert messages(queue) == expected
        assert queue.depth().waiting == waiting
        taken = queue.claim(1)
        queue.release(*taken.jobs)
        expected = messages(queue)
    seen = served(queue, room)
    assert alive <= set(seen)
    assert len(seen) == len(set(seen))
    assert messages(queue) == Counter()
    depth = queue.depth()
    assert (depth.waiting, depth.leased, queue.tokens()) == (0, 0, 0)


def test_a_message_of_a_stock_client_at_the_head_stays_there(queue: Queue) -> None:
    stock = foreign()
    queue.push(stock)
    queue.submit_runs(jobs_of(A, 20))
    queue.submit_runs(jobs_of(B, 4))
    queue.arrange(3)
    assert queue.listed()[0] == stock
    claimed = queue.claim(3)
    assert claimed.jobs[0].raw == stock


@contextmanager
def another_type(queue: Queue, name: str) -> Iterator[None]:
    """Hold a text under this key, which another application wrote; put the old value back."""
    kept: Any = queue.client.dump(name)
    queue.client.set(name, "another application's")
    yield
    assert queue.client.get(name) == b"another application's"
    assert queue.client.ttl(name) == -1
    queue.client.delete(name)
    if kept is not None:
        queue.client.restore(name, 0, kept)


@pytest.mark.parametrize("name", ["order", "shares", "list", "other list", "count"])
def test_a_key_of_another_type_changes_nothing(queue: Queue, name: str) -> None:
    queue.submit_runs(jobs_of(A, 20))
    queue.submit_runs(jobs_of(B, 4))
    queue.submit_runs(offline(9) + offline(2, 1_900_000_000))
    key = {
        "order": keys.order(queue.name), "shares": keys.shares(queue.name), "list": queue.name,
        "other list": keys.step_key(queue.name, 9), "count": keys.count(queue.name),
    }[name]  # fmt: skip
    with another_type(queue, key):
        before = {one: queue.client.dump(one) for one in queue.client.keys("*")}
        if name in ("order", "shares"):
            assert queue.arrange(3) == (0, 0)
        else:
            with pytest.raises(ResponseError):
                queue.arrange(3)
        assert {one: queue.client.dump(one) for one in queue.client.keys("*")} == before
    assert queue.arrange(3)[0] == 3
    assert len(served(queue, 5)) == 35


def test_entries_with_wrong_places_are_dropped_in_parts(queue: Queue) -> None:
    jobs = [*jobs_of(A, 1400), *jobs_of(B, 200)]
    queue.submit_runs(jobs)
    # As after a compaction: the place in each entry is wrong.
    queue.client.hincrby(keys.count(queue.name), "out0", 7)
    assert queue.arrange(5) == (0, 0)
    assert len(queue.order()) == 1600 - 1024
    assert queue.arrange(10) == (0, 0)
    assert queue.order() == []
    assert served(queue, 200) == ids(jobs), "they run in the order of arrival"


def test_all_jobs_run_after_the_order_is_lost(queue: Queue) -> None:
    jobs = [*jobs_of(A, 10), *jobs_of(B, 10)]
    queue.submit(*jobs)
    queue.arrange(2)
    queue.client.delete(keys.order(queue.name), keys.shares(queue.name))
    rest = served(queue, 3)
    assert sorted(rest) == sorted(ids(jobs))


def test_no_history_with_an_order_loses_a_job(any_redis: RedisServer) -> None:
    class Arranged(History):
        server = any_redis

        @rule(
            count=st.integers(1, 3), step=STEPS, delay_us=st.sampled_from([0, 0, 1]),
            key=st.sampled_from(["", A, B]), deadline=st.sampled_from(["~", "1900000000"]),
        )  # fmt: skip
        def submit(
            self, count: int, step: int, delay_us: int, key: str = A, deadline: str = "~"
        ) -> None:
            for _ in range(count):
                job_id = f"j{len(self.states)}"
                self.queue.submit_one(
                    id=job_id, step=step, delay_us=delay_us, key=key, tokens=f"10 {deadline} -"
                )
                self.states[job_id] = "waiting"

        @rule(room=st.integers(0, 5))
        def arrange(self, room: int) -> None:
            before = messages(self.queue)
            self.queue.arrange(room)
            assert messages(self.queue) == before

        def teardown(self) -> None:
            unfinished = sum(state != "ended" for state in self.states.values())
            assert self.queue.tokens() == 10 * unfinished
            drain(self)
            assert self.queue.tokens() == 0
            assert not self.client.keys("hr:order:*"), "keys of the order remain"
            super().teardown()

    run_state_machine_as_test(
        Arranged,
        settings=settings(max_examples=12, stateful_step_count=40, deadline=None, database=None),
    )
