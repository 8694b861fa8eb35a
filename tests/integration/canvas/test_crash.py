"""What follows a job goes out before the job is settled: kill -9 between the two, lost answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chord

from headrace.jobs.job import State
from headrace.redis import keys
from headrace.redis.scripts import script
from headrace.server.recovery import release_incarnation
from tests.harness.clients.celery_client import GET_TIMEOUT_S, stock_client
from tests.harness.fakes.proxy import Proxy, proxy
from tests.harness.servers.redis_servers import RedisServer, nothing_leaks, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.stock_worker import STOCK_QUEUE, ours, stock
from tests.harness.workers.worker import HANDLERS, Client, Worker, celery_worker, write_models

FIRST, SECOND = "the-first", "the-second"


@dataclass
class Site:
    """A worker behind a proxy that serves `tricky`, and one that is to come for `one` as well."""

    server: RedisServer
    folder: Path
    carrier: Proxy
    first: Worker
    ours: Client
    app: Celery

    def runs(self, job_id: str) -> int:
        log = self.folder / "runs.log"
        return sum(line.split()[0] == job_id for line in log.read_text().splitlines())

    def sent(self, task: str) -> list[dict[str, Any]]:
        """The headers of the messages in the stock queue, where nobody takes them."""
        raws = self.ours.redis.lrange(STOCK_QUEUE, 0, -1)
        messages = [json.loads(raw) for raw in reversed(raws)]
        return [
            {**message["headers"], "args": json.loads(base64.b64decode(message["body"]))[0]}
            for message in messages
            if message["headers"]["task"] == f"stock.{task}"
        ]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    log = {"log": str(tmp_path / "runs.log")}
    handler = f"{HANDLERS / 'gated.py'}:Gated"
    models = write_models(tmp_path, tricky={"handler": handler, "options": log})
    environ = {"HEADRACE_INCARNATION": FIRST, "HEADRACE_DRAIN_TIMEOUT_S": "1"}
    with (
        redis_server("valkey9", "--appendonly", "yes", "--appendfsync", "always") as server,
        proxy(server.port) as carrier,
        celery_worker(
            f"redis://127.0.0.1:{carrier.port}/0", models, tmp_path,
            node="first@test", environ=environ,
        ) as first,
        Client(server.url, models) as client,
        stock_client(server.url) as app,
    ):  # fmt: skip
        first.wait_ready("tricky")
        yield Site(server, tmp_path, carrier, first, client, app)
        client.redis.delete(STOCK_QUEUE)
        nothing_leaks(client.redis)


def _crash(site: Site) -> None:
    """Kill the first worker as nobody can refuse, and let its supervisor give back its jobs."""
    site.first.kill()
    assert release_incarnation(site.server.url, FIRST) > 0


def _second(site: Site) -> Any:
    log = {"log": str(site.folder / "runs.log")}
    handler = f"{HANDLERS / 'trouble/tricky.py'}:Tricky"
    folder = site.folder / SECOND
    folder.mkdir()
    models = write_models(
        folder,
        tricky={"handler": handler, "options": log},
        one={"handler": handler, "options": log},
    )
    return celery_worker(site.server.url, models, folder, node="second@test")


def test_a_kill_between_the_callbacks_and_the_settlement(site: Site) -> None:
    site.carrier.swallow(script("jobs/settle").sha.encode())
    member = ours(site.app, "tricky", 5, task_id="member")
    # Without ids of their own, as most clients link.
    member.link(stock(site.app, "note", "nowhere"))
    member.link(ours(site.app, "one"))
    # One member: nothing is claimed behind a settlement that is swallowed.
    sent = chord([member], stock(site.app, "total"), app=site.app)()
    wait_until(lambda: site.sent("note"), "the callback stands in the broker", timeout_s=30)
    wait_until(lambda: site.sent("total"), "and the body of the chord", timeout_s=30)
    wait_until(lambda: site.carrier.swallowed, "the settlement is on its way", timeout_s=30)
    assert site.ours.leased("member")
    linked = site.ours.redis.lindex(keys.queue_name("one"), 0)
    _crash(site)

    with _second(site) as worker:
        worker.wait_ready("tricky", "one")
        (ended,) = site.ours.wait("member")
        assert ended.state is State.SUCCEEDED
        assert site.app.AsyncResult("member").get(timeout=GET_TIMEOUT_S) == 5
        assert site.runs("member") == 2

        first, repeat = site.sent("note")
        assert first["id"] == repeat["id"], "a stock task can know the repeat by its id"
        (body,) = site.sent("total")
        assert (body["id"], body["args"]) == (sent.id, [[5]])

        linked_id = json.loads(linked)["headers"]["id"]
        assert site.app.AsyncResult(linked_id).get(timeout=GET_TIMEOUT_S) == 5
        wait_until(lambda: not site.ours.redis.llen(keys.queue_name("one")), "the repeat is taken")
        assert site.runs(linked_id) == 1, "a repeat of ours is dropped"


def test_a_chord_whose_body_died_with_its_sender(site: Site) -> None:
    """The dead worker's claim on the body stands; the next one waits for its end, and sends."""
    site.carrier.swallow(b'"task": "stock.total"')
    members = [ours(site.app, "tricky", n, task_id=f"member-{n}") for n in (5, 6)]
    sent: Any = chord(members, stock(site.app, "total"), app=site.app)()
    wait_until(lambda: site.carrier.swallowed, "the body is on its way", timeout_s=30)
    group_id = sent.parent.id
    claim = f"celery-taskset-meta-{group_id}.c"
    assert site.ours.redis.get(claim) not in (None, b"done")
    _crash(site)
    with _second(site) as worker:
        worker.wait_ready("tricky")
        wait_until(lambda: site.runs("member-6") == 2, "the members ran again", timeout_s=30)
        assert not site.sent("total")
        site.ours.redis.expire(claim, 1)
        (body,) = wait_until(lambda: site.sent("total"), "the body is sent", timeout_s=30)
        assert (body["id"], body["args"]) == (sent.id, [[5, 6]])
        ended = site.ours.wait("member-5", "member-6")
        assert [job.state for job in ended] == [State.SUCCEEDED] * 2


def test_what_the_broker_did_not_confirm_is_sent_again_under_its_id(site: Site) -> None:
    site.carrier.lose_answer_to(b'"task": "stock.note"')
    member = ours(site.app, "tricky", 5)
    member.link(stock(site.app, "note", "nowhere"))
    sent = member.apply_async()
    assert sent.get(timeout=GET_TIMEOUT_S) == 5
    assert site.carrier.lost == 1
    first, repeat = site.sent("note")
    assert first["id"] == repeat["id"] == sent.children[0].id


def test_what_cannot_be_told_is_tried_again_until_redis_is_back(site: Site) -> None:
    gate = site.folder / "gate"
    member = ours(site.app, "tricky", {"until": str(gate)}, task_id="member")
    member.link(stock(site.app, "note", "nowhere"))
    member.apply_async()
    wait_until(lambda: (site.folder / "runs.log").exists(), "it runs", timeout_s=30)
    site.server.stop(kill=True)
    gate.touch()
    wait_until(lambda: "callbacks not sent" in site.first.log, "it tries", timeout_s=60)
    site.server.start()
    (ended,) = site.ours.wait("member")
    assert ended.state is State.SUCCEEDED, ended.error_json
    assert (ended.attempts, site.runs("member")) == (1, 1)
    assert len({message["id"] for message in site.sent("note")}) == 1


def test_a_stop_gives_back_what_could_not_be_told(site: Site) -> None:
    site.carrier.swallow(b'"task": "stock.note"')
    member = ours(site.app, "tricky", 5, task_id="member")
    member.link(stock(site.app, "note", "nowhere"))
    member.apply_async()
    wait_until(lambda: site.carrier.swallowed, "the callback is on its way", timeout_s=30)
    assert site.first.stop() == 0
    assert not site.sent("note")
    job = site.ours.job("member")
    assert (job.state, job.attempts) == (State.QUEUED, 0), "given back, and not charged"
    with _second(site) as worker:
        worker.wait_ready("tricky")
        assert site.app.AsyncResult("member").get(timeout=GET_TIMEOUT_S) == 5
        assert len(site.sent("note")) == 1
