"""A container engine, and Compose projects on it: `docker` as a user calls it.

Nothing here stands in for anything. Where no engine answers, or an image is not to be had, what
needs it is left out with a message.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.server.ports import free_port
from tests.harness.deploy.caller import Caller
from tests.harness.servers.up import ROOT
from tests.harness.wait import wait_until

COMMAND_TIMEOUT_S = 1500
#: A service is healthy at its second or third check, which are 15 s apart.
HEALTHY_TIMEOUT_S = 300
POLL_S = 0.2
#: Always the same, as the address of an index decides whether the engine has built a layer before.
INDEX_PORT = 18778
REDIS_IMAGE = "valkey/valkey:9.1-alpine"
#: The status of a process that SIGKILL has ended.
KILLED = 137
#: What the images are built from.
TREE = (
    "headrace", "api", "workers", "handlers", "extensions", "configs", "deploy", "pyproject.toml",
    "constraints.txt", "README.md", "LICENSE", ".dockerignore", "docker-compose.yml",
)  # fmt: skip
#: What the Compose files mount, and the files themselves.
FOLDERS = ("configs", "models", "tls", "deploy")


def run(
    *command: str, cwd: Path = ROOT, given: str | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a command without the variables of ours or of Compose that this shell may have."""
    kept = {k: v for k, v in os.environ.items() if k == "HOME" or k.startswith("DOCKER_")}
    # Podman looks for iptables.
    kept["PATH"] = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    done = subprocess.run(
        command, cwd=cwd, env=kept, input=given, capture_output=True, text=True,
        timeout=COMMAND_TIMEOUT_S, check=False,
    )  # fmt: skip
    said = f"{' '.join(command)}: {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-8000:]}"
    assert not check or done.returncode == 0, said
    return done


def docker(*arguments: str, check: bool = True, given: str | None = None) -> str:
    """What `docker` prints."""
    return run("docker", *arguments, check=check, given=given).stdout.strip()


@cache
def why_no_engine() -> str:
    """Why nothing here can run containers; "" if something can."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        done = run(*command, check=False)
        if done.returncode:
            return f"`{' '.join(command)}` fails: {done.stderr.strip()[-200:]}"
    return ""


def require_engine() -> None:
    """Skip where no container engine answers."""
    if problem := why_no_engine():
        pytest.skip(f"no container engine with Compose: {problem}")


@cache
def has_image(name: str) -> bool:
    """Whether an image is here, or can be fetched."""
    if run("docker", "image", "inspect", name, check=False).returncode == 0:
        return True
    return run("docker", "pull", "--quiet", name, check=False).returncode == 0


@contextmanager
def torch_index() -> Iterator[str | None]:
    """The index of torch's CPU builds, if it is another one than the Compose file's.

    pip may have such a wheel in a folder on this disk. It is served to the builds, at the address
    that containers have for this machine.
    """
    listed = run("python3", "-m", "pip", "config", "list", check=False).stdout
    places = (*listed.replace("'", " ").split(), *os.environ.get("PIP_FIND_LINKS", "").split())
    folders = [Path(word) for word in places if word.startswith("/")]
    wheels = [wheel for folder in folders for wheel in folder.glob("torch-*+cpu-*.whl")]
    if not wheels:
        yield os.environ.get("TORCH_INDEX")
        return
    with _served(wheels) as url:
        yield url


@contextmanager
def _served(wheels: Sequence[Path]) -> Iterator[str]:
    gateway = docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}")
    known = {wheel.name: wheel for wheel in wheels}

    class Index(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            links = "".join(f'<a href="{name}">{name}</a>' for name in known)
            if self.path == "/torch/":
                self._answer(links.encode())
            elif (name := self.path.rpartition("/")[2].replace("%2B", "+")) in known:
                self._answer(known[name].read_bytes())
            else:
                self.send_error(404)

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    with ThreadingHTTPServer((gateway, INDEX_PORT), Index) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://{gateway}:{server.server_port}"
        server.shutdown()
        thread.join()


def copy_tree(folder: Path) -> Path:
    """Copy what the images are built from, but what is in the folder already."""
    for name in TREE:
        if not (folder / name).exists():
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, folder / name)
    return folder


def build(tree: Path, tag: str) -> None:
    """Build all images of a checkout of the repository, as `docker compose build` does."""
    variables = {"IMAGE_TAG": tag}
    with torch_index() as index:
        if index is not None:
            variables["TORCH_INDEX"] = index
        path = tree / f".env.{tag}"
        path.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
        try:
            run("docker", "compose", "--env-file", str(path), "build", cwd=tree)
        finally:
            path.unlink()


def remove(tag: str) -> None:
    """Remove the images with a tag; what they were built from stays, for the next build."""
    names = docker("image", "ls", "--filter", f"reference=headrace-*:{tag}", "--format",
                   "{{.Repository}}:{{.Tag}}").split()  # fmt: skip
    if names:
        docker("image", "rm", "--force", *names)


@dataclass
class Project:
    """A Compose project: a folder with our files, `.env` and `settings.env`, as a user has it.

    Attributes:
        left_out: services whose image is not to be had, with the image.
    """

    folder: Path
    files: Sequence[str]
    variables: dict[str, str]
    left_out: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        for name in FOLDERS:
            shutil.copytree(ROOT / name, self.folder / name)
        shutil.copy(ROOT / "docker-compose.yml", self.folder)
        self.set(
            COMPOSE_FILE=":".join(self.files),
            COMPOSE_PROJECT_NAME=f"headrace-test-{secrets.token_hex(4)}",
            API_PORT=str(free_port()), FLOWER_PORT=str(free_port()),
        )  # fmt: skip
        services = json.loads(self.compose("config", "--format", "json"))["services"]
        images = {name: spec["image"] for name, spec in services.items()}
        self.left_out = {name: image for name, image in images.items() if not has_image(image)}
        self.names = sorted(set(images) - set(self.left_out))
        self.caller = Caller(f"http://127.0.0.1:{self.variables['API_PORT']}")

    def set(self, **variables: str) -> None:
        """Write more variables into `.env`, and settings of Headrace into `settings.env`."""
        self.variables |= variables
        for name, wanted in ((".env", False), ("settings.env", True)):
            lines = [f"{k}={v}\n" for k, v in self.variables.items() if is_setting(k) is wanted]
            (self.folder / name).write_text("".join(lines))

    def compose(self, *arguments: str, check: bool = True) -> str:
        """What `docker compose` prints in this folder."""
        done = self._compose(*arguments)
        assert not check or done.returncode == 0, f"{arguments}: {done.stderr[-4000:]}"
        return done.stdout.strip()

    def _compose(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        whole = ("docker", "compose", "--progress", "quiet", *arguments)
        return run(*whole, cwd=self.folder, check=False)

    def up(self, *arguments: str) -> None:
        """Start what has an image, and wait until it is healthy.

        Compose gives up once a container is unhealthy, as it may be for some seconds on a machine
        that stands still.
        """
        command = ("up", "-d", "--wait", *(arguments or self.names))
        begun = time.monotonic()
        while (done := self._compose(*command)).returncode:
            late = time.monotonic() > begun + HEALTHY_TIMEOUT_S
            assert not late, f"{command}: {done.stderr[-1000:]}"

    def container(self, service: str) -> str:
        """The id of a service's container, also of one that has stopped."""
        labels = {"project": self.variables["COMPOSE_PROJECT_NAME"], "service": service}
        filters = [f"--filter=label=com.docker.compose.{k}={v}" for k, v in labels.items()]
        return docker("ps", "--all", "--quiet", *filters)

    def inspect(self, service: str) -> dict[str, Any]:
        """`docker inspect` of a service's container."""
        (found,) = json.loads(docker("inspect", self.container(service)))
        assert isinstance(found, dict)
        return found

    def execute(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a service's container."""
        return run("docker", "exec", self.container(service), *command, check=False)

    def crash(self, service: str) -> None:
        """Kill the first process of a container from outside, as the kernel would."""
        pid = str(self.inspect(service)["State"]["Pid"])
        docker("run", "--rm", "--pid", "host", REDIS_IMAGE, "sh", "-c", f"kill -9 {pid}")

    def wait_healthy(self, service: str, restarts: int = 0) -> None:
        """Wait until a container is healthy, after the engine has started it again so often."""

        def healthy() -> bool:
            found = self.inspect(service)
            status = found["State"].get("Health", {}).get("Status")
            return bool(status == "healthy" and found["RestartCount"] >= restarts)

        wait_until(healthy, f"{service} is healthy", HEALTHY_TIMEOUT_S, POLL_S)


def is_setting(name: str) -> bool:
    """Whether a variable belongs into settings.env; a secret does not."""
    return name.startswith("HEADRACE_") and "SECRET" not in name


def write_models(project: Project, models: Mapping[str, Any], **more: Any) -> None:
    """Replace the models file of a project."""
    text = yaml.safe_dump({"models": dict(models), **more})
    (project.folder / "configs/models.yaml").write_text(text)


def example(model: Mapping[str, Any]) -> tuple[bytes, str]:
    """The example of a model's input, as body and content type; a number if it has none."""
    found = model.get("inputs", {}).get("example", 1)
    if isinstance(found, dict) and "base64" in found:
        return base64.b64decode(found["base64"]), str(found["content_type"])
    return json.dumps(found).encode(), "application/json"


@contextmanager
def project(folder: Path, *files: str, tag: str, **variables: str) -> Iterator[Project]:
    """A project, not yet started; nothing of it is left afterwards."""
    made = Project(folder, ("docker-compose.yml", *files), {"IMAGE_TAG": tag, **variables})
    try:
        yield made
    except BaseException:
        print(made.compose("ps", "--all", check=False))  # noqa: T201 - pytest shows it
        print(made.compose("logs", "--tail", "40", check=False))  # noqa: T201
        raise
    finally:
        made.compose("down", "--volumes", "--timeout", "1", check=False)
