"""`headrace tune --apply` from start to end: a real server takes the options and gives them back.

Only the peaks are not measured. They follow from the options that the server has at that moment, so
that no busy machine decides the verdict.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from headrace.bench.measure import LoadOptions
from headrace.bench.measurement import Measurement, Objective, Peak
from headrace.bench.serving import changed_options
from headrace.bench.targets import Target
from headrace.client.sync_client import Client
from headrace.tune import tuning
from tests.harness.clients.commands import CommandsWithin
from tests.harness.servers.up import headrace, running_up
from tests.harness.wait import wait_until
from tests.integration.tune.test_tune import SLO, models_file, url_of

# About forty changes of the options, each of which the worker serves before the next one.
pytestmark = pytest.mark.timeout(1500)


def peak_by_options(
    target: Target, objective: Objective, options: LoadOptions, *, name: str, **limits: float
) -> Measurement:
    """Stand for `find_peak`: some real jobs, and a rate that the served options decide."""
    with Client(target.url) as client:
        assert [one.value for one in client.map("paced", [1, 2, 3])] == [1, 2, 3]
        served = client.model("paced")
    assert served.max_batch_size is not None
    assert served.max_batch_delay_ms is not None
    rate = 100.0 * served.max_batch_size / (10 + served.max_batch_delay_ms)
    peak = Peak(rate=rate, low=rate, high=rate * 1.02)
    if rate < limits["at_least"]:
        peak = Peak(rate=0.0, low=0.0, high=limits["at_least"])
    return Measurement(name=name, model="paced", url=target.url, started_at="", loads=[], peak=peak)


class Jobs:
    """Jobs that are sent one after the other.

    Attributes:
        done: how many have ended well.
        problems: what went wrong with the others.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = Event()
        self.done = 0
        self.problems: list[BaseException] = []

    def run(self) -> None:
        """Send them until `stop`."""
        try:
            with Client(self._url) as client:
                while not self._stop.is_set():
                    job = client.submit("paced", {"n": self.done})
                    assert client.result(job, timeout_s=300) == {"n": self.done}
                    self.done += 1
        except BaseException as error:  # noqa: BLE001 - the test shows it
            self.problems.append(error)

    def stop(self) -> None:
        """Send no more."""
        self._stop.set()

    def go_on(self) -> None:
        """Wait until some more have ended."""
        enough = self.done + 3
        wait_until(lambda: self.done >= enough or self.problems, "jobs go on", 120)
        assert self.problems == []


@contextmanager
def jobs_meanwhile(url: str) -> Iterator[Jobs]:
    jobs = Jobs(url)
    thread = Thread(target=jobs.run)
    thread.start()
    try:
        yield jobs
    finally:
        jobs.stop()
        thread.join(300)
    assert jobs.problems == []


def test_the_better_options_are_applied_and_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "tune", partial(tuning.tune, find=peak_by_options))
    file = models_file(tmp_path)
    written = file.read_text()
    with running_up(tmp_path, models=file) as up, Client(url_of(up)) as client:
        # One option was changed on this server before, and others are those of the file.
        client.set_model_options("paced", {"max_batch_delay_ms": 7.0}, wait=60)
        before = changed_options(client, "paced")
        shown = client.model("paced")
        with jobs_meanwhile(url_of(up)) as jobs:
            jobs.go_on()
            done = CommandsWithin(url_of(up), tmp_path).run(
                "tune", "paced", "--slo", SLO, "--budget", "1h", "--apply", "--url", url_of(up)
            )

            told = done.stderr.decode()
            assert done.returncode == 0, told
            assert "times as much" in done.stdout.decode()
            found = client.model("paced")
            assert (found.max_batch_size, found.max_batch_delay_ms) == (64, 0)
            assert changed_options(client, "paced") == {
                "max_batch_size": 64, "max_batch_delay_ms": 0,
            }  # fmt: skip
            jobs.go_on()

            match = re.search("to take them back: (.*)", told)
            assert match is not None
            program, *arguments = shlex.split(match[1])
            assert program == "headrace"
            reverted = headrace(*arguments, cwd=tmp_path)
            assert reverted.returncode == 0, reverted.stderr
            assert changed_options(client, "paced") == before == {"max_batch_delay_ms": 7.0}
            again = client.model("paced")
            assert (again.max_batch_size, again.max_batch_delay_ms) == (
                shown.max_batch_size, shown.max_batch_delay_ms,
            )  # fmt: skip
            jobs.go_on()
    check_report(tmp_path / "tune-paced", match[1])
    assert file.read_text() == written


def check_report(folder: Path, revert: str) -> None:
    """The report has what was applied, and the way back."""
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    assert report["options"] == {"max_batch_size": 64, "max_batch_delay_ms": 0}
    assert report["revert"] == revert
    text = (folder / "report.md").read_text()
    assert f"It is applied. To take it back: `{revert}`" in text
