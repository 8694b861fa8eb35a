"""Where `preprocess` runs unless an option says so, measured by real model processes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from headrace.jobs.job import State
from tests.harness.processes.processes import gone
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, celery_worker, write_models

WAY = r"(1 thread|[2-4] threads|[2-4] processes): (preprocess|a batch of \d) takes |1 process, set"


def model(handler: str, **more: Any) -> dict[str, Any]:
    spec = f"{HANDLERS / 'choosing.py'}:{handler}"
    return {"handler": spec, "max_batch_size": 8, "options": {"work_ms": 4}, **more}


def test_each_model_says_where_its_preprocess_runs_and_why(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    models = {
        "holds": model("Holds"),
        "releases": model("Releases"),
        "trivial": model("Holds", options={}),
        "odd": model("Odd"),
        "set": model("Holds", preprocess_processes=1),
    }
    path = write_models(tmp_path, **models)
    with (
        celery_worker(redis_db.url, path, tmp_path) as worker,
        Client(redis_db.url, path) as client,
    ):
        worker.wait_ready(*models)
        states = worker.states()
        says = {name: states[name]["preprocess"] for name in models}
        # Which way is the fastest depends on the machine and on what else it does.
        assert all(re.match(WAY, text) for text in says.values()), says
        assert says["set"] == "1 process, set by preprocess_processes"
        assert "process" not in says["odd"].split(":")[0]
        for name in models:
            jobs = client.wait(*client.submit(name, *range(40)))
            assert {job.state for job in jobs} == {State.SUCCEEDED}
            assert [client.result(job.id) for job in jobs] == list(range(40))
        pids = [pid for name in models for pid in states[name]["pids"]]
    wait_until(lambda: gone(*pids), "they are gone")
