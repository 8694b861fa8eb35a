"""A model process whose device is lost: what it costs, and whom."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.jobs.job import State
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, Worker, celery_worker, write_models


@contextmanager
def losing(redis: RedisServer, folder: Path, kind: str) -> Iterator[tuple[Worker, Client]]:
    model = {
        "handler": f"{HANDLERS / 'trouble/lost_device.py'}:{kind}",
        "options": {"log": str(folder / "runs.log")},
        "max_batch_size": 4,
    }
    path = write_models(folder, m=model)
    with celery_worker(redis.url, path, folder) as worker, Client(redis.url, path) as client:
        worker.wait_ready("m")
        yield worker, client


def processes(folder: Path) -> int:
    lines = (folder / "runs.log").read_text().splitlines()
    return len({line.split()[2] for line in lines})


@pytest.mark.parametrize("kind", ["InTurn", "Overlapping"])
def test_a_lost_device_costs_one_process_and_the_item_that_was_alone_with_it(
    redis_db: RedisServer, tmp_path: Path, kind: str
) -> None:
    with losing(redis_db, tmp_path, kind) as (worker, client):
        (alone,) = client.wait(*client.submit("m", "assert"))
        assert (alone.state, alone.attempts) == (State.FAILED, 1)
        error = json.loads(alone.error_json)
        assert error["type"] == "handler-error"
        assert "device-side assert triggered" in error["message"]
        wait_until(lambda: worker.states()["m"]["lost"] == 1, "the loss is counted")
        worker.wait_ready("m")
        ids = client.submit("m", "raise", "assert", "a", "b")
        bad, lost, *mates = client.wait(*ids)
        assert [job.state for job in (bad, lost)] == [State.FAILED] * 2
        assert [job.state for job in mates] == [State.SUCCEEDED] * 2
        assert "this input alone is bad" in bad.error_json
        assert "device-side assert triggered" in lost.error_json
        # One under the batch, and one under the item that was to blame, alone.
        wait_until(lambda: worker.states()["m"]["lost"] == 3, "the losses are counted")
        assert all(job.attempts == 2 for job in (bad, lost, *mates))
        assert processes(tmp_path) <= 4
