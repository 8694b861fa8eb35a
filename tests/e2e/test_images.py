"""What the Dockerfiles build, built for real without an engine, served from and extended.

The COPY and RUN steps of the build stage run in temporary folders; the shell runs the RUN steps.
The test takes about a minute, because pip installs from the index that this machine's pip is
configured for. If no index can be reached, the test is skipped; with CI set it fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest
from docker.utils.build import exclude_paths

from tests.harness.deploy.dockerfile import Stage, parse
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.servers.up import ROOT, RunningUp
from tests.harness.wait import wait_until

FILE = parse(ROOT / "deploy/Dockerfile.api")
WORKER = parse(ROOT / "deploy/Dockerfile.worker")
OFFLINE = ("Failed to establish a new connection", "NameResolutionError", "ConnectTimeoutError")


@dataclass
class Image:
    """The root folder of an image that is being built."""

    root: Path
    workdir: str = "/"

    def here(self, path: str) -> Path:
        """A path of the image, as this machine sees it."""
        return self.root / Path(self.workdir, path).relative_to("/")

    def build(self, stage: Stage, arguments: dict[str, str]) -> None:
        for word, text in stage.steps:
            if word == "WORKDIR":
                self.workdir = text
                self.here(".").mkdir(parents=True, exist_ok=True)
            elif word == "COPY":
                self._copy(text)
            elif word == "ARG":
                name, _, default = text.partition("=")
                arguments.setdefault(name, default)
            else:
                assert word == "RUN", f"{word} is not expected in the build stage"
                self._run(text, arguments)

    def _copy(self, text: str) -> None:
        *sources, target = text.split()
        patterns = (ROOT / ".dockerignore").read_text().splitlines()
        sent = sorted(
            path for path in exclude_paths(str(ROOT), patterns) if (ROOT / path).is_file()
        )
        for source in sources:
            files = [path for path in sent if path == source or path.startswith(f"{source}/")]
            assert files, f"COPY {source} finds nothing"
            for path in files:
                below = Path(path).relative_to(source) if path != source else Path(Path(path).name)
                place = self.here(target) / below
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / path, place)

    def _run(self, text: str, arguments: dict[str, str]) -> None:
        for folder in ("/opt/", "/src/"):
            text = text.replace(folder, f"{self.root}{folder}")
        kept = {
            k: v for k, v in os.environ.items() if k == "HOME" or k.startswith(("PIP_", "SSL_"))
        }
        python = Path(sys.base_prefix) / "bin"
        done = subprocess.run(
            ["sh", "-euc", text], cwd=self.here("."), capture_output=True, text=True, check=False,
            # Only what is imported here is to be compiled.
            env={"PIP_COMPILE": "0", **kept, **arguments, "PATH": f"{python}:/usr/bin:/bin"},
            timeout=500,
        )  # fmt: skip
        said = done.stdout + done.stderr
        if done.returncode and any(word in said for word in OFFLINE) and not os.environ.get("CI"):
            pytest.skip("pip reaches no index")
        assert done.returncode == 0, f"RUN {text}\n{said[-6000:]}"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the final stage copies."""
    made = Image(tmp_path_factory.mktemp("image"))
    made.build(FILE.stage("build"), {})
    ((source, target),) = (text.split()[1:] for text in FILE.final.all("COPY"))
    assert source == target == "/opt/headrace"
    return made.here(source)


@pytest.fixture(scope="module")
def worker_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the final stage of the worker's image copies, without torch."""
    made = Image(tmp_path_factory.mktemp("worker"))
    arguments = {"EXTRAS": "worker"}
    # This machine has Python, as the Python images have.
    made.build(WORKER.stage("base"), arguments)
    made.build(WORKER.stage("build"), arguments)
    return made.here("/opt/headrace")


def python(image: Path, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(image / "bin/python"), "-c", program], capture_output=True, text=True, check=False,
        cwd=image, env={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip


@pytest.mark.parametrize(
    "name", ["torch", "celery", "numpy", "pip", "setuptools", "build", "pytest"]
)
def test_it_holds_nothing_that_the_api_does_not_need(image: Path, name: str) -> None:
    assert "ModuleNotFoundError" in python(image, f"import {name}").stderr


def test_it_holds_the_versions_that_are_tested(image: Path) -> None:
    program = (
        "import importlib.metadata as m, json; "
        "print(json.dumps([(d.name.lower(), d.version) for d in m.distributions()]))"
    )
    installed = json.loads(python(image, program).stdout)
    found = {name.replace("_", "-"): version for name, version in installed}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.lower().replace("_", "-").split("==") for line in lines if "==" in line[1:])
    assert {"fastapi", "uvicorn", "redis"} <= set(found)
    assert {name: v for name, v in found.items() if pinned.get(name, v) != v} == {}
    assert set(found) - set(pinned) == {"headrace"}


def test_it_serves(image: Path, redis_db: RedisServer, tmp_path: Path) -> None:
    base = {"PATH": f"{image / 'bin'}:/usr/bin:/bin"}
    environ = FILE.final.environment(base) | base
    api = RunningUp(tmp_path)
    environ |= {
        "HEADRACE_REDIS_URL": redis_db.url, "HEADRACE_PORT": str(api.port),
        "HEADRACE_HOST": "127.0.0.1",
    }  # fmt: skip
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(
            FILE.final.command(), cwd=tmp_path, env=environ, stdout=output, stderr=output,
            executable=str(image / "bin/headrace"),
        )  # fmt: skip
    try:

        def live() -> bool:
            assert process.poll() is None, (tmp_path / "output").read_text()
            with urllib.request.urlopen(f"http://127.0.0.1:{api.port}/live", timeout=5) as answer:
                return int(answer.status) == 200

        wait_until(live, "the API answers", 60)
        status, models = api.request("GET", "/api/v1/models")
        assert status == 200
        assert "digits" in json.dumps(models)
        done = subprocess.run(
            [str(image / "bin/headrace"), "health", "api"], env=environ, cwd=tmp_path, check=False
        )
        assert done.returncode == 0
    finally:
        process.terminate()
        process.wait(60)


def test_packages_can_be_added_to_the_workers_image(worker_image: Path) -> None:
    (shown,) = re.findall(
        r"^```dockerfile\n(.*?)^```",
        (ROOT / "docs/compose.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    own, *steps = shown.splitlines()
    assert own == "FROM headrace-worker:local"
    assert [steps[0], steps[-1]] == ["USER root", "USER 10001:10001"]
    environ = WORKER.final.environment({"PATH": f"{worker_image / 'bin'}:/usr/bin:/bin"})
    environ["PATH"] = f"{worker_image / 'bin'}:/usr/bin:/bin"
    environ["PIP_CONSTRAINT"] = environ["PIP_CONSTRAINT"].replace(
        "/opt/headrace", str(worker_image)
    )
    environ["HOME"] = str(worker_image.parent)
    environ |= {k: v for k, v in os.environ.items() if k.startswith(("PIP_INDEX", "PIP_C", "SSL_"))}
    environ["PIP_CONSTRAINT"] = str(worker_image / "constraints.txt")
    for step in steps[1:-1]:
        word, _, command = step.partition(" ")
        assert word == "RUN"
        done = subprocess.run(
            ["sh", "-euc", command], env=environ, capture_output=True, text=True, check=False,
            cwd=worker_image, timeout=500,
        )  # fmt: skip
        if done.returncode and any(word in done.stderr for word in OFFLINE):
            assert not os.environ.get("CI"), done.stderr
            pytest.skip("pip reaches no index")
        assert done.returncode == 0, done.stderr
    before = dict(
        line.lower().split("==") for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line[1:]
    )  # fmt: skip
    done = python(
        worker_image,
        "import soundfile, numpy, importlib.metadata as m; print(m.version('numpy'))",
    )
    assert done.stdout.strip() == before["numpy"], done.stderr
