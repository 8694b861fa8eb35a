"""Remote control and events of a real worker, as `celery inspect` and Flower meet them."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from headrace.jobs.ids import new_id
from headrace.jobs.job import State
from headrace.jobs.message import decode_message
from headrace.redis import keys
from tests.harness.clients.celery_client import GET_TIMEOUT_S, Events, send, stock_client
from tests.harness.servers.redis_servers import RedisServer, nothing_leaks, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, Worker, celery_worker, write_models

PASSWORD = "correct-horse"
SECRET = "the-input-itself"
NODE = "cpu0@test"
BATCH_SIZE = 4
QUEUE = keys.queue_name("gated")


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
            self.app.control.inspect(timeout=30, limit=1), command
        )(*args)
        assert found is not None, f"no worker answered {command}"
        return found[NODE]

    def queues(self) -> set[str]:
        """The queues that the worker says it claims from; each once."""
        found = [queue["name"] for queue in self.inspect("active_queues")]
        assert len(found) == len(set(found))
        return set(found)

    def control(self, command: str, **arguments: Any) -> Any:
        replies: Any = self.app.control.broadcast(
            command, arguments=arguments, reply=True, timeout=30, limit=1
        )
        assert replies, f"no worker answered {command}"
        return replies[0][NODE]

    @contextmanager
    def busy(self, count: int = 8) -> Iterator[list[str]]:
        """These jobs: a full batch of them runs, the next is claimed; they end with the context."""
        first, gate = self.folder / new_id(), self.folder / new_id()
        blocker = send(self.app, "gated", {"until": str(first)})
        wait_until(lambda: blocker.id in self.runs(), "the model is busy")
        value = {"until": str(gate), "text": SECRET}
        ids = [send(self.app, "gated", value).id for _ in range(count)]
        try:
            wait_until(lambda: self.ours.redis.llen(QUEUE) == count - BATCH_SIZE, "a full batch")
            first.touch()
            wait_until(lambda: set(ids[:BATCH_SIZE]) <= set(self.runs()), "it runs")
            wait_until(lambda: self.ours.redis.llen(QUEUE) == 0, "the rest is claimed")
            yield ids
        finally:
            gate.touch()
        self.ours.wait(*ids)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("control")
    gated = {
        "handler": f"{HANDLERS / 'gated.py'}:Gated",
        "max_batch_size": BATCH_SIZE,
        "max_retries": 1,
        "options": {"log": str(folder / "runs.log")},
    }
    path = write_models(folder, gated=gated, echo={"handler": "echo"})
    account = ("--user", "headrace", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    with redis_server("valkey9", "--appendonly", "yes", *account) as server:
        url = f"redis://headrace:{PASSWORD}@127.0.0.1:{server.port}/0"
        with (
            celery_worker(url, path, folder, node=NODE, arguments=()) as worker,
            Client(url, path) as ours,
            stock_client(url) as app,
        ):
            worker.wait_ready("gated", "echo")
            site = Site(server, folder, worker, ours, app)
            wait_until(lambda: site.app.control.ping(timeout=1), "the worker answers", 90)
            yield site
            nothing_leaks(ours.redis)


# First: until somebody asks for events, there are none.


def test_events_are_off_until_they_are_asked_for(site: Site) -> None:
    with Events(site.app) as events:
        quiet = send(site.app, "echo", 1)
        quiet.get(timeout=GET_TIMEOUT_S)
        assert "ok" in site.control("enable_events")
        sent = send(site.app, "echo", 2)
        events.wait_for("succeeded", sent.id)
        assert events.kinds(sent.id) == ["received", "started", "succeeded"]
        assert not events.of(quiet.id)
        assert "ok" in site.control("disable_events")
        quiet = send(site.app, "echo", 3)
        quiet.get(timeout=GET_TIMEOUT_S)
        assert "ok" in site.control("enable_events")
        sent = send(site.app, "echo", 4)
        events.wait_for("succeeded", sent.id)
        assert not events.of(quiet.id)


def test_inspect_tells_the_truth_while_a_batch_runs(site: Site) -> None:
    done = len(site.runs())
    total = site.inspect("stats")["total"]["headrace.predict"]
    with site.busy() as ids:
        active, reserved = site.inspect("active"), site.inspect("reserved")
        found = site.inspect("query_task", [active[0]["id"], reserved[0]["id"], "nobody"])
        assert site.inspect("ping") == {"ok": "pong"}
        assert site.inspect("scheduled") == []
        counted = site.inspect("stats")["total"]["headrace.predict"]
        assert counted - total == len(site.runs()) - done == 5
        input_json = site.ours.redis.hget(keys.held(QUEUE), ids[0])
    assert len(active) == len(reserved) == 4
    assert {info["id"] for info in active + reserved} == set(ids)
    assert {job_id: state for job_id, (state, _) in found.items()} == {
        active[0]["id"]: "active",
        reserved[0]["id"]: "reserved",
    }
    size = len(decode_message(input_json).input)
    pids = site.worker.states()["gated"]["pids"]
    for info in active:
        started = site.ours.job(info["id"]).started_us / 1e6
        assert info["time_start"] == pytest.approx(started, abs=100)
        assert (info["name"], info["hostname"]) == ("headrace.predict", NODE)
        assert info["kwargs"] == f"{{'model': 'gated', 'input': '<json, {size} bytes>'}}"
        assert info["worker_pid"] == pids[0]
        assert info["delivery_info"]["routing_key"] == QUEUE
    assert {info["time_start"] for info in reserved} == {None}
    assert SECRET not in json.dumps([active, reserved, found])
    wait_until(lambda: site.inspect("active") == site.inspect("reserved") == [], "all have ended")


def test_heartbeats_count_running_jobs(site: Site) -> None:
    site.control("enable_events")
    with Events(site.app) as events:
        with site.busy(count=4):
            wait_until(
                lambda: any(event.get("active") == 4 for event in list(events.seen)),
                "a heartbeat that counts the batch",
            )
        count = len(events.seen)
        wait_until(
            lambda: any(event.get("active") == 0 for event in events.seen[count:]),
            "a heartbeat after the batch",
        )


def test_queues_models_and_tasks_are_named(site: Site) -> None:
    names = {"headrace:control", "headrace.gated", "headrace.echo"}
    assert site.queues() == names
    version = "headrace.echo@1.0"
    assert send(site.app, "echo", 1, queue=version).get(GET_TIMEOUT_S) == 1
    assert site.queues() == {*names, version}
    assert site.inspect("registered") == ["headrace.predict"]
    models = site.inspect("stats")["headrace"]
    assert {name: model["state"] for name, model in models.items()} == {
        "gated": "ready",
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
        ("autoscale", {"min": 1, "max": 3}, "replicas"),
        ("pool_restart", {"reload": False}, "restart the worker"),
        ("add_consumer", {"queue": QUEUE}, "models file"),
        ("add_consumer", {"queue": "celery"}, "of your own"),
        ("cancel_consumer", {"queue": "celery"}, "of your own"),
        ("cancel_consumer", {"queue": QUEUE}, "models file"),
    ],
)
def test_what_control_cannot_do_is_refused(
    site: Site, command: str, arguments: dict[str, Any], names: str
) -> None:
    assert names in site.control(command, **arguments)["error"]


def test_revoke_says_what_it_did(site: Site) -> None:
    with site.busy(count=4) as ids:
        (waiting,) = site.ours.submit("gated", "never", countdown=60)
        reply = site.control("revoke", task_id=[waiting, ids[0], "nobody"])
    assert reply == {"ok": f"{waiting}: removed, {ids[0]}: asked, nobody: unknown"}
    assert site.control("terminate", signal="KILL", task_id=ids[0]) == {"ok": f"{ids[0]}: ended"}
    assert site.ours.job(ids[0]).state is State.CANCELLED
    assert site.ours.job(ids[1]).state is State.SUCCEEDED


def _without_repeats(kinds: list[str]) -> list[str]:
    return [kind for kind, _ in itertools.groupby(kinds)]


def test_each_ending_is_told_in_order(site: Site) -> None:
    site.control("enable_events")
    with Events(site.app) as events:
        bad = send(site.app, "gated", {"do": "raise", "n": 3})
        retried = send(site.app, "gated", {"do": "transient"})
        refused = send(site.app, "gated", kwargs={"model": "gated"})
        late = send(site.app, "gated", 1, countdown=0.3, expires=0.1)
        delayed = send(site.app, "gated", 2, countdown=0.2, root_id="the-root")
        events.wait_for("failed", bad.id, retried.id, refused.id, late.id)
        events.wait_for("succeeded", delayed.id)
    attempt = ["received", "started"]
    assert events.kinds(bad.id) == [*attempt, "failed"]
    assert events.kinds(retried.id) == [*attempt, "retried", *attempt, "failed"]
    assert events.kinds(refused.id) == ["received", "failed"]
    # Received once before its eta and once after; a worker that was late receives it once.
    assert _without_repeats(events.kinds(late.id)) == ["received", "failed"]
    assert _without_repeats(events.kinds(delayed.id)) == [*attempt, "succeeded"]
    received, _, failed = events.of(bad.id)
    assert received["kwargs"] == "{'model': 'gated', 'input': '<json, 23 bytes>'}"
    assert (received["name"], received["hostname"]) == ("headrace.predict", NODE)
    assert failed["exception"] == "HandlerError('ValueError: cannot do 3')"
    assert "raise ValueError" in failed["traceback"]
    assert [event["retries"] for event in events.of(retried.id) if "retries" in event] == [0, 1]
    assert events.of(delayed.id)[0]["eta"] is not None
    assert events.of(delayed.id)[1]["root_id"] == "the-root"


def test_a_cancelled_job_is_told_as_revoked_and_its_batch_mates_as_succeeded(site: Site) -> None:
    site.control("enable_events")
    with Events(site.app) as events:
        with site.busy(count=4) as ids:
            seen_s = time.monotonic()
            (waiting,) = site.ours.submit("gated", 3, countdown=60)
            site.control("revoke", task_id=[ids[0], waiting])
            ran_s = time.monotonic() - seen_s
        events.wait_for("revoked", ids[0], waiting)
        events.wait_for("succeeded", *ids[1:])
    assert events.kinds(ids[0]) == ["received", "started", "revoked"]
    assert events.of(ids[0])[-1]["terminated"] is True
    assert events.kinds(waiting) == ["revoked"]
    succeeded = events.of(ids[1])[-1]
    assert succeeded["result"].startswith('{"until":"')
    assert ran_s <= succeeded["runtime"] < ran_s + 100, "in seconds"


def test_under_load_each_jobs_events_come_in_order(site: Site) -> None:
    site.control("enable_events")
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
    site.control("enable_events")
    url = site.worker.redis_url
    with site.busy() as ids:
        site.server.stop()
        wait_until(lambda: "Connection to broker lost" in site.worker.log, "Celery has noticed", 90)
        site.server.start()
        with stock_client(url) as app:
            wait_until(lambda: app.control.ping(timeout=1), "the worker answers again", 90)
            (replies,) = app.control.broadcast("active", reply=True, timeout=30, limit=1) or [{}]
            assert {info["id"] for info in replies[NODE]} == set(site.runs()) & set(ids)
    with stock_client(url) as app, Events(app) as events:
        count = len(events.seen)
        wait_until(lambda: len(events.seen) > count, "heartbeats come of themselves")
        sent = send(app, "echo", "after")
        events.wait_for("succeeded", sent.id)
        assert events.kinds(sent.id) == ["received", "started", "succeeded"]
    assert {job.state for job in site.ours.wait(*ids)} == {State.SUCCEEDED}
    assert {site.runs().count(job_id) for job_id in ids} == {1}, "some ran again after the outage"
    assert "Traceback" not in site.worker.log.partition("Connection to broker lost")[2]
