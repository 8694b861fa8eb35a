"""Remote control and events of a real worker, as `celery inspect` and Flower meet them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from headrace import keys
from headrace.jobs import State
from tests.harness.celery_client import GET_TIMEOUT_S, Events, send, stock_client
from tests.harness.redis_servers import RedisServer, leaked_keys, redis_server
from tests.harness.wait import wait_until
from tests.harness.worker import HANDLERS, Client, Worker, celery_worker, write_models

PASSWORD = "correct-horse"
SECRET = "the-input-itself"
NODE = "cpu0@test"
QUEUE = keys.queue_name("tricky")


@dataclass
class Site:
    """One worker that was not asked for events, and a stock app that controls it."""

    server: RedisServer
    folder: Path
    worker: Worker
    ours: Client
    app: Celery

    def runs(self) -> list[str]:
        log = self.folder / "runs.log"
        return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []

    def inspect(self, command: str, *args: Any) -> Any:
        """The worker's answer; that there is one is what Celery counts as being alive."""
        found: dict[str, Any] | None = getattr(
            self.app.control.inspect(timeout=5, limit=1), command
        )(*args)
        assert found is not None, f"no worker answered {command}"
        return found[NODE]

    def control(self, command: str, **arguments: Any) -> Any:
        replies: Any = self.app.control.broadcast(
            command, arguments=arguments, reply=True, timeout=5, limit=1
        )
        assert replies, f"no worker answered {command}"
        return replies[0][NODE]

    def busy(self, seconds: float, count: int = 8) -> list[str]:
        """Send jobs, and wait until a full batch of them runs and another is claimed."""
        value = {"do": "sleep", "s": seconds / 4, "text": SECRET}
        blocker = send(self.app, "tricky", {"do": "sleep", "s": 0.2})
        wait_until(lambda: blocker.id in self.runs(), "the model is busy")
        ids = [send(self.app, "tricky", value).id for _ in range(count)]
        blocker.get(timeout=GET_TIMEOUT_S)
        wait_until(lambda: sum(job_id in ids for job_id in self.runs()) == 4, "a batch runs")
        wait_until(lambda: self.ours.redis.llen(QUEUE) == 0, "the rest is claimed")
        return ids


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("control")
    tricky = {
        "handler": f"{HANDLERS / 'tricky.py'}:Tricky",
        "max_batch_size": 4,
        "max_retries": 1,
        "options": {"log": str(folder / "runs.log")},
    }
    path = write_models(folder, tricky=tricky, echo={"handler": "echo"})
    account = ("--user", "headrace", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    with redis_server("valkey9", "--appendonly", "yes", *account) as server:
        url = f"redis://headrace:{PASSWORD}@127.0.0.1:{server.port}/0"
        with (
            celery_worker(url, path, folder, node=NODE, arguments=()) as worker,
            Client(url, path) as ours,
            stock_client(url) as app,
        ):
            worker.wait_ready("tricky", "echo")
            site = Site(server, folder, worker, ours, app)
            wait_until(lambda: site.app.control.ping(timeout=1), "the worker answers")
            yield site
            leaked = leaked_keys(ours.redis)
    assert not leaked, f"keys without a TTL were left behind: {leaked}"


# First: until somebody asks for events, there are none.


def test_events_are_off_until_they_are_asked_for(site: Site) -> None:
    with Events(site.app) as events:
        quiet = send(site.app, "echo", 1)
        quiet.get(timeout=GET_TIMEOUT_S)
        assert "ok" in site.control("enable_events")
        told = send(site.app, "echo", 2)
        events.wait_for("succeeded", told.id)
        assert events.kinds(told.id) == ["received", "started", "succeeded"]
        assert not events.of(quiet.id)
        assert "ok" in site.control("disable_events")
        quiet = send(site.app, "echo", 3)
        quiet.get(timeout=GET_TIMEOUT_S)
        assert "ok" in site.control("enable_events")
        told = send(site.app, "echo", 4)
        events.wait_for("succeeded", told.id)
        assert not events.of(quiet.id)


def test_inspect_tells_the_truth_while_a_batch_runs(site: Site) -> None:
    done = len(site.runs())
    total = site.inspect("stats")["total"]["headrace.predict"]
    ids = site.busy(2.0)
    active, reserved = site.inspect("active"), site.inspect("reserved")
    assert len(active) == len(reserved) == 4
    assert {info["id"] for info in active + reserved} == set(ids)
    shown = "{'model': 'tricky', 'input': '<json, %d bytes>'}"
    size = len(json.dumps({"do": "sleep", "s": 0.5, "text": SECRET}))
    pids = site.worker.states()["tricky"]["pids"]
    for info in active:
        started = site.ours.job(info["id"]).started_us / 1e6
        assert abs(info["time_start"] - started) < 2
        assert (info["name"], info["hostname"]) == ("headrace.predict", NODE)
        assert (info["kwargs"], info["args"]) == (shown % size, [])
        assert info["worker_pid"] == pids[0]
        assert info["delivery_info"]["routing_key"] == QUEUE
    assert {info["time_start"] for info in reserved} == {None}
    found = site.inspect("query_task", [active[0]["id"], reserved[0]["id"], "nobody"])
    assert {job_id: state for job_id, (state, _) in found.items()} == {
        active[0]["id"]: "active",
        reserved[0]["id"]: "reserved",
    }
    assert site.inspect("ping") == {"ok": "pong"}
    assert site.inspect("scheduled") == []
    assert SECRET not in json.dumps([active, reserved, found])
    stats = site.inspect("stats")
    assert stats["total"]["headrace.predict"] - total == len(site.runs()) - done == 5
    site.ours.wait(*ids)
    assert site.inspect("active") == site.inspect("reserved") == []


def test_heartbeats_count_running_jobs(site: Site) -> None:
    ids = site.busy(3.0, count=4)
    with Events(site.app) as events:
        wait_until(
            lambda: any(event.get("active") == 4 for event in list(events.seen)),
            "a heartbeat that counts the batch",
        )
        site.ours.wait(*ids)
        wait_until(lambda: events.seen[-1].get("active") == 0, "a heartbeat after the batch")


def test_queues_models_and_tasks_are_named(site: Site) -> None:
    names = {queue["name"] for queue in site.inspect("active_queues")}
    assert names == {"headrace:control", "headrace.tricky", "headrace.echo"}
    assert site.inspect("registered") == ["headrace.predict"]
    models = site.inspect("stats")["headrace"]
    assert {name: model["state"] for name, model in models.items()} == {
        "tricky": "ready",
        "echo": "ready",
    }


def test_no_answer_holds_the_password(site: Site) -> None:
    answers = {name: site.inspect(name) for name in ("conf", "stats", "report", "active_queues")}
    answers["all"] = site.inspect("conf", True)
    text = json.dumps(answers)
    assert "headrace:****" in text.replace("headrace:**@", "headrace:****")
    assert PASSWORD not in text
    assert PASSWORD not in site.worker.log


@pytest.mark.parametrize(
    ("command", "arguments", "names"),
    [
        ("rate_limit", {"task_name": keys.TASK_NAME, "rate_limit": "5/s"}, "max_batch_size"),
        ("time_limit", {"task_name": keys.TASK_NAME, "hard": 5}, "timeout_s"),
        ("pool_grow", {"n": 1}, "replicas"),
        ("pool_shrink", {"n": 1}, "replicas"),
        ("add_consumer", {"queue": QUEUE}, "models file"),
        ("cancel_consumer", {"queue": QUEUE}, "models file"),
    ],
)
def test_what_control_cannot_do_is_refused(
    site: Site, command: str, arguments: dict[str, Any], names: str
) -> None:
    assert names in site.control(command, **arguments)["error"]


def test_revoke_says_what_it_did(site: Site) -> None:
    ids = site.busy(1.0, count=4)
    (waiting,) = site.ours.submit("tricky", "never", countdown=60)
    reply = site.control("revoke", task_id=[waiting, ids[0], "nobody"])
    assert reply == {"ok": f"{waiting}: removed, {ids[0]}: asked, nobody: unknown"}
    site.ours.wait(*ids)
    assert site.control("terminate", signal="KILL", task_id=ids[0]) == {"ok": f"{ids[0]}: ended"}
    assert site.ours.job(ids[0]).state is State.CANCELLED
    assert site.ours.job(ids[1]).state is State.SUCCEEDED


def test_each_ending_is_told_in_order(site: Site) -> None:
    with Events(site.app) as events:
        bad = send(site.app, "tricky", {"do": "raise", "n": 3})
        retried = send(site.app, "tricky", {"do": "transient"})
        refused = send(site.app, "tricky", kwargs={"model": "tricky"})
        late = send(site.app, "tricky", 1, countdown=0.3, expires=0.1)
        delayed = send(site.app, "tricky", 2, countdown=0.2, root_id="the-root")
        events.wait_for("failed", bad.id, retried.id, refused.id, late.id)
        events.wait_for("succeeded", delayed.id)
        asked = site.busy(0.8, count=4)
        (waiting,) = site.ours.submit("tricky", 3, countdown=60)
        site.app.control.revoke([asked[0], waiting])
        events.wait_for("revoked", asked[0], waiting)
        events.wait_for("succeeded", *asked[1:])
        assert events.kinds(bad.id) == ["received", "started", "failed"]
        attempt = ["received", "started"]
        assert events.kinds(retried.id) == [*attempt, "retried", *attempt, "failed"]
        assert events.kinds(refused.id) == ["received", "failed"]
        assert events.kinds(late.id) == ["received", "received", "failed"]
        assert events.kinds(delayed.id) == ["received", *attempt, "succeeded"]
        assert events.kinds(asked[0]) == [*attempt, "revoked"]
        assert events.kinds(waiting) == ["revoked"]
        received, _, failed = events.of(bad.id)
        assert received["kwargs"] == "{'model': 'tricky', 'input': '<json, 23 bytes>'}"
        assert (received["name"], received["hostname"]) == ("headrace.predict", NODE)
        assert failed["exception"] == "HandlerError('ValueError: cannot do 3')"
        assert "raise ValueError" in failed["traceback"]
        assert [event["retries"] for event in events.of(retried.id) if "retries" in event] == [0, 1]
        assert events.of(delayed.id)[0]["eta"] is not None
        assert events.of(delayed.id)[1]["root_id"] == "the-root"
        succeeded = events.of(asked[1])[-1]
        assert json.loads(succeeded["result"])["text"] == SECRET
        assert 0.8 <= succeeded["runtime"] < 3


def test_under_load_each_jobs_events_come_in_order(site: Site) -> None:
    with Events(site.app) as events:
        ids = site.ours.submit("echo", *range(500))
        events.wait_for("succeeded", *ids)
        expected = ["received", "started", "succeeded"]
        assert [job_id for job_id in ids if events.kinds(job_id) != expected] == []
        tasks = [event for event in list(events.seen) if event["type"].startswith("task-")]
        clocks = [event["clock"] for event in tasks]
        assert clocks == sorted(set(clocks)), "each event has a tick of its own, in order"
        assert [events.of(job_id)[-1]["result"] for job_id in ids] == [str(n) for n in range(500)]


# Last: it restarts the server.


def test_after_a_restart_of_redis_control_heartbeats_and_events_go_on(site: Site) -> None:
    ids = site.busy(4.0)
    site.server.stop()
    wait_until(lambda: "Connection to broker lost" in site.worker.log, "Celery has noticed")
    site.server.start()
    with stock_client(site.worker.redis_url) as app, Events(app, timeout_s=20) as events:
        wait_until(lambda: app.control.ping(timeout=1), "the worker answers again")
        wait_until(
            lambda: sum(event["type"] == "worker-heartbeat" for event in list(events.seen)) > 1,
            "heartbeats come again",
        )
        events.wait_for("succeeded", *ids)
        told = send(app, "echo", "after")
        events.wait_for("succeeded", told.id)
        assert events.kinds(told.id) == ["received", "started", "succeeded"]
    assert site.runs().count(ids[0]) == 1, "a batch that ran through the outage was run again"
    assert "Traceback" not in site.worker.log.partition("Connection to broker lost")[2]
