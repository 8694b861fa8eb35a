"""Online jobs of a generator beside offline ones, which make way and come back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headrace.redis.keys import OFFLINE_STEP
from tests.harness.deployments.shared import SharedDeployment
from tests.harness.deployments.site import Site
from tests.harness.http.events import Reader, reading
from tests.harness.wait import wait_until
from tests.integration.jobs.streams.test_generator import SLOTS, model, opened, words


@pytest.fixture(scope="module")
def site(
    shared_deployment: SharedDeployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("classes")
    models = {"m": model(), "grows": model(options={"slots": SLOTS, "grows": True})}
    with shared_deployment.site(folder, models) as found:
        yield found


class Offline:
    """As many offline jobs as there are slots, each with its first word."""

    def __init__(self, site: Site, folder: Path, streams: ExitStack, count: int = 4) -> None:
        self.folder = folder
        opened(folder, 0)
        value = {"words": count, "until": str(folder)}
        self.count = count
        self.ids = [site.submit(value, priority=OFFLINE_STEP) for _ in range(SLOTS)]
        self.readers = [streams.enter_context(reading(site.stream(one))) for one in self.ids]
        for reader in self.readers:
            reader.wait_for("pieces")

    def finish(self) -> None:
        """Let them end, and check that each has all of its words once."""
        opened(self.folder, *range(1, self.count))
        for reader in self.readers:
            ended = reader.wait_for("ended").data
            assert ended["result"]["text"] == words(self.count)
            assert ended["attempts"] == 1
            assert pieces(reader) == words(self.count)
            assert "restarted" not in reader.names


def pieces(reader: Reader) -> str:
    events = [event.data for event in reader.events if event.name == "pieces"]
    return "".join(piece for data in events for piece in data)


def test_online_jobs_end_while_offline_ones_hold_all_slots(site: Site, tmp_path: Path) -> None:
    with ExitStack() as streams:
        offline = Offline(site, tmp_path, streams)
        for n in range(3):
            found = site.ended(site.submit({"words": 2 + n}))
            assert found["result"]["text"] == words(2 + n)
        ids = site.client.submit("m", *({"words": 3} for _ in range(3 * SLOTS)))
        assert {site.ended(job_id)["status"] for job_id in ids} == {"succeeded"}
        assert {site.shown(job_id)["status"] for job_id in offline.ids} == {"running"}
        offline.finish()


def test_no_offline_job_is_claimed_while_one_waits_to_come_back(site: Site, tmp_path: Path) -> None:
    (gate := tmp_path / "gate").mkdir()
    (held := tmp_path / "held").mkdir()
    with ExitStack() as streams:
        offline = Offline(site, gate, streams)
        online = site.submit({"words": 1, "until": str(held)})
        wait_until(lambda: site.shown(online)["status"] == "running", "it runs")
        more = site.submit({"words": 1}, priority=OFFLINE_STEP)
        another = site.submit({"words": 1})
        assert site.ended(another)["status"] == "succeeded"
        assert site.shown(more)["status"] == "queued"
        opened(held, 0)
        assert site.ended(online)["status"] == "succeeded"
        offline.finish()
        assert site.ended(more)["status"] == "succeeded"


def test_a_job_that_was_put_back_can_be_cancelled(site: Site, tmp_path: Path) -> None:
    (gate := tmp_path / "gate").mkdir()
    (held := tmp_path / "held").mkdir()
    with ExitStack() as streams:
        offline = Offline(site, gate, streams)
        online = [site.submit({"words": 1, "until": str(held)}) for _ in range(SLOTS)]
        runs = {"running"}
        wait_until(lambda: {site.shown(one)["status"] for one in online} == runs, "all run")
        # All of them wait now, so nothing but the cancel can end one.
        leaving, reader = offline.ids.pop(), offline.readers.pop()
        site.api.http.delete(f"/api/v1/jobs/{leaving}")
        assert reader.wait_for("ended").data["status"] == "cancelled"
        opened(held, 0)
        for job_id in online:
            assert site.ended(job_id)["status"] == "succeeded"
        offline.finish()


def test_a_job_that_was_put_back_goes_on_after_a_crash(site: Site, tmp_path: Path) -> None:
    (gate := tmp_path / "gate").mkdir()
    (held := tmp_path / "held").mkdir()
    with ExitStack() as streams:
        offline = Offline(site, gate, streams)
        opened(held, 0)
        online = site.submit({"words": 2, "until": str(held)})
        streams.enter_context(reading(site.stream(online))).wait_for("pieces")
        (pid,) = site.worker.states()["m"]["pids"]
        os.kill(pid, signal.SIGKILL)
        opened(held, 1)
        found = site.ended(online)
        assert (found["attempts"], found["result"]["text"]) == (2, words(2))
        opened(gate, *range(1, offline.count))
        for reader in offline.readers:
            reader.wait_for("ended")
            assert pieces(reader) == words(offline.count)
            assert "restarted" not in reader.names
        # The one that waited was not suspected: an orderly release undoes the attempt.
        assert 1 in [site.shown(job_id)["attempts"] for job_id in offline.ids]


def test_requests_share_a_memory_that_has_no_room_for_all_of_each(site: Site) -> None:
    # Together they take 120 of 100, one after the other at most 30.
    values: list[Any] = [{"words": 30, "cost": 90, "likely": 10} for _ in range(3 * SLOTS)]
    priorities = [0, OFFLINE_STEP, 0]
    ids = [site.submit(one, "grows", priority=priorities[n % 3]) for n, one in enumerate(values)]
    for job_id in ids:
        assert site.ended(job_id)["result"]["text"] == words(30)


def test_short_requests_pass_a_large_one_that_waits_for_memory(site: Site, tmp_path: Path) -> None:
    first = site.submit({"words": 2, "cost": 60, "until": str(tmp_path)})
    large = site.submit({"words": 1, "cost": 90})
    short = [site.submit({"words": 1, "cost": 1}) for _ in range(5)]
    for job_id in short:
        assert site.ended(job_id)["status"] == "succeeded"
    assert site.shown(large)["status"] != "succeeded"
    opened(tmp_path, 0, 1)
    assert site.ended(first)["status"] == "succeeded"
    assert site.ended(large)["result"]["usage"]["beside"] == 1
