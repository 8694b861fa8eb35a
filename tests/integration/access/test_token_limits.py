"""How many tokens a minute the jobs of an API key may need."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from extensions.runs.registry import sink_for, source_for
from extensions.runs.sources.options import SourceOptions
from headrace.cli.shared.exit_codes import ExitCode
from headrace.client import Client
from headrace.client.offline import RunProgress
from headrace.config.model.catalog import load_catalog
from headrace.redis import keys
from headrace.runs.engine import Engine
from headrace.runs.interfaces import RunSpec
from tests.extensions.openai.harness.batches import sdk
from tests.harness.clients.access import ALL, bearer, http_as, make_key
from tests.harness.servers.api_server import ApiServer, api_server
from tests.harness.servers.redis_servers import RedisServer
from tests.harness.servers.up import clean_environment
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, celery_worker, write_models

#: With so few a minute, a job of 300 tokens is taken alone, and the next one ten minutes later.
LIMIT = 6
JOBS = "/api/v1/models/m/jobs"
WORDS = {"words": 3, "max_tokens": 300}
#: How many inputs an offline run has.
COUNT = 3


@pytest.fixture
def models(tmp_path: Path) -> Path:
    handler = f"{HANDLERS / 'generation/generating.py'}:Words"
    return write_models(
        tmp_path, m={"handler": handler, "schedule": "tokens"}, echo={"handler": "echo"}
    )


@pytest.fixture
def api(redis_db: RedisServer, models: Path) -> Iterator[ApiServer]:
    with api_server(redis_db.url, load_catalog(models), auth="on", bulk_hold_s=0.0) as server:
        yield server
        with redis_db.client() as client:
            client.flushdb()


def wait_s(reply: httpx2.Response) -> int:
    """The Retry-After of a submit that was refused; 0 if it was not."""
    if reply.status_code == 202:
        return 0
    assert reply.status_code == 429, reply.text
    assert reply.json()["type"] == "/problems/rate-limited"
    return int(reply.headers["retry-after"])


def test_a_job_counts_with_its_estimate_until_it_is_cancelled(
    api: ApiServer, redis_db: RedisServer
) -> None:
    key_id, key = make_key(redis_db, tokens_per_minute=LIMIT)
    with http_as(api, key) as http:
        job_id = http.post(JOBS, json=WORDS).json()["id"]
        refused = http.post(JOBS, json=WORDS)
        assert 400 < wait_s(refused) <= 1000
        detail = refused.json()["detail"]
        assert f"API key {key_id} has 0 left of its {LIMIT} tokens a minute" in detail
        lines = "\n".join(json.dumps({"model": name, "input": WORDS}) for name in ("m", "echo"))
        first, second = http.post("/api/v1/jobs/bulk?hold=0", content=lines).text.splitlines()
        assert json.loads(first)["error"]["type"] == "/problems/rate-limited"
        assert json.loads(second)["status"] == "queued", "its model counts no tokens"
        with http_as(api, make_key(redis_db)[1]) as other:
            assert other.post(JOBS, json=WORDS).status_code == 202
        assert http.delete(f"/api/v1/jobs/{job_id}").json()["outcome"] == "removed"
        again = http.put(f"/api/v1/jobs/again-{job_id}", json={"model": "m", "input": WORDS})
        assert wait_s(again) == 0, "a job that has not run has used nothing"
        repeat = http.put(f"/api/v1/jobs/again-{job_id}", json={"model": "m", "input": WORDS})
        assert wait_s(repeat) == 0, "a repeat is no new job"
        assert wait_s(http.post(JOBS, json=WORDS)) > 400


def test_a_job_that_has_ended_or_is_cancelled_counts_with_the_tokens_it_used(
    api: ApiServer, redis_db: RedisServer, models: Path, tmp_path: Path
) -> None:
    _, key = make_key(redis_db, tokens_per_minute=LIMIT)
    gate = tmp_path / "gate"
    gate.mkdir()
    with (
        http_as(api, key) as http,
        celery_worker(redis_db.url, models, tmp_path) as worker,
    ):
        worker.wait_ready("m")
        http.post(JOBS, json={**WORDS, "until": str(gate)})
        assert wait_s(http.post(JOBS, json=WORDS)) > 400
        for n in range(3):
            (gate / str(n)).touch()
        # Its three words leave three of the six tokens.
        wait_until(lambda: wait_s(http.post(JOBS, json=WORDS)) <= 40, "the estimate is corrected")
        _, other_key = make_key(redis_db, tokens_per_minute=LIMIT)
        http.headers.update(bearer(other_key))
        (gate / "1").unlink()
        job_id = http.post(JOBS, json={**WORDS, "until": str(gate)}).json()["id"]
        with http.stream("GET", f"/api/v1/jobs/{job_id}/stream?format=text") as pieces:
            assert next(pieces.iter_text()) == "w0 "
        assert http.delete(f"/api/v1/jobs/{job_id}").json()["outcome"] == "asked"
        wait_until(lambda: wait_s(http.post(JOBS, json=WORDS)) <= 40, "the one word counts")


def test_a_command_that_waits_for_a_limit_says_so(
    api: ApiServer, redis_db: RedisServer, tmp_path: Path
) -> None:
    _, key = make_key(redis_db, tokens_per_minute=LIMIT)
    with http_as(api, key) as http:
        assert wait_s(http.post(JOBS, json=WORDS)) == 0
    command = [sys.executable, "-P", "-m", "headrace", "submit", "m"]
    command += ["--json-input", json.dumps(WORDS)]
    env = clean_environment(HEADRACE_URL=api.url, HEADRACE_API_KEY=key)
    for options in (("--retry", "1"), ("--retry", "0", "--wait")):
        with subprocess.Popen(
            [*command, *options], env=env, cwd=tmp_path,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                assert process.stderr is not None
                said = process.stderr.readline().decode()
            finally:
                process.kill()
        assert "a limit refuses jobs now (rate-limited), so they wait; the next try is in" in said
    ended = subprocess.run(
        [*command, "--retry", "0"], env=env, cwd=tmp_path, capture_output=True, check=False
    )
    assert ended.returncode == ExitCode.FAILED
    assert f"has 0 left of its {LIMIT} tokens a minute" in ended.stderr.decode()


def run(client: Client, folder: Path) -> list[Any]:
    """`headrace run`: the results. Its first job ends once the run says that it waits."""
    inputs, rows, gate = folder / "in.jsonl", folder / "out.jsonl", folder / "gate"
    gate.mkdir()
    inputs.write_text(f"{json.dumps({**WORDS, 'until': str(gate)})}\n" * COUNT)

    def watch(progress: RunProgress) -> None:
        if progress.limit == "rate-limited":
            for n in range(WORDS["words"]):
                (gate / str(n)).touch()

    source = source_for(str(inputs), SourceOptions())
    engine = Engine(client, RunSpec(model="m"), source, sink_for(str(rows), source))
    try:
        engine.open()
        assert engine.run(watch) == "ended"
    finally:
        engine.close()
    return [json.loads(row)["result"] for row in rows.read_text().splitlines()]


def mapped(client: Client, _: Path) -> list[Any]:
    return [result.value for result in client.map("m", [WORDS] * COUNT)]


def submitted(client: Client, _: Path) -> list[Any]:
    jobs: list[Any] = list(client.submit_many("m", [WORDS] * COUNT))
    assert [one for one in jobs if isinstance(one, Exception)] == []
    return [client.result(job) for job in jobs]


def test_work_without_hurry_waits_for_the_limit_of_its_key(
    api: ApiServer, redis_db: RedisServer, models: Path, tmp_path: Path
) -> None:
    """Two jobs do not fit into the minute by their estimates; what they use does."""

    def refused() -> int:
        with http_as(api, manager) as http:
            lines = http.get("/metrics").text.splitlines()
        name = 'headrace_jobs_rejected_total{model="m",reason="rate-limited"} '
        return sum(int(float(line.removeprefix(name))) for line in lines if line.startswith(name))

    _, manager = make_key(redis_db, *ALL)
    # `submit_many` does not look at its jobs, so it waits as long as it is asked to.
    ways: list[tuple[Callable[[Client, Path], list[Any]], int, float]] = [
        (run, 300, 0), (mapped, 300, 0), (submitted, 600, 60),
    ]  # fmt: skip
    with celery_worker(redis_db.url, models, tmp_path) as worker:
        worker.wait_ready("m")
        for way, limit, retry_s in ways:
            before = refused()
            _, key = make_key(redis_db, tokens_per_minute=limit)
            with Client(api.url, api_key=key, retry_s=retry_s) as client:
                client.session.reached = True
                texts = [found["text"] for found in way(client, tmp_path)]
            assert texts == ["w0 w1 w2 "] * COUNT, way
            assert refused() > before, way


def test_the_answer_below_v1_has_the_headers_of_openai(
    api: ApiServer, redis_db: RedisServer
) -> None:
    key_id, key = make_key(redis_db, tokens_per_minute=LIMIT)
    with http_as(api, key) as http, sdk(api.url, api_key=key, max_retries=0) as client:
        http.post(JOBS, json=WORDS)
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(model="m", prompt="Why?", max_tokens=300)
    error = caught.value
    assert (error.code, error.type) == ("rate_limit_exceeded", "rate_limit_error")
    headers = error.response.headers
    assert headers["x-ratelimit-limit-tokens"] == str(LIMIT)
    assert headers["x-ratelimit-remaining-tokens"] == "0"
    assert headers["x-ratelimit-reset-tokens"] == f"{headers['retry-after']}s"
    with redis_db.client() as client_of_redis:
        assert client_of_redis.pttl(keys.token_rate(key_id)) > 400_000


def test_a_request_whose_jobs_never_fit_together_is_a_bad_request(
    api: ApiServer, redis_db: RedisServer
) -> None:
    key_id, key = make_key(redis_db, tokens_per_minute=LIMIT)
    with http_as(api, key) as http, sdk(api.url, api_key=key, max_retries=0) as any_client:
        client: Any = any_client
        message = {"role": "user", "content": "Why?"}
        for create, asked, param in (
            (client.chat.completions.create, {"messages": [message], "n": 2}, "n"),
            (client.completions.create, {"prompt": ["Why?", "How?"]}, "prompt"),
            (client.completions.create, {"prompt": ["Why?", "How?"], "stream": True}, "prompt"),
            (client.embeddings.create, {"input": ["Why? " * 9, "How?"]}, "input"),
        ):
            with pytest.raises(openai.BadRequestError, match="each one alone") as caught:
                create(model="m", **asked)
            assert (caught.value.code, caught.value.param) == ("invalid-request", param)
            assert f"API key {key_id} has {LIMIT} tokens a minute" in caught.value.message
        assert http.get("/api/v1/jobs?model=m").json()["jobs"] == []
        assert wait_s(http.post(JOBS, json=WORDS)) == 0, "a job alone is taken"
        with pytest.raises(openai.RateLimitError):
            # Its jobs would stay, so that a repeat needs fewer tokens.
            client.completions.create(
                model="m", prompt=["a", "b"], extra_headers={"Idempotency-Key": "mine"}
            )


def test_a_request_with_more_jobs_than_may_be_in_flight_is_a_bad_request(
    api: ApiServer, redis_db: RedisServer
) -> None:
    key_id, key = make_key(redis_db, in_flight=2)
    with http_as(api, key) as http, sdk(api.url, api_key=key, max_retries=0) as any_client:
        client: Any = any_client
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model="m", input=["a", "b", "c"])
        assert f"3 jobs, and API key {key_id} may have 2 in flight" in caught.value.message
        assert (caught.value.code, caught.value.param) == ("invalid-request", "input")
        assert http.get("/api/v1/jobs?model=m").json()["jobs"] == []
