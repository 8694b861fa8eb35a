"""An upgrade under load, part by part, and back: each job ends once and nobody hears of it."""

from __future__ import annotations

import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace import Client
from headrace.redis import keys
from headrace.server.ports import free_port
from tests.extensions.openai.harness.batches import Batches, batches_at, line
from tests.harness.deployments.pipelines import STAGED
from tests.harness.deployments.versions import RECORD_FIELD, VERSION, next_version
from tests.harness.servers.redis_servers import RedisServer, leaked_keys, redis_server
from tests.harness.servers.up import ROOT, RunningUp, started
from tests.harness.wait import wait_until

HANDLER = f"{ROOT / 'tests/harness/handlers/trouble/chaotic.py'}:InTurn"
PIECES = {"stages": {"cut": {}, "weigh": {"each": "pieces[*]"}}}
ENDPOINT = "/api/v1/models/lines/jobs"
LINES = 400
#: Clients that ask for one job after the other.
CLIENTS = 2


class Site:
    """A deployment whose parts are programs of their own, as on several hosts."""

    def __init__(self, folder: Path, server: RedisServer, stack: ExitStack) -> None:
        self.server = server
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log, self.gate = folder / "log", folder / "gate"
        self._stack = stack
        self._count = 0
        (folder / "marks").mkdir()
        options = {"log": str(self.log), "marks": str(folder / "marks"), "pause_s": 0.1}
        # The load takes from the parts the time that they start in.
        slow = {**options, "pause_s": 0.4}
        staged = {"log": str(folder / "stages.log"), "gate": str(self.gate)}
        self._served: dict[str, Any] = {
            "work": {"handler": HANDLER, "max_batch_size": 8, "options": slow},
            "lines": {"handler": HANDLER, "max_batch_size": 1, "options": options},
            "cut": {"handler": f"{STAGED}:Cut", "options": staged},
            "weigh": {"handler": f"{STAGED}:Weigh", "options": staged},
        }
        for model in self._served.values():
            model["timeout_s"] = 300.0  # a stage runs while parts are replaced
        self._models = folder / "models.yaml"
        self.write_models(1)

    def write_models(self, lines: int) -> None:
        """The models of parts that are started from now on, with so many lines in a batch."""
        self._served["lines"]["max_batch_size"] = lines
        pipelines = {"pieces": PIECES}
        text = yaml.safe_dump({"models": self._served, "pipelines": pipelines})
        self._models.write_text(text)

    def start(self, part: str, tree: Path, says: str) -> RunningUp:
        """Start a part out of a tree, and wait until it says that it serves."""
        self._count += 1
        folder = self.folder / f"{part}-{self._count}"
        folder.mkdir()
        run = RunningUp(
            folder, PYTHONPATH=str(tree), HEADRACE_REDIS_URL=self.server.url,
            HEADRACE_MODELS_FILE=str(self._models), HEADRACE_PORT=str(self.port),
            HEADRACE_STATE_DIR=str(folder / "state"),
        )  # fmt: skip
        run.arguments = [part]
        self._stack.enter_context(started(run))
        run.wait_for(says)
        return run

    def worker(self, tree: Path) -> RunningUp:
        """A worker whose models are loaded."""
        known = self.owners()
        run = self.start("worker", tree, "workers on")

        def ready() -> bool:
            new = self.owners() - known
            with self.server.client() as client:
                said = [client.hget(keys.worker(one), "work") for one in new]
            return any(b'"state":"ready"' in (one or b"") for one in said)

        wait_until(ready, "the worker is ready", 90)
        return run

    def api(self, tree: Path) -> RunningUp:
        return self.start("api", tree, f":{self.port}")

    def owners(self) -> set[str]:
        """The workers that tell of themselves."""
        with self.server.client() as client:
            found: Any = client.zrange(keys.WORKERS, 0, -1)
        return {one.decode() for one in found}

    def records(self) -> list[dict[str, str]]:
        """The records of all jobs."""
        with self.server.client() as client:
            found: list[Any] = [client.hgetall(one) for one in client.scan_iter("hr:job:*")]
        return [{k.decode(): v.decode() for k, v in one.items()} for one in found]


class Load:
    """Clients that submit a job, wait for its result, and go on with the next."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self.results: list[tuple[int, Any]] = []
        self.errors: list[BaseException] = []
        self.took: list[tuple[float, float]] = []
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(CLIENTS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()

    def _run(self, first: int) -> None:
        n = first
        try:
            with Client(self._url, retry_s=60) as client:
                while not self._stop.is_set():
                    began = time.monotonic()
                    job = client.submit("work", {"do": "plain", "n": n})
                    self.results.append((n, client.result(job)))
                    self.took.append((began, time.monotonic() - began))
                    n += CLIENTS
        except BaseException as error:
            self.errors.append(error)
            raise

    def goes_on(self) -> None:
        """Jobs that are submitted from now on end too: each client waits for one of before."""
        count = len(self.results) + 2 * CLIENTS
        wait_until(lambda: self.errors or len(self.results) >= count, "the load goes on", 120)
        assert not self.errors


def over(run: RunningUp) -> None:
    # uvicorn ends by the signal that has stopped it.
    assert run.stop() in (0, -signal.SIGTERM), run.text()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with redis_server() as server, ExitStack() as stack:
        yield Site(tmp_path, server, stack)


def swap(load: Load, old: RunningUp, new: RunningUp) -> RunningUp:
    """The new one serves already: end the old one."""
    load.goes_on()
    over(old)
    load.goes_on()
    return new


def replace_api(load: Load, site: Site, old: RunningUp, tree: Path) -> RunningUp:
    """The port is one, so that for a moment nobody answers; clients say it again."""
    over(old)
    new = site.api(tree)
    load.goes_on()
    return new


def replace_runner(site: Site, batch: BatchUnderWay, old: RunningUp, tree: Path) -> RunningUp:
    """In the midst of a batch, of which some rows are saved."""
    batch.go_on()
    over(old)
    return site.start("runner", tree, "batches at a time")


class BatchUnderWay:
    """A batch whose lines run only while it is told to go on."""

    def __init__(self, client: Client, batches: Batches) -> None:
        self._client = client
        self._batches = batches
        client.pause_queue("lines")
        lines = [line(f"line-{n}", "lines", {"do": "plain", "n": n}) for n in range(LINES)]
        self._made = batches.create(lines, ENDPOINT)

    def completed(self) -> int:
        return int(self._batches.client.batches.retrieve(self._made.id).request_counts.completed)

    def go_on(self) -> None:
        """Until more rows are saved; one line runs at a time, so that most of them still wait."""
        before = self.completed()
        self._client.resume_queue("lines")
        wait_until(lambda: self.completed() > before, "rows of the batch are saved", 120, 0.25)
        self._client.pause_queue("lines")

    def finish(self) -> None:
        """Every line has its row."""
        self._client.resume_queue("lines")
        batch = self._batches.ended(self._made, 120)
        good, bad = self._batches.both(batch)
        assert (batch.status, len(good), bad) == ("completed", LINES, {})


def test_an_upgrade_under_load_and_back(site: Site, tmp_path: Path) -> None:
    old, new = ROOT, next_version(tmp_path / "next")
    api, worker = site.api(old), site.worker(old)
    background = site.start("background", old, "background worker on")
    runner = site.start("runner", old, "batches at a time")
    with Load(site.url) as load, batches_at(site.url) as batches, Client(site.url) as client:
        load.goes_on()
        batch = BatchUnderWay(client, batches)
        # Workers first: they must understand whatever the old API still sends, and the new one.
        worker = swap(load, worker, site.worker(new))
        api = replace_api(load, site, api, new)
        with urllib.request.urlopen(f"{site.url}/metrics", timeout=60) as answer:
            assert f'headrace_build_info{{version="{VERSION}"}} 1' in answer.read().decode()
        runner = replace_runner(site, batch, runner, new)
        site.gate.touch()
        whole = client.submit("pieces", {"pieces": 4, "size": 10})
        wait_until(
            lambda: client.status(whole).status == "running", "the pipeline is under way", 60, 0.25
        )
        background = swap(load, background, site.start("background", new, "background worker on"))
        # And back, with what the new version has left in Redis.
        site.gate.unlink()
        runner = replace_runner(site, batch, runner, old)
        site.write_models(64)  # so that what is left of the batch soon ends
        worker = swap(load, worker, site.worker(old))
        api = replace_api(load, site, api, old)
        assert len(client.result(whole)) == 4
        batch.finish()
    assert not load.errors
    assert all(result["n"] == n for n, result in load.results)
    records = [one for one in site.records() if one["m"] == "work"]
    assert len(records) == len(load.results)
    assert Counter(one["s"] for one in records) == {"s": len(records)}
    assert {one["a"] for one in records} == {"1"}, "no delivery is charged"
    assert not any("k" in one for one in records)
    runs = Counter(site.log.read_text().split())
    assert set(runs.values()) == {1}, "nothing has run twice"
    by_version = Counter(RECORD_FIELD in one for one in records)
    assert min(by_version.values()) > 10, "jobs of both versions"
    for run in (api, runner, background, worker):
        over(run)
    with site.server.client() as redis:
        assert leaked_keys(redis) == []
