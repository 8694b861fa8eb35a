"""The chart's pods, run by `podman kube play`: one machine, no cluster.

Podman 4.3 has pods, their volumes, limits, grace periods and restarts. What it lacks is put in its
place here, and nothing else of a pod is changed:

- Services: a pod gets the addresses of the pods behind them (`hostAliases`).
- StatefulSets: their pod is played as a pod.
- Probes by HTTP, which it runs as `curl` in the container: they are the same request by Python.
- A clock for probes where there is no systemd: `probe` runs one.
- Volumes of a pod's own: two pods with an emptyDir `tmp` would share it, so their names differ.
- Annotations, of which it refuses those with more than 63 characters.
"""

from __future__ import annotations

import copy
import json
import secrets
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.deploy import engine, helm
from tests.harness.servers.up import ROOT
from tests.harness.wait import wait_until

START_TIMEOUT_S = 180
_REQUEST = "import urllib.request as u; u.urlopen('http://127.0.0.1:{port}{path}', timeout=5)"


def require_podman() -> None:
    """Skip where podman cannot run."""
    if shutil.which("podman") is None:
        pytest.skip("there is no podman, which runs pods without a cluster")
    done = engine.run("podman", "info", check=False)
    if done.returncode:
        pytest.skip(f"podman does not work here: {done.stderr.strip()[-200:]}")


def podman(*arguments: str, check: bool = True, cwd: Path = ROOT) -> str:
    """What `podman` prints."""
    return engine.run("podman", *arguments, check=check, cwd=cwd).stdout.strip()


def load(*images: str) -> None:
    """Copy images from the engine to podman."""
    with subprocess.Popen(["docker", "save", *images], stdout=subprocess.PIPE) as saved:
        subprocess.run(["podman", "load", "--quiet"], stdin=saved.stdout, check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
    assert saved.returncode == 0


class Pods:
    """The pods of some rendered objects, on a network of their own.

    Args:
        folder: for the files that are played.
        objects: what `helm template` gives.
    """

    def __init__(self, folder: Path, network: str, objects: Sequence[Mapping[str, Any]]) -> None:
        self._folder = folder
        self._network = network
        self._configs = [dict(one) for one in objects if one["kind"] == "ConfigMap"]
        self._templates = helm.pods([dict(one) for one in objects])
        self._addresses: dict[str, str] = {}

    def play(self, name: str) -> None:
        """Start the pod of an object."""
        path = self._folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump_all([*self._configs, self._pod(name)]))
        # Where a limit of memory kills something, it leaves a file `oom` in the folder it began in.
        podman("kube", "play", "--network", self._network, str(path), cwd=self._folder)
        infra = self._inspect(podman("pod", "inspect", "-f", "{{.InfraContainerID}}", name))
        found = infra["NetworkSettings"]["Networks"][self._network]["IPAddress"]
        self._addresses[name] = found

    def _pod(self, name: str) -> dict[str, Any]:
        template = copy.deepcopy(self._templates[name])
        spec = template["spec"]
        spec["hostAliases"] = [
            {"ip": ip, "hostnames": [service, f"{service}.{helm.NAMESPACE}.svc"]}
            for service, ip in self._addresses.items()
            if service != name
        ]
        own = {one["name"] for one in spec["volumes"] if "emptyDir" in one}
        mounts = [one for container in spec["containers"] for one in container["volumeMounts"]]
        for one in (*spec["volumes"], *mounts):
            if one["name"] in own:
                one["name"] = f"{name}-{one['name']}"
        for container in spec["containers"]:
            # They decide which pods a Service sends requests to.
            for probe in ("readinessProbe", "startupProbe"):
                container.pop(probe, None)
            if "livenessProbe" in container:
                _by_python(container)
        metadata = {"name": name, "labels": template["metadata"]["labels"]}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def address(self, name: str) -> str:
        """The IP address of a pod."""
        return self._addresses[name]

    def inspect(self, name: str) -> dict[str, Any]:
        """`podman inspect` of a pod's container."""
        return self._inspect(self._container(name))

    def _container(self, name: str) -> str:
        (container,) = self._templates[name]["spec"]["containers"]
        return f"{name}-{container['name']}"

    @staticmethod
    def _inspect(container: str) -> dict[str, Any]:
        (found,) = json.loads(podman("inspect", container))
        assert isinstance(found, dict)
        return found

    def execute(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a pod's container."""
        return engine.run("podman", "exec", self._container(name), *command, check=False)

    def probe(self, name: str) -> int:
        """Run the liveness probe once, as a kubelet does each period; its status."""
        command = ("podman", "healthcheck", "run", self._container(name))
        return engine.run(*command, check=False, cwd=self._folder).returncode

    def readiness(self, name: str) -> Sequence[str]:
        """The command of a pod's readiness probe."""
        (container,) = self._templates[name]["spec"]["containers"]
        found = container["readinessProbe"]["exec"]["command"]
        assert isinstance(found, list)
        return found

    def wait_ready(self, name: str) -> None:
        """Wait until the readiness probe of a pod passes."""
        command = self.readiness(name)
        wait_until(
            lambda: self.execute(name, *command).returncode == 0, f"{name} is ready",
            START_TIMEOUT_S, 0.25,
        )  # fmt: skip

    def stop(self, name: str) -> int:
        """End a pod as a cluster does: SIGTERM, and SIGKILL after its grace period; the status."""
        grace = self._templates[name]["spec"]["terminationGracePeriodSeconds"]
        podman("pod", "stop", "--time", str(grace), name)
        status = int(self.inspect(name)["State"]["ExitCode"])
        self._forget(name)
        return status

    def remove(self) -> None:
        """Remove all pods with their volumes."""
        for name in self._addresses:
            self._forget(name)
        for config in self._configs:
            podman("volume", "rm", "--force", config["metadata"]["name"], check=False)

    def _forget(self, name: str) -> None:
        podman("pod", "rm", "--force", "--time", "1", name)
        for volume in self._templates[name]["spec"]["volumes"]:
            if "emptyDir" in volume:
                podman("volume", "rm", "--force", f"{name}-{volume['name']}")


def _by_python(container: dict[str, Any]) -> None:
    probe = container["livenessProbe"]
    if "tcpSocket" in probe:
        # The image of Redis has no Python; its readiness is checked by a command.
        del container["livenessProbe"]
    elif get := probe.pop("httpGet", None):
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        program = _REQUEST.format(port=ports[get["port"]], path=get["path"])
        # It joins the words for a shell.
        probe["exec"] = {"command": ["python", "-c", shlex.quote(program)]}


@contextmanager
def network() -> Iterator[str]:
    """A network for pods."""
    name = f"headrace-{secrets.token_hex(4)}"
    podman("network", "create", name)
    try:
        yield name
    finally:
        podman("network", "rm", "--force", name)
