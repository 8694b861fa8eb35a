"""docker-compose.yml, its services started as local processes, and jobs run through them.

No container engine is needed; tests/harness/deploy/containers.py says what stands in for one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace.redis import keys
from headrace.server.supervisor.proc import children_of
from tests.harness.deploy.containers import Service, Stack, can_sandbox, stack
from tests.harness.monitoring.flower import asked
from tests.harness.processes.processes import command_line, descendants, environment, gone, suspend
from tests.harness.servers.up import ROOT, write_models
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client

CPU = ("docker-compose.yml",)
GPU = (*CPU, "deploy/compose.gpu.yml")
#: All that an operator runs, but Grafana, of which Debian has no package.
OPERATED = (*CPU, "deploy/compose.production.yml", "deploy/compose.monitoring.yml")
PASSWORD = "0123456789abcdef"
FLOWER_PASSWORD = "me:correct-horse"
LISTING = "\n".join(f"GPU {i}: Some GPU (UUID: GPU-{c * 4})" for i, c in enumerate("ab"))


def project(folder: Path, **variables: str) -> Path:
    """What a user has beside the Compose file, with an `.env` and a `settings.env` of these."""
    made = folder / "project"
    made.mkdir()
    for name in ("configs", "models", "deploy", "tls"):
        shutil.copytree(ROOT / name, made / name)
    settings = {k: v for k, v in variables.items() if k.startswith("HEADRACE_")}
    others = {k: v for k, v in variables.items() if k not in settings}
    for name, values in ((".env", others), ("settings.env", settings)):
        (made / name).write_text("".join(f"{k}={v}\n" for k, v in values.items()))
    return made


def request(
    stack: Stack, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, Any]:
    url = f"http://127.0.0.1:{stack['api'].ports['8080']}{path}"
    asked = urllib.request.Request(url, body, method=method, headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=30) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def submit(stack: Stack, model: str, body: bytes, content_type: str) -> str:
    path = f"/api/v1/models/{model}/jobs"
    status, job = request(stack, "POST", path, body, **{"Content-Type": content_type})
    assert status == 202, job
    return str(job["id"])


def result(stack: Stack, job_id: str) -> Any:
    def ended() -> Any:
        _, job = request(stack, "GET", f"/api/v1/jobs/{job_id}")
        assert job["status"] != "failed", job
        return job["status"] == "succeeded" and job

    return wait_until(ended, f"job {job_id} ends", 120)["result"]


def flower_page(stack: Stack, path: str) -> str:
    port = stack["flower"].ports["5555"]
    status, text = asked(port, "GET", path, password=FLOWER_PASSWORD)
    assert status == 200, text
    return text


def monitor(stack: Stack, name: str, path: str) -> Any:
    """What Prometheus or Alertmanager answers."""
    (port,) = stack[name].ports.values()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
        return json.loads(response.read())


def workers_of(service: Service) -> list[int]:
    """The Celery workers below the supervisor."""
    return children_of(service.pid)


def say_nothing(stack: Stack, pid: int, password: str | None = None) -> None:
    """Stop a worker, and let what it has said run out as it would in some seconds."""
    suspend(pid)
    with redis.Redis(port=stack["redis"].ports["6379"], password=password) as client:
        owners: Any = client.zrange(keys.WORKERS, 0, -1)
        said = {
            keys.worker(one.decode()): client.hget(keys.worker(one.decode()), "") for one in owners
        }
        (key,) = (key for key, raw in said.items() if raw and json.loads(raw)["pid"] == pid)
        assert 0 < client.pttl(key) <= keys.WORKER_TTL_S * 1000
        client.pexpire(key, 1)


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """`docker compose up` with all files, and what else people change in `.env`."""
    folder = tmp_path_factory.mktemp("compose")
    home = project(
        folder, REDIS_PASSWORD=PASSWORD, REDIS_MAXMEMORY="1gb", REDIS_MEMORY="2g",
        WORKER_MEMORY="4g", FLOWER_PORT="5999", FLOWER_BASIC_AUTH=FLOWER_PASSWORD, API_PORT="80",
        GRAFANA_PASSWORD="another", HEADRACE_LOG_LEVEL="",
        HEADRACE_MODELS_FILE="configs/models.yaml", HEADRACE_PORT="1",
    )  # fmt: skip
    # One model with torch is enough.
    write_models(home / "configs", {"echo": {"handler": "echo"}, "digits": {"handler": "digits"}})
    with stack(home, folder / "run", *OPERATED) as running:
        running.up()
        yield running


def test_a_digit_goes_through(cpu: Stack) -> None:
    image = (ROOT / "examples/digits/7_0820.png").read_bytes()
    assert result(cpu, submit(cpu, "digits", image, "image/png"))["digit"] == 7


def test_flower_sees_the_worker_and_its_queues(cpu: Stack) -> None:
    wait_until(lambda: "cpu0@" in flower_page(cpu, "/workers"), "Flower sees the worker", 60)
    node = f"cpu0@{socket.gethostname()}"

    def queues() -> bool:
        # Asked on a busy machine, a worker may answer too late for Flower; its page asks again.
        flower_page(cpu, f"/worker/{node}")
        page = flower_page(cpu, "/broker")
        return "headrace.digits" in page and "headrace.echo" in page

    wait_until(queues, "Flower knows the queues", 60)


def test_flower_asks_for_its_password(cpu: Stack) -> None:
    port = cpu["flower"].ports["5555"]
    assert asked(port, "GET", "/workers")[0] == 401
    assert asked(port, "POST", "/api/worker/shutdown/any", b"")[0] == 401
    assert asked(port, "GET", "/workers", password="me:wrong")[0] == 401


def test_prometheus_scrapes_and_tells_alertmanager(cpu: Stack) -> None:
    def scraped() -> bool:
        (target,) = monitor(cpu, "prometheus", "/api/v1/targets")["data"]["activeTargets"]
        assert target["scrapePool"] == "headrace"
        return bool(target["health"] == "up")

    wait_until(scraped, "Prometheus has scraped the API", 90)
    told = wait_until(
        lambda: (
            monitor(cpu, "prometheus", "/api/v1/alertmanagers")["data"]["activeAlertmanagers"]
        ),
        "Prometheus has found Alertmanager", 60,
    )  # fmt: skip
    (here,) = cpu["alertmanager"].ports.values()
    assert [one["url"] for one in told] == [f"http://127.0.0.1:{here}/api/v2/alerts"]
    groups = monitor(cpu, "prometheus", "/api/v1/rules")["data"]["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
    assert monitor(cpu, "alertmanager", "/api/v2/status")["cluster"]["status"] == "disabled"


def test_redis_asks_for_the_password_and_no_argument_shows_it(cpu: Stack) -> None:
    memory = cpu["redis"].run("valkey-cli", "CONFIG", "GET", "maxmemory*").stdout.split()
    limits = dict(zip(memory[::2], memory[1::2], strict=True))
    assert limits["maxmemory"] == str(1024**3)
    assert limits["maxmemory-policy"] == "noeviction"
    bare = cpu["redis"].run("env", "-u", "REDISCLI_AUTH", "valkey-cli", "ping")
    assert "NOAUTH" in bare.stdout
    for service in cpu.services.values():
        for pid in [service.pid, *descendants(service.pid)]:
            assert PASSWORD.encode() not in command_line(pid)


def test_only_volumes_and_tmp_are_written(cpu: Stack) -> None:
    if not can_sandbox():
        pytest.skip("this machine lets nobody make a file system read-only")
    for name, folder in (("api", "/srv/headrace"), ("worker", "/opt"), ("redis", "/")):
        tried = cpu[name].run("touch", f"{folder}/file")
        assert "Read-only" in tried.stderr, name
    assert cpu["worker"].run("id", "-u").stdout == "10001\n"
    # Celery has nothing against a user without a name.
    assert "Warning" not in cpu["worker"].log
    mounted = cpu["worker"].here / "models/file"
    assert not mounted.exists()


def test_a_check_fails_when_its_part_is_dead_and_nothing_is_lost(cpu: Stack) -> None:
    flower, worker, api, redis = (cpu[name] for name in ("flower", "worker", "api", "redis"))
    background = cpu["background"]

    for name in ("prometheus", "alertmanager"):
        assert cpu[name].stop() == 0
        assert cpu.wait_unhealthy(name).returncode
        cpu[name].start()
        cpu.wait_healthy(name)

    # The worker is started twice more, and torch takes seconds to load.
    write_models(worker.here / "configs")

    assert flower.stop() == 0
    assert "Connection refused" in cpu.wait_unhealthy("flower").stderr
    assert list((flower.here.parents[1] / "var/lib/headrace").glob("flower*"))

    # A worker that hangs says nothing more; one that is killed is started again.
    (celery,) = workers_of(worker)
    say_nothing(cpu, celery, PASSWORD)
    assert "not seen" in cpu.wait_unhealthy("worker").stderr
    os.kill(celery, signal.SIGKILL)
    cpu.wait_healthy("worker")
    below = descendants(worker.pid)
    assert worker.stop() == 0
    assert gone(*below)
    assert "cpu0@" in cpu.wait_unhealthy("worker").stderr

    (celery,) = children_of(background.pid)
    os.kill(celery, signal.SIGKILL)
    wait_until(lambda: celery not in children_of(background.pid), "it is replaced", 60)
    cpu.wait_healthy("background")
    assert background.stop() == 0
    assert "background@" in cpu.wait_unhealthy("background").stderr

    waiting = submit(cpu, "echo", b'{"x": 1}', "application/json")
    assert redis.stop() == 0
    assert cpu.wait_unhealthy("redis").returncode == 1
    assert "503" in cpu.wait_unhealthy("api").stderr
    redis.start()
    cpu.wait_healthy("redis")
    cpu.wait_healthy("api")
    # uvicorn ends by the signal that it was sent.
    assert api.stop() in (0, -signal.SIGTERM)
    assert "Connection refused" in cpu.wait_unhealthy("api").stderr

    for service in (api, worker):
        service.start()
    for name in ("api", "worker", "runner"):
        cpu.wait_healthy(name)
    assert result(cpu, waiting) == {"x": 1}


def test_without_an_env_file_redis_has_no_password(tmp_path: Path) -> None:
    home = project(tmp_path)
    (home / ".env").unlink()
    with stack(home, tmp_path / "run", *CPU) as made:
        made["redis"].start()
        made.wait_healthy("redis")
        options = made["redis"].run("valkey-cli", "CONFIG", "GET", "app*").stdout.split()
        assert dict(zip(options[::2], options[1::2], strict=True))["appendonly"] == "yes"
        assert made["redis"].run("valkey-cli", "CONFIG", "GET", "requirepass").stdout.split() == [
            "requirepass"
        ]
        assert "PONG" in made["worker"].run("headrace", "health", "redis").stdout
        assert made["redis"].stop() == 0


def test_flower_beyond_loopback_wants_a_password(tmp_path: Path) -> None:
    home = project(tmp_path, FLOWER_BIND="0.0.0.0")
    with stack(home, tmp_path / "run", *CPU) as made:
        made["redis"].start()
        made.wait_healthy("redis")
        flower = made["flower"]
        flower.start()
        assert flower.process is not None
        assert flower.process.wait(60) == 2
        assert "FLOWER_BASIC_AUTH" in flower.log


def test_on_gpus_the_one_container_runs_a_worker_on_each(tmp_path: Path) -> None:
    home = project(tmp_path, HEADRACE_MODELS_FILE="configs/echo.yaml")
    # Torch for the CPU could do nothing with the GPUs that are made up here.
    write_models(home / "configs").rename(home / "configs/echo.yaml")
    with stack(home, tmp_path / "run", *GPU) as made:
        made.program("nvidia-smi", f"cat <<'END'\n{LISTING}\nEND")
        # The API is the same one: here it would only hand on one job.
        made.up("redis")
        made["worker"].start()
        check = made.wait_healthy("worker")
        nodes = check.stdout.strip().partition(": ")[2].split(", ")
        assert [node.partition("@")[0] for node in nodes] == ["gpu0", "gpu1"]
        pids = workers_of(made["worker"])
        visible = set()
        for pid in descendants(made["worker"].pid):
            visible |= {v for v in environment(pid) if v.startswith(b"CUDA_VISIBLE_DEVICES=")}
        assert visible == {b"CUDA_VISIBLE_DEVICES=GPU-aaaa", b"CUDA_VISIBLE_DEVICES=GPU-bbbb"}
        url = f"redis://127.0.0.1:{made['redis'].ports['6379']}"
        with Client(url, home / "configs/echo.yaml") as client:
            (job,) = client.wait(*client.submit("echo", [1, 2]))
            assert client.result(job.id) == [1, 2]
        # One of the two is not the whole.
        say_nothing(made, pids[1])
        assert made.wait_unhealthy("worker").returncode == 1
        os.kill(pids[1], signal.SIGCONT)
        made.wait_healthy("worker")
        below = descendants(made["worker"].pid)
        assert made["worker"].stop() == 0
        assert gone(*below)
