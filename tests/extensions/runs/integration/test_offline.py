"""`Client.offline`: what may go in, what comes out, a kill in the middle, and what failed."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from headrace.client import AsyncClient, Client, OfflineRow, RunProgress
from headrace.errors import ConfigError, Conflict, InvalidId, InvalidRequest, ModelNotFound
from tests.harness.deployments.shared import SharedDeployment
from tests.harness.deployments.site import Site
from tests.harness.servers.s3 import s3_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS

END_S = 100
GATED = f"{HANDLERS / 'gated.py'}:Gated"
COUNT = 400
#: The last input waits for a file, so that the run is not over before it is killed.
KILLED = """
import sys
from pathlib import Path
import pyarrow as pa
from headrace import Client

url, kind, sink, gate = sys.argv[1:]
rows = [{"id": f"doc-{n}", "x": {"n": n, "until": gate if n == COUNT - 1 else ""}}
        for n in range(COUNT)]
source = pa.Table.from_pylist(rows) if kind == "table" else iter(rows)
with Client(url) as client:
    done = client.offline("gated", source, sink, input="x", key="id", in_flight=100)
print(done.before, done.succeeded, done.failed)
""".replace("COUNT", str(COUNT))


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("offline") / "begun.log"


@pytest.fixture(scope="module")
def site(
    shared_deployment: SharedDeployment, tmp_path_factory: pytest.TempPathFactory, begun: Path
) -> Iterator[Site]:
    options = {"max_batch_size": 8, "max_retries": 0}
    models = {
        "steps": {"handler": f"{HANDLERS / 'trouble/tricky.py'}:Tricky", **options},
        "one": {"handler": GATED, "max_batch_size": 1},
        "gated": {"handler": GATED, **options, "options": {"log": str(begun)}},
    }
    with shared_deployment.site(tmp_path_factory.mktemp("models"), models) as site:
        yield site


@pytest.fixture
def client(site: Site) -> Iterator[Client]:
    with Client(site.api.url) as client:
        yield client


def test_rows_of_an_iterable_and_what_failed(client: Client, tmp_path: Path) -> None:
    given: list[Any] = [{"n": n} for n in range(30)]
    given[7] = {"do": "raise", "n": 7}
    given[8] = object()  # cannot be sent
    seen: list[RunProgress] = []
    rows = {row.n: row for row in client.offline("steps", given, progress=seen.append)}
    assert sorted(rows) == list(range(30))
    assert [rows[n].result for n in (0, 29)] == [{"n": 0}, {"n": 29}]
    failed, rejected = rows[7], rows[8]
    assert failed.error is not None
    assert "cannot do 7" in failed.error.message
    assert isinstance(failed.error.job, str)
    assert client.status(failed.error.job).status == "failed"
    assert (rejected.status, rejected.succeeded) == ("rejected", False)
    assert seen[-1].ended == 30
    image = tmp_path / "1.json"
    image.write_text('{"n": "of a file"}')
    (row,) = client.offline("steps", [image])
    assert (row.key, row.result) == (str(image), {"n": "of a file"})


def test_an_iteration_that_ends_early_leaves_nothing(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    given = [{"n": 0}, *({"until": str(gate)} for _ in range(20))]
    rows = client.offline("one", iter(given))
    assert next(rows).n == 0
    rows.close()  # type: ignore[attr-defined]
    gate.touch()
    wait_until(lambda: client.demand("one").demand == 0, "nothing waits", END_S)
    with pytest.raises(ModelNotFound):
        client.offline("stepz", given)
    with pytest.raises(ConfigError, match="no source"):
        client.offline("steps", {"n": 1})
    with pytest.raises(ConfigError, match="without a sink"):
        client.offline("steps", given, only_failed=True)


def test_a_file_resumes_and_failed_inputs_run_again(client: Client, tmp_path: Path) -> None:
    until = tmp_path / "mended"
    given = [{"id": f"d{n}", "x": {"n": n}} for n in range(20)]
    given[3]["x"] = {"do": "transient", "until": str(until)}
    sink = tmp_path / "out.parquet"
    done = client.offline("steps", iter(given), sink, input="x", key="id")
    assert (done.before, done.succeeded, done.failed) == (0, 19, 1)
    (failure,) = done.failures()
    assert failure.key == "d3"
    assert failure.error is not None
    assert isinstance(failure.error.job, str)
    assert failure.error.job.startswith(done.id)
    until.touch()
    again = client.offline("steps", iter(given), sink, input="x", key="id", only_failed=True)
    assert (again.succeeded, again.failed, list(again.failures())) == (20, 0, [])
    assert Counter(row.n for row in again.rows()) == Counter(range(20))
    given[2]["x"] = {"n": "changed"}
    part = tmp_path / "part.jsonl"
    assert client.offline("steps", given, part, input="x", limit=10).succeeded == 10
    with pytest.raises(Conflict, match="limit"):
        client.offline("steps", given, part, input="x")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([{"n": 1}, {"n": 7}], "the first 2 inputs are not those"),
        ([{"n": 1}], "the first 2 inputs are not those"),
        ([{"n": 1}, {"n": 2}, {"n": 3}], "there are more inputs than this run began with"),
    ],
)
def test_an_ended_run_is_not_the_answer_for_other_values(
    client: Client, tmp_path: Path, given: list[Any], words: str
) -> None:
    sink = tmp_path / "out.jsonl"
    values = [{"n": 1}, {"n": 2}]
    assert client.offline("steps", values, sink).succeeded == 2
    assert client.offline("steps", iter(values), sink).before == 2
    with pytest.raises(Conflict, match=words):
        client.offline("steps", given, sink)
    assert client.offline("steps", values, sink).before == 2  # the lock has ended
    part = tmp_path / "part.jsonl"
    assert client.offline("steps", values, part, limit=1).succeeded == 1
    assert client.offline("steps", values, part, limit=1).before == 1


FRAMES: dict[str, Any] = {
    "pandas": lambda data: pd.DataFrame(data, index=[f"r{n}" for n in range(len(data["x"]))]),
    "polars": pl.DataFrame,
    "pyarrow": pa.table,
    "capsule": lambda data: pa.RecordBatchReader.from_batches(
        pa.table(data).schema, pa.table(data).to_batches()
    ),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_table_comes_back_as_it_was_with_results(client: Client, kind: str) -> None:
    data = {
        "x": [{"n": n, "do": "raise" if n == 5 else "keep"} for n in range(12)],
        "status": ["mine"] * 12,
    }
    frame = FRAMES[kind](data)
    found = client.offline("steps", frame, input="x")
    assert isinstance(found, pa.Table if kind == "capsule" else type(frame))
    names = list(found.columns if kind in ("pandas", "polars") else found.column_names)
    assert names == ["x", "input.status", "status", "result", "error", "attempts", "timings"]
    rows = found if isinstance(found, pa.Table) else pa.table(found)
    assert rows["input.status"].to_pylist() == ["mine"] * 12
    assert rows["result"].to_pylist()[11] == {"n": 11, "do": "keep"}
    assert [n for n, error in enumerate(rows["error"].to_pylist()) if error] == [5]
    if kind == "pandas":
        assert list(found.index[:2]) == ["r0", "r1"]
        numbered = frame.set_axis([7, 8], axis=1)  # names that are no text
        numbered = client.offline("steps", numbered, input="7", limit=3)
        assert list(numbered.columns[:3]) == [7, 8, "status"]
        assert list(numbered.index) == ["r0", "r1", "r2"]
        whole = client.offline("steps", frame.drop(columns="status"))
        assert whole["result"].iloc[0] == {"x": {"do": "keep", "n": 0}}  # without the index


REFUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "Arrow cannot read this DataFrame": (pd.DataFrame({"x": [1, "a"]}), {}),
    "a source of type Series is no table": (pd.Series([1, 2]), {}),
    "input 0 has no column 'y'": ([{"x": 1}], {"input": "y"}),
    "unknown option: prioriti; did you mean priority": ([1], {"prioriti": 1}),
    "unknown option: inputs; did you mean input": ([{"x": 1}], {"inputs": "x"}),
    "input: expected text, got list": ([{"x": 1}], {"input": ["x"]}),
    "key: expected text, got int": ([{"x": 1}], {"key": 0}),
    "a value of type list is no sink": ([1], {"sink": []}),
    "invalid job id 'my run'": ([1], {"run_id": "my run"}),
    "invalid run id": ([1], {"run_id": "r" * 105}),
    "limit=0 runs no input": ([1], {"limit": 0}),
    "progress=None shows nothing": ([1], {"progress": None}),
    "in_flight=0 sends no input": ([1], {"in_flight": 0}),
    "option priority: 99 is too large; give at most 9": ([1], {"priority": 99}),
    "option timeout: nan is not a number": ([1], {"timeout": math.nan}),
    "option timeout: 0 is too small; give more than 0": ([1], {"timeout": 0}),
    "option result_ttl: 1h: expected `int | null`, got `str`": ([1], {"result_ttl": "1h"}),
    "metadata has 4106 bytes as JSON": ([1], {"metadata": {"a": "b" * 4098}}),
    "an option cannot be sent": ([1], {"metadata": {"a": object()}}),
    "unknown parameter 'top_k'. Model steps takes no parameters.": (
        [1],
        {"parameters": {"top_k": None}},
    ),
    "parameter top_k: inf is not a number": ([1], {"parameters": {"top_k": math.inf}}),
    "has no version '8'": ([1], {"version": 8}),
    "model steps has no version '7'. Its version is 1.0.": ([1], {"version": "7"}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_mistake_ends_the_call_and_not_each_row(client: Client, words: str) -> None:
    source, options = REFUSED[words]
    refused = (ConfigError, InvalidId, InvalidRequest, ModelNotFound)
    with pytest.raises(refused) as caught:
        list(client.offline("steps", source, **options))
    assert words in caught.value.message_with_hint


def test_an_option_may_be_a_number_of_numpy(client: Client) -> None:
    options: dict[str, Any] = {
        "priority": np.int64(3),
        "metadata": {"n": np.float32(1)},
        "timeout": 20,
    }
    assert len(list(client.offline("steps", [1], **options))) == 1


def test_a_number_that_json_lacks_is_null_as_in_every_submit(client: Client) -> None:
    given = [{"x": math.nan}, {"x": math.inf}]
    frames = [pd.DataFrame({"x": [1.5, math.nan]}), pl.DataFrame({"x": [1.5, math.nan]})]
    assert client.result(client.submit("steps", given[0])) == {"x": None}
    rows = sorted(client.offline("steps", given), key=lambda row: row.n)
    assert [row.result for row in rows] == [{"x": None}, {"x": None}]
    for frame in frames:
        results = pa.table(client.offline("steps", frame))["result"].to_pylist()
        assert results == [{"x": 1.5}, {"x": None}]
    # A missing value of pandas alone is no input, as a null of Parquet is none.
    found = client.offline("steps", pd.DataFrame({"x": ["a", None]}), input="x")
    assert list(found["status"]) == ["succeeded", "rejected"]
    assert "row 1, column 'x': it is null" in found["error"][1]["message"]


@pytest.mark.parametrize("kind", FRAMES)
def test_a_table_into_a_file(client: Client, tmp_path: Path, kind: str) -> None:
    frame = FRAMES[kind]({"x": [{"n": n} for n in range(12)], "name": [f"r{n}" for n in range(12)]})
    sink = tmp_path / "out.parquet"
    done = client.offline("steps", frame, sink, input="x", key="name")
    assert (done.succeeded, done.failed) == (12, 0)
    rows = sorted(done.rows(), key=lambda row: row.n)
    assert [(row.key, row.result, row.carried) for row in rows[:2]] == [
        (f"r{n}", {"n": n}, {"name": f"r{n}"}) for n in range(2)
    ]
    read = pl.read_parquet(sink).sort("n")
    assert read["result"].to_list() == [{"n": n} for n in range(12)]
    assert sorted(pd.read_parquet(sink)["name"]) == sorted(f"r{n}" for n in range(12))


def test_from_a_bucket_into_a_bucket(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("HEADRACE_SPOOL_DIR", str(tmp_path / "spool"))
        bucket = server.bucket("offline")
        for n in range(3):
            body = json.dumps({"n": n}).encode()
            server.client.put_object(Bucket=bucket, Key=f"in/{n}.json", Body=body)
        rows = {row.key: row.result for row in client.offline("steps", f"s3://{bucket}/in")}
        assert rows == {f"s3://{bucket}/in/{n}.json": {"n": n} for n in range(3)}
        done = client.offline("steps", f"s3://{bucket}/in", f"s3://{bucket}/out.jsonl")
        assert (done.succeeded, done.output) == (3, f"s3://{bucket}/out.jsonl")
        assert {row.key: row.result for row in done.rows()} == rows
        again = client.offline("steps", f"s3://{bucket}/in", f"s3://{bucket}/out.jsonl")
        assert (again.before, again.succeeded) == (3, 3)


def test_an_input_without_the_column_fails_alone(client: Client) -> None:
    rows = client.offline("steps", [{"x": {"n": 1}}, {"z": 1}], input="x")
    assert {row.n: row.status for row in rows} == {0: "succeeded", 1: "rejected"}


@pytest.mark.parametrize("kind", ["table", pytest.param("values", marks=pytest.mark.slow)])
def test_each_row_once_after_a_kill(site: Site, tmp_path: Path, begun: Path, kind: str) -> None:
    sink, gate = tmp_path / "out.jsonl", tmp_path / "gate"
    command = [sys.executable, "-c", KILLED, site.api.url, kind, str(sink), str(gate)]
    killed = subprocess.Popen(command)
    try:
        wait_until(lambda: sink.exists() and sink.read_bytes().count(b"\n") > 60, "rows", END_S)
    finally:
        killed.kill()
        killed.wait()
    with sink.open("ab") as half:
        half.write(b'{"n": 39')
    gate.touch()
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=END_S)
    before, succeeded, failed = map(int, told.stdout.split())
    assert before > 60
    assert (succeeded, failed) == (COUNT, 0)
    lines = [json.loads(line) for line in sink.read_bytes().splitlines()]
    assert Counter(line["key"] for line in lines) == Counter(f"doc-{n}" for n in range(COUNT))
    run = json.loads((tmp_path / "out.jsonl.run").read_bytes())["run"]
    counts = Counter(line.split()[0] for line in begun.read_text().splitlines())
    assert {counts[f"{run}.{n}"] for n in range(COUNT)} == {1}


async def values(count: int) -> AsyncIterator[Any]:
    for n in range(count):
        await asyncio.sleep(0)
        yield {"n": n}


def test_the_same_asynchronously(site: Site, tmp_path: Path) -> None:
    async def run() -> tuple[list[OfflineRow], int, Any]:
        async with AsyncClient(site.api.url) as client:
            rows = [row async for row in client.offline("steps", values(1300))]
            done = await client.offline("steps", values(40), tmp_path / "out.jsonl")
            frame = pl.DataFrame({"x": [{"n": 1}]})
            return rows, done.succeeded, await client.offline("steps", frame, input="x")

    rows, succeeded, frame = asyncio.run(run())
    assert sorted(row.result["n"] for row in rows) == list(range(1300))
    assert succeeded == 40
    assert frame["result"].to_list() == [{"n": 1}]


async def broken(count: int) -> AsyncIterator[Any]:
    async for value in values(count):
        yield value
    raise LookupError("the table is gone")


def test_values_before_an_error_of_their_source_have_their_rows(site: Site) -> None:
    rows: list[OfflineRow] = []

    async def run() -> None:
        async with AsyncClient(site.api.url) as client:
            async for row in client.offline("steps", broken(7)):
                rows.append(row)  # noqa: PERF401 - the error comes after them

    with pytest.raises(LookupError, match="the table is gone"):
        asyncio.run(run())
    assert sorted(row.n for row in rows) == list(range(7))


async def stuck(count: int) -> AsyncIterator[Any]:
    async for value in values(count):
        yield value
    await asyncio.Event().wait()


def test_a_source_that_never_ends_holds_no_run(site: Site, tmp_path: Path) -> None:
    async def run() -> tuple[int, int]:
        async with AsyncClient(site.api.url) as client:
            rows = client.offline("steps", stuck(3000))
            first = (await anext(rows)).n
            await rows.aclose()  # type: ignore[attr-defined]
            output = tmp_path / "out.jsonl"
            running = asyncio.ensure_future(client.offline("steps", stuck(3000), output))
            await asyncio.to_thread(
                wait_until, lambda: output.exists() and output.stat().st_size > 0, "rows", END_S
            )
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            done = await client.offline("steps", values(3000), output)
            return first, done.succeeded

    first, succeeded = asyncio.run(run())
    assert first >= 0
    assert succeeded == 3000


def test_without_tqdm_the_error_names_what_to_install(
    client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ConfigError, match="tqdm, which is not installed") as caught:
        client.offline("steps", [1], tmp_path / "out.jsonl", progress=True)
    assert "pip install 'headrace[notebook]'" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []
    assert len(list(client.offline("steps", [1], progress=lambda _: None))) == 1


def test_a_bar(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    rows = client.offline("steps", [{"do": "raise", "n": n} for n in range(5)], progress=True)
    assert len(list(rows)) == 5
    shown = capsys.readouterr().err
    assert "steps: 100%" in shown
    assert "5/5" in shown
    assert "failed=5" in shown
