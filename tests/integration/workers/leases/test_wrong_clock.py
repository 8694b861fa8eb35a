"""Hosts that have a wrong time: `expires` and `eta` are held against Redis' clock."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headrace.jobs.job import State
from tests.harness.clients.celery_client import GET_TIMEOUT_S, stock_client
from tests.harness.deployments.webhooks import webhook_site
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.api_process import ApiProcess, api_process
from tests.harness.servers.redis_servers import redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import ROOT, Client, Worker, celery_worker, write_models

HOUR_S = 3600
WRONG = """
import time
right = time.time
time.time = lambda: right() + {ahead_s}
time.time_ns = lambda: int((right() + {ahead_s}) * 1e9)
"""


def path_of(folder: Path, ahead_s: int) -> str:
    """The PYTHONPATH of processes whose clock is wrong."""
    own = folder / f"clock{ahead_s}"
    own.mkdir()
    (own / "sitecustomize.py").write_text(WRONG.format(ahead_s=ahead_s))
    return f"{own}:{ROOT}"


@pytest.mark.parametrize("ahead_s", [HOUR_S, pytest.param(-HOUR_S, marks=pytest.mark.slow)])
def test_times_of_messages_are_held_against_the_clock_of_redis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    # A forked process has its modules, and its clock, already.
    monkeypatch.setattr(Worker, "forked", False)
    monkeypatch.setattr(ApiProcess, "forked", False)
    models = write_models(tmp_path, echo={"handler": "echo"})
    environ = {"PYTHONPATH": path_of(tmp_path, ahead_s)}
    monkeypatch.setenv("PYTHONPATH", path_of(tmp_path, -ahead_s))
    with (
        redis_server() as server,
        celery_worker(server.url, models, tmp_path, environ=environ) as worker,
        Client(server.url, models) as client,
        stock_client(server.url) as app,
        api_process(server.url, models) as api,
    ):
        worker.wait_ready("echo")
        (job,) = client.wait(*client.submit("echo", 1, expires=600))
        assert job.state == State.SUCCEEDED
        send: Any = partial(
            app.send_task, "headrace.predict",
            queue="headrace.echo", kwargs={"model": "echo", "input": 2},
        )  # fmt: skip
        now = datetime.now(UTC)
        late = send(expires=now - timedelta(seconds=5))
        early = send(eta=now + timedelta(seconds=HOUR_S / 2))
        assert send(countdown=1).get(timeout=GET_TIMEOUT_S) == 2
        (ended,) = client.wait(late.id)
        assert ended.state == State.EXPIRED
        assert not early.ready()

        with httpx2.Client(base_url=api.url, timeout=60, verify=PLAIN) as http:

            def in_time(path: str, body: dict[str, Any]) -> bool:
                line = json.dumps({**body, "options": {"expires": 600}})
                asked = http.post(path, content=line, headers={"content-type": kind_of[path]})
                job_id = asked.json()["id"]
                ended = http.get(f"/api/v1/jobs/{job_id}", params={"wait": 30}).json()
                return bool(ended["status"] == "succeeded")

            kind_of = {
                "/api/v1/jobs": "application/json",
                "/api/v1/jobs/bulk": "application/x-ndjson",
            }
            # Its first answer from Redis may still be on its way.
            for path in kind_of:
                body = {"model": "echo", "input": 3}
                wait_until(partial(in_time, path, body), f"the API knows the time: {path}")


def test_a_background_worker_that_is_ahead_gives_up_no_webhook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Worker, "forked", False)
    environ = {"PYTHONPATH": path_of(tmp_path, HOUR_S), "HEADRACE_WEBHOOK_RETRY_S": "1200"}
    with webhook_site(tmp_path) as site:
        site.background_worker("ahead", **environ)
        job_id = site.submit("/once/503")
        site.hasten(site.delivery(job_id, "pending"), job_id)
        site.delivery(job_id, "delivered", tries=2)
        site.quiet()
