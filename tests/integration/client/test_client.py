"""The client against a real API, with a worker behind it; every test runs on both shells."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace import Client, errors
from headrace.client import Job, calls
from headrace.jobs.ids import new_id
from headrace.jobs.job import State
from headrace.jobs.message import Message
from headrace.jobs.values.encoding import decode_input
from headrace.redis.fields import JobField
from headrace.server.ports import free_port
from tests.harness.clients.clients import SHELLS, client_of
from tests.harness.fakes.worker import Answer, FakeWorker, failure
from tests.harness.servers.api_server import ApiServer
from tests.harness.servers.redis_servers import RedisServer

pytestmark = pytest.mark.usefixtures("redis_db")
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


@pytest.fixture(params=SHELLS)
def client(api: ApiServer, request: pytest.FixtureRequest) -> Iterator[Any]:
    with client_of(request.param, api.url) as made:
        yield made


def answered(message: Message) -> Answer:
    """What a worker makes of an input: `{"fail": code}` fails so, bytes come back as bytes."""
    value, kind = decode_input(message.input)
    if isinstance(value, dict) and "fail" in value:
        return failure(value["fail"], "as asked for", retryable=value.get("retryable", False))
    if isinstance(value, bytes):
        stored = {"__type__": "base64", "__value__": base64.b64encode(value).decode()}
        return Answer(State.SUCCEEDED, msgspec.json.encode(stored), JobField.RESULT_TYPE, kind)
    if isinstance(value, str) and value == "nothing, please":
        return Answer(ignore_result=True)
    return Answer(result=msgspec.json.encode(value))


@pytest.fixture
def worker(redis_db: RedisServer) -> Iterator[FakeWorker]:
    with FakeWorker(redis_db.url, "echo", answered) as running:
        yield running


@pytest.mark.parametrize("value", [{"x": [1.5, None]}, "text", 7, [], PNG, b"", {"a": {"b": "ü"}}])
def test_the_result_is_what_the_worker_gave(client: Any, worker: FakeWorker, value: object) -> None:
    job = client.submit("echo", value)
    assert client.result(job) == value
    assert client.result(job.id) == value
    ended = client.status(job.id)
    assert (ended.value, ended.status, ended.ended) == (value, "succeeded", True)


def test_a_job_is_typed(client: Any, worker: FakeWorker) -> None:
    before = datetime.now(UTC)
    job = client.submit("echo", 1, metadata={"mine": [7]}, priority=3, version="1.0", timeout=9.5)
    assert (job.model, job.version, job.status) == ("echo", "1.0", "queued")
    assert (job.metadata, job.ended, job.result) == ({"mine": [7]}, False, None)
    done = client.wait(job)
    assert isinstance(done, Job)
    assert abs((done.created_at - before).total_seconds()) < 60
    assert done.started_at is not None
    assert done.finished_at is not None
    assert done.created_at <= done.started_at <= done.finished_at
    assert done.timings is not None
    assert done.timings["total"] > 0
    assert done.urls["self"].endswith(done.id)


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        ("input-error", errors.InputError),
        ("timeout", errors.JobTimeout),
        ("transient-error", errors.TransientError),
        ("invalid-request", errors.JobError),
        ("of-a-newer-version", errors.JobError),
    ],
)
def test_a_job_that_failed_raises_its_error(
    client: Any, worker: FakeWorker, code: str, cls: type[errors.JobError]
) -> None:
    job = client.submit("echo", {"fail": code, "retryable": True})
    assert client.wait(job).error.type == code
    with pytest.raises(cls, match="as asked for") as raised:
        client.result(job)
    assert (raised.value.code, raised.value.retryable) == (code, True)
    assert raised.value.job_id == job.id


def test_the_repr_of_a_client_has_its_address() -> None:
    with Client("http://127.0.0.1:1") as client:
        assert repr(client) == "Client('http://127.0.0.1:1')"


def test_a_refused_request_raises_its_error(client: Any) -> None:
    with pytest.raises(errors.ModelNotFound) as missing:
        client.submit("ecko", 1)
    assert "echo" in missing.value.hint
    with pytest.raises(errors.InvalidRequest, match="priority"):
        client.submit("echo", 1, priority=11)
    with pytest.raises(
        errors.InvalidRequest, match="unknown option: prioriti; did you mean priority"
    ):
        client.submit("echo", 1, prioriti=1)
    for call in (client.status, client.wait, client.result, client.cancel):
        with pytest.raises(errors.JobNotFound):
            call(new_id())
    with pytest.raises(errors.ModelNotFound):
        client.model("a b")


@pytest.mark.leaves_keys
def test_a_full_queue_is_waited_for_no_longer_than_asked(api: ApiServer) -> None:
    with client_of("sync", api.url, retry_s=0) as client:
        for _ in range(100):
            client.submit("tiny", 1)
        with pytest.raises(errors.QueueFull) as full:
            client.submit("tiny", 1)
    assert full.value.retry_after_s >= 1


@pytest.mark.leaves_keys
def test_a_wait_that_ends_first_leaves_the_job_alone(client: Any) -> None:
    job = client.submit("echo", 1)
    for call in (client.wait, client.result):
        with pytest.raises(TimeoutError) as late:
            call(job, timeout_s=0.05)
        assert isinstance(late.value, errors.WaitTimeout)
        assert late.value.job_id == job.id
    assert client.status(job).status == "queued"


@pytest.mark.leaves_keys
def test_cancelled_jobs(client: Any) -> None:
    jobs = [client.submit("echo", n) for n in range(3)]
    assert client.cancel(jobs[0]).outcome == "removed"
    unknown = new_id()
    outcomes = client.cancel([jobs[1].id, unknown, jobs[0]])
    assert [one.outcome for one in outcomes] == ["removed", "unknown", "ended"]
    with pytest.raises(errors.JobCancelled):
        client.result(jobs[0])
    assert [job and job.status for job in client.status([jobs[2], unknown, jobs[1]])] == [
        "queued", None, "cancelled",
    ]  # fmt: skip
    client.cancel(jobs[2])


def test_many_are_submitted_in_order(client: Any, worker: FakeWorker, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ä")
    inputs = [1, tmp_path / "a.txt", {1, 2}, object(), PNG]
    jobs = list(client.submit_many("echo", (value for value in inputs)))
    assert isinstance(jobs[3], errors.InvalidRequest)
    good = [job for job in jobs if isinstance(job, Job)]
    assert [client.result(job) for job in good] == [1, "ä", [1, 2], PNG]


@pytest.mark.leaves_keys
def test_what_the_source_raises_comes_after_what_it_gave(client: Any) -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    jobs = client.submit_many("echo", source())
    assert client.cancel(next(jobs)).outcome == "removed"
    with pytest.raises(OSError, match="the disk is gone"):
        next(jobs)


@pytest.mark.leaves_keys
def test_jobs_are_listed_newest_first_over_pages(
    client: Any, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "PAGE", 10)
    done = [job.id for job in client.submit_many("echo", range(25))]
    waiting = [client.submit("tiny", n, countdown=60).id for n in range(2)]
    assert all(client.wait(job_id).succeeded for job_id in done)
    listed = list(client.jobs())
    assert {job.id for job in listed} == {*done, *waiting}
    times = [job.created_at for job in listed]
    assert times == sorted(times, reverse=True)
    assert [job.id for job in client.jobs(model="tiny")] == waiting[::-1]
    assert [job.id for job in client.jobs(limit=2)] == waiting[::-1]
    assert len(list(client.jobs(limit=12))) == 12
    assert len(list(client.jobs(status=["succeeded", "scheduled"]))) == 27
    assert len(list(client.jobs(status="scheduled"))) == 2
    since = client.status(waiting[0]).created_at
    assert [job.id for job in client.jobs(since=since)] == waiting[::-1]
    assert [job.id for job in client.jobs(since=since.timestamp())] == waiting[::-1]
    for nothing in ({"model": "ecko"}, {"status": "asleep"}, {"since": "long ago"}):
        with pytest.raises(errors.RequestError):
            list(client.jobs(**nothing))
    client.cancel(waiting)


def test_one_client_serves_many_threads(api: ApiServer, worker: FakeWorker) -> None:
    with client_of("sync", api.url) as client, ThreadPoolExecutor(8) as threads:
        results = threads.map(lambda n: client.result(client.submit("echo", n)), range(80))
        assert list(results) == list(range(80))


def test_models_and_queues(client: Any) -> None:
    assert [model.name for model in client.models()] == ["echo", "tiny"]
    tiny = client.model("tiny")
    assert (tiny.version, tiny.max_queue_depth, tiny.workers) == ("2.1", 100, [])
    assert client.models()[1].workers is None
    assert [queue.max_queue_depth for queue in client.queues()] == [10_000, 100]
    assert client.ready()["broker"] == "ok"
    with pytest.raises(errors.ModelsNotReady):
        client.ready(all_models=True)


@pytest.mark.parametrize("shell", SHELLS)
def test_where_nothing_answers_the_error_says_how_to_start_it(shell: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with (
        client_of(shell, url) as client,
        pytest.raises(errors.ServerUnreachable, match=url) as nobody,
    ):
        client.submit("echo", 1)
    assert "headrace up" in nobody.value.hint


def test_the_address_is_that_of_the_environment(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_URL", api.url + "/")
    with Client() as client:
        assert client.ready()["broker"] == "ok"


@pytest.mark.parametrize("url", ["localhost:8080", "redis://127.0.0.1", "http://", "http://[::1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with (
        pytest.raises(errors.InvalidRequest, match="not the address of a server"),
        client_of("sync", url),
    ):
        pass
