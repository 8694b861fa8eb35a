"""Who holds a job and for how long; where it goes when its holder is gone, stopped or slow."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from headrace.jobs.job import State
from headrace.redis import keys
from headrace.redis.fields import JobField
from headrace.redis.scripts import script
from headrace.server.recovery import release_incarnation
from tests.harness.processes.processes import suspend
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.verbs import Bench, bench
from tests.harness.workers.worker import HANDLERS, Client, celery_worker, write_models
from workers.consumer.loop import SWEEP_S

QUEUE = "headrace.m"
#: Far longer than anything here waits: who has its jobs back did not get them by the lease's end.
LONG = {"HEADRACE_LEASE_TTL_S": "3600", "HEADRACE_INCARNATION": "first"}
SHORT = {"HEADRACE_LEASE_TTL_S": "1"}
SOON = {"HEADRACE_LEASE_TTL_S": "2"}


def listed(at: Bench) -> list[str]:
    """The ids in the list, whoever is next first."""
    raws = at.client.redis.lrange(QUEUE, 0, -1)
    return [json.loads(raw)["headers"]["id"] for raw in reversed(raws)]


def leased(at: Bench) -> set[str]:
    return {job_id.decode() for job_id in at.client.redis.zrange(keys.lease(QUEUE), 0, -1)}


def owners(at: Bench, *ids: str) -> set[Any]:
    """The workers that have claimed these jobs last."""
    return {at.client.redis.hget(keys.job(job_id), JobField.OWNER) for job_id in ids}


def busy(at: Bench) -> list[str]:
    """Six jobs: two run, gated by `open`, two are prepared, two are listed; no more are taken."""
    ids = at.submit(*({"name": n, "inference": at.gate("open")} for n in range(2)))
    at.wait_for("inference 0,1 begins")
    ids += at.submit(*({"name": n} for n in range(2, 6)))
    wait_until(lambda: leased(at) == set(ids[:4]), "two are prepared")
    at.client.redis.sadd(keys.PAUSED, QUEUE)
    return ids


def resume(at: Bench, ids: list[str]) -> None:
    """Let all run, and see that each ended once."""
    at.client.redis.srem(keys.PAUSED, QUEUE)
    at.open("open")
    jobs = at.client.wait(*ids)
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert leased(at) == set()
    assert at.client.redis.hlen(keys.held(QUEUE)) == 0


def test_jobs_of_a_killed_model_process_are_first_again_long_before_the_lease_ends(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with bench(redis_db, tmp_path, "InTurn", LONG, max_batch_size=2) as at:
        ids = busy(at)
        (pid,) = at.worker.states()["m"]["pids"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: listed(at)[:2] == ids[:2], "they are first, in their order")
        assert [job_id for job_id in listed(at) if job_id in ids[4:]] == ids[4:]
        resume(at, ids)


def test_jobs_of_a_killed_worker_are_first_again_when_its_supervisor_says_so(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with bench(redis_db, tmp_path, "InTurn", LONG, max_batch_size=2) as at:
        ids = busy(at)
        at.worker.kill()
        assert leased(at) == set(ids[:4])
        # As `headrace worker` does as soon as its worker is gone (headrace/server/components.py).
        assert release_incarnation(redis_db.url, "first") == 4
        assert listed(at) == ids
        with celery_worker(redis_db.url, at.worker.models, tmp_path, node="cpu1@test"):
            resume(at, ids)


def test_what_was_lost_alone_waits_as_its_model_says_also_when_a_supervisor_gives_it_back(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    day_s = 86_400
    with bench(
        redis_db, tmp_path, "InTurn", LONG, retry_backoff_s=day_s, retry_backoff_max_s=day_s
    ) as at:
        (job_id,) = at.submit({"name": "x", "inference": at.gate("open")})
        at.wait_for("inference x begins")
        # As if it had been lost with others before, and ran exclusively now.
        token = at.client.redis.hget(keys.job(job_id), JobField.TOKEN)
        at.client.redis.hset(keys.job(job_id), JobField.ISOLATED, token + b" w")
        at.worker.kill()
        assert release_incarnation(redis_db.url, "first") == 1
        seconds, _ = at.client.redis.time()
        due_us = at.client.redis.zscore(keys.delayed(QUEUE), job_id)
        # By the defaults it would be due within a second. Of a whole day none falls this low.
        assert due_us > (seconds + 2) * 1_000_000
        at.client._call("jobs/cancel", 0, job_id)


def test_an_orderly_stop_gives_back_at_once_and_in_order(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with bench(redis_db, tmp_path, "InTurn", LONG, max_batch_size=2) as at:
        ids = busy(at)
        assert at.worker.process is not None
        at.worker.process.terminate()
        wait_until(lambda: listed(at) == ids[2:], "what was prepared is first, while the rest runs")
        assert leased(at) == set(ids[:2])
        at.open("open")
        assert at.worker.stop() == 0
        assert [at.client.job(job_id).attempts for job_id in ids] == [1, 1, 0, 0, 0, 0]
        with celery_worker(redis_db.url, at.worker.models, tmp_path, node="cpu1@test"):
            resume(at, ids)


def test_jobs_of_a_lost_host_are_handed_out_again_when_their_leases_end_and_not_before(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with bench(redis_db, tmp_path, "InTurn", LONG, max_batch_size=2) as at:
        ids = busy(at)
        at.client.redis.srem(keys.PAUSED, QUEUE)
        at.worker.kill()  # and nobody is left who could release anything
        at.open("open")
        # As though they had been renewed for the last time nearly a lease's time ago.
        soon_us = (at.client.redis.time()[0] + 2) * 1_000_000
        over = {job_id: soon_us + n for n, job_id in enumerate(ids[:4])}
        assert at.client.redis.zadd(keys.lease(QUEUE), over, xx=True, ch=True) == 4
        ends_us = {
            job_id.decode(): int(end)
            for job_id, end in at.client.redis.zrange(keys.lease(QUEUE), 0, -1, withscores=True)
        }
        assert set(ends_us) == set(ids[:4])
        with celery_worker(
            redis_db.url, at.worker.models, tmp_path, node="cpu1@test", environ=SOON
        ):
            jobs = {job.id: job for job in at.client.wait(*ids)}
            assert {job.state for job in jobs.values()} == {State.SUCCEEDED}
            assert all(jobs[one].started_us >= end_us for one, end_us in ends_us.items())
            assert [jobs[one].attempts for one in ids] == [2, 2, 2, 2, 1, 1]


def test_the_first_sweep_after_a_lost_hosts_lease_gives_its_jobs_to_a_worker_that_waits(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    """Sweeps come once a second, so that this is the upper bound: `lease_ttl` and a second."""
    assert SWEEP_S <= 1
    with (
        # Not so short that a machine which stands still for some seconds takes the job away.
        bench(redis_db, tmp_path, "InTurn", {"HEADRACE_LEASE_TTL_S": "30"}) as at,
        redis_db.client() as client,
        client.monitor() as monitor,
    ):
        (job_id,) = at.submit({"name": "x", "inference": at.gate("open")})
        at.wait_for("inference x begins")
        with celery_worker(
            redis_db.url, at.worker.models, tmp_path, node="cpu1@test", environ=SHORT
        ) as second:
            second.wait_ready("m")
            # From one lease_ttl after it has connected it reaps.
            reaps_from_s = at.client.redis.time()[0] + 2
            wait_until(lambda: at.client.redis.time()[0] > reaps_from_s, "it may reap")
            at.worker.kill()
            # As though it had been renewed for the last time nearly a lease's time ago.
            held = at.client.redis.time()[0] * 1_000_000 + 2_000_000
            assert at.client.redis.zadd(keys.lease(QUEUE), {job_id: held}, xx=True, ch=True) == 1
            at.open("open")
            job = at.job(job_id)
        client.echo("that is all")
        sweeps = called(monitor, "queues/sweep", "that is all")
    assert (job.state, job.attempts) == (State.SUCCEEDED, 2)
    # After the machine stood still a sweep reaps nothing for one lease_ttl.
    after = [
        at_us
        for at_us, (_, reap_until_us, *_) in sweeps
        if held < at_us <= min(job.started_us, int(reap_until_us))
    ]
    assert len(after) == 1, "the first one has given it back, and it was claimed before the next"


def test_a_stopped_worker_whose_pool_prepares_a_job_cannot_settle_it(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    handler = f"{HANDLERS / 'prepared.py'}:Prepared"
    path = write_models(tmp_path, m={"handler": handler, "preprocess_processes": 2})
    begins, gate = tmp_path / "begins", tmp_path / "gate"
    with (
        celery_worker(redis_db.url, path, tmp_path, environ=SOON) as first,
        Client(redis_db.url, path) as client,
    ):
        first.wait_ready("m")
        (job_id,) = client.submit("m", {"n": 1, "begins": str(begins), "until": str(gate)})

        def begun() -> int:
            return len(begins.read_text().splitlines()) if begins.exists() else 0

        wait_until(lambda: begun() == 1, "its pool prepares it")
        suspend(first.pid)
        try:
            with celery_worker(
                redis_db.url, path, tmp_path, node="cpu1@test", environ=SOON
            ) as second:
                wait_until(lambda: begun() == 2, "another's pool prepares it", 60)
                os.kill(first.pid, signal.SIGCONT)
                wait_until(lambda: "lease lost" in first.log, "its renewal is refused", 60)
                (theirs,) = second.model_pids()
                gate.touch()
                (job,) = client.wait(job_id)
                assert (job.state, job.attempts) == (State.SUCCEEDED, 2)
                assert client.result(job_id)["model_pid"] == theirs
                wait_until(lambda: "result discarded" in first.log, "its answer is refused", 60)
                assert client.result(job_id)["model_pid"] == theirs
        finally:
            os.kill(first.pid, signal.SIGCONT)


def test_a_job_of_ten_times_the_lease_runs_once_though_another_worker_waits_for_it(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with (
        bench(redis_db, tmp_path, "InTurn", SHORT) as at,
        celery_worker(
            redis_db.url, at.worker.models, tmp_path, node="cpu1@test", environ=SHORT
        ) as second,
        redis_db.client() as client,
        client.monitor() as monitor,
    ):
        second.wait_ready("m")
        for name in ("long", "again", "once-more"):
            (job_id,) = at.submit({"name": name, "inference": at.gate(name)})
            at.wait_for(f"inference {name} begins")
            began_us = at.client.job(job_id).started_us
            wait_until(partial(now_is_after, at, began_us + 10_000_000), "ten leases are over")
            at.open(name)
            job = at.job(job_id)
            if job.attempts == 1:
                break
            # Who was held up by the machine for all of a lease has lost it, and rightly.
            client.echo("that is all")
            times_us = [began_us, *called_us(monitor, "jobs/renew", "that is all"), job.started_us]
            held_up_us = max(after - before for before, after in pairwise(sorted(times_us)))
            assert held_up_us >= 1_000_000, "it was renewed in time, and given away all the same"
        assert job.attempts == 1
        assert at.lines().count(f"inference {name} begins") == 1


def now_is_after(at: Bench, time_us: int) -> bool:
    """By Redis' clock."""
    seconds, micros = at.client.redis.time()
    return bool(seconds * 1_000_000 + micros > time_us)


def called_us(monitor: Any, name: str, end: str) -> list[int]:
    """When a script was called, up to a command with this word."""
    return [at_us for at_us, _ in called(monitor, name, end)]


def called(monitor: Any, name: str, end: str) -> list[tuple[int, list[str]]]:
    """When a script was called, and the words of its arguments, up to a command with this word."""
    found: list[tuple[int, list[str]]] = []
    while end not in (seen := monitor.next_command())["command"]:
        if script(name).sha in seen["command"]:
            _, _, keys_count, *words = seen["command"].split()
            found.append((int(seen["time"] * 1_000_000), words[int(keys_count) :]))
    return found


def test_a_stopped_worker_can_do_nothing_to_what_another_holds(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    """It holds jobs in each phase: a result that waits, one in preprocess, one that is prepared."""
    with bench(redis_db, tmp_path, environ=SOON) as at:
        (ready,) = at.submit({"name": "ready", "inference": at.gate("ready")})
        at.wait_for("inference ready begins")
        held_up = {"preprocess": at.gate("inside"), "tells": "preprocess"}
        (inside,) = at.submit({"name": "inside", **held_up})
        at.wait_for("preprocess inside begins")
        (prepared,) = at.submit({"name": "prepared"})
        ids = [ready, inside, prepared]
        wait_until(lambda: leased(at) == set(ids), "all are held")
        suspend(at.worker.pid)
        first = owners(at, *ids)
        # The leases end one by one. Nobody claims the first of them before the last one has ended.
        at.client.redis.sadd(keys.PAUSED, QUEUE)
        try:
            at.open("ready")
            at.wait_for("postprocess ready ends")
            with celery_worker(
                redis_db.url, at.worker.models, tmp_path, node="cpu1@test", environ=SOON
            ) as second:
                wait_until(lambda: leased(at) == set(), "all leases have ended", 60)
                at.client.redis.srem(keys.PAUSED, QUEUE)
                wait_until(
                    lambda: at.lines().count("preprocess inside begins") == 2, "it has them", 60
                )
                # Whoever is free first has the last one.
                wait_until(lambda: owners(at, ready, inside).isdisjoint(first), "it has two", 60)
                (theirs,) = second.model_pids()
                os.kill(at.worker.pid, signal.SIGCONT)
                for job_id in ids:
                    wait_until(
                        lambda one=job_id: at.worker.says("lease lost", one),  # type: ignore[misc]
                        "it hears that it is another's",
                    )
                assert at.client.leased(inside)
                assert {job_id.decode() for job_id in at.client.redis.hkeys(keys.held(QUEUE))} >= {
                    inside
                }
                at.wait_for("preprocess inside is dropped")
                at.open("inside")
                jobs = at.client.wait(*ids)
                assert {job.state for job in jobs} == {State.SUCCEEDED}
                assert {job.attempts for job in jobs} == {2}
                assert {at.client.result(one)["pid"] for one in (ready, inside)} == {theirs}
        finally:
            os.kill(at.worker.pid, signal.SIGCONT)
        # What it had not begun with it has not run; what it had begun it has left.
        begun = [line for line in at.lines() if line.endswith("begins")]
        assert begun.count("preprocess prepared begins") == 1
        assert begun.count("inference inside begins") == 1


def test_a_stopped_worker_whose_batch_runs_on_can_neither_renew_nor_settle_it(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    with bench(redis_db, tmp_path, "InTurn", SOON) as at:
        (job_id,) = at.submit({"name": "slow", "inference": at.gate("open")})
        at.wait_for("inference slow begins")
        suspend(at.worker.pid)
        try:
            with celery_worker(
                redis_db.url, at.worker.models, tmp_path, node="cpu1@test", environ=SOON
            ) as second:
                wait_until(lambda: at.lines().count("inference slow begins") == 2, "it has it", 60)
                token = at.client.redis.hget(keys.job(job_id), JobField.TOKEN)
                os.kill(at.worker.pid, signal.SIGCONT)
                wait_until(lambda: "lease lost" in at.worker.log, "its renewal is refused")
                record = at.client.redis.hmget(keys.job(job_id), JobField.TOKEN, JobField.STATE)
                assert record == [token, b"r"]
                (theirs,) = second.model_pids()
                at.open("open")
                assert at.job(job_id).attempts == 2
                assert at.client.result(job_id)["pid"] == theirs
                wait_until(lambda: "result discarded" in at.worker.log, "its answer is refused")
                assert at.client.result(job_id)["pid"] == theirs
        finally:
            os.kill(at.worker.pid, signal.SIGCONT)
