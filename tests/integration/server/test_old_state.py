"""The upgrade promise: a state directory that an older version wrote goes on under this one.

`tests/fixtures/state_1106774` is what `headrace up` of commit 1106774 left when it was stopped.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.result import AsyncResult

from headrace import Client
from headrace.errors import Conflict, InputError, JobCancelled, JobNotFound, Unauthorized
from headrace.redis.connection import connect
from headrace.server.embedded_redis import prepared_url
from tests.harness.clients.openai_batches import Batches, sdk
from tests.harness.servers.redis_servers import leaked_keys
from tests.harness.servers.up import RunningUp, running_up
from tests.harness.servers.webhook_receiver import webhook_receiver
from tests.harness.wait import wait_until

FIXTURE = Path(__file__).parents[2] / "fixtures/state_1106774"
LARGE = "y" * 20_000


@dataclass
class OldState:
    """This version on the old state.

    Attributes:
        up: the running `headrace up`.
        client: with the operator's API key.
        manifest: what the old version made.
        jobs: the ids of its jobs.
    """

    up: RunningUp
    client: Client
    manifest: dict[str, Any]
    jobs: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.up.port}"

    @property
    def redis_url(self) -> str:
        url = prepared_url(self.up.state_dir)
        assert url is not None
        return url

    def status(self, name: str) -> str:
        return self.client.status(self.jobs[name]).status

    def result(self, name: str) -> Any:
        return self.client.result(self.jobs[name], 60)


@contextmanager
def running_on_old_state(folder: Path) -> Iterator[OldState]:
    """Start this version on a copy of the fixture; on the same copy where there is one."""
    if not (folder / "state").exists():
        for name in ("state", "payloads"):
            shutil.copytree(FIXTURE / name, folder / name)
        shutil.copy(FIXTURE / "handler.py", folder)
        models = (FIXTURE / "models.yaml").read_text()
        # The old model was broken: one of its jobs became a dead letter.
        mended = models.replace("max_retries: 0", "max_retries: 0, options: {mended: true}")
        (folder / "models.yaml").write_text(mended)
    manifest = json.loads((FIXTURE / "manifest.json").read_text())
    variables = {
        "HEADRACE_AUTH": "on", "HEADRACE_PAYLOAD_DIR": str(folder / "payloads"),
        "HEADRACE_WEBHOOK_SECRETS": manifest["server_secret"],
        "HEADRACE_WEBHOOK_ALLOW_HTTP": "true",
        "HEADRACE_WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8",
    }  # fmt: skip
    with (
        running_up(
            folder, "--workers", "1", models=folder / "models.yaml", flower=False, background=True,
            runner=True, **variables,
        ) as up,
        Client(f"http://127.0.0.1:{up.port}", api_key=manifest["key"]) as client,
    ):  # fmt: skip
        yield OldState(up, client, manifest, manifest["jobs"])


def test_what_has_ended_is_read(tmp_path: Path) -> None:
    with running_on_old_state(tmp_path) as old:
        job = old.client.status(old.jobs["succeeded"])
        assert (job.status, job.attempts, job.metadata) == ("succeeded", 1, {"who": "old"})
        assert job.timings is not None
        assert old.result("succeeded") == {"got": {"n": 1}}
        assert old.result("bytes") == b"\x00\x01\x02"
        assert old.result("named") == {"got": 3}
        assert old.result("pipeline") == {"got": {"got": {"n": 4}}}
        assert [stage["name"] for stage in old.client.status(old.jobs["pipeline"]).stages] == [
            "first", "second",
        ]  # fmt: skip
        # Results in both payload stores.
        large = {"text": "x" * len(LARGE)}
        assert old.result("result_file") == old.result("result_redis") == large
        with pytest.raises(InputError, match="this input is bad"):
            old.result("refused")
        with pytest.raises(JobCancelled):
            old.result("cancelled")
        assert old.jobs["succeeded"] in {job.id for job in old.client.jobs(model="words")}
        # An id and an idempotency key are still known.
        assert (
            old.client.submit("words", {"n": 2}, idempotency_key="order-2").id
            == (old.jobs["repeated"])
        )
        with pytest.raises(Conflict):
            old.client.submit("words", {"n": 3}, idempotency_key="order-2")
        (delivery,) = old.client.webhooks(old.jobs["webhook"])
        assert (delivery.state, len(delivery.attempts)) == ("failed", 1)
        (run,) = old.client.runs()
        assert (run.id, run.state, run.succeeded, run.failed) == ("old-run", "ended", 6, 1)
        # The other key is good too, and sees nothing of the first.
        with (
            Client(old.url, api_key=old.manifest["other_key"]) as other,
            Client(old.url, api_key="hr_000000000000_none") as stranger,
        ):
            with pytest.raises(JobNotFound):
                other.status(old.jobs["succeeded"])
            assert other.result(other.submit("first", "mine"), 60) == {"got": "mine"}
            with pytest.raises(Unauthorized):
                stranger.status(old.jobs["succeeded"])
        # A stock Celery client reads the old results.
        with Celery(broker=old.redis_url, backend=old.redis_url, set_as_current=False) as app:
            result: AsyncResult[Any] = app.AsyncResult(old.jobs["succeeded"])
            assert result.get(timeout=10) == {"got": {"n": 1}}
        assert old.up.stop() == 0


def test_what_waits_runs_once(tmp_path: Path) -> None:
    with running_on_old_state(tmp_path) as old:
        manifest, client = old.manifest, old.client
        paused = {queue.model for queue in client.queues() if queue.paused}
        assert paused == {"words", "second", "both"}
        assert old.status("queued") == old.status("pipeline_waits") == "queued"
        assert old.status("scheduled") in ("scheduled", "queued")
        (dead,) = client.dead_letters("words")
        assert (dead.job_id, dead.reason) == (old.jobs["dead"], "transient-error")
        assert client.requeue_dead_letters("words", [dead.id]).requeued == 1
        with webhook_receiver(port=manifest["webhook_port"]) as receiver:
            for model in paused:
                client.resume_queue(model)
            received = receiver.wait_for(old.jobs["queued_webhook"])
            told = received[0].verified(manifest["webhook_secret"])
            assert told["data"]["result"] == {"got": {"n": 13}}
            # The delivery that the old version had given up can be sent again.
            client.redeliver_webhook(old.jobs["webhook"])
            receiver.wait_for(old.jobs["webhook"])
        for name, n in (
            ("queued", 11), ("batch_priority", 12), ("queued_webhook", 13),
            ("queued_repeated", 14), ("scheduled_short", 16),
        ):  # fmt: skip
            assert old.result(name) == {"got": {"n": n}}
        # Inputs in both payload stores.
        for store in ("file", "redis"):
            assert old.result(f"queued_{store}") == {"got": {"n": 10, "text": LARGE}}
            assert old.result(f"queued_{store}_result") == {"text": "x" * len(LARGE)}
        assert old.result("dead") == {"got": {"do": "break"}}
        assert list(client.dead_letters("words")) == []
        assert old.result("pipeline_waits") == {"got": {"got": {"n": 18}}}
        assert old.result("pipeline_half") == {"got": {"got": {"n": 20}}}
        assert (
            client.submit("words", {"n": 14}, idempotency_key="order-14").id
            == (old.jobs["queued_repeated"])
        )
        with Celery(broker=old.redis_url, backend=old.redis_url, set_as_current=False) as app:
            result: AsyncResult[Any] = app.AsyncResult(old.jobs["celery"])
            assert result.get(timeout=30) == {"got": {"n": 19}}
        with sdk(old.url, manifest["key"]) as openai:
            batches = Batches(openai)
            batch = batches.ended(openai.batches.retrieve(manifest["batch"]))
            good, bad = batches.both(batch)
            assert (batch.status, bad) == ("completed", {})
            got = {name: row["response"]["body"]["result"]["got"] for name, row in good.items()}
            assert got == {f"line-{n}": {"n": n} for n in range(3)}
            input_file = openai.files.content(manifest["file"]).read()
            assert len(input_file.splitlines()) == 3
        client.cancel(old.jobs["scheduled"])
        with connect(old.redis_url) as redis:
            wait_until(lambda: leaked_keys(redis) == [], "nothing is left over", 30)
        assert old.up.stop() == 0
    # And a second start of this version finds it all again.
    with running_on_old_state(tmp_path) as old:
        assert old.result("queued") == {"got": {"n": 11}}
        assert old.result("queued_file") == {"got": {"n": 10, "text": LARGE}}
        assert {queue.paused for queue in old.client.queues()} == {False}
