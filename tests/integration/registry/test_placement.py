"""Placement by real workers: cores of model processes, and models that do not fit."""

from __future__ import annotations

import contextlib
import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.config.model.catalog import load_catalog
from headrace.queue import findings
from headrace.registry.catalog import read_declared
from tests.harness.clients.commands import CommandsWithin
from tests.harness.clients.doctor import look, site, verdict
from tests.harness.servers.api_server import api_server
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, celery_worker, write_models
from workers.replicas.cores import ENV_SHARE, allowed_cpus, read_cpus, usable_cores
from workers.replicas.memory import total_mib

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
MUCH_MIB = 50_000_000


def cpus_of(pid: int) -> set[int]:
    """The CPUs that all threads of a process may run on."""
    found: set[int] = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the thread has just ended
            for line in (thread / "status").read_text().splitlines():
                if line.startswith("Cpus_allowed_list:"):
                    found |= set(read_cpus(line.partition(":")[2]))
    return found


@pytest.mark.skipif(usable_cores() < 2, reason="needs two cores")
def test_pinned_model_processes_have_cores_of_their_own(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    model = {"handler": f"{HANDLERS / 'prepared.py'}:Prepared", "preprocess_processes": 1}
    models = write_models(tmp_path, words={**model, "replicas": 2})
    environ = {**NO_GPU, "HEADRACE_PIN_CORES": "cores"}
    with celery_worker(redis_db.url, models, tmp_path, environ=environ) as worker:
        worker.wait_ready("words")
        wait_until(lambda: worker.states()["words"]["ready"] == 2, "both are loaded")
        state = worker.states()["words"]
        first, second = map(cpus_of, state["pids"])
        assert first
        assert second
        assert not first & second
        for pid, cpus in zip(state["pids"], (first, second), strict=True):
            helpers = psutil.Process(pid).children()
            assert [cpus_of(helper.pid) for helper in helpers] == [cpus]
        assert first | second <= allowed_cpus()
        assert [set(read_cpus(text)) for text in state["cpus"]] == [first, second]
        assert state["memory_mib"] > 0
        # A process that takes the place of a lost one takes its cores.
        os.kill(state["pids"][0], 9)
        wait_until(
            lambda: worker.states()["words"]["pids"][0] != state["pids"][0]
            and worker.states()["words"]["ready"] == 2,
            "a new process is loaded",
        )  # fmt: skip
        assert worker.states()["words"]["cpus"] == state["cpus"]
        assert set(map(frozenset, map(cpus_of, worker.states()["words"]["pids"]))) == {
            frozenset(first),
            frozenset(second),
        }
        assert "model processes are pinned: CPUs" in worker.log


def test_auto_is_half_of_the_cores_and_the_log_says_why(
    redis_db: RedisServer, tmp_path: Path
) -> None:
    models = write_models(tmp_path, words={"handler": "echo", "replicas": "auto"})
    with celery_worker(redis_db.url, models, tmp_path, environ=NO_GPU) as worker:
        worker.wait_ready("words")
        expected = max(1, usable_cores() // 2)
        assert worker.states()["words"]["replicas"] == expected
        why = f"half of the {usable_cores()} cores" if usable_cores() > 1 else "one core"
        assert re.search(f"replicas auto: {expected}, .*{why}", worker.log)


def test_a_model_that_fits_no_worker_is_left_out_with_the_reason(
    redis_db: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long this machine stands still.
    monkeypatch.setattr(findings, "SILENT_S", 60.0)
    models = write_models(
        tmp_path,
        words={"handler": "echo", "replicas": "auto"},
        card={"handler": "echo", "device": "cuda"},
        large={"handler": "echo", "memory_mb": MUCH_MIB},
    )
    catalog, declared = load_catalog(models), read_declared(models)
    with (
        api_server(redis_db.url, catalog, declared) as api,
        celery_worker(redis_db.url, models, tmp_path, node="cpu0@one", environ=NO_GPU) as worker,
    ):
        worker.wait_ready("words")

        def shown(model: str) -> Any:
            return api.http.get(f"/api/v1/models/{model}").json()

        wait_until(lambda: shown("words")["state"] == "ready", "the API knows the worker")
        assert shown("words")["replicas"] == "auto"
        assert shown("words")["unserved"] is None
        assert shown("card")["unserved"] == "no worker fits: cpu0@one has no GPU"
        assert shown("large")["unserved"].endswith(f"and a replica needs {MUCH_MIB}")
        assert shown("card")["state"] == "no-worker"
        assert set(worker.states()) == {"", "words"}
        with site(redis_db.url, models) as whole:
            verdict(look(whole, "models"), "warn", "no worker serves card", "has no GPU")
            verdict(look(whole, "placement"), "ok", "cpu0@one", "words")

        # The need is corrected while the worker runs.
        path = "/api/v1/models/large"
        api.http.patch(path, json={"options": {"memory_mb": 1}}).raise_for_status()
        wait_until(lambda: shown("large")["state"] == "ready", "the model is served")
        command = CommandsWithin(api.url, tmp_path)
        command.lines("models", "scale", "large", "auto")
        wait_until(lambda: shown("large")["replicas"] == "auto", "replicas are auto")
        placed = "\n".join(command.lines("models", "large"))
        assert re.search(
            r"worker +cpu0@one.* ready; 1 replica of \d+ threads?, \d+ MiB each", placed
        )
        assert "no worker fits: cpu0@one has no GPU" in "\n".join(command.lines("models", "card"))
        for arguments in (("some",), ("-1",), ("auto", "--total")):
            refused = command.run("models", "scale", "large", *arguments)
            assert refused.returncode == 2, refused


def test_a_load_without_room_is_refused_in_words(redis_db: RedisServer, tmp_path: Path) -> None:
    # As much as the host has, of which some is always used.
    need = int(total_mib())
    models = write_models(tmp_path, words={"handler": "echo", "memory_mb": need})
    with celery_worker(redis_db.url, models, tmp_path, environ=NO_GPU) as worker:

        def refused() -> Any:
            state = worker.states()["words"]
            return state if state["error"] else None

        state = wait_until(refused, "the load is refused")
        assert state["state"] == "failed"
        assert f"it needs {need} MiB of memory (memory_mb)" in state["error"]
        assert not state["pids"]


@pytest.mark.skipif(usable_cores() < 2, reason="needs two cores")
def test_workers_of_one_host_have_cores_of_their_own(redis_db: RedisServer, tmp_path: Path) -> None:
    models = write_models(tmp_path, words={"handler": "echo"})
    found: list[set[int]] = []
    with ExitStack() as stack:
        for number in range(2):
            environ = {**NO_GPU, "HEADRACE_PIN_CORES": "cores", ENV_SHARE: f"{number}/2"}
            node = f"cpu{number}@one"
            worker = stack.enter_context(
                celery_worker(redis_db.url, models, tmp_path, node=node, environ=environ)
            )
            worker.wait_ready("words")
            state = worker.states()["words"]
            found.append(cpus_of(state["pids"][0]))
            assert state["threads"] == len(found[-1])
            assert f"worker {number + 1} of 2 on this host" in worker.log
    assert not found[0] & found[1]
