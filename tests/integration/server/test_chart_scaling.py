"""A played autoscaler follows the chart's ScaledObject: 0 to 4 pods and back, no job is lost."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from headrace.jobs.job import State
from tests.harness.deploy.helm import pods, rendered
from tests.harness.http.plain_http import PLAIN
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.servers.up import RunningUp, clean_environment, started
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client, write_models

pytestmark = pytest.mark.slow

JOBS = 40
PODS = 4
#: It writes a line when it has run to the end.
HANDLER = """
import os
import time
from pathlib import Path
import headrace

class Slow(headrace.Handler):
    def inference(self, items):
        for item in items:
            time.sleep(0.25)
            with Path(__file__).with_name("ended").open("a") as file:
                file.write(f"{item}\\n")
        return items
"""
VALUES = {
    "settings": {"auth": "off"},
    "models": {"slow": {"handler": "slow.py:Slow", "max_batch_size": 1}},
    "workers": [
        {"name": "pool", "models": ["slow"],
         "keda": {"scale": "object", "maxReplicas": PODS, "target": 10}},
    ],
}  # fmt: skip
#: Runs a script with a host name of its own.
NAMED = ["unshare", "--user", "--map-root-user", "--uts", "sh", "-euc"]


class Pod(RunningUp):
    """A pod's command with the pod's environment and a host name of its own."""

    def __init__(self, folder: Path, container: dict[str, Any], redis_url: str) -> None:
        given = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        given |= {"HEADRACE_REDIS_URL": redis_url, "CUDA_VISIBLE_DEVICES": ""}
        given |= {"HEADRACE_MODELS_FILE": str(folder.parent / "models.yaml")}
        given.pop("HEADRACE_CONFIG", None)
        folder.mkdir()
        super().__init__(folder, *container["command"][1:])
        self.environ = clean_environment(**given)

    def start(self) -> None:
        script = 'hostname "$0"; exec "$@"'
        program = [sys.executable, "-P", "-m", "headrace", *self.arguments]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*NAMED, script, self.folder.name, *program], cwd=self.folder, env=self.environ,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip


class Autoscaler:
    """What KEDA and the autoscaler of Kubernetes do with one ScaledObject, without their patience.

    Attributes:
        replicas: the pods that it wants now.
        most: the most that it has wanted.
    """

    def __init__(self, scaled: dict[str, Any], api: str, pod: Any, stack: ExitStack) -> None:
        self.spec = scaled["spec"]
        self.replicas = self.most = 0
        self.pods: list[Pod] = []
        self.ended: list[Pod] = []
        self._pod, self._stack = pod, stack
        self._http = stack.enter_context(httpx2.Client(base_url=api, timeout=60, verify=PLAIN))

    def demand(self) -> float:
        total = 0.0
        for trigger in self.spec["triggers"]:
            metadata = trigger["metadata"]
            answer = self._http.get(urlsplit(metadata["url"]).path)
            assert answer.status_code == 200, answer.text
            total += json.loads(answer.text)[metadata["valueLocation"]]
        return total

    def step(self) -> float:
        """Look once, and start or stop pods; return the demand."""
        demand = self.demand()
        target = float(self.spec["triggers"][0]["metadata"]["targetValue"])
        least = self.spec["minReplicaCount"] if demand == 0 else 1
        wanted = max(least, math.ceil(demand / target))
        self.replicas = min(wanted, self.spec["maxReplicaCount"])
        self.most = max(self.most, self.replicas)
        while len(self.pods) < self.replicas:
            pod = self._pod(len(self.pods) + len(self.ended))
            self._stack.enter_context(started(pod))
            self.pods.append(pod)
        while len(self.pods) > self.replicas:
            # The newest ends first, whatever it runs.
            pod = self.pods.pop()
            os.kill(pod.process.pid, signal.SIGTERM)
            self.ended.append(pod)
        return demand


@pytest.mark.leaves_keys
def test_a_square_wave_of_jobs_loses_none(tmp_path: Path, redis_db: RedisServer) -> None:
    if subprocess.run([*NAMED, "true"], capture_output=True, check=False).returncode:
        pytest.skip("pods need host names of their own, and this machine refuses namespaces")
    objects = rendered(VALUES)
    (scaled,) = [one for one in objects if one["kind"] == "ScaledObject"]
    (worker,) = pods(objects)["headrace-worker-pool"]["spec"]["containers"]
    (server,) = pods(objects)["headrace-api"]["spec"]["containers"]
    (tmp_path / "slow.py").write_text(HANDLER)
    (configs,) = [one for one in objects if one["metadata"]["name"] == "headrace-configs"]
    path = write_models(tmp_path, slow={"handler": "slow.py:Slow"})
    path.write_text(configs["data"]["models.yaml"])
    with ExitStack() as stack:
        api = Pod(tmp_path / "api", server, redis_db.url)
        api.environ |= {"HEADRACE_AUTH": "off", "HEADRACE_PORT": str(api.port)}
        stack.enter_context(started(api))
        api.wait_for("listening on")
        client = stack.enter_context(Client(redis_db.url, path))
        scaler = Autoscaler(
            scaled, f"http://127.0.0.1:{api.port}",
            lambda number: Pod(tmp_path / f"pod{number}", worker, redis_db.url), stack,
        )  # fmt: skip
        assert scaler.step() == 0
        assert scaler.pods == []
        ids = []
        for wave in range(2):
            ids += client.submit("slow", *range(wave * JOBS, (wave + 1) * JOBS))
            wait_until(lambda: scaler.step() == 0, "all jobs have ended", 300, 0.25)
            assert scaler.most == PODS
            assert scaler.pods == []
        states = [client.job(job_id).state for job_id in ids]
        assert states == [State.SUCCEEDED] * len(ids)
        assert all(client.job(job_id).attempts == 1 for job_id in ids)
        for pod in scaler.ended:
            assert pod.process.wait(120) == 0, pod.text()
    ended = sorted(map(int, (tmp_path / "ended").read_text().split()))
    assert ended == list(range(2 * JOBS)), "none is lost, and none ran twice to the end"
