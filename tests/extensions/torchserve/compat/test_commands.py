"""`headrace torchserve` says and returns what `torchserve` does, for whoever scripts it."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.server.ports import free_port
from tests.extensions.torchserve.compat.archives import build_all
from tests.extensions.torchserve.compat.servers import (
    OURS,
    STARTED,
    TORCHSERVE,
    Port,
    environ,
    properties,
)
from tests.harness.wait import wait_until

COMMANDS = {"torchserve": (str(TORCHSERVE),), "headrace": OURS}
COMMAND_S = 300


@dataclass(frozen=True)
class Place:
    """A command, and the folder in which it runs."""

    command: Sequence[str]
    folder: Path

    def run(self, *options: str, **env: str) -> tuple[int, list[str]]:
        """Its status, and the lines that it writes."""
        # A file, because a server in the background keeps it open; the next command gets its own.
        path = self.folder / f"{len(list(self.folder.glob('*.out')))}.out"
        with path.open("w+") as log:
            done = subprocess.run(
                [*self.command, *options],
                cwd=self.folder,
                env={**environ(self.folder), **env},
                stdout=log,
                timeout=COMMAND_S,
                check=False,
            )
            log.seek(0)
            return done.returncode, log.read().splitlines()


@pytest.fixture(params=COMMANDS)
def place(request: pytest.FixtureRequest, _real: None) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="compat") as name:
        yield Place(COMMANDS[request.param], Path(name))


@pytest.mark.parametrize("option", ["--version", "-v"])
def test_its_version(place: Place, option: str) -> None:
    status, lines = place.run(option)
    assert (status, lines[0]) == (0, "TorchServe Version is 0.12.0")


def test_a_stop_without_a_server(place: Place) -> None:
    assert place.run("--stop") == (0, ["TorchServe is not currently running."])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--start"], "Missing mandatory parameter --model-store"),
        ([], "Missing mandatory parameter --model-store"),
        (["--foreground", "--ncs"], "Missing mandatory parameter --model-store"),
        (["--model-store", "nowhere"], "--model-store directory not found: nowhere"),
        (["--start", "--model-store", "nowhere"], "--model-store directory not found: nowhere"),
        (["--start", "--ts-config", "nowhere"], "--ts-config file not found: nowhere"),
        (["--start", "--log-config", "/nowhere"], "--log-config file not found: /nowhere"),
        (
            ["--start", "--model-store", ".", "--workflow-store", "nowhere"],
            "--workflow-store directory not found: nowhere",
        ),
    ],
    ids=["no store", "bare", "no start", "store alone", "store", "config", "log", "workflows"],
)
def test_what_is_missing(place: Place, options: list[str], said: str) -> None:
    assert place.run(*options) == (1, [said])


def test_a_temporary_folder_that_is_not_there(place: Place) -> None:
    status, lines = place.run("--start", "--model-store", ".", TEMP="/nowhere")
    assert status == 1
    assert lines == ["Invalid temp directory: /nowhere, please check TEMP environment variable."]


def test_start_in_the_background_and_stop(place: Place) -> None:
    store = place.folder / "store"
    store.mkdir()
    build_all(store, ["noop"])
    names: tuple[Port, ...] = ("inference", "management", "metrics")
    ports: dict[Port, int] = {name: free_port() for name in names}
    own = {"grpc_inference_port": str(free_port()), "grpc_management_port": str(free_port())}
    config = place.folder / "config.properties"
    config.write_text(properties(ports, default_workers_per_model="1", **own))
    # It starts without --start too.
    options = ("--model-store", "store", "--ts-config", config.name, "--models", "all")
    log = place.folder / "0.out"
    keys = place.folder / "key_file.json"
    try:
        assert place.run(*options)[0] == 0
        # The first command writes into the same file, until the next one begins it anew.
        wait_until(lambda: STARTED in log.read_text().splitlines(), "it serves", COMMAND_S)
        assert keys.exists()
        status, lines = place.run("--start", *options)
        assert status == 1
        assert lines == [
            "TorchServe is already running, please use torchserve --stop to stop TorchServe."
        ]
    finally:
        stopped = place.run("--stop", "--foreground")
    assert stopped[0] == 0
    assert not keys.exists()
    assert place.run("--stop") == (0, ["TorchServe is not currently running."])
