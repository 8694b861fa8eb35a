"""Two batches at once in a model process: what overlaps, and who pays for whom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.jobs.job import State
from headrace.redis import keys
from headrace.redis.fields import JobField
from tests.harness.clients.celery_client import wait_until_handed_over
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.verbs import bench


def test_the_next_is_preprocessed_and_the_last_postprocessed_while_one_is_on_the_device(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with bench(redis_db, tmp_path) as at:
        ids = at.submit({"name": "a", "postprocess": at.gate("a")})
        at.wait_for("postprocess a begins")
        ids += at.submit({"name": "b", "inference": at.gate("b")})
        at.wait_for("inference b begins")
        at.open("a")
        first = at.job(ids[0])
        ids += at.submit({"name": "c"})
        at.wait_for("preprocess c ends")
        assert "inference c begins" not in at.lines()
        at.open("b")
        jobs = at.client.wait(*ids)
        assert {job.state for job in (first, *jobs)} == {State.SUCCEEDED}
        # Each verb sees the ids of its own batch.
        assert [at.client.result(job_id)["seen_as"] for job_id in ids] == ids


def test_a_handler_that_does_not_say_so_is_run_in_turn(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with bench(redis_db, tmp_path, "InTurn") as at:
        ids = at.submit({"name": "a", "inference": at.gate("a")}, {"name": "b"})
        at.wait_for("inference a begins")
        wait_until(
            lambda: at.worker.states()["m"]["ready"] == 1 and at.client.leased(ids[1]),
            "the second is claimed",
        )
        at.open("a")
        at.client.wait(*ids)
        verbs = [line for line in at.lines() if line.endswith("begins")]
        assert verbs == [
            f"{verb} {name} begins"
            for name in "ab"
            for verb in ("preprocess", "inference", "postprocess")
        ]


@pytest.mark.parametrize("verb", ["preprocess", "inference", "postprocess"])
def test_what_raises_is_split_though_another_batch_is_under_way(
    redis_db: RedisServer, tmp_path: Path, verb: str
) -> None:
    with bench(redis_db, tmp_path, max_batch_size=4) as at:
        ids = at.submit({"name": "first", "inference": at.gate("first")})
        at.wait_for("inference first begins")
        batch: list[dict[str, Any]] = [{"name": n} for n in range(4)]
        batch[2]["raise"] = verb
        ids += at.submit(*batch)
        at.wait_for("preprocess 0,1,2,3 begins")
        ids += at.submit(*({"name": f"later{n}"} for n in range(4)))
        at.open("first")
        jobs = at.client.wait(*ids)
        states = [job.state for job in jobs]
        assert states.count(State.SUCCEEDED) == 8
        assert jobs[3].state is State.FAILED
        assert json.loads(jobs[3].error_json)["message"] == f"ValueError: {verb} of 2"
        assert all(job.attempts == 1 for job in jobs)


def test_a_batch_that_had_not_begun_goes_back_uncharged_and_runs_as_it_was(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with bench(redis_db, tmp_path, max_batch_size=2) as at:
        blocker = {"name": "x", "preprocess": at.gate("x"), "die": "preprocess"}
        first = at.submit(blocker, {"name": "y"})
        at.wait_for("preprocess x,y begins")
        second = at.submit({"name": "a"}, {"name": "b"})
        wait_until(lambda: at.client.leased(*second), "claimed")
        wait_until(lambda: len(at.worker.states()["m"]["pids"]) == 1, "it is reported")
        wait_until_handed_over(at.worker.redis_url, *second)
        at.open("x")
        jobs = at.client.wait(*first, *second)
        assert [job.state for job in jobs] == [State.FAILED] + [State.SUCCEEDED] * 3
        assert json.loads(jobs[0].error_json)["type"] == "replica-lost"
        # A job that was not begun is not counted as handed out. So it need not run alone, unlike
        # the one that ran with the blocker.
        assert [job.attempts for job in jobs[2:]] == [1, 1]
        marks = [at.client.redis.hget(keys.job(job.id), JobField.ALONE) for job in jobs[1:]]
        assert marks == [b"1", None, None]


@pytest.mark.parametrize("how", ["die", "hang"])
def test_of_two_that_were_under_way_only_the_one_to_blame_ends_badly(
    redis_db: RedisServer, tmp_path: Path, how: str
) -> None:
    with bench(redis_db, tmp_path) as at:
        bad = {"name": "bad", "inference": at.gate("bad"), how: "postprocess"}
        first = at.submit(bad, timeout={"die": 60, "hang": 3}[how])
        at.wait_for("inference bad begins")
        second = at.submit({"name": "good", "inference": at.gate("good")}, timeout=60)
        at.wait_for("preprocess good ends")
        at.open("bad")
        at.wait_for("postprocess bad begins")

        def alone() -> bool:
            # Where all stood still for its timeout before it hung, it has hung but once by its end.
            twice = at.lines().count("postprocess bad begins") > 1
            return twice or at.client.job(first[0]).state.final

        wait_until(alone, "it runs alone", 60)
        at.open("good")
        jobs = at.client.wait(*first, *second)
        assert [job.state for job in jobs] == [State.FAILED, State.SUCCEEDED]
        error = json.loads(jobs[0].error_json)["type"]
        assert error == {"die": "replica-lost", "hang": "timeout"}[how]


def test_the_time_of_a_staged_batch_counts_from_when_its_turn_comes(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with bench(redis_db, tmp_path) as at:
        first = at.submit({"name": "a", "inference": at.gate("a")}, timeout=60)
        at.wait_for("inference a begins")
        second = at.submit({"name": "b"}, timeout=2)
        at.wait_for("preprocess b ends")
        done_at = at.client.redis.time()[0] + 3
        wait_until(lambda: at.client.redis.time()[0] >= done_at, "its timeout would be over")
        at.open("a")
        assert {job.state for job in at.client.wait(*first, *second)} == {State.SUCCEEDED}


def test_what_expires_while_it_is_staged_does_not_run(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with bench(redis_db, tmp_path) as at:
        first = at.submit({"name": "a", "preprocess": at.gate("a")})
        at.wait_for("preprocess a begins")
        late = at.submit({"name": "b"}, expires=5)

        def expired() -> bool:
            return at.client.job(late[0]).state is State.EXPIRED

        wait_until_handed_over(at.worker.redis_url, *late, too_late=expired)
        over_at = at.client.job(late[0]).created_us / 1_000_000 + 5
        wait_until(lambda: at.client.redis.time()[0] > over_at, "it expires", timeout_s=60)
        at.open("a")
        job = at.job(late[0])
        assert (job.state, job.attempts, job.started_us) == (State.EXPIRED, 0, 0)
        assert at.job(first[0]).state is State.SUCCEEDED
        assert "preprocess b begins" not in at.lines()


def test_a_stop_finishes_both(redis_db: RedisServer, tmp_path: Path) -> None:
    with bench(redis_db, tmp_path) as at:
        ids = at.submit({"name": "a", "inference": at.gate("a")})
        at.wait_for("inference a begins")
        ids += at.submit({"name": "b"})
        at.wait_for("preprocess b ends")
        assert at.worker.process is not None
        at.worker.process.terminate()
        at.open("a")
        assert at.worker.stop() == 0
        assert {job.state for job in at.client.wait(*ids)} == {State.SUCCEEDED}


def test_it_is_told_how_much_the_device_waits_for_preprocess(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with bench(redis_db, tmp_path) as at:
        ids = at.submit({"name": "a", "preprocess": at.gate("a")})
        at.wait_for("preprocess a begins")
        at.open("a")
        at.client.wait(*ids)
        wait_until(lambda: 0 < at.worker.states()["m"]["starved"] <= 1, "it is reported")


def test_offline_work_that_is_prepared_makes_way_for_an_online_job(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with bench(redis_db, tmp_path) as at:
        # What a batch takes is known, so that one that takes longer is expected to end at once.
        at.client.wait(*at.submit({"name": "quick"}, priority=9))
        ids = at.submit({"name": "a", "inference": at.gate("a")}, priority=9)
        at.wait_for("inference a begins")
        ids += at.submit({"name": "b"}, priority=9)
        at.wait_for("preprocess b ends")
        # The second is claimed when the worker has seen to the first.
        second = at.submit({"name": "second"}, priority=3)
        wait_until(lambda: at.client.leased(*second), "it is claimed")
        first = at.submit({"name": "first"})
        wait_until(lambda: at.client.leased(*first), "it is claimed")
        at.open("a")
        jobs = at.client.wait(*ids, *second, *first)
        assert {job.state for job in jobs} == {State.SUCCEEDED}
        began = [line for line in at.lines() if line.startswith("inference") and "begins" in line]
        names = [line.split()[1] for line in began]
        # `second` may have been handed over by the time that `first` came.
        assert (names[:2], set(names[2:4]), names[4:]) == (
            ["quick", "a"],
            {"first", "second"},
            ["b"],
        )
