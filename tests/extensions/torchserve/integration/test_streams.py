"""Replies in pieces on TorchServe's URLs: a real API, worker and model process."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from extensions.torchserve.config.settings import TorchServeConfig, write_config
from headrace.config.settings import Settings
from headrace.models.catalog import load_models
from headrace.redis import keys
from tests.extensions.torchserve.compat.archives import SOURCES
from tests.extensions.torchserve.harness.archives import write_archive
from tests.harness.http.chunks import ChunkReader, asking
from tests.harness.http.events import reading
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.servers.redis_servers import nothing_leaks, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Client, Worker, celery_worker, write_models

#: A request has `pieces`, the last of which is returned. Before each of them the handler waits for
#: a file in the folder `until`.
WAITS = """
import os, signal, time

def waits(request, n):
    while request.get("until") and not os.path.exists(os.path.join(request["until"], str(n))):
        time.sleep(0.005)
"""
STREAMS = """
import os, signal
from ts.handler_utils.utils import send_intermediate_predict_response as send
from waits import waits

def handle(data, context):
    if data is None:
        return None
    requests = [row["body"] for row in data]
    for idx, request in enumerate(requests):
        for name, value in request.get("headers", {}).items():
            context.set_response_header(idx, name, value)
        if "status" in request:
            context.set_response_status(request["status"], "Made", idx)
    last = max(len(request["pieces"]) for request in requests) - 1
    for n in range(last):
        waits(requests[0], n)
        pieces = [request["pieces"][n] for request in requests]
        if "raise" in pieces:
            raise ValueError("this request is bad")
        if "kill" in pieces:
            os.kill(os.getpid(), signal.SIGKILL)
        pieces = [b"\\x00\\xff" if piece == "bytes" else piece for piece in pieces]
        send(pieces, context.request_ids, "Intermediate Prediction success", 200, context)
    waits(requests[0], last)
    return [request["pieces"][last] for request in requests]
"""
WORDS = ["one ", "two ", "three"]
#: More calls than any test waits for.
MANY = 1_000_000


@dataclass
class Site:
    api: ApiServer
    worker: Worker
    client: Client

    def ask(self, model: str, **asked: Any) -> AbstractContextManager[ChunkReader]:
        """Ask for a prediction with a JSON body."""
        body = json.dumps(asked).encode()
        url = f"{self.api.url}/predictions/{model}"
        return asking(url, body, content_type="application/json")

    def status(self, job_id: str) -> str:
        return str(self.api.job(job_id)["status"])

    def wait_status(self, job_id: str, wanted: str) -> None:
        wait_until(lambda: self.status(job_id) == wanted, f"{job_id} is {wanted}", 60)

    def jobs(self, model: str, status: str) -> list[str]:
        """The jobs of a model with this status."""
        found = self.api.http.get("/api/v1/jobs", params={"model": model, "status": status})
        return [job["id"] for job in found.json()["jobs"]]

    def wait_jobs(self, model: str, status: str, count: int) -> None:
        """Wait until so many jobs of a model have this status."""
        wait_until(
            lambda: len(self.jobs(model, status)) == count, f"{count} of {model} are {status}", 60
        )

    @contextmanager
    def paused(self, model: str) -> Iterator[None]:
        queue = f"/api/v1/queues/{keys.queue_name(model)}"
        self.api.http.post(f"{queue}/pause").raise_for_status()
        yield
        self.api.http.post(f"{queue}/resume").raise_for_status()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("streams")
    own = {"waits.py": WAITS}
    streams = write_archive(folder / "streams", "handler.py", {"handler.py": STREAMS, **own})
    stepped = SOURCES["stepped"].read_text()
    files = {"handler.py": stepped, "c.yaml": "continuousBatching: true\nbatchSize: 3\n"}
    steps = write_archive(folder / "steps", "handler.py", files, configFile="c.yaml")
    models = write_models(
        folder,
        streams={"source": str(streams), "version": "1.0"},
        pairs={"source": str(streams), "max_batch_size": 2, "max_batch_delay_ms": 30_000},
        steps={"source": str(steps), "version": "1.0"},
    )
    config = folder / "config.properties"
    write_config(config, TorchServeConfig(disable_token_authorization=True))
    with redis_server() as server:
        state = folder / "state"
        settings = Settings(redis_url=server.url, models_file=models, state_dir=state)
        environ = {"HEADRACE_TORCHSERVE": str(config), "HEADRACE_STATE_DIR": str(state)}
        with (
            celery_worker(server.url, models, folder, environ=environ) as worker,
            api_server(
                server.url, load_models(settings), torchserve=config, models_file=models,
                state_dir=state,
            ) as api,
            Client(server.url, models) as client,
        ):  # fmt: skip
            worker.wait_ready("streams", "pairs", "steps")
            yield Site(api, worker, client)
            nothing_leaks(client.redis)


def opened(folder: Path, *names: int) -> None:
    for name in names:
        (folder / str(name)).touch()


def open_until(folder: Path, ended: Callable[[], bool], description: str) -> None:
    """Let a request take one call after another until something has ended."""
    numbers = count(1)

    def look() -> bool:
        opened(folder, next(numbers))
        return ended()

    wait_until(look, description, 60)


def test_pieces_are_chunks_as_they_come(site: Site, tmp_path: Path) -> None:
    headers = {"content-type": "text/plain", "x-own": "1"}
    asked = {"pieces": WORDS, "until": str(tmp_path), "headers": headers, "status": 201}
    with site.ask("streams", **asked) as reader:
        for n in range(3):
            assert reader.chunks == [word.encode() for word in WORDS[:n]]
            opened(tmp_path, n)
            reader.wait_for(n + 1)
        assert reader.wait_over().whole
    assert reader.chunks == [word.encode() for word in WORDS]
    assert reader.status == 201
    found = reader.headers
    assert found.items() >= {**headers, "ts_stream_next": "true"}.items()
    assert (found["transfer-encoding"], "content-length" in found) == ("chunked", False)
    assert (found["pragma"], found["x-request-id"]) == ("no-cache", found["headrace-job"])
    assert site.status(found["headrace-job"]) == "succeeded"


def test_a_native_client_reads_the_same_pieces(site: Site, tmp_path: Path) -> None:
    (job_id,) = site.client.submit("streams", {"pieces": WORDS, "until": str(tmp_path)})
    with reading(f"{site.api.url}/api/v1/jobs/{job_id}/stream") as reader:
        opened(tmp_path, 0)
        assert reader.wait_for("pieces").data == ["one "]
        opened(tmp_path, 1, 2)
        assert reader.wait_for("ended").data["result"] == "one two three"
    pieces = [piece for event in reader.events if event.name == "pieces" for piece in event.data]
    assert pieces == WORDS


def test_each_kind_of_piece_is_its_own_bytes(site: Site) -> None:
    binary_form = {"content_type": "a", "base64": "AA=="}
    pieces = ["é", {"a": [1]}, "bytes", binary_form, 7, None, ""]
    with site.ask("streams", pieces=pieces) as reader:
        assert reader.wait_over().whole
    shown = [json.dumps(one, indent=2).encode() for one in ({"a": [1]}, binary_form)]
    assert b"".join(reader.chunks) == b"".join(
        ["é".encode(), shown[0], b"\x00\xff", shown[1], b"7null"]
    )


def test_the_requests_of_a_batch_have_their_own_pieces(site: Site, tmp_path: Path) -> None:
    with ExitStack() as readers:
        # So that one claim finds both.
        with site.paused("pairs"):
            one, other = (
                readers.enter_context(site.ask("pairs", pieces=pieces, until=str(tmp_path)))
                for pieces in ("abc", "xyz")
            )
            site.wait_jobs("pairs", "queued", 2)
        opened(tmp_path, 0)
        assert {*one.wait_for(1), *other.wait_for(1)} == {b"a", b"x"}
        opened(tmp_path, 1, 2)
        assert one.wait_over().whole
        assert other.wait_over().whole
    assert (one.chunks, other.chunks) == ([b"a", b"b", b"c"], [b"x", b"y", b"z"])


def test_a_reply_without_pieces_has_its_length(site: Site) -> None:
    for _ in range(2):
        with site.ask("streams", pieces=["alone"]) as reader:
            assert reader.wait_over().whole
        assert (reader.headers["content-length"], reader.chunks) == ("5", [b"alone"])
        assert "ts_stream_next" not in reader.headers


def test_a_handler_that_raises_in_the_middle_cuts_the_answer(site: Site, tmp_path: Path) -> None:
    with site.ask("streams", pieces=["a", "raise", "c"], until=str(tmp_path)) as reader:
        opened(tmp_path, 0)
        reader.wait_for(1)
        opened(tmp_path, 1)
        assert not reader.wait_over().whole
    assert (reader.status, reader.chunks) == (200, [b"a"])
    site.wait_status(reader.headers["headrace-job"], "failed")


def test_a_handler_that_raises_before_the_first_piece_is_an_error(site: Site) -> None:
    with site.ask("streams", pieces=["raise", "b"]) as reader:
        assert reader.wait_over().whole
    assert reader.status == 503
    assert json.loads(reader.chunks[0])["type"] == "InternalServerException"


def test_a_process_that_dies_in_the_middle_cuts_the_answer(site: Site, tmp_path: Path) -> None:
    with site.ask("streams", pieces=["a", "kill", "c"], until=str(tmp_path)) as reader:
        opened(tmp_path, 0)
        reader.wait_for(1)
        opened(tmp_path, 1)
        assert not reader.wait_over().whole
    assert reader.chunks == [b"a"]
    with site.ask("streams", pieces=WORDS) as again:
        assert again.wait_over().whole
    # Its job would kill the process again in the tests that follow.
    job_id = reader.headers["headrace-job"]
    site.api.http.delete(f"/api/v1/jobs/{job_id}")
    wait_until(lambda: site.status(job_id) in ("cancelled", "failed"), "its job has ended", 60)


def test_the_handler_goes_on_if_its_client_hangs_up(site: Site, tmp_path: Path) -> None:
    with site.ask("streams", pieces=WORDS, until=str(tmp_path)) as reader:
        opened(tmp_path, 0)
        reader.wait_for(1)
    opened(tmp_path, 1, 2)
    site.wait_status(reader.headers["headrace-job"], "succeeded")


def test_a_request_that_waits_ends_with_its_client(site: Site, tmp_path: Path) -> None:
    with site.ask("streams", pieces=WORDS, until=str(tmp_path)) as running:
        site.wait_jobs("streams", "running", 1)
        with site.ask("streams", pieces=WORDS):
            site.wait_jobs("streams", "queued", 1)
        site.wait_jobs("streams", "queued", 0)
        opened(tmp_path, 0, 1, 2)
        assert running.wait_over().whole


def test_a_request_joins_others_and_ends_before_them(site: Site, tmp_path: Path) -> None:
    steps = 500
    with site.ask("steps", steps=steps, until=str(tmp_path)) as long:
        opened(tmp_path, 0)
        assert long.wait_for(1) == [b"1of1 cached1 body "]
        with site.ask("steps", steps=1) as short:
            open_until(tmp_path, lambda: short.over, "the short request is answered")
            assert short.whole
        assert not long.over
        opened(tmp_path, *range(steps))
        assert long.wait_over().whole
    assert short.chunks == [b"1of2 cached2 body "]
    assert "content-length" in short.headers
    assert long.headers["ts_stream_next"] == "true"
    whole = b"".join(long.chunks)
    assert whole.startswith(b"1of1 cached1 body 2of")
    assert whole.count(b"of") == steps


def test_more_requests_than_slots_all_end(site: Site) -> None:
    ids = site.client.submit("steps", *({"steps": 1 + n % 4} for n in range(20)))
    for n, job in enumerate(site.client.wait(*ids)):
        calls = re.findall(r"(\d+)of(\d+)", json.loads(job.result_json or b""))
        assert [int(call) for call, _ in calls] == list(range(1, 2 + n % 4))
        assert all(int(count) <= 3 for _, count in calls)


def test_a_client_that_hangs_up_leaves_the_batch(site: Site, tmp_path: Path) -> None:
    with site.ask("steps", steps=MANY, until=str(tmp_path)) as gone:
        opened(tmp_path, 0)
        gone.wait_for(1)
    job_id = gone.headers["headrace-job"]
    open_until(tmp_path, lambda: site.status(job_id) == "cancelled", "its job is cancelled")
    with site.ask("steps", steps=1) as alone:
        assert alone.wait_over().chunks == [b"1of1 cached1 body "]


def test_a_step_that_raises_ends_all_requests_of_it(site: Site, tmp_path: Path) -> None:
    with site.ask("steps", steps=MANY, until=str(tmp_path)) as one:
        opened(tmp_path, 0)
        one.wait_for(1)
        with site.ask("steps", steps=2, raises=1) as bad:
            open_until(tmp_path, lambda: bad.over, "the bad request is answered")
            assert bad.whole
        one.wait_over()
    assert bad.status == 503
    assert not one.whole
    assert site.status(one.headers["headrace-job"]) == "failed"
    with site.ask("steps", steps=2) as after:
        assert after.wait_over().chunks == [b"1of1 cached1 body ", b"2of1 cached1 "]


def test_after_a_kill_the_requests_run_again(site: Site, tmp_path: Path) -> None:
    (native,) = site.client.submit("steps", {"steps": 2, "until": str(tmp_path)})
    opened(tmp_path, 0)
    with reading(f"{site.api.url}/api/v1/jobs/{native}/stream") as reader:
        reader.wait_for("pieces")
        (pid,) = site.worker.states()["steps"]["pids"]
        os.kill(pid, signal.SIGKILL)
        opened(tmp_path, 1)
        reader.wait_for("restarted")
        ended = reader.wait_for("ended")
    assert ended.data["status"] == "succeeded"
    assert ended.data["result"] == "1of1 cached1 body 2of1 cached1 "
