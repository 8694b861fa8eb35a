"""`headrace tune --apply` from start to end: options are set on a real server, and taken back.

Only the peaks are not measured. They follow from the options that the server has at that moment, so
that the speed of the machine does not decide the verdict.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec
import pytest

from extensions.tuning.bench.load.scenarios import objective_of
from extensions.tuning.bench.load.targets import Target
from extensions.tuning.bench.measure import LoadOptions
from extensions.tuning.bench.measurement import Measurement, Objective, Peak
from extensions.tuning.bench.reservation import reserved
from extensions.tuning.bench.serving import changed_options
from extensions.tuning.cli.tune import _applied
from extensions.tuning.optimize.report import Comparison
from extensions.tuning.tune import tuning
from extensions.tuning.tune.confirmation import ROUNDS_MIN, confirm
from extensions.tuning.tune.report import TuneReport
from extensions.tuning.tune.space import Axis, Space, space_of
from headrace.client.sync_client import Client
from headrace.config.model.catalog import load_catalog
from headrace.errors import ConfigError
from tests.extensions.tuning.integration.tune.test_tune import SLO, models_file, url_of
from tests.harness.clients.commands import CommandsWithin, headrace_here
from tests.harness.servers.up import RunningUp, running_up
from tests.harness.wait import wait_until

# A model starts about ten times, and each start takes seconds on a busy machine.
pytestmark = pytest.mark.timeout(1500)

#: The time between two jobs. Without it, they take the cores from what is tested.
PAUSE_S = 0.05
#: The options with the highest peak.
BEST: dict[str, Any] = {"max_batch_size": 64, "max_batch_delay_ms": 0}


def peak_by_options(
    target: Target, objective: Objective, options: LoadOptions, *, name: str, **limits: float
) -> Measurement:
    """Send some real jobs, and return a peak that follows from the options of the server.

    It replaces `find_peak`.
    """
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
    """Sends jobs to a server, each a moment after the one before it has succeeded.

    Attributes:
        done: how many have succeeded.
        problems: the error that ended it, if there was one.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = Event()
        self.done = 0
        self.problems: list[BaseException] = []

    def run(self) -> None:
        """Send jobs until `stop` is called, or one of them fails."""
        try:
            with Client(self._url) as client:
                while not self._stop.wait(PAUSE_S):
                    job = client.submit("paced", {"n": self.done})
                    assert client.result(job, timeout_s=300) == {"n": self.done}
                    self.done += 1
        except BaseException as error:  # noqa: BLE001 - the test fails with it
            self.problems.append(error)

    def stop(self) -> None:
        """Send no further job."""
        self._stop.set()

    def wait_for_more(self) -> None:
        """Wait until three further jobs have succeeded."""
        enough = self.done + 3
        wait_until(lambda: self.done >= enough or self.problems, "further jobs succeed", 120)
        assert self.problems == []


@contextmanager
def jobs_meanwhile(url: str) -> Iterator[Jobs]:
    """Send jobs while the context lasts; at its end all of them must have succeeded."""
    jobs = Jobs(url)
    thread = Thread(target=jobs.run)
    thread.start()
    try:
        yield jobs
    finally:
        jobs.stop()
        thread.join(300)
    assert jobs.problems == []


def simulate(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Replace the peaks, and let the search choose only between present and best options.

    Each further choice would cost another start of the model.

    Args:
        monkeypatch: undoes it.
        names: the options that the search may change.
    """

    def narrow(present: Any, **limits: Any) -> Space:
        space = space_of(present, **limits)
        return Space([present_and_best(axis) for axis in space.axes if axis.name in names])

    monkeypatch.setattr(tuning, "tune", partial(tuning.tune, find=peak_by_options))
    monkeypatch.setattr(tuning, "confirm", partial(confirm, rounds=ROUNDS_MIN))
    monkeypatch.setattr(tuning, "FINALISTS", 1)
    monkeypatch.setattr(tuning, "space_of", narrow)


def present_and_best(axis: Axis) -> Axis:
    """Return an axis with two choices: the present one and the one of `BEST`."""
    present = axis.choices[axis.start]
    best = [one for one in axis.choices if one.options.items() <= BEST.items()]
    return Axis(name=axis.name, choices=(present, *best))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    folder = tmp_path_factory.mktemp("server")
    with running_up(folder, models=models_file(folder)) as up:
        yield up


def take_back(folder: Path, stderr: str) -> str:
    """Run the command that takes the options back, as `headrace tune` printed it; return it."""
    match = re.search("to take them back: (.*)", stderr)
    assert match is not None
    program, *arguments = shlex.split(match[1])
    assert program == "headrace"
    done = headrace_here(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return match[1]


def test_the_better_options_are_applied_and_taken_back(
    server: RunningUp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(monkeypatch, *BEST)
    with Client(url_of(server)) as client:
        # One option was changed on this server before; the others are those of the file.
        client.set_model_options("paced", {"max_batch_delay_ms": 7.0}, wait=60)
        before = changed_options(client, "paced")
        shown = client.model("paced")
        with jobs_meanwhile(url_of(server)) as jobs:
            jobs.wait_for_more()
            done = CommandsWithin(url_of(server), tmp_path).run(
                "tune", "paced", "--slo", SLO, "--budget", "1h", "--apply", "--url", url_of(server)
            )

            stderr = done.stderr.decode()
            assert done.returncode == 0, stderr
            assert "times as much" in done.stdout.decode()
            found = client.model("paced")
            assert (found.max_batch_size, found.max_batch_delay_ms) == (64, 0)
            assert changed_options(client, "paced") == BEST
            jobs.wait_for_more()

            command = take_back(tmp_path, stderr)
            assert changed_options(client, "paced") == before == {"max_batch_delay_ms": 7.0}
            again = client.model("paced")
            assert (again.max_batch_size, again.max_batch_delay_ms) == (
                shown.max_batch_size, shown.max_batch_delay_ms,
            )  # fmt: skip
            jobs.wait_for_more()
        client.set_model_options("paced", {"max_batch_delay_ms": None}, wait=60)
    check_report(tmp_path / "tune-paced", BEST, command)


def test_the_result_of_private_servers_is_applied_to_the_server_of_the_user(
    server: RunningUp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One option is enough here: each trial starts a server.
    simulate(monkeypatch, "max_batch_size")
    better = {"max_batch_size": BEST["max_batch_size"]}
    file = models_file(tmp_path)
    written = file.read_text()
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    (inputs / "good.json").write_text('{"x": 1}')
    (inputs / "refused.txt").write_text("no object")
    with Client(url_of(server)) as client, jobs_meanwhile(url_of(server)) as jobs:
        jobs.wait_for_more()
        done = CommandsWithin(url_of(server), tmp_path).run(
            "tune", "paced", "--slo", SLO, "--budget", "1h", "--apply", "--input", "inputs"
        )

        stderr = done.stderr.decode()
        assert done.returncode == 0, stderr
        assert "leaves out 1 of 2 inputs that the handler refuses" in stderr
        assert changed_options(client, "paced") == better
        jobs.wait_for_more()
        command = take_back(tmp_path, stderr)
        assert changed_options(client, "paced") == {}
    check_report(tmp_path / "tune-paced", better, command)
    calibration = (tmp_path / "tune-paced/calibration.json").read_bytes()
    assert msgspec.json.decode(calibration, type=Comparison).inputs == str(inputs)
    # Only the patch changes the models file. A server that reads it then has the better options.
    assert file.read_text() == written
    patched = subprocess.run(
        ["patch", "-p0", "-i", "tune-paced/models.patch"], cwd=tmp_path, check=False
    )
    assert patched.returncode == 0
    config = load_catalog(file).get("paced")
    assert config.max_batch_size == 64


def test_nothing_is_applied_while_another_tuning_changes_the_model(
    server: RunningUp, tmp_path: Path
) -> None:
    report = TuneReport(
        model="paced", objective=objective_of(SLO), where="private", input="x", budget_s=1,
        seconds=1, points=1, complete=True, trials=[], options=BEST,
    )  # fmt: skip
    url = url_of(server)
    with reserved(url, "paced", "another one"), pytest.raises(ConfigError, match="another one"):
        _applied(report, url, 60)
    with Client(url) as client:
        assert changed_options(client, "paced") == {}


def check_report(folder: Path, options: dict[str, Any], revert: str) -> None:
    """Check that the report has the options that were applied, and the command against them."""
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    assert report["options"] == options
    assert report["revert"] == revert
    text = (folder / "report.md").read_text()
    assert f"It is applied. To take it back: `{revert}`" in text
