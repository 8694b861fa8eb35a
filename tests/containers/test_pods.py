"""The pods that the Helm chart renders, run on this machine with the images of this checkout."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.containers.models import GIB, HANDLERS, PIPELINES, models
from tests.harness.deploy import pods as playing
from tests.harness.deploy.caller import Caller, Load
from tests.harness.deploy.engine import REDIS_IMAGE
from tests.harness.deploy.helm import rendered
from tests.harness.deploy.pods import Pods
from tests.harness.wait import wait_until

REDIS, API, WORKER = "headrace-redis", "headrace-api", "headrace-worker-default"
BACKGROUND, RUNNER = "headrace-background", "headrace-runner"
IMAGES = ("headrace-api", "headrace-worker", "headrace-background")
#: How often liveness is asked for, as the chart says for the API.
PERIOD_S = 10.0


@dataclass
class Cluster:
    """The pods of a release, and who calls its API."""

    pods: Pods
    caller: Caller


@pytest.fixture(scope="module")
def cluster(images: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    playing.require_podman()
    objects = rendered({
        "image": {"registry": "localhost", "tag": images, "pullPolicy": "Never"},
        "settings": {"auth": "off"}, "keys": [], "networkPolicy": {"enabled": False},
        "models": models("."), "pipelines": PIPELINES, "files": HANDLERS,
        "workers": [{"name": "default", "resources": {"limits": {"memory": "1Gi"}}}],
        "redis": {"server": {
            "image": f"localhost/{REDIS_IMAGE}", "persistence": {"enabled": False},
        }},
    })  # fmt: skip
    playing.load(*(f"{name}:{images}" for name in IMAGES), REDIS_IMAGE)
    with playing.network() as network:
        made = Pods(tmp_path_factory.mktemp("pods"), network, objects)
        try:
            for name in (REDIS, API, WORKER, BACKGROUND, RUNNER):
                made.play(name)
            caller = Caller(f"http://{made.address(API)}:8080")
            for name in (WORKER, BACKGROUND, RUNNER):
                made.wait_ready(name)
            yield Cluster(made, caller)
        finally:
            made.remove()
            playing.podman("image", "rm", "--force",
                           *(f"localhost/{name}:{images}" for name in IMAGES))  # fmt: skip


def test_jobs_go_through_the_pods(cluster: Cluster) -> None:
    assert cluster.caller.result(cluster.caller.submit("echo", b"[1]")) == [1]
    assert cluster.caller.result(cluster.caller.submit("twice", b"[2]")) == [2]


def test_containers_of_pods_are_locked_in(cluster: Cluster) -> None:
    for name in (API, WORKER, BACKGROUND, RUNNER):
        assert cluster.pods.execute(name, "id", "-u").stdout.strip() == "10001"
        assert "Read-only" in cluster.pods.execute(name, "touch", "/opt/file").stderr
        assert cluster.pods.execute(name, "touch", "/tmp/file").returncode == 0
        status = cluster.pods.execute(name, "grep", "CapEff", "/proc/1/status").stdout
        assert int(status.split()[1], 16) == 0


def test_a_limit_of_memory_kills_one_job(cluster: Cluster) -> None:
    assert cluster.pods.inspect(WORKER)["HostConfig"]["Memory"] == GIB
    with Load(cluster.caller, "slow") as load:
        load.wait_more()
        large = cluster.caller.submit("hog", json.dumps({"bytes": 2 * GIB}).encode())
        later = cluster.caller.submit("hog", b'{"bytes": 1000}')
        failed = cluster.caller.job(large)
        assert failed["error"]["type"] == "replica-lost", failed
        assert cluster.caller.result(later) == 1000
        load.wait_more()
    load.check()
    state = cluster.pods.inspect(WORKER)
    assert state["State"]["Running"] is True
    assert state["RestartCount"] == 0


def test_liveness_restarts_an_api_that_hangs(cluster: Cluster) -> None:
    """No systemd runs the probes here, so this test is their clock."""
    assert cluster.pods.probe(API) == 0
    started = cluster.pods.inspect(API)["State"]["StartedAt"]
    waiting = cluster.caller.submit("slow", b"[3]")
    for pid in processes_of(cluster, API):
        os.kill(pid, signal.SIGSTOP)

    def restarted() -> bool:
        cluster.pods.probe(API)
        return bool(cluster.pods.inspect(API)["State"]["StartedAt"] != started)

    wait_until(restarted, "the API's container is started again", playing.START_TIMEOUT_S, 1.0)
    assert cluster.caller.result(waiting) == [3]


def test_sigterm_under_load_loses_nothing(cluster: Cluster) -> None:
    for name in (WORKER, BACKGROUND, API):
        with Load(cluster.caller, "slow") as load:
            load.wait_more()
            waiting = cluster.caller.submit("twice", b"[4]")
            assert cluster.pods.stop(name) in (0, 128 + signal.SIGTERM), name
            cluster.pods.play(name)
            cluster.caller.url = f"http://{cluster.pods.address(API)}:8080"
            load.wait_more()
        load.check()
        assert cluster.caller.result(waiting) == [4]


def test_the_first_answer_from_zero(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.pods.stop(WORKER) == 0
    waiting = cluster.caller.submit("echo", b"[5]")
    before = time.monotonic()
    cluster.pods.play(WORKER)
    started = time.monotonic()
    assert cluster.caller.result(waiting) == [5]
    answered = time.monotonic()
    cluster.pods.wait_ready(WORKER)
    with capsys.disabled():
        sys.stdout.write(
            f"\nfrom zero: the pod was started after {started - before:.1f} s, and the first "
            f"answer came after {answered - before:.1f} s\n"
        )


def processes_of(cluster: Cluster, name: str) -> list[int]:
    """The processes of a pod's container, as this machine numbers them."""
    listed = playing.podman("top", cluster.pods.inspect(name)["Id"], "hpid")
    return [int(line) for line in listed.splitlines()[1:]]
