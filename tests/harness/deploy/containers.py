"""The services of a Compose file as local processes, where there is no container engine.

Each runs its own command with the environment that Compose would give it. Its file system is
read-only, apart from its volumes and tmpfs. Its user id has no name. Names of services become
loopback ports, and paths of the container become paths below one folder. Of images that are not
ours Debian has the program, for all but Grafana's.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from dotenv import dotenv_values

from headrace.errors import HeadraceError
from headrace.server import health_probe
from headrace.server.ports import free_port
from tests.harness.deploy import compose_file, dockerfile
from tests.harness.monitoring import monitoring
from tests.harness.processes.processes import descendants
from tests.harness.servers.redis_servers import require
from tests.harness.servers.up import ROOT
from tests.harness.wait import wait_until

BASE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Where the images have Headrace; here it is the environment that runs the tests.
INSTALLED = "/opt/headrace"
HEALTHY_TIMEOUT_S = 180
#: It may take the 15 s after which a worker that says nothing is gone.
UNHEALTHY_TIMEOUT_S = 120
#: A check is a process, or several, which take from the service the time that it starts in.
CHECK_INTERVAL_S = 1.0
#: One of `headrace health` is asked when its function says here that it is worth it, or after that.
HEALTH_INTERVAL_S = 6.0
CHECK_TIMEOUT_S = 60
REDIS_PORT = "6379"
#: What images that are not ours run, as Debian calls it, and the port that they listen on.
PROGRAMS = {
    "prom/prometheus": ("prometheus", "9090"),
    "prom/alertmanager": ("prometheus-alertmanager", "9093"),
}
#: Nothing here can stand in for them.
ABSENT = ("grafana/grafana",)

# Only the folders that are given can be written, and root has become somebody without a name.
_READ_ONLY = """
for folder in "$@"; do
    shift
    [ "$folder" != -- ] || break
    mount --bind "$folder" "$folder"
done
mount -o remount,bind,ro /
exec unshare --user --map-user=10001 --map-group=10001 "$@"
"""


@cache
def can_sandbox() -> bool:
    """Whether this machine lets us make file systems read-only for our own processes."""
    command = sandboxed([], ["true"])
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def sandboxed(writable: Sequence[Path], command: Sequence[str]) -> list[str]:
    """The command in namespaces of its own; the process id stays that of the process started."""
    script = ["sh", "-euc", _READ_ONLY, "sh", *map(str, writable), "--", *command]
    return ["unshare", "--user", "--map-root-user", "--mount", *script]


@dataclass
class Service:
    """One service.

    Attributes:
        name: as the Compose file calls it.
        spec: what stands below that name.
        folder: its files are below this.
        environ: what its process gets.
        ports: container port -> port here.
    """

    name: str
    spec: Mapping[str, Any]
    folder: Path
    environ: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)
    writable: list[Path] = field(default_factory=list)
    paths: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    process: subprocess.Popen[bytes] | None = None

    @property
    def program(self) -> tuple[str, str] | None:
        """What its image runs and where that listens, where the image is not ours."""
        return PROGRAMS.get(self.spec["image"].partition(":")[0])

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def here(self) -> Path:
        """Its working directory, as this machine sees it."""
        return Path(self.translated(self.workdir))

    def translated(self, text: str) -> str:
        """The text with the container's paths as they are here."""
        if not self.paths:
            return text
        longest_first = sorted(self.paths, key=len, reverse=True)
        # At once, as one path may be part of another; and only whole names.
        pattern = f"(?<![\\w.-])({'|'.join(map(re.escape, longest_first))})(?![\\w.-])"
        return re.sub(pattern, lambda found: self.paths[found.group(1)], text)

    def _wrapped(self, command: Sequence[str]) -> list[str]:
        command = [self.translated(word) for word in command]
        return sandboxed(self.writable, command) if can_sandbox() else command

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._wrapped(self.command), env=self.environ, cwd=self.here, stdout=log,
                stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """`docker compose exec`."""
        return subprocess.run(
            self._wrapped(command), env=self.environ, cwd=self.here, capture_output=True,
            text=True, timeout=CHECK_TIMEOUT_S, check=False,
        )  # fmt: skip

    def check(self) -> subprocess.CompletedProcess[str]:
        """Its health check."""
        kind, *command = self.spec["healthcheck"]["test"]
        if self.program is not None:
            port = f":{self.program[1]}/"
            command = [word.replace(port, f":{self.ports[port[1:-1]]}/") for word in command]
        return self.run(*(["sh", "-c", *command] if kind == "CMD-SHELL" else command))

    def seems_healthy(self) -> bool | None:
        """What its check would find out, without a process; None where that is not ours."""
        _, *command = self.spec["healthcheck"]["test"]
        if command[:2] != ["headrace", "health"]:
            return None
        try:
            # Where it finds programs, such as nvidia-smi.
            with mock.patch.dict(os.environ, PATH=self.environ["PATH"]):
                health_probe.run_check(command[2], None, self.environ)
        except HeadraceError:
            return False
        return True

    def wait_for(self, healthy: bool, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Wait until its check ends as wanted; that check."""
        asked_at = time.monotonic() - CHECK_INTERVAL_S

        def ended() -> subprocess.CompletedProcess[str] | None:
            nonlocal asked_at
            assert self.process is not None
            gone = self.process.poll() is not None
            assert not (healthy and gone), f"{self.name} ended: {self.log[-4000:]}"
            seems = self.seems_healthy()
            pause_s = CHECK_INTERVAL_S if seems is None else HEALTH_INTERVAL_S
            if seems is not healthy and time.monotonic() < asked_at + pause_s:
                return None
            check = self.check()
            asked_at = time.monotonic()
            return check if (check.returncode == 0) is healthy else None

        wanted = "healthy" if healthy else "unhealthy"
        found = wait_until(ended, f"{self.name} is {wanted}", timeout_s, 0.25)
        assert isinstance(found, subprocess.CompletedProcess)
        return found

    def stop(self) -> int:
        """`docker compose stop`: SIGTERM, and then it is gone.

        Within its grace period, on a machine that has as little else to do.
        """
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(max(90.0, seconds(self.spec.get("stop_grace_period", "10s"))))


class Stack:
    """`docker compose -f … up` in a project's folder."""

    def __init__(self, project: Path, folder: Path, *files: str) -> None:
        self._project = project
        self._folder = folder
        variables = {k: v for k, v in dotenv_values(project / ".env").items() if v is not None}
        self._variables = variables
        self.model = compose_file.load([ROOT / name for name in files], variables)
        self.programs = folder / "programs"
        self.programs.mkdir(parents=True)
        self.services = {
            name: Service(name, spec, folder / name)
            for name, spec in self.model["services"].items()
            if spec["image"].partition(":")[0] not in ABSENT
        }
        for service in self.services.values():
            service.folder.mkdir()
            self._ports(service)
        self._redis_programs()
        for service in self.services.values():
            self._build(service)

    def __getitem__(self, name: str) -> Service:
        return self.services[name]

    def _ports(self, service: Service) -> None:
        wanted = [port.rpartition(":")[2] for port in service.spec.get("ports", [])]
        if service.name == "redis":
            wanted.append(REDIS_PORT)
        service.ports = {port: free_port() for port in wanted}

    def _redis_programs(self) -> None:
        port = self.services["redis"].ports[REDIS_PORT]
        require("redis7")  # the system's, with which redis-cli comes
        server = f"{require('valkey9')} --port {port} --bind 127.0.0.1"
        for name, program in (("server", server), ("cli", f"redis-cli -p {port}")):
            self.program(f"valkey-{name}", f'exec {program} "$@"')

    def program(self, name: str, script: str) -> None:
        """A program that the images have and this machine may not."""
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def _build(self, service: Service) -> None:
        image = {"PATH": BASE_PATH}
        spec = service.spec
        command, service.workdir = list(spec.get("command", [])), "/"
        builds = {
            one["image"]: one["build"] for one in self.model["services"].values() if "build" in one
        }
        if spec["image"] in builds:
            final = dockerfile.parse(ROOT / builds[spec["image"]]["dockerfile"]).final
            image = final.environment(image)
            command = command or final.command()
            service.workdir = final.last("WORKDIR")
        if service.program is not None:
            name, port = service.program
            listen = f"--web.listen-address=127.0.0.1:{service.ports[port]}"
            command = [monitoring.require(name), *command, listen]
        service.command = command
        self._mount(service)
        given = {
            **image,
            **{k: v for entry in spec.get("env_file", []) for k, v in self._file(entry).items()},
            **spec.get("environment", {}),
        }
        service.environ = {
            k: self._address(service, service.translated(v)) for k, v in given.items()
        }
        service.environ |= {
            "PATH": f"{self.programs}:{service.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(service.folder / "root/tmp"),
        }

    def _file(self, entry: Mapping[str, Any]) -> dict[str, str]:
        path = self._project / entry["path"]
        assert path.exists() or entry["required"] is False
        return {k: v for k, v in dotenv_values(path).items() if v is not None}

    def _mount(self, service: Service) -> None:
        root = service.folder / "root"
        service.paths = {INSTALLED: sys.prefix}
        for path in filter(lambda p: p != "/", [service.workdir, *service.spec["tmpfs"]]):
            (root / path[1:]).mkdir(parents=True, exist_ok=True)
        service.writable = [root / path[1:] for path in service.spec["tmpfs"]]
        if service.workdir != "/":
            service.paths[service.workdir] = str(root / service.workdir[1:])
        else:
            service.paths = {}
            root.mkdir(exist_ok=True)
        for volume in service.spec.get("volumes", []):
            source, target, *_ = volume.split(":")
            place = root / target[1:]
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(self._source(service, source))
            service.paths[target] = str(place)

    def _source(self, service: Service, source: str) -> Path:
        if source.startswith("."):
            path = self._project / source
            assert path.is_dir(), f"{service.name} mounts {source}, which Docker would make as root"
            return path if service.program is None else self._readdressed(service, path)
        assert source in self.model["volumes"], f"{source} is declared nowhere"
        path = self._folder / "volumes" / source
        path.mkdir(parents=True, exist_ok=True)
        service.writable.append(path)
        return path

    def _readdressed(self, service: Service, source: Path) -> Path:
        """A copy of a folder of configuration, with names and ports as they are here."""
        copy = self._folder / service.name / "configuration"
        shutil.copytree(source, copy)
        for path in filter(Path.is_file, copy.rglob("*")):
            path.write_text(self._address(service, path.read_text()))
        return copy

    def _address(self, service: Service, value: str) -> str:
        """A value of the environment with names and ports as they are here."""
        for other in self.services.values():
            for port, here in other.ports.items():
                value = value.replace(f"{other.name}:{port}", f"127.0.0.1:{here}")
        if value in service.ports:
            return str(service.ports[value])
        return "127.0.0.1" if value == "0.0.0.0" else value

    def up(self, *names: str) -> None:
        """Start these with all that they depend on, or all, each when that is as it wants it."""
        waiting = self._with_needs(names) if names else dict(self.services)
        chosen = list(waiting)
        healthy: set[str] = set()
        while waiting:
            name = next(n for n, s in waiting.items() if not set(_needs(s)) & set(waiting))
            service = waiting.pop(name)
            for other, condition in _needs(service).items():
                assert condition == "service_healthy"
                if other not in healthy:
                    self.wait_healthy(other)
                    healthy.add(other)
            service.start()
        for name in chosen:
            if name not in healthy:
                self.wait_healthy(name)

    def _with_needs(self, names: Sequence[str]) -> dict[str, Service]:
        found: dict[str, Service] = {}
        wanted = list(names)
        while wanted:
            name = wanted.pop()
            found[name] = self.services[name]
            wanted += set(_needs(found[name])) - set(found)
        return found

    def wait_healthy(self, name: str) -> subprocess.CompletedProcess[str]:
        return self.services[name].wait_for(True, HEALTHY_TIMEOUT_S)

    def wait_unhealthy(self, name: str) -> subprocess.CompletedProcess[str]:
        return self.services[name].wait_for(False, UNHEALTHY_TIMEOUT_S)


@contextmanager
def stack(project: Path, folder: Path, *files: str) -> Iterator[Stack]:
    """The services, not yet started; none of their processes is left afterwards."""
    made = Stack(project, folder, *files)
    try:
        yield made
    except BaseException:
        for service in made.services.values():
            if service.process is not None:
                print(f"--- {service.name}\n{service.log[-3000:]}")  # noqa: T201 - pytest shows it
        raise
    finally:
        for service in made.services.values():
            if service.process is None:
                continue
            if service.process.poll() is None:
                for pid in [*descendants(service.pid), service.pid]:
                    _kill(pid)
            service.process.wait(60)


def seconds(duration: str) -> float:
    """A duration as Compose writes it: what ours use."""
    assert duration.endswith("s"), duration
    return float(duration[:-1])


def _needs(service: Service) -> dict[str, str]:
    return {name: how["condition"] for name, how in service.spec.get("depends_on", {}).items()}


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
