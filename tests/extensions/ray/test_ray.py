"""`headrace.ray` on a Ray of two CPUs: the same rows as `headrace run`, bad inputs, and kills."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace.ray
from headrace.client import Client
from headrace.errors import InvalidRequest, ModelNotFound
from tests.harness.deployments.shared import SharedDeployment
from tests.harness.deployments.site import Site
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, write_models
from tests.room import ROOT

ray: Any = importlib.import_module("ray") if "CI" in os.environ else pytest.importorskip("ray")
#: Ray warns of its own old options.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

COUNT = 300
BAD = 17
CRASH = 18
TRICKY = f"{HANDLERS / 'trouble/tricky.py'}:Tricky"
END_S = 300


def inputs(count: int = COUNT) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"n": n, "x": 1 / (n + 1)} for n in range(count)]
    rows[BAD]["do"] = "raise"
    return rows


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    # Sockets lie below it, and the system allows few characters for their paths.
    with (
        tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else it writes a token into the home folder
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        before = set(psutil.Process().children(recursive=True))
        ray.init(
            num_cpus=2, include_dashboard=False, _temp_dir=folder, log_to_driver=False,
            object_store_memory=256 << 20,
        )  # fmt: skip
        ray.data.DataContext.get_current().enable_progress_bars = False
        started = set(psutil.Process().children(recursive=True)) - before
        try:
            yield
        finally:
            ray.shutdown()
            _, left = psutil.wait_procs(started, 30)
            for process in left:
                process.kill()


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    log = tmp_path_factory.mktemp("ray") / "begun.log"
    return {
        "handler": TRICKY, "max_batch_size": 8, "max_retries": 0,
        "options": {"log": str(log), "pause_s": 0.01},
    }  # fmt: skip


@pytest.fixture(scope="module")
def site(
    shared_deployment: SharedDeployment,
    tmp_path_factory: pytest.TempPathFactory,
    options: dict[str, Any],
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("models")
    with shared_deployment.site(folder, {"tricky": options}) as site:
        yield site


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any]) -> Path:
    return write_models(tmp_path_factory.mktemp("models"), tricky=options)


def dataset(folder: Path, rows: list[dict[str, Any]]) -> Any:
    """A dataset of several blocks, and the file that `headrace run` reads."""
    path = folder / "in.parquet"
    pq.write_table(pa.table({"id": range(len(rows)), "x": [json.dumps(row) for row in rows]}), path)
    table = pa.table({"id": range(len(rows)), "x": pa.array(rows)})
    pq.write_table(table, path)
    return ray.data.from_arrow([table.slice(at, 60) for at in range(0, len(rows), 60)])


def by_id(ds: Any) -> dict[int, dict[str, Any]]:
    rows = ds.take_all()
    assert Counter(row["id"] for row in rows) == Counter({row["id"] for row in rows})
    return {row["id"]: row for row in rows}


def test_rows_are_those_of_headrace_run(
    cluster: None, site: Site, models: Path, tmp_path: Path
) -> None:
    ds = dataset(tmp_path, inputs())
    with Client(site.api.url) as client:
        client.offline("tricky", tmp_path / "in.parquet", tmp_path / "out.jsonl", input="x")
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines()
    run = [msgspec.json.decode(line, type=dict[str, msgspec.Raw]) for line in lines]
    expected = {int(bytes(row["id"])): row for row in run}
    predicted = by_id(headrace.ray.predict(ds, "tricky", models_file=models, input="x"))
    sent = by_id(headrace.ray.submit(ds, "tricky", url=site.api.url, input="x", batch_size=64))
    assert len(expected) == len(predicted) == len(sent) == COUNT
    for n, row in expected.items():
        for found in (predicted[n], sent[n]):
            assert found["status"] == msgspec.json.decode(row["status"])
            if n != BAD:
                assert found["result"].encode() == bytes(row["result"])
                assert found["error"] is None
    error = msgspec.json.decode(expected[BAD]["error"])
    for found, has_job in ((predicted[BAD], False), (sent[BAD], True)):
        assert found["result"] is None
        assert {**found["error"], "job": None} == {**error, "job": None}
        assert bool(found["error"]["job"]) is has_job


def test_an_input_that_ends_its_process_fails_alone(
    cluster: None, models: Path, tmp_path: Path
) -> None:
    rows = inputs(60)
    rows[CRASH]["do"] = "segfault"
    found = by_id(
        headrace.ray.predict(dataset(tmp_path, rows), "tricky", models_file=models, input="x")
    )
    failed = {n: row["error"]["type"] for n, row in found.items() if row["error"]}
    assert failed == {BAD: "handler-error", CRASH: "replica-lost"}
    assert "SIGSEGV" in found[CRASH]["error"]["message"]
    with pytest.raises(ModelNotFound, match="trickz"):
        headrace.ray.predict(None, "trickz", models_file=models)
    with pytest.raises(InvalidRequest, match="unknown option: prioriti; did you mean priority"):
        headrace.ray.submit(None, "tricky", prioriti=1)


def test_a_missing_column_ends_the_task_with_the_columns_that_there_are(
    cluster: None, site: Site, tmp_path: Path
) -> None:
    sent = headrace.ray.submit(dataset(tmp_path, inputs(60)), "tricky", url=site.api.url, input="y")
    with pytest.raises(Exception, match=r"no column 'y'.* It has 'id', 'x'"):
        sent.take_all()


def test_the_program_of_the_document_runs(cluster: None, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "offline.md").read_text("utf-8")
    (program,) = re.findall(r"```python\n(import ray\n.*?)```", text, re.DOTALL)
    program = program.replace('"examples/', f'"{ROOT}/examples/')
    exec(program.replace('"results"', repr(str(tmp_path / "results"))))
    table = pq.read_table(tmp_path / "results")
    assert table.column("status").to_pylist() == ["succeeded"] * 12


def actor_pids() -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if "MapWorker" in " ".join(process.info["cmdline"] or [])
    ]


@pytest.mark.parametrize("way", ["predict", "submit"])
def test_each_row_once_after_the_kill_of_an_actor(
    cluster: None, site: Site, models: Path, tmp_path: Path, options: dict[str, Any], way: str
) -> None:
    log = Path(options["options"]["log"])
    log.write_text("")
    ds = dataset(tmp_path, inputs(600))
    if way == "predict":
        ds = headrace.ray.predict(ds, "tricky", models_file=models, input="x", batch_size=60)
    else:
        ds = headrace.ray.submit(
            ds, "tricky", url=site.api.url, input="x", batch_size=60, run_id="night", concurrency=1
        )
    rows = iter(ds.iter_rows())
    found = [next(rows)]
    wait_until(lambda: log.read_text().count("\n") > 20, "it has begun", END_S)
    (pid,) = actor_pids()
    before = psutil.Process(pid).children(recursive=True)
    os.kill(pid, signal.SIGKILL)
    found += list(rows)
    assert Counter(row["id"] for row in found) == Counter(range(600))
    assert [row["id"] for row in found if row["status"] != "succeeded"] == [BAD]
    wait_until(lambda: not any(map(psutil.Process.is_running, before)), "its children end", END_S)
    if way == "submit":
        begun = Counter(line.split()[0] for line in log.read_text().splitlines())
        # The bad input makes its batch run again in parts.
        assert sum(1 for count in begun.values() if count > 1) <= 8
        assert len(begun) == 600
        assert all(job.startswith("night.") for job in begun)
