"""Webhooks when processes die, records run out, and secrets are rotated."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from standardwebhooks.webhooks import WebhookVerificationError

from headrace.access.api_key import Scope
from headrace.redis import keys
from headrace.server.ports import free_port
from headrace.server.recovery import requeue_tasks
from headrace.webhooks.signing import new_secret, secrets_of, signature, written
from tests.harness.clients.access import http_as, make_key
from tests.harness.deployments.webhooks import HookSite, webhook_site
from tests.harness.servers.redis_servers import nothing_leaks
from tests.harness.servers.up import ROOT
from tests.harness.servers.webhook_receiver import webhook_receiver
from tests.harness.wait import wait_until

AOF = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HookSite]:
    with webhook_site(tmp_path, *AOF) as site:
        yield site
        site.receiver.gate.set()
        site.quiet()
        with site.server.client() as client:
            nothing_leaks(client)


def test_killed_while_it_delivers_and_while_retries_wait(site: HookSite) -> None:
    first = site.background_worker("first")
    port = free_port()  # where nobody listens yet
    waits = site.submit("", webhook=f"http://127.0.0.1:{port}/200")
    pending = site.delivery(waits, "pending")
    under_way = site.submit("/gate")
    site.receiver.wait_for(under_way)
    first.kill()
    # Redis too: what waits is there, and not in anybody's memory.
    site.server.stop(kill=True)
    site.server.start()
    # As the supervisor of the dead one does at once; else others miss it in 15 s.
    requeue_tasks(site.server.url, "first")
    with webhook_receiver(port=port) as late:
        site.receiver.gate.set()
        site.background_worker("second")
        site.hasten(pending, waits)
        delivery = site.delivery(waits, "delivered", tries=2)
        assert [got.id for got in late.of(waits)] == [delivery["id"]]
    site.delivery(under_way, "delivered")
    one, two = site.receiver.of(under_way)
    assert (one.id, one.body) == (two.id, two.body)


def test_redis_is_killed_while_webhooks_are_under_way(site: HookSite) -> None:
    jobs = [site.submit("/200", number) for number in range(40)]
    with site.server.client() as client:
        ended = [keys.deliveries(job) for job in jobs]
        wait_until(lambda: all(client.hexists(key, "e:") for key in ended), "they have ended", 60)
    worker = site.background_worker("only")
    site.receiver.wait_for(jobs[3])
    site.server.stop(kill=True)
    outage = "Redis is unreachable; deliveries go on when it is back"
    wait_until(lambda: outage in worker.log, "the outage is logged", 60)
    site.server.start()
    for job in jobs:
        site.delivery(job, "delivered")
    wait_until(lambda: "Redis is back; deliveries go on" in worker.log, "its end is logged", 60)
    assert worker.log.count(outage) == 1
    assert "Traceback" not in worker.log


def test_what_ends_while_no_background_worker_runs_and_whose_record_runs_out(
    site: HookSite,
) -> None:
    gone = site.submit("/200", result_ttl=1)
    kept = site.submit("/200")
    with site.server.client() as client:
        wait_until(lambda: client.hexists(keys.deliveries(gone), "e:"), "it has ended", 60)
        wait_until(lambda: not client.exists(keys.job(gone)), "its record is gone", 60)
    site.background_worker("late")
    (got,) = site.receiver.wait_for(gone)
    event = got.verified(site.secrets[1])
    assert event["type"] == "job.succeeded"
    assert event["data"] == {
        "id": gone, "model": "tricky", "status": "succeeded", "finished_at": event["timestamp"],
        "record_expired": True,
    }  # fmt: skip
    assert site.delivery(gone, "delivered")["id"] == got.id, "the log outlives the record"
    assert site.receiver.wait_for(kept)[0].event["data"]["result"] == 1


def test_a_secret_is_rotated_without_a_gap(site: HookSite) -> None:
    old, new = site.secrets[0], new_secret()
    site.secrets = (old,)
    before = site.background_worker("before")
    (got,) = site.receiver.wait_for(site.submit("/200"))
    assert got.verified(old)
    with pytest.raises(WebhookVerificationError):
        got.verified(new)
    assert before.stop() == 0
    site.secrets = (new, old)
    site.background_worker("after")
    (got,) = site.receiver.wait_for(site.submit("/200"))
    assert got.verified(old)
    assert got.verified(new)


def test_the_receiver_of_the_document(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "webhooks.md").read_text("utf-8")
    (program,) = re.findall(r"^```python\n(import http.*?)^```", text, re.MULTILINE | re.DOTALL)
    secret, port = new_secret(), free_port()
    environ = {**os.environ, "WEBHOOK_SECRET": secret, "PORT": str(port)}

    def send(body: bytes, message_id: str) -> int:
        at_s = int(time.time())
        headers = {
            "webhook-id": message_id,
            "webhook-timestamp": str(at_s),
            "webhook-signature": signature(secrets_of([secret]), "msg_1", at_s, body),
        }
        return httpx2.post(
            f"http://127.0.0.1:{port}/", content=body, headers=headers, timeout=60
        ).status_code

    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen([sys.executable, "-c", program], stdout=out, env=environ)
    try:
        wait_until(lambda: is_open(port), "it listens", 60)
        body = b'{"type":"job.succeeded","data":{"id":"one"}}'
        assert [send(body, name) for name in ("msg_1", "msg_1", "msg_2")] == [204, 204, 401]
        assert send(body.replace(b"one", b"two"), "msg_1") == 204
        assert (tmp_path / "out").read_text() == "job.succeeded one\n"
    finally:
        process.kill()
        process.wait(60)


def is_open(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), 5):
        return True


@pytest.mark.leaves_keys
def test_api_keys_have_secrets_and_deliveries_of_their_own(tmp_path: Path) -> None:
    with webhook_site(tmp_path, auth="on") as site:
        site.background_worker("only")
        (mine, my_key), (_, their_key) = make_key(site.server), make_key(site.server)
        _, operator = make_key(site.server, *Scope)
        body = {"model": "tricky", "input": 1, "options": {"webhook": site.receiver.url("/200")}}
        with (
            http_as(site.api, my_key) as me,
            http_as(site.api, their_key) as they,
            http_as(site.api, operator) as all_seeing,
        ):
            job_id = me.post("/api/v1/jobs", json=body).json()["id"]
            (got,) = site.receiver.wait_for(job_id)
            for secret in map(written, secrets_of(site.secrets, mine)):
                assert got.verified(secret)
            for secret in (*site.secrets, *map(written, secrets_of(site.secrets, "0" * 12))):
                with pytest.raises(WebhookVerificationError):
                    got.verified(secret)
            path = f"/api/v1/jobs/{job_id}/webhooks"
            wait_until(lambda: me.get(path).json()["deliveries"], "it is kept")
            assert me.get(path).json() == all_seeing.get(path).json()
            for answer in (they.get(path), they.post(f"{path}/redeliver")):
                assert (answer.status_code, answer.json()["type"]) == (
                    404, "/problems/job-not-found",
                )  # fmt: skip
            assert site.api.http.get(path).status_code == 401
            # Also once the record is gone, and another's is there under its id.
            me.post("/api/v1/jobs/forget", json={"ids": [job_id]})
            again = they.put(f"/api/v1/jobs/{job_id}", json={"model": "tricky", "input": 2})
            assert again.status_code in (200, 202)
            assert they.get(path).json()["deliveries"] == []
            assert len(me.get(path).json()["deliveries"]) == 1
        site.quiet()
