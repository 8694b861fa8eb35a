"""`headrace tune` on real servers, with a handler whose batch takes a known time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from extensions.tuning.bench.reservation import reserved
from extensions.tuning.bench.serving import changed_options
from extensions.tuning.tune.deployment import RunningServer
from extensions.tuning.tune.space import Candidate
from headrace.client.sync_client import Client
from tests.harness.clients.commands import CommandsWithin, headrace_here
from tests.harness.fakes.proxy import Proxy
from tests.harness.processes.processes import descendants, gone
from tests.harness.servers.up import RunningUp, clean_environment, running_up
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS

# A trial takes some seconds, and much longer on a busy machine.
pytestmark = pytest.mark.timeout(1500)

SLO = "p50=500ms"
PACED: dict[str, Any] = {
    "handler": str(HANDLERS / "paced.py"),
    "max_batch_size": 2,
    "inputs": {"content_types": ["application/json"], "example": {"x": 1}},
}
#: An option of the model that is changed on the running server before each test.
EARLIER: dict[str, Any] = {"max_batch_delay_ms": 7.0}

#: A tuning of a running server that is killed in its first trial.
KILLED = """
import os, signal, sys
from extensions.tuning.bench.reservation import reserved
from extensions.tuning.tune.deployment import RunningServer
from extensions.tuning.tune.space import Candidate
with reserved(sys.argv[1], "paced", "headrace tune in /there") as reservation:
    server = RunningServer(sys.argv[1], "paced", 120.0, reservation)
    server.use(Candidate(label="", options={"max_batch_size": 8, "max_batch_delay_ms": 2.0}))
    os.kill(os.getpid(), signal.SIGKILL)
"""

#: `headrace` with trials of one short load: each takes seconds instead of a minute. A request to a
#: server that does not answer is repeated for one second only.
ROUGH = """
import sys
from functools import partial
from headrace.cli.main import main
from extensions.tuning.bench import measure
from extensions.tuning.tune import deployment, trials
trials._LOAD_S, measure.LOADS_MAX = 0.5, 1
deployment.Client = partial(deployment.Client, retry_s=1)
sys.argv[0] = "headrace"
main()
"""


def models_file(folder: Path, **options: Any) -> Path:
    path = folder / "models.yaml"
    text = yaml.safe_dump({"models": {"paced": {**PACED, **options}}}, sort_keys=False)
    path.write_text(f"# Ours.\n{text}")
    return path


def trials(folder: Path) -> list[bytes]:
    journal = folder / "tune-paced/trials.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
    return lines[1:]


@contextmanager
def tuning(
    folder: Path, *arguments: str, model: str = "paced", program: str = ROUGH
) -> Iterator[subprocess.Popen[bytes]]:
    """A tuning in a process of its own; it and its children are killed at the end."""
    with (folder / "output").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, "tune", model, *arguments],
            cwd=folder, env=clean_environment(), stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield process
    finally:
        left = descendants(process.pid) if process.poll() is None else []
        process.kill()
        process.wait(60)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    """A server whose model has the option `EARLIER`; each test leaves it with this option alone."""
    folder = tmp_path_factory.mktemp("server")
    with running_up(folder, models=models_file(folder)) as up:
        with Client(url_of(up)) as client:
            client.set_model_options("paced", EARLIER, wait=60)
        yield up


def url_of(up: RunningUp) -> str:
    return f"http://127.0.0.1:{up.port}"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("paced", "--slo", "fast"), "'fast' is no objective"),
        (("pased", "--slo", SLO), "pased"),
        (("paced", "--slo", SLO, "--budget", "soon"), "--budget: 'soon' is no time"),
        (("paced", "--slo", SLO, "--input", "missing.png"), "missing.png"),
        (("paced", "--slo", SLO, "--url", "http://127.0.0.1:9"), "127.0.0.1:9"),
    ],
)
def test_what_cannot_be_tuned_is_refused_in_words(
    tmp_path: Path, arguments: tuple[str, ...], problem: str
) -> None:
    models_file(tmp_path)
    done = headrace_here("tune", *arguments, cwd=tmp_path)
    assert done.returncode in (2, 3), done.stderr
    assert problem in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob(".headrace-tune*"))


def first_trial(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until the first trial is in the journal."""

    def ended() -> bool:
        assert process.poll() is None, (folder / "output").read_text()
        return bool(trials(folder))

    wait_until(ended, "a trial has ended", 600)


def test_a_killed_tuning_goes_on_without_repeating_a_trial(tmp_path: Path) -> None:
    # These options of the deployment do not apply to the servers of the trials.
    file = models_file(tmp_path, load="on_demand", labels=["gpu=a100"])
    before = file.read_text()
    with tuning(tmp_path, "--slo", SLO, "--budget", "1h") as process:
        first_trial(process, tmp_path)
        refused = headrace_here("tune", "paced", "--slo", SLO, "-o", "other", cwd=tmp_path)
        assert refused.returncode == 2
        assert f"paced on {file} is in use: headrace tune in {tmp_path}" in refused.stderr
        assert f"process {process.pid}; wait until it ends, or end it" in refused.stderr
        assert not (tmp_path / "other").exists()
        children = descendants(process.pid)
        process.kill()
        process.wait(60)
        kept = trials(tmp_path)
        wait_until(lambda: gone(*children), "its server has ended")

    # The budget is spent already, so that no further trial begins.
    spent = sum(json.loads(line)["trial"]["seconds"] for line in kept)
    done = headrace_here(
        "tune", "paced", "--slo", SLO, "--budget", f"{max(1, int(spent))}s", "--resume",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    assert "not confirmed" in done.stdout
    assert trials(tmp_path) == kept
    report = json.loads((tmp_path / "tune-paced/report.json").read_text())
    assert len(report["trials"]) == len(kept)
    assert file.read_text() == before
    assert not list(tmp_path.glob(".headrace-tune*"))


def test_trials_on_a_running_server_leave_it_as_it_was(server: RunningUp) -> None:
    with Client(url_of(server)) as client:
        with reserved(url_of(server), "paced", "this test") as reservation:
            deployment = RunningServer(url_of(server), "paced", 120.0, reservation)
            options = {"max_batch_size": 8, "max_batch_delay_ms": 2.0}
            shown = deployment.use(Candidate(label="", options=options))
            assert (shown.max_batch_size, shown.max_batch_delay_ms) == (8, 2.0)
            shown = deployment.use(Candidate(label="", options={"replicas": 2}))
            assert (shown.max_batch_size, shown.max_batch_delay_ms) == (2, 7.0)
            assert shown.ready_replicas == 2
            deployment.close()
        assert changed_options(client, "paced") == EARLIER
        assert not reservation.path.exists()


def test_the_options_of_a_killed_tuning_are_taken_back_by_the_next_one(
    server: RunningUp, tmp_path: Path
) -> None:
    url = url_of(server)
    with Client(url) as client:
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, url], env=clean_environment(), check=False
        )
        assert killed.returncode == -signal.SIGKILL
        assert changed_options(client, "paced")["max_batch_size"] == 8
        text = CommandsWithin(url, tmp_path).complaint(
            "tune", "paced", "--slo", SLO, "--url", url, "--budget", "1s", rc=2
        )
        begin = "headrace tune in /there was killed: the options of paced are taken back"
        assert begin in text
        assert "--budget: 1 s have time for 0 trials of about 40 s" in text
        assert "give 2m or more" in text
        assert changed_options(client, "paced") == EARLIER


def test_a_tuning_ends_when_its_running_server_does_not_answer_any_more(
    server: RunningUp, tmp_path: Path
) -> None:
    proxy = Proxy(server.port)
    url = f"http://127.0.0.1:{proxy.port}"
    try:
        with tuning(tmp_path, "--slo", SLO, "--budget", "1h", "--url", url) as process:
            first_trial(process, tmp_path)
            refused = headrace_here(
                "tune", "paced", "--slo", SLO, "--url", url, "-o", "other", cwd=tmp_path
            )
            assert refused.returncode == 2
            assert f"paced on {url} is in use: headrace tune in {tmp_path}" in refused.stderr
            proxy.close()
            assert process.wait(600) == 3, (tmp_path / "output").read_text()
    finally:
        proxy.close()
        with Client(url_of(server)) as client:
            left = dict.fromkeys(changed_options(client, "paced"))
            client.set_model_options("paced", {**left, **EARLIER}, wait=60)
    kept = trials(tmp_path)
    assert kept
    assert all(b'"error":""' in line or b'"error"' not in line for line in kept)
