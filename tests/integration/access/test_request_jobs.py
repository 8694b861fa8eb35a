"""A request of OpenAI's API that makes many jobs is within all limits before it makes the first."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from headrace.redis import keys
from tests.harness.clients.access import http_as, make_key
from tests.harness.fakes.worker import Answer, FakeWorker
from tests.harness.servers.api_server import ApiServer
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.wait import wait_until

API_SETTINGS = {"auth": "on", "body_limit_bytes": 200_000, "event_streams_per_key": 8}
COMPLETIONS = "/v1/completions"
CHATS = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
TEXT = Answer(result=b'"text"')
VECTOR = Answer(result=b"[0.5]")


@pytest.fixture
def made(redis_db: RedisServer) -> Iterator[Any]:
    """Counts the jobs that exist; none is left at the end."""
    with redis_db.client() as client:
        yield lambda: sum(1 for _ in client.scan_iter(keys.job("*")))
        client.flushdb()


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "echo", "messages": [{"role": "user", "content": "a"}], **more}


def prompts(count: int, n: int = 1, **more: Any) -> dict[str, Any]:
    return {"model": "echo", "prompt": ["a"] * count, "n": n, **more}


def refused(answer: httpx2.Response, status: int, text: str) -> None:
    assert answer.status_code == status, answer.text
    assert text in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        (COMPLETIONS, prompts(256, 128), 400, "has 32768 jobs, and the limit is 2048"),
        (COMPLETIONS, prompts(17, 128, stream=True), 400, "has 2176 jobs"),
        (COMPLETIONS, prompts(256, 8, stop=["x" * 1024] * 16), 413, "have 33"),
        (CHATS, chat(n=128, user="x" * 2000), 413, "the limit is 200000"),
        (CHATS, chat(n=128, messages=[{"role": "user", "content": "x" * 9000}]), 413, "the 128"),
        (EMBEDDINGS, {"model": "echo", "input": ["a"] * 2048, "metadata": {"a": "x" * 200}}, 413,
         "the 2048 jobs of this request have"),
        (CHATS, chat(n=128, seed=7, messages=[{"role": "user", "content": "x" * 1600}]), 413, ""),
    ],
)  # fmt: skip
def test_a_small_request_makes_no_flood(
    api: ApiServer, redis_db: RedisServer, made: Any, path: str, body: dict[str, Any], status: int,
    text: str,
) -> None:  # fmt: skip
    with http_as(api, make_key(redis_db)[1]) as http:
        refused(http.post(path, json=body), status, text)
    assert made() == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, prompts(4, 2)), (COMPLETIONS, prompts(4, 2, stream=True)),
        (CHATS, chat(n=8)), (CHATS, chat(n=8, stream=True)),
        (EMBEDDINGS, {"model": "echo", "input": ["a"] * 8}),
    ],
)  # fmt: skip
def test_each_job_counts_against_the_rate(
    api: ApiServer, redis_db: RedisServer, made: Any, monkeypatch: pytest.MonkeyPatch, path: str,
    body: dict[str, Any],
) -> None:  # fmt: skip
    left = [0]

    async def take(_: str, __: float, wanted: int, least: int) -> tuple[int, float]:
        """A bucket that time does not fill."""
        if left[0] < least:
            return 0, 5.0
        taken = min(wanted, left[0])
        left[0] -= taken
        return taken, 0.0

    monkeypatch.setattr(api.services.queue, "take_tokens", take)
    answer = VECTOR if path == EMBEDDINGS else TEXT
    with FakeWorker(redis_db.url, "echo", lambda _: answer):
        left[0] = 1
        with http_as(api, make_key(redis_db, rate=7)[1]) as http:
            refused(http.post(path, json=body), 400, "has 8 jobs, and API key")
        with http_as(api, make_key(redis_db, rate=8)[1]) as http:
            left[0] = 7
            late = http.post(path, json=body, headers={"idempotency-key": "a"})
            refused(late, 429, "exceeds its rate of 8 requests and jobs")
            assert (late.headers["retry-after"], left[0], made()) == ("6", 6, 0), "all, or none"
            left[0] = 8
            assert http.post(path, json=body).status_code == 200
            assert (left[0], made()) == (0, 8)


def test_a_stream_counts_for_each_of_its_answers(
    api: ApiServer, redis_db: RedisServer, made: Any
) -> None:
    limit = api.services.stream_limit
    with http_as(api, make_key(redis_db)[1]) as http:
        refused(http.post(CHATS, json=chat(n=9, stream=True)), 400, "this stream has 9 answers")
        going = threading.Thread(
            target=lambda: http.post(CHATS, json=chat(n=5, stream=True)), daemon=True
        )
        going.start()
        wait_until(lambda: made() == 5, "the stream is open")
        assert limit.open_streams == 5
        refused(http.post(CHATS, json=chat(n=4, stream=True)), 429, "needs 4")
        assert made() == 5
        with FakeWorker(redis_db.url, "echo", lambda _: TEXT):
            going.join(60)
            wait_until(lambda: limit.open_streams == 0, "its places are free")
            assert http.post(CHATS, json=chat(n=8, stream=True)).text.endswith("[DONE]\n\n")
    assert limit.open_streams == 0


def test_a_request_of_many_jobs_lets_others_through(
    api: ApiServer, redis_db: RedisServer, made: Any
) -> None:
    """2,048 jobs are made in portions, and the first refusal ends the others."""
    del made
    with http_as(api, make_key(redis_db)[1]) as http:
        texts = {
            "model": "echo",
            "input": [str(n) for n in range(2048)],
            "encoding_format": "float",
        }
        with FakeWorker(
            redis_db.url,
            "echo",
            lambda job: Answer(result=b"[%b]" % json.loads(job.input).encode()),
        ):
            found = http.post(EMBEDDINGS, json=texts, timeout=90).json()["data"]
        assert [one["embedding"] for one in found] == [[float(n)] for n in range(2048)]
        full = {"model": "tiny", "input": ["a"] * 2048}
        refused(http.post(EMBEDDINGS, json=full, timeout=90), 429, "holds 100 jobs")
        waiting = "/api/v1/jobs?model=tiny&status=queued"
        assert http.get(waiting).json()["jobs"] == [], "all are cancelled"
