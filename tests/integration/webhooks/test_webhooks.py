"""Webhooks from the submit to a receiver, through real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import Client
from headrace.access import api_key
from headrace.errors import WebhookNotFound
from headrace.redis import keys
from headrace.server.ports import free_port
from headrace.webhooks.signing import secrets_of, written
from tests.harness.clients.celery_client import stock_client
from tests.harness.clients.commands import CommandsWithin
from tests.harness.deployments.webhooks import TIMEOUT_S, HookSite, webhook_site
from tests.harness.servers.webhook_receiver import HUGE_BYTES, webhook_receiver
from tests.harness.wait import wait_until

JOBS = "/api/v1/jobs"


@pytest.fixture(scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HookSite]:
    with webhook_site(tmp_path_factory.mktemp("hooks")) as site:
        site.background_worker("first")
        yield site


@pytest.fixture
def site(_site: HookSite) -> Iterator[HookSite]:
    """One for all tests of this file; nothing that a test began goes on in the next."""
    yield _site
    _site.receiver.gate.set()
    _site.quiet(drop=True)
    _site.receiver.gate.clear()


def test_every_way_to_submit_tells_the_end_signed(site: HookSite) -> None:
    http, url = site.api.http, site.receiver.url("/200?token=a%20b")
    body = {"model": "tricky", "input": {"n": 1}, "options": {"webhook": url}}
    line = json.dumps({**body, "id": "of-a-line"}) + "\n"
    quiet = json.dumps(body) + "\n"
    ids = [
        http.post("/api/v1/models/tricky/jobs", params={"webhook": url}, json=1).json()["id"],
        http.post(JOBS, json=body).json()["id"],
        http.put(f"{JOBS}/named", json=body).json()["id"],
        json.loads(http.post(f"{JOBS}/bulk", content=line).text)["id"],
        json.loads(http.post(f"{JOBS}/bulk?quiet=1", content=quiet).text)["id"],
    ]
    with Client(site.api.url) as client:
        ids += [client.submit("tricky", 1, webhook=url).id]
        ids += [job.id for job in client.submit_many("tricky", [1], webhook=url)]  # type: ignore[union-attr]
    for job_id in ids:
        (got,) = site.receiver.wait_for(job_id)
        assert got.path == "/200?token=a%20b"
        assert got.headers["content-type"] == "application/json"
        for secret in site.secrets:
            event = got.verified(secret)
            assert event["type"] == "job.succeeded"
            job = http.get(f"{JOBS}/{job_id}").json()
            assert job.pop("worker"), "a receiver does not get it"
            assert event["data"] == job
            assert event["timestamp"] == event["data"]["finished_at"]
        delivery = site.delivery(job_id, "delivered")
        assert (delivery["id"], delivery["tries"], delivery["next_attempt_at"]) == (got.id, 1, None)
        assert delivery["url"] == site.receiver.url("/200?…"), "a token is not shown"
    # A repeat of a submit is the same job, and told once.
    assert http.put(f"{JOBS}/named", json=body).headers["idempotency-replayed"] == "true"
    other = {**body, "options": {"webhook": f"{url}2"}}
    assert http.put(f"{JOBS}/named", json=other).status_code == 409


def test_what_is_told_is_what_was_asked_for(site: HookSite) -> None:
    events = {"webhook_events": ["started", "failed"]}
    ids = [site.submit("/200", {"do": "raise"}, **events), site.submit("/200", 1, **events)]
    failed, succeeded = ids
    got = {one.event["type"]: one for one in site.receiver.wait_for(failed, 2)}
    assert set(got) == {"job.started", "job.failed"}
    assert got["job.failed"].event["data"]["error"]["type"] == "handler-error"
    assert got["job.started"].id != got["job.failed"].id
    (started,) = site.receiver.wait_for(succeeded)
    assert started.event["type"] == "job.started"
    params = {"webhook": site.receiver.url("/200"), "webhook_events": "cancelled,expired"}
    path = "/api/v1/models/tricky/jobs"
    later = site.api.http.post(path, params={**params, "countdown": "600"}, json=1).json()["id"]
    site.api.http.delete(f"{JOBS}/{later}")
    assert site.receiver.wait_for(later)[0].event["type"] == "job.cancelled"
    late = {**params, "countdown": "600", "expires": "0.001"}
    gone = site.api.http.post(path, params=late, json=1).json()["id"]
    assert site.receiver.wait_for(gone)[0].event["type"] == "job.expired"
    site.quiet()
    assert len(site.receiver.of(succeeded)) == 1


def test_a_stock_revoke_is_told(site: HookSite) -> None:
    job_id = site.submit("/200", countdown=600)
    with stock_client(site.server.url) as app:
        app.control.revoke(job_id)
        assert site.receiver.wait_for(job_id)[0].event["data"]["status"] == "cancelled"


@pytest.mark.parametrize("status", [500, 503, 404, 429, 302])
def test_what_does_not_arrive_is_tried_again_as_it_was(site: HookSite, status: int) -> None:
    job_id = site.submit(f"/once/{status}")
    first = site.delivery(job_id, "pending")
    assert first["attempts"][0]["status"] == status
    assert str(status) in first["attempts"][0]["error"]
    assert first["next_attempt_at"] > first["attempts"][0]["at"]
    site.hasten(first, job_id)
    delivery = site.delivery(job_id, "delivered")
    one, two = site.receiver.of(job_id)
    assert (one.id, one.body) == (two.id, two.body)
    assert two.verified(site.secrets[0])
    assert [attempt["status"] for attempt in delivery["attempts"]] == [status, 204]


def test_gone_ends_it_and_an_operator_sends_it_again(site: HookSite) -> None:
    job_id = site.submit("/410")
    delivery = site.delivery(job_id, "failed")
    assert delivery["next_attempt_at"] is None
    with Client(site.api.url) as client:
        assert client.redeliver_webhook(job_id).state == "pending"
        site.delivery(job_id, "failed", tries=2)
        (delivery,) = client.webhooks(job_id)
        assert client.redeliver_webhook(job_id, delivery).id == delivery.id
        site.delivery(job_id, "failed", tries=3)
        with pytest.raises(WebhookNotFound, match="no webhook delivery 'msg_none'"):
            client.redeliver_webhook(job_id, "msg_none")
        arrived = site.submit("/200")
        site.delivery(arrived, "delivered")
        client.redeliver_webhook(arrived)
        one, two = site.receiver.wait_for(arrived, 2)
    assert (one.id, one.body) == (two.id, two.body)
    refused = site.api.http.post(f"{JOBS}/{job_id}/webhooks/redeliver", content=b"[")
    assert (refused.status_code, refused.json()["type"]) == (400, "/problems/invalid-request")


def test_retry_after_is_honoured(site: HookSite) -> None:
    for status in (429, 503):
        with webhook_receiver() as other:
            job_id = site.submit("", webhook=other.url(f"/later/{status}"))
            delivery = site.delivery(job_id, "pending")
            at, following = delivery["attempts"][0]["at"], delivery["next_attempt_at"]
            assert following[:13] > at[:13], "an hour later"
            # Nor is it sent anything else meanwhile.
            held = site.submit("", webhook=other.url("/200"))
            assert site.delivery(held, "pending", tries=0)["attempts"] == []
            assert other.of(held) == []
            with Client(site.api.url) as client:
                client.redeliver_webhook(held)
            site.delivery(held, "delivered", tries=1)


def test_a_long_retry_after_does_not_end_it(site: HookSite) -> None:
    with webhook_receiver() as other:
        job_id = site.submit("", webhook=other.url("/later/429/days"))
        delivery = site.delivery(job_id, "pending", tries=1)
        waits = datetime.fromisoformat(delivery["next_attempt_at"]) - datetime.now(UTC)
        assert waits <= timedelta(hours=1)


def test_a_redirect_is_not_followed(site: HookSite) -> None:
    job_id = site.submit("/to")
    delivery = site.delivery(job_id, "pending")
    assert "redirects are not followed" in delivery["attempts"][0]["error"]
    assert "/stolen" not in [one.path for one in site.receiver.got]


def test_an_answer_is_read_to_a_bound(site: HookSite) -> None:
    job_id = site.submit("/huge")
    assert site.delivery(job_id, "delivered")["attempts"][0]["status"] == 200
    assert site.receiver.huge_sent < HUGE_BYTES / 2


@pytest.mark.slow
def test_a_receiver_that_hangs_has_its_time(site: HookSite) -> None:
    for job_id in [site.submit(path) for path in ("/gate", "/half")]:
        (attempt, *_) = site.delivery(job_id, "pending")["attempts"]
        assert f"no answer within {TIMEOUT_S:g} s" in attempt["error"]


def test_nobody_there(site: HookSite) -> None:
    job_id = site.submit("", webhook=f"http://127.0.0.1:{free_port()}/200")
    delivery = site.delivery(job_id, "pending")["attempts"][0]
    assert delivery["status"] is None
    assert "ConnectError" in delivery["error"]


def test_one_that_hangs_holds_up_no_other(site: HookSite) -> None:
    with webhook_receiver() as slow:
        ids = [site.submit("", webhook=slow.url("/gate")) for _ in range(40)]
        wait_until(lambda: slow.got, "the slow one has some", 60)
        other = site.submit("/200")
        site.receiver.wait_for(other)
        assert len(slow.got) < len(ids)
    with site.server.client() as client:
        # The one that was delivered leaves a moment after its receiver has it.
        wait_until(
            lambda: 0 < client.zcard(keys.DUE_DELIVERIES) <= len(ids), "the others wait in Redis"
        )


def test_a_requeue_is_told_of_its_new_end(site: HookSite, tmp_path: Path) -> None:
    job_id = site.submit("/200", {"do": "transient", "until": str(tmp_path / "now")})
    (failed,) = site.receiver.wait_for(job_id)
    assert failed.event["data"]["dead_lettered"]
    (tmp_path / "now").touch()
    letters = "/api/v1/models/tricky/dead-letters/requeue"
    assert site.api.http.post(letters, json={"ids": [job_id]}).json()["requeued"] == 1
    _, succeeded = site.receiver.wait_for(job_id, 2)
    assert (failed.event["type"], succeeded.event["type"]) == ("job.failed", "job.succeeded")
    assert failed.id != succeeded.id
    # The log is written when the receiver's answer is here.
    wait_until(lambda: len(site.deliveries(job_id)) > 1, "both deliveries are in the log")
    assert [one["type"] for one in site.deliveries(job_id)] == ["job.failed", "job.succeeded"]


def test_what_is_counted(site: HookSite) -> None:
    def counted() -> dict[str, float]:
        text = site.api.http.get("/metrics").text
        return {
            line.split()[0]: float(line.split()[1])
            for line in text.splitlines()
            if line.startswith(("headrace_webhook", "headrace_background"))
        }

    name = 'headrace_webhook_tries_total{{outcome="{}"}}'.format
    before = counted()
    site.delivery(site.submit("/200"), "delivered")
    site.delivery(site.submit("/410"), "failed")
    with webhook_receiver() as other:
        # Which is then left alone for an hour.
        site.delivery(site.submit("", webhook=other.url("/later/503")), "pending")
    after = counted()
    grown = {word: after[name(word)] - before[name(word)] for word in ("delivered", "failed")}
    assert grown == {"delivered": 1, "failed": 1}
    assert after[name("retried")] > before[name("retried")]
    assert (after["headrace_webhooks_pending"], after["headrace_background_tasks_waiting"]) == (
        1,
        0,
    )


REFUSED: dict[str, Any] = {
    "http://10.0.0.1/": "private or reserved",
    "http://[::1]/": "private or reserved",
    "http://2130706433/": "not a host",
    "ftp://example.com/": "the scheme ftp is not allowed",
    "https://user:pass@example.com/": "a user or a password",
}


@pytest.mark.parametrize("url", REFUSED)
def test_an_address_that_is_refused_at_the_submit(site: HookSite, url: str) -> None:
    http, options = site.api.http, {"webhook": url}
    body = {"model": "tricky", "input": 1, "options": options}
    answers = [
        http.post(JOBS, json=body).json(),
        http.post("/api/v1/models/tricky/jobs", params=options, json=1).json(),
        json.loads(http.post(f"{JOBS}/bulk", content=json.dumps(body)).text)["error"],
    ]
    for answer in answers:
        assert answer["status"] == 400
        assert REFUSED[url] in answer["detail"]


def test_the_commands(site: HookSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = CommandsWithin(site.api.url, tmp_path)
    asked = ("--webhook", site.receiver.url("/410"), "--webhook-event", "succeeded")
    (job_id,) = cli.lines("submit", "tricky", "--json-input", "1", *asked)
    delivery = site.delivery(job_id, "failed")
    head, row = cli.lines("webhooks", "show", job_id)
    assert head.split() == ["ID", "TYPE", "STATE", "ATTEMPTS", "LAST", "NEXT", "URL"]
    assert row.split()[:4] == [delivery["id"], "job.succeeded", "failed", "1"]
    assert "answered 410" in row
    assert cli.lines("webhooks", "redeliver", job_id, delivery["id"]) == [
        f"{delivery['id']}  redelivered"
    ]
    site.delivery(job_id, "failed", tries=2)
    assert [one["tries"] for one in cli.json("webhooks", "show", job_id)] == [2]
    assert cli.json("webhooks", "redeliver", job_id)[0]["state"] == "pending"
    site.delivery(job_id, "failed", tries=3)
    assert "there is no job" in cli.complaint("webhooks", "show", "none", rc=4)
    assert "no webhook delivery" in cli.complaint("webhooks", "redeliver", job_id, "msg_x", rc=2)
    wrong = ("submit", "tricky", "--json-input", "1", *asked[:2], "--webhook-event", "done")
    assert "--webhook-event" in cli.complaint(*wrong, rc=2)
    (fresh,) = cli.lines("webhooks", "secret", "--new")
    assert "webhook_secrets is not set here" in cli.complaint("webhooks", "secret", rc=2)
    monkeypatch.setenv("HEADRACE_WEBHOOK_SECRETS", ",".join((fresh, *site.secrets)))
    assert cli.lines("webhooks", "secret") == [fresh, *site.secrets]
    own = cli.lines("webhooks", "secret", "0123456789ab")
    assert own == [written(one) for one in secrets_of((fresh, *site.secrets), "0123456789ab")]
    assert "there is no API key 'hr_x'" in cli.complaint("webhooks", "secret", "hr_x", rc=2)
    whole = api_key.written(api_key.new_key())
    assert whole[-43:] not in cli.complaint("webhooks", "secret", whole, rc=2)


def test_a_job_without_webhooks_has_none_and_an_unknown_one_is_unknown(site: HookSite) -> None:
    plain = site.api.http.post("/api/v1/models/tricky/jobs?wait=10", json=1).json()["id"]
    assert site.deliveries(plain) == []
    reply = site.api.http.post(f"{JOBS}/{plain}/webhooks/redeliver")
    assert (reply.status_code, reply.json()["type"]) == (404, "/problems/webhook-not-found")
    for path in (f"{JOBS}/none/webhooks", f"{JOBS}/a b/webhooks"):
        assert site.api.http.get(path).json()["type"] == "/problems/job-not-found"
    assert site.api.http.post(f"{JOBS}/none/webhooks/redeliver").status_code == 404


def test_the_deliveries_of_all_jobs_begin_with_those_that_fail(site: HookSite) -> None:
    good, bad = site.submit("/200"), site.submit("/once/500")
    site.delivery(good, "delivered")
    failing = site.delivery(bad, "pending")
    with Client(site.api.url) as client:
        listed = client.recent_webhooks(limit=1000)
        jobs = [one.job for one in listed]
        assert jobs.index(bad) < jobs.index(good)
        (shown,) = [one for one in listed if one.job == bad]
        assert (shown.id, shown.model, shown.state) == (failing["id"], "tricky", "pending")
        assert shown.attempts[0].status == 500
        assert "?" not in shown.url
        assert bad not in [one.job for one in client.recent_webhooks(state="delivered")]
        site.hasten(failing, bad)
        site.delivery(bad, "delivered", 2)
        newest = client.recent_webhooks(limit=1000)
        assert [one.state for one in newest if one.job == bad] == ["delivered"]
        assert len([one for one in newest if one.job in (good, bad)]) == 2
