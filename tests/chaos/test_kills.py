"""Thousands of jobs under random kills: each ends once, rightly, and nothing is left over."""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil

from headrace import keys
from headrace.jobs import State
from headrace.recovery import release_incarnation
from tests.harness.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.worker import HANDLERS, Client, Worker, celery_worker, write_models

JOBS = {"valkey9": 5_000, "redis7": 1_500, "redis62": 1_500}
KILLS = 8
MAX_BATCH = 16


def test_random_kills_lose_no_job_and_end_none_twice(
    any_redis: RedisServer, tmp_path: Path
) -> None:
    server, count = any_redis, JOBS[any_redis.flavour]
    seed = int(os.environ.get("HEADRACE_TEST_SEED", random.randrange(2**32)))
    print(f"HEADRACE_TEST_SEED={seed}")  # noqa: T201 - to run it again
    chance = random.Random(seed)
    models = write_models(
        tmp_path,
        tricky={
            "handler": f"{HANDLERS / 'tricky.py'}:Tricky",
            "max_batch_size": MAX_BATCH,
            "options": {"pause_s": 0.02},
        },
    )
    ends = _Ends(server)
    with ExitStack() as stack, Client(server.url, models) as client:
        stack.enter_context(ends)

        def start(number: int) -> Worker:
            name = f"w{number}-{chance.randrange(10**9)}"
            environ = {"HEADRACE_LEASE_TTL_S": "2", "HEADRACE_INCARNATION": name}
            options = {"node": f"{name}@test", "environ": environ}
            worker = stack.enter_context(celery_worker(server.url, models, tmp_path, **options))
            worker.wait_ready("tricky")
            return worker

        workers = [start(0), start(1)]
        inputs: list[dict[str, int | str]] = [{"n": n} for n in range(count)]
        for index in chance.sample(range(count), 40):
            inputs[index] = {"do": "raise", "n": index}
        ids = client.submit("tricky", *inputs)

        for round_ in range(KILLS):
            goal = (round_ + 1) * count // (KILLS + 2)
            wait_until(partial(ends.reached, goal), f"{goal} jobs ended", timeout_s=60)
            which = chance.randrange(2)
            if chance.random() < 0.5:
                pids = workers[which].model_pids()
                for pid in pids:
                    _kill(pid)
            else:
                workers[which].kill()
                if chance.random() < 0.5:  # else its leases run out
                    owner = workers[which].environ["HEADRACE_INCARNATION"]
                    release_incarnation(server.url, owner)
                workers[which] = start(which)

        jobs = client.wait(*ids, timeout_s=90)
        queue = keys.queue_name("tricky")
        wait_until(lambda: not client.redis.exists(keys.lease(queue)), "no lease is left")
        assert not client.redis.exists(*keys.step_keys(queue), keys.held(queue), keys.parked(queue))
        for index, (job, given) in enumerate(zip(jobs, inputs, strict=True)):
            if given.get("do") == "raise":
                assert job.state is State.FAILED, job
            else:
                assert job.state is State.SUCCEEDED, job
                assert client.result(job.id) == {"n": index}
        wait_until(lambda: len(ends.seen) >= count, "every end was published")
        twice = {job_id: count for job_id, count in ends.seen.items() if count != 1}
        assert not twice, f"ended more than once: {twice}"
    # A kill costs the batch that ran and the one that was prepared, no more.
    assert sum(job.attempts - 1 for job in jobs) <= KILLS * 2 * MAX_BATCH


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie",
            f"{pid} is dead",
        )
    except (ProcessLookupError, psutil.NoSuchProcess):
        pass


class _Ends:
    """Counts the publications of each job's end: settle publishes one, so two would be two ends."""

    def __init__(self, server: RedisServer) -> None:
        self.seen: dict[str, int] = {}
        self._client = server.client()
        self._pubsub = self._client.pubsub()  # type: ignore[no-untyped-call]
        self._thread = threading.Thread(target=self._listen)
        self._stop = threading.Event()

    def reached(self, goal: int) -> bool:
        return len(self.seen) >= goal

    def __enter__(self) -> _Ends:
        self._pubsub.psubscribe(keys.META_PREFIX + "*")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._pubsub.close()
        self._client.close()

    def _listen(self) -> None:
        while not self._stop.is_set():
            message = self._pubsub.get_message(timeout=0.2)
            if message is not None and message["type"] == "pmessage":
                job_id = message["channel"].decode().removeprefix(keys.META_PREFIX)
                self.seen[job_id] = self.seen.get(job_id, 0) + 1
