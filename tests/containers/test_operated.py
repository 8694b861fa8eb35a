"""The production and the monitoring file, as an operator runs them: load, kills, limits."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.models import GIB, HANDLERS, PIPELINES, models
from tests.harness.deploy import engine
from tests.harness.deploy.caller import Load
from tests.harness.deploy.engine import Project, docker
from tests.harness.deployments.versions import VERSION, next_version
from tests.harness.monitoring.flower import asked

FILES = ("deploy/compose.production.yml", "deploy/compose.monitoring.yml")
MONITORING = ("prometheus", "alertmanager", "grafana")
OURS = ("api", "worker", "background", "runner", "flower")
#: Each secret, and which services docs/compose.md says have it.
SECRETS = {
    "REDIS_PASSWORD": ("redis" + "1" * 20, {"redis", *OURS}),
    "FLOWER_BASIC_AUTH": ("me:" + "2" * 20, {"flower"}),
    "HEADRACE_WEBHOOK_SECRETS": (
        "whsec_" + base64.b64encode(b"3" * 32).decode(), {"api", "background"}
    ),
    "AWS_SECRET_ACCESS_KEY": ("4" * 20, {"api", "worker", "background", "runner"}),
    "GRAFANA_PASSWORD": ("5" * 20, {"grafana"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def operated(images: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("operated") / "project"
    values = {name: value for name, (value, _) in SECRETS.items()}
    with engine.project(
        folder, *FILES, tag=images, REDIS_MAXMEMORY="512mb", REDIS_MEMORY="1g",
        WORKER_MEMORY="1g", **values,
    ) as made:  # fmt: skip
        for name, text in HANDLERS.items():
            (folder / "models" / name).write_text(text)
        engine.write_models(made, models("../models"), pipelines=PIPELINES)
        made.up()
        yield made


@pytest.mark.parametrize("name", MONITORING)
def test_monitoring_is_healthy(operated: Project, name: str) -> None:
    if image := operated.left_out.get(name):
        pytest.skip(f"{name} is left out: its image {image} is not here, and cannot be fetched")
    operated.wait_healthy(name)


def test_jobs_go_through_every_service(operated: Project) -> None:
    assert set(OURS) <= set(operated.names)
    assert operated.caller.result(operated.caller.submit("echo", b"[1]")) == [1]
    # The background worker runs pipelines.
    assert operated.caller.result(operated.caller.submit("twice", b"[2]")) == [2]
    port = int(operated.variables["FLOWER_PORT"])
    assert asked(port, "GET", "/workers")[0] == 401
    assert asked(port, "GET", "/workers", password=SECRETS["FLOWER_BASIC_AUTH"][0])[0] == 200
    bare = operated.execute("redis", "env", "-u", "REDISCLI_AUTH", "valkey-cli", "ping")
    assert "NOAUTH" in bare.stdout


def test_containers_are_locked_in(operated: Project) -> None:
    for name in operated.names:
        host = operated.inspect(name)["HostConfig"]
        assert host["ReadonlyRootfs"] is True
        assert host["CapDrop"] == ["ALL"]
        assert host["PidsLimit"] > 0
        assert host["Memory"] > 0
        assert host["RestartPolicy"]["Name"] == "unless-stopped"
        user = operated.execute(name, "id", "-u").stdout.strip()
        assert user == "10001" if name in OURS else user != "0"
        for folder in ("/", "/usr", "/opt", "/srv"):
            assert "Read-only" in operated.execute(name, "touch", f"{folder}/file").stderr, name
        assert operated.execute(name, "touch", "/tmp/file").returncode == 0
    for folder in ("configs", "models"):
        tried = operated.execute("worker", "touch", f"/srv/headrace/{folder}/file")
        assert "Read-only" in tried.stderr
    assert operated.execute("worker", "touch", "/var/lib/headrace/file").returncode == 0


def test_a_secret_is_only_where_the_page_says(operated: Project) -> None:
    for name in operated.names:
        found = operated.inspect(name)
        environment = "\n".join(found["Config"].pop("Env"))
        rest = json.dumps(found)
        processes = docker("top", operated.container(name), "-eo", "pid,args")
        image = docker("image", "inspect", found["Image"]) + docker("history", found["Image"])
        for secret, (value, services) in SECRETS.items():
            assert (value in environment) is (name in services), (name, secret)
            assert value not in rest, (name, secret)
            assert value not in processes, (name, secret)
            assert value not in image, (name, secret)


def test_logs_are_rotated(operated: Project) -> None:
    # 70 MB, where five files of 10 MB are kept.
    line = "x" * 1000
    program = f"yes {line} | head -c 70000000 > /proc/1/fd/1"
    assert operated.execute("background", "sh", "-c", program).returncode == 0
    path = Path(operated.inspect("background")["LogPath"])
    if not path.exists():
        pytest.skip(f"the engine's {path} is on another machine")
    files = list(path.parent.glob(f"{path.name}*"))
    assert len(files) == 5
    assert sum(file.stat().st_size for file in files) <= 5 * 10 * 1000 * 1100
    assert operated.compose("logs", "--no-log-prefix", "--tail", "2", "background")
    assert operated.caller.result(operated.caller.submit("twice", b"[3]")) == [3]


def test_a_job_that_takes_more_than_the_memory_dies_alone(operated: Project) -> None:
    with Load(operated.caller, "slow") as load:
        load.wait_more()
        small = operated.caller.submit("hog", json.dumps({"bytes": 1000}).encode())
        large = operated.caller.submit("hog", json.dumps({"bytes": 2 * GIB}).encode())
        later = operated.caller.submit("hog", json.dumps({"bytes": 2000}).encode())
        assert operated.caller.result(small) == 1000
        failed = operated.caller.job(large)
        assert failed["status"] == "failed", failed
        assert failed["error"]["type"] == "replica-lost"
        assert "SIGKILL" in failed["error"]["message"], failed["error"]
        assert operated.caller.result(later) == 2000
        load.wait_more()
    load.check()
    state = operated.inspect("worker")
    assert state["State"]["Running"] is True
    assert state["RestartCount"] == 0, "the kernel has killed the model process alone"


def test_what_dies_is_started_again_and_nothing_is_lost(operated: Project) -> None:
    for name in operated.names:
        count = operated.inspect(name)["RestartCount"]
        waiting = [operated.caller.submit(model, b"[4]") for model in ("slow", "twice")]
        operated.crash(name)
        operated.wait_healthy(name, restarts=count + 1)
        more = operated.caller.submit("echo", b"[5]")
        assert operated.caller.result(waiting[0]) == [4], name
        assert operated.caller.result(waiting[1]) == [4], name
        assert operated.caller.result(more) == [5], name


def test_a_container_that_is_killed_by_hand_stays_down_until_up(operated: Project) -> None:
    for name in operated.names:
        waiting = operated.caller.submit("slow", b"[6]")
        docker("kill", operated.container(name))
        state = operated.inspect(name)["State"]
        assert (state["Status"], state["ExitCode"]) == ("exited", engine.KILLED), name
        operated.compose("up", "-d", "--no-deps", name)
        operated.wait_healthy(name)
        assert operated.caller.result(waiting) == [6], name


def test_a_stop_under_load_loses_nothing(operated: Project) -> None:
    with Load(operated.caller, "slow") as load:
        load.wait_more(100)
        operated.compose("stop")
        for name in operated.names:
            state = operated.inspect(name)["State"]
            assert state["Status"] == "exited"
            assert state["ExitCode"] != engine.KILLED, f"{name} did not stop by itself"
        operated.up()
        load.wait_more()
    load.check()


def test_two_versions_run_side_by_side(operated: Project, images: str, tmp_path: Path) -> None:
    tree = engine.copy_tree(next_version(tmp_path / "tree"))
    later = f"{images}-next"
    engine.build(tree, later)
    try:
        with Load(operated.caller, "slow") as load:
            load.wait_more()
            for tag, parts in ((later, ("api", "background")), (later, ()), (images, ())):
                operated.set(IMAGE_TAG=tag)
                waiting = operated.caller.submit("twice", b"[7]")
                operated.up(*(("--no-deps", *parts) if parts else ()))
                for name in parts or OURS:
                    image = operated.inspect(name)["Config"]["Image"]
                    assert image.partition(":")[2] == tag, name
                assert operated.caller.result(waiting) == [7]
                load.wait_more()
        load.check()
        assert VERSION in docker("run", "--rm", f"headrace-api:{later}", "headrace", "--version")
    finally:
        operated.set(IMAGE_TAG=images)
        operated.up()
        engine.remove(later)
