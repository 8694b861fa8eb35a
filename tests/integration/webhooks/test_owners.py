"""An API key's webhooks are about its own jobs, also where another key uses an id again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from headrace.redis import keys
from tests.harness.clients.access import http_as, make_key
from tests.harness.deployments.webhooks import HookSite, webhook_site
from tests.harness.servers.webhook_receiver import Received
from tests.harness.wait import wait_until

JOBS = "/api/v1/jobs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HookSite]:
    with webhook_site(tmp_path_factory.mktemp("hooks"), auth="on") as running:
        yield running


@pytest.fixture
def alice(site: HookSite) -> Iterator[httpx2.Client]:
    with http_as(site.api, make_key(site.server)[1]) as http:
        yield http


@pytest.fixture
def bob(site: HookSite) -> Iterator[httpx2.Client]:
    with http_as(site.api, make_key(site.server)[1]) as http:
        yield http


def run(site: HookSite, http: httpx2.Client, job_id: str, name: str, **options: Any) -> Any:
    """A job of a key that has ended, and its job object."""
    url, metadata = site.receiver.url(f"/200?{name}"), {"of": name}
    options = {"webhook": url, "metadata": metadata, **options}
    body = {"model": "tricky", "input": metadata, "options": options}
    made = http.put(f"{JOBS}/{job_id}", json=body, params={"wait": "60"})
    assert made.status_code == 200, made.text
    return made.json()


def expire(site: HookSite, http: httpx2.Client, job_id: str) -> None:
    """End the life of a record, as at the end of `result_ttl`."""
    with site.server.client() as client:
        for name in (keys.job(job_id), keys.meta(job_id)):
            client.pexpire(name, 1)
    wait_until(lambda: http.get(f"{JOBS}/{job_id}").status_code == 404, "the record is gone", 60)


def sent_to(site: HookSite, job_id: str, name: str, count: int) -> list[Received]:
    def found() -> list[Received]:
        got = [one for one in site.receiver.of(job_id) if one.path == f"/200?{name}"]
        return got if len(got) >= count else []

    return wait_until(found, f"{count} webhooks for {name}", 60)


def test_a_redelivery_after_another_key_took_the_id(
    site: HookSite, alice: httpx2.Client, bob: httpx2.Client
) -> None:
    worker = site.background_worker("redeliver")
    run(site, alice, "order-7", "alice", webhook_events=["started"])
    (first,) = sent_to(site, "order-7", "alice", 1)
    assert first.event["data"]["metadata"] == {"of": "alice"}
    expire(site, alice, "order-7")
    run(site, bob, "order-7", "bob")
    sent_to(site, "order-7", "bob", 1)

    path = f"{JOBS}/order-7/webhooks"

    def delivered() -> bool:
        (delivery,) = alice.get(path).json()["deliveries"]
        return bool(delivery["state"] == "delivered")

    wait_until(delivered, "the first is over", 60)
    assert alice.post(f"{path}/redeliver").status_code == 202
    second = sent_to(site, "order-7", "alice", 2)[-1]
    assert second.event == {
        "type": "job.started",
        "timestamp": first.event["timestamp"],
        "data": {
            "id": "order-7", "model": "tricky", "status": "running", "finished_at": None,
            "record_expired": True,
        },
    }  # fmt: skip
    assert [one["type"] for one in alice.get(path).json()["deliveries"]] == ["job.started"]
    assert [one["type"] for one in bob.get(path).json()["deliveries"]] == ["job.succeeded"]
    worker.stop()


def test_a_first_attempt_after_another_key_took_the_id(
    site: HookSite, alice: httpx2.Client, bob: httpx2.Client
) -> None:
    """No background worker runs meanwhile."""
    both = {"webhook_events": ["started", "succeeded"]}
    hers = run(site, alice, "order-8", "alice", **both)
    expire(site, alice, "order-8")
    his = run(site, bob, "order-8", "bob", **both)
    site.background_worker("late")

    got = {one.event["type"]: one.event for one in sent_to(site, "order-8", "alice", 2)}
    assert got["job.succeeded"]["data"] == {
        "id": "order-8", "model": "tricky", "status": "succeeded",
        "finished_at": hers["finished_at"], "record_expired": True,
    }  # fmt: skip
    assert got["job.started"]["data"]["record_expired"]
    got = {one.event["type"]: one.event for one in sent_to(site, "order-8", "bob", 2)}
    # A webhook names no worker.
    assert got["job.succeeded"]["data"] == {k: v for k, v in his.items() if k != "worker"}
