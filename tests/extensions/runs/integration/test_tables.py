"""`headrace run` from tables and shards into tables and S3: killed, and gone on with."""

from __future__ import annotations

import datetime
import io
import json
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from extensions.runs.sinks.s3 import spool_path
from extensions.runs.sources.s3 import RunBucket
from tests.harness.clients.commands import Commands
from tests.harness.servers.api_process import api_process
from tests.harness.servers.redis_servers import redis_server
from tests.harness.servers.s3 import s3_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, celery_worker, write_models

COUNT = 600
BAD = 123
#: For this the last input waits, so that no run is over before it is killed.
GATE = "gate"
END_S = 100


@dataclass
class Site:
    url: str
    log: Path

    def begun(self) -> Counter[str]:
        """How often each job has begun."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return Counter(line.split()[0] for line in lines)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("tables")
    log = folder / "runs.log"
    models = write_models(
        folder,
        steps={
            "handler": f"{HANDLERS / 'gated.py'}:Gated", "max_batch_size": 8, "max_retries": 0,
            "options": {"log": str(log), "pause_s": 0.04},
        },
    )  # fmt: skip
    with (
        redis_server("valkey9") as redis,
        api_process(redis.url, models) as api,
        celery_worker(redis.url, models, folder, arguments=()) as worker,
    ):
        worker.wait_ready("steps")
        yield Site(api.url, log)


@pytest.fixture
def cli(site: Site, tmp_path: Path) -> Commands:
    return Commands(site.url, tmp_path)


def given(cli: Commands, n: int) -> dict[str, Any]:
    """The input of a number; one of them fails, and the last waits for a file."""
    gate = str(cli.folder / GATE) if n == COUNT - 1 else None
    return {"n": n, "do": "raise" if n == BAD else None, "until": gate}


def killed_in_the_middle(
    site: Site, cli: Commands, run_id: str, spool: Path, *arguments: str
) -> None:
    """Run the command, kill it, and let the same command end it; what has its row runs no more."""
    command = ("run", "steps", *arguments, "--in-flight", "50", "--run-id", run_id)

    def lines() -> list[bytes]:
        return spool.read_bytes().split(b"\n")[:-1] if spool.exists() else []

    with cli.started(*command) as process:

        def in_the_middle() -> bool:
            assert process.poll() is None, process.communicate()
            return len(lines()) >= COUNT // 4

        wait_until(in_the_middle, "a part of the rows is written", END_S)
        process.kill()
        process.wait(60)
    (cli.folder / GATE).touch()
    had_row = {f"{run_id}.{json.loads(line)['n']}" for line in lines()}
    assert COUNT // 4 <= len(had_row) < COUNT
    before = site.begun()
    ended = cli.run(*command)
    assert ended.returncode == 1, ended.stderr
    assert b"resumed" in ended.stderr + ended.stdout
    after = site.begun()
    assert {job: after[job] for job in had_row} == {job: before[job] for job in had_row}


def check(rows: list[dict[str, Any]], label: Callable[[dict[str, Any]], Any]) -> None:
    """Each input has one row, with what it carries; all but one have their result."""
    by_number = {row["n"]: row for row in rows}
    assert len(rows) == COUNT
    assert sorted(by_number) == list(range(COUNT))
    assert [label(by_number[n]) for n in range(COUNT)] == list(range(COUNT))
    assert {n for n, row in by_number.items() if row["status"] != "succeeded"} == {BAD}
    assert "cannot do 123" in by_number[BAD]["error"]["message"]
    results = [row["result"]["n"] for n, row in sorted(by_number.items()) if n != BAD]
    assert results == [n for n in range(COUNT) if n != BAD]


def test_parquet_to_parquet(site: Site, cli: Commands) -> None:
    day = datetime.date(2026, 1, 1)
    days = [day + datetime.timedelta(n) for n in range(COUNT)]
    table = pa.table(
        {"x": [given(cli, n) for n in range(COUNT)], "label": range(COUNT), "day": days}
    )
    pq.write_table(table, cli.folder / "in.parquet", row_group_size=100)
    command = ("in.parquet", "-o", "out.parquet", "--input", "x")
    killed_in_the_middle(site, cli, "parquet", cli.folder / "out.parquet.rows", *command)
    out = pq.read_table(cli.folder / "out.parquet")
    check(out.to_pylist(), lambda row: row["label"])
    assert out.schema.field("day").type == pa.date32()
    assert {row["day"] for row in out.to_pylist()} == set(days)
    names = {path.name for path in cli.folder.iterdir() if path.is_file()}
    assert names == {"in.parquet", "out.parquet", "out.parquet.run", GATE}
    # What has ended is not run again, by the same command or by that for what failed.
    begun = site.begun()
    same = ("run", "steps", *command, "--run-id", "parquet", "--in-flight", "50")
    assert cli.run(*same).returncode == 1
    assert site.begun() == begun
    again = cli.run(*same, "--only-failed")
    assert again.returncode == 1, again.stderr
    check(pq.read_table(cli.folder / "out.parquet").to_pylist(), lambda row: row["label"])
    assert site.begun() - begun == Counter({f"parquet.{BAD}.1": 1})


def test_csv_to_s3(site: Site, cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        f'"{json.dumps(given(cli, n)).replace(chr(34), chr(34) * 2)}",{n}\n' for n in range(COUNT)
    ]
    (cli.folder / "in.csv").write_text("".join(["x,label\n", *lines]))
    with s3_server() as s3:
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
        # Of our own variables the command gets none.
        monkeypatch.setenv("XDG_STATE_HOME", str(cli.folder / "state"))
        monkeypatch.delenv("HEADRACE_SPOOL_DIR", raising=False)
        bucket = s3.bucket("out")
        url = f"s3://{bucket}/night/out.jsonl"
        spool = Path(f"{spool_path(RunBucket(bucket), 'night/out.jsonl')}.rows")
        command = ("in.csv", "-o", url, "--input", "x", "--content-type", "application/json")
        killed_in_the_middle(site, cli, "csv", spool, *command)
        assert s3.keys(bucket) == ["night/out.jsonl"]
        body = s3.client.get_object(Bucket=bucket, Key="night/out.jsonl")["Body"].read()
        check([json.loads(line) for line in body.splitlines()], lambda row: int(row["label"]))
        assert [path.suffix for path in spool.parent.iterdir()] == [".run"]


def test_shards_to_jsonl(site: Site, cli: Commands) -> None:
    for shard in range(3):
        with tarfile.open(cli.folder / f"s-{shard:02d}.tar", "w") as tar:
            for n in range(shard * COUNT // 3, (shard + 1) * COUNT // 3):
                for kind, body in (("in.json", json.dumps(given(cli, n))), ("cls", str(n))):
                    info = tarfile.TarInfo(f"{n:04d}.{kind}")
                    info.size = len(body)
                    tar.addfile(info, io.BytesIO(body.encode()))
    command = ("s-{00..02}.tar", "-o", "out.jsonl", "--input", "in.json")
    killed_in_the_middle(site, cli, "tar", cli.folder / "out.jsonl", *command)
    rows = [json.loads(line) for line in (cli.folder / "out.jsonl").read_text().splitlines()]
    check(rows, lambda row: row["cls"])
    assert {row["key"] for row in rows} == {f"s-{n // 200:02d}.tar:{n:04d}" for n in range(COUNT)}
