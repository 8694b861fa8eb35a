"""A job's event stream: real API, worker and Redis; what each phase says, and resuming from it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headrace import AsyncClient
from headrace import Client as SdkClient
from headrace.client import JobEvent as SdkEvent
from headrace.client import Progress
from headrace.config.model.catalog import load_catalog
from headrace.errors import JobNotFound
from headrace.redis import keys
from tests.harness.clients.celery_client import send, stock_client
from tests.harness.clients.commands import Commands, CommandsWithin
from tests.harness.deployments import site as sites
from tests.harness.deployments.shared import SharedDeployment
from tests.harness.http.events import Event, Reader, reading
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS

SPEAKING = f"{HANDLERS / 'generation/speaking.py'}"


def model(kind: str = "Speaking", **more: Any) -> dict[str, Any]:
    return {"handler": f"{SPEAKING}:{kind}", "max_batch_size": 4, **more}


@dataclass
class Site(sites.Site):
    """A site with a second API."""

    other: ApiServer

    def gate(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir()
        return folder

    def url(self, job_id: str, api: ApiServer | None = None) -> str:
        return f"{(api or self.api).url}/api/v1/jobs/{job_id}/events"

    def begins(self, value: Any, model: str = "m") -> str:
        """A job that runs by now, so that no stream of it begins in its queue."""
        (job_id,) = self.client.submit(model, value)
        wait_until(lambda: self.shown(job_id)["status"] == "running", "it runs")
        return job_id


@pytest.fixture(scope="module")
def shared(
    shared_deployment: SharedDeployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("events")
    models = {
        "m": model(),
        "overlap": model("Overlapping"),
        "prepared": model("Overlapping", preprocess_processes=2),
        "retried": model(max_retries=2, retry_backoff_s=0.01),
        "idle": model(),
    }
    with (
        shared_deployment.site(folder, models) as found,
        sites.another_api(found) as other,
    ):
        yield Site(**vars(found), other=other)


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    """The site; who watches and has hung up must be gone after each test."""
    yield shared
    wait_until(lambda: watched(shared) == [], "nobody watches, and the subscriptions are given up")


def watched(site: Site) -> list[str]:
    """Who watches, and which jobs Redis has subscribers of."""
    found = [f"{api.url}: {api.services.watcher.count}" for api in (site.api, site.other)]
    found = [line for line in found if not line.endswith(" 0")]
    for prefix in (keys.progress_channel, keys.meta):
        channels = site.client.redis.pubsub_channels(f"{prefix}[^/]*")
        found += [channel.decode() for channel in channels]
    return found


def said(*words: list[Any], until: Path, **more: Any) -> dict[str, Any]:
    return {"says": list(words), "until": str(until), **more}


def test_a_job_from_its_queue_to_its_end_and_again_from_each_event(
    site: Site,
) -> None:
    gate = site.gate("whole")
    site.api.http.post("/api/v1/queues/headrace.m/pause").raise_for_status()
    ahead, job_id = site.client.submit(
        "m", said(until=gate), said([0.25, None, "first"], [2, 4], until=gate)
    )
    with reading(site.url(job_id)) as reader:
        assert reader.headers["content-type"] == "text/event-stream"
        assert reader.headers["cache-control"] == "no-store"
        assert reader.headers["x-accel-buffering"] == "no"
        assert reader.wait_for("queued").data == {
            "id": job_id, "status": "queued", "attempts": 0, "queue_position": 2,
            "waiting_for": None,
        }  # fmt: skip
        assert site.api.http.delete(f"/api/v1/jobs/{ahead}").status_code == 200
        site.api.http.post("/api/v1/queues/headrace.m/resume").raise_for_status()
        running = reader.wait_for("running").data
        assert (running["status"], running["attempts"]) == ("running", 1)
        assert reader.wait_for("progress").data == {
            "id": job_id, "status": "running", "attempts": 1,
            "progress": {"fraction": 0.25, "message": "first"},
        }  # fmt: skip
        assert site.shown(job_id)["progress"] == {"fraction": 0.25, "message": "first"}
        (gate / "0").touch()
        second = {"fraction": 0.5, "done": 2, "total": 4}
        assert reader.wait_for("progress", 2).data["progress"] == second
        (gate / "1").touch()
        ended = reader.wait_over()
    # Its place may have been told anew before a worker came.
    queued = reader.names.count("queued")
    assert reader.names[queued - 1 :] == ["queued", "running", "progress", "progress", "ended"]
    began = ended[queued]
    assert ended[-1].data == site.shown(job_id)
    assert "progress" not in ended[-1].data
    # From each event, at a process that has told nothing before: what is new by now, once.
    resumed = {event.name: told(site, job_id, event.id, site.other) for event in ended}
    assert [event.name for event in resumed["queued"]] == ["running", "ended"]
    assert resumed["queued"][0] == began
    for name in ("running", "progress"):
        assert resumed[name] == [ended[-1]]
    assert resumed["ended"] == []
    assert told(site, job_id, "no id of ours", site.other) == [began, ended[-1]]
    done = httpx2.get(site.url(job_id) + f"?last_event_id={ended[-1].id}", timeout=60, verify=PLAIN)
    assert (done.status_code, done.content) == (204, b"")


def told(site: Site, job_id: str, last_id: str, api: ApiServer) -> list[Event]:
    """All that a job which has ended still tells; 204 where it is nothing."""
    with reading(site.url(job_id, api), last_id) as reader:
        events = reader.wait_over()
        assert reader.status == (200 if events else 204)
    return events


def test_what_is_running_is_resumed_elsewhere_without_repeats(site: Site) -> None:
    gate = site.gate("resumed")
    (job_id,) = site.client.submit("m", said([0.1], [0.2], [0.3], until=gate))
    with reading(site.url(job_id)) as first:
        first.wait_for("progress")
        with reading(site.url(job_id, site.other), first.last) as same:
            (gate / "0").touch()
            assert same.wait_for("progress").data["progress"] == {"fraction": 0.2}
            assert same.names == ["progress"]
        running = first.events[first.names.index("running")].id
        with reading(site.url(job_id, site.other), running) as same:
            assert same.wait_for("progress").data["progress"] == {"fraction": 0.2}
            assert same.names == ["progress"]
        first.wait_for("progress", 2)
    (gate / "1").touch()
    with reading(site.url(job_id, site.other), first.last) as same:
        assert same.wait_for("progress").data["progress"] == {"fraction": 0.3}
        (gate / "2").touch()
        same.wait_over()
    assert same.names == ["progress", "ended"]


def test_each_item_of_a_batch_has_its_own_progress(site: Site) -> None:
    gate = site.gate("batch")
    (gate / "0").touch()
    ids = site.client.submit(
        "overlap", *(said([n, 4], [1.0], until=gate) for n in range(3)), countdown=3600
    )
    with reading(site.url(ids[0])) as first, reading(site.url(ids[2], site.other)) as last:
        assert first.wait_for("scheduled").data["due_at"]
        assert last.wait_for("scheduled")
        # Due at once, as if the time had passed; in their order.
        delayed = keys.delayed("headrace.overlap")
        site.client.redis.zadd(delayed, {job_id: n + 1 for n, job_id in enumerate(ids)})
        wait_until(
            lambda: first.events[-1].data.get("progress") == {"fraction": 1.0}, "it has come far"
        )
        assert "progress" not in site.shown(ids[2])
        (gate / "1").touch()
        assert [job.state.status for job in site.client.wait(*ids)] == ["succeeded"] * 3
        first.wait_over()
        last.wait_over()
    assert first.events[-1].data["result"] == site.client.result(ids[0])


@pytest.mark.parametrize("name", ["m", "overlap", "prepared"])
def test_preprocess_speaks_too_wherever_it_runs(site: Site, name: str) -> None:
    gate = site.gate(f"prepares-{name}")
    (job_id,) = site.client.submit(
        name, {"prepares": [0.1, None, "reading"], "says": [[0.9]], "until": str(gate)}
    )
    with reading(site.url(job_id)) as reader:
        progress = reader.wait_for("progress").data["progress"]
        assert progress == {"fraction": 0.1, "message": "reading"}
        (gate / "prepared").touch()
        assert reader.wait_for("progress", 2).data["progress"] == {"fraction": 0.9}
        (gate / "0").touch()
        reader.wait_over()


def test_a_retry_is_scheduled_and_runs_again(site: Site) -> None:
    gate = site.gate("retried")
    value = said([0.5], until=gate, fails=1)
    (job_id,) = site.client.submit("retried", value, retry_backoff=3600, retry_backoff_max=3600)
    with reading(site.url(job_id)) as reader:
        reader.wait_for("progress")
        (gate / "0").touch()
        waits = reader.wait_for("scheduled")
        assert waits.data["error"]["type"] == "transient-error"
        assert waits.data["due_at"]
        assert "progress" not in site.shown(job_id)
    with reading(site.url(job_id, site.other), waits.id) as again:
        # Due at once, as if the time had passed.
        site.client.redis.zadd(keys.delayed("headrace.retried"), {job_id: 1})
        again.wait_over()
    assert [name for name in again.names if name != "queued"][-2:] == ["running", "ended"] or (
        again.names[-3:] == ["running", "progress", "ended"]
    )
    assert again.events[-1].data["attempts"] == 2


def test_who_may_not_see_a_job_and_what_is_no_job(site: Site) -> None:
    assert httpx2.get(site.url("nobody"), timeout=60, verify=PLAIN).status_code == 404
    (job_id,) = site.client.submit("m", {})
    assert httpx2.get(site.url(job_id) + "?since=1", timeout=60, verify=PLAIN).status_code == 400
    assert httpx2.post(site.url(job_id), timeout=60, verify=PLAIN).status_code == 405
    head = httpx2.head(site.url(job_id), timeout=60)
    assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream")


def test_a_job_of_a_stock_client_is_told_of_as_any_other(site: Site) -> None:
    gate = site.gate("stock")
    with stock_client(site.redis.url) as app:
        job_id = send(app, "m", said([0.5], until=gate)).id
        wait_until(
            lambda: httpx2.head(site.url(job_id), timeout=60).status_code == 200, "it is claimed"
        )
        with reading(site.url(job_id)) as reader:
            reader.wait_for("progress")
            (gate / "0").touch()
            reader.wait_over()
    # What is claimed is queued until its batch leaves.
    names = reader.names[1:] if reader.names[0] == "queued" else reader.names
    assert names == ["running", "progress", "ended"]


def test_a_cancelled_job_ends_its_stream(site: Site) -> None:
    site.api.http.post("/api/v1/queues/headrace.idle/pause").raise_for_status()
    (job_id,) = site.client.submit("idle", {})
    with reading(site.url(job_id)) as reader:
        reader.wait_for("queued")
        site.api.http.delete(f"/api/v1/jobs/{job_id}")
        assert reader.wait_over()[-1].data["status"] == "cancelled"
    assert reader.names == ["queued", "ended"]
    site.api.http.post("/api/v1/queues/headrace.idle/resume").raise_for_status()


def test_a_model_process_that_dies_says_queued_again(site: Site) -> None:
    gate = site.gate("killed")
    (job_id,) = site.client.submit("m", said([0.1], until=gate))
    with reading(site.url(job_id)) as reader:
        reader.wait_for("progress")
        pids = site.worker.states()["m"]["pids"]
        os.kill(pids[0], signal.SIGKILL)
        # It runs alone next, under another token.
        reader.wait_for("progress", 2)
        (gate / "0").touch()
        ended = reader.wait_over()[-1].data
    assert ended["status"] == "succeeded"
    running = [event.id for event in reader.events if event.name == "running"]
    assert len(set(running)) == len(running) == 2


def test_a_client_that_hangs_up_or_never_reads_leaves_nothing(site: Site) -> None:
    gate = site.gate("gone")
    (job_id,) = site.client.submit("m", said([0.1], until=gate))
    path = f"/api/v1/jobs/{job_id}/events"
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", site.api.port)) as silent:
            silent.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    silent = socket.create_connection(("127.0.0.1", site.api.port))
    with silent:
        silent.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        wait_until(lambda: site.api.services.watcher.count == 1, "one watches")
    wait_until(lambda: site.api.services.watcher.count == 0, "nobody watches")
    wait_until(lambda: site.api.services.stream_limit.open_streams == 0, "its place is free")
    (gate / "0").touch()
    site.client.wait(job_id)


def ends(reader: Reader) -> dict[str, Any]:
    found: dict[str, Any] = reader.wait_over()[-1].data
    return found


def test_there_are_so_many_streams_and_an_orderly_stop_ends_them(
    site: Site, tmp_path: Path
) -> None:
    gate = site.gate("stopped")
    (job_id,) = site.client.submit("m", said([0.1], until=gate))
    catalog = load_catalog(site.folder / "models.yaml")
    with (
        api_server(site.redis.url, catalog, event_streams_max=2) as third,
        reading(site.url(job_id, third)) as one,
        reading(site.url(job_id, third)) as two,
    ):
        one.wait_for("progress")
        two.wait_for("progress")
        refused = httpx2.get(site.url(job_id, third), timeout=60, verify=PLAIN)
        assert refused.status_code == 429
        assert refused.json()["type"] == "/problems/too-many-streams"
        assert refused.headers["retry-after"] == "5"
        third.server.should_exit = True
        one.wait_over()
        two.wait_over()
        assert (one.error, two.error) == ("", "")
    with reading(site.url(job_id, site.other), one.last) as later:
        (gate / "0").touch()
        assert ends(later)["status"] == "succeeded"
    assert later.names == ["ended"]


def test_a_stream_ends_after_its_time_and_goes_on_where_it_was(site: Site) -> None:
    gate = site.gate("short")
    job_id = site.begins(said([0.1], until=gate))
    catalog = load_catalog(site.folder / "models.yaml")
    with api_server(site.redis.url, catalog, event_stream_max_s=0.5) as short:
        with reading(site.url(job_id, short)) as reader:
            reader.wait_over()
        assert (reader.error, reader.names[0]) == ("", "running")
        with reading(site.url(job_id, short), reader.last) as silent:
            assert silent.wait_over() == [] or silent.names == ["progress"]
            assert silent.status == 200
    (gate / "0").touch()
    site.client.wait(job_id)


def test_progress_of_a_worker_that_lost_its_lease_is_not_written(site: Site) -> None:
    gate = site.gate("fenced")
    (job_id,) = site.client.submit("m", said([0.1], [0.2], until=gate))
    with reading(site.url(job_id)) as reader:
        reader.wait_for("progress")
        record = keys.job(job_id)
        token = site.client.redis.hget(record, "t")
        site.client.redis.hset(record, "t", "999999999")
        (gate / "0").touch()
        before = site.client.redis.hget(record, "pg")
        other = said([0.5], until=site.gate("fenced-other"))
        (marker,) = site.client.submit("overlap", other)
        with reading(site.url(marker)) as told_later:
            told_later.wait_for("progress")
        assert site.client.redis.hget(record, "pg") == before
        assert json.loads(before.split(b" ", 2)[2]) == {"fraction": 0.1}
        site.client.redis.hset(record, "t", token)
        (Path(other["until"]) / "0").touch()
        (gate / "1").touch()
        site.client.wait(job_id, marker)
        reader.wait_over()


def test_the_client_goes_on_by_itself_and_names_each_thing_once(site: Site) -> None:
    gate = site.gate("client")
    job_id = site.begins(said([0.25, None, "a"], [2, 4], until=gate))
    catalog = load_catalog(site.folder / "models.yaml")
    seen: list[SdkEvent] = []
    # Each stream lasts a moment, so that there are many.
    with (
        api_server(site.redis.url, catalog, event_stream_max_s=0.3) as short,
        SdkClient(short.url) as client,
    ):
        for event in client.events(job_id):
            seen.append(event)
            if event.progress is not None:
                wait_until(lambda: site.shown(job_id)["progress"], "it is in the record")
                (gate / f"{sum(one.progress is not None for one in seen) - 1}").touch()
        assert [event.name for event in seen] == ["running", "progress", "progress", "ended"]
        assert seen[1].progress == Progress(0.25, message="a")
        assert seen[2].progress == Progress(0.5, 2, 4)
        assert seen[-1].job is not None
        assert seen[-1].job.value == site.client.result(job_id)
        assert seen[-1].job.progress is None
        # What is known already is not told again; of what has ended nothing is left.
        after = client.events(job_id, last_event_id=seen[0].event_id)
        assert [event.name for event in after] == ["ended"]
        assert list(client.events(job_id, last_event_id=seen[-1].event_id)) == []
        with pytest.raises(JobNotFound):
            next(client.events("nobody"))


def test_a_client_that_has_enough_hangs_up(site: Site) -> None:
    gate = site.gate("enough")
    job_id = site.begins(said([0.25], until=gate))

    async def first() -> str:
        async with AsyncClient(site.api.url) as client:
            stream = client.events(job_id)
            async with contextlib.aclosing(stream):  # type: ignore[type-var] # a generator
                async for event in stream:
                    return event.name
        return ""

    assert asyncio.run(first()) == "running"
    with SdkClient(site.api.url) as client:
        stream = client.events(job_id)
        assert next(stream).name == "running"
        assert client.status(job_id).status == "running"
        del stream
        wait_until(lambda: site.api.services.watcher.count == 0, "it has hung up")
    (gate / "0").touch()
    site.client.wait(job_id)


def test_the_command_shows_it_line_by_line(site: Site, tmp_path: Path) -> None:
    gate = site.gate("command")
    site.api.http.post("/api/v1/queues/headrace.m/pause").raise_for_status()
    (job_id,) = site.client.submit("m", said([30, 120, "frames"], until=gate))
    cli = Commands(site.api.url, tmp_path)
    with cli.started("watch", job_id) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == b"queued     place 1\n"
        site.api.http.post("/api/v1/queues/headrace.m/resume").raise_for_status()
        assert watching.stdout.readline() == b"running\n"
        assert watching.stdout.readline() == b"progress   25%, 30 of 120, frames\n"
        (row,) = (line for line in CommandsWithin(site.api.url, tmp_path).lines("jobs", job_id)
                  if job_id in line)  # fmt: skip
        assert row.endswith("25%, 30 of 120, frames")
        (gate / "0").touch()
        assert watching.stdout.readline().startswith(b"succeeded  ")
        assert watching.wait(60) == 0
    within = CommandsWithin(site.api.url, tmp_path)
    events = within.json("watch", job_id)
    assert [event["name"] for event in events] == ["running", "ended"]
    assert within.lines("watch", "nobody", rc=4) == []


def test_a_quiet_job_is_told_of_as_any_other(site: Site) -> None:
    gate = site.gate("quiet")
    line = {"model": "m", "input": said([0.5], until=gate)}
    answer = site.api.http.post("/api/v1/jobs/bulk?quiet=1", content=json.dumps(line))
    job_id = json.loads(answer.text)["id"]
    with reading(site.url(job_id, site.other)) as reader:
        reader.wait_for("progress")
        (gate / "0").touch()
        assert ends(reader)["result"] == {"pid": site.worker.states()["m"]["pids"][0]}
    assert reader.names[-1] == "ended"
