"""The model `python_docs` through the API: streams, cancels, bad prompts, and dead processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from headrace.redis.keys import OFFLINE_STEP
from tests.harness.deployments.shared import SharedDeployment
from tests.harness.deployments.site import Site
from tests.harness.http.events import reading
from tests.harness.wait import wait_until
from tests.integration.observability.test_generation_metrics import (
    FIRST,
    IN,
    NEXT,
    OUT,
    counted,
    gauges,
)

SLOTS = 4
NAMES = ("zip", "json.loads", "random.choice", "the with statement", "the yield statement")


def question(name: str, **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": f"What is {name}?"}
    return {"messages": [message], "max_tokens": 100, "temperature": 0, **more}


@pytest.fixture(scope="module")
def site(
    shared_deployment: SharedDeployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("language")
    models = {"m": {"handler": "language_model", "max_batch_size": SLOTS}}
    with shared_deployment.site(folder, models) as found:
        yield found


def result(site: Site, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = site.ended(job_id)["result"]
    return found


def streamed(site: Site, job_id: str) -> str:
    with site.api.http.stream("GET", f"/api/v1/jobs/{job_id}/stream?format=text") as answer:
        return answer.read().decode()


def test_tokens_are_counted(site: Site) -> None:
    # What other tests of this module have added is there once nothing runs.
    wait_until(lambda: gauges(site) == [0, 0, SLOTS * 1024], "nothing runs")
    before = counted(site)
    value = {"prompt": "for", "max_tokens": 200, "ignore_eos": True}
    usages = [site.ended(site.submit(value))["result"]["usage"] for _ in range(2)]
    assert sum(usage["completion_tokens"] for usage in usages) == 400
    wait_until(lambda: counted(site)[OUT] == before[OUT] + 400, "the tokens are counted")
    found = {name: value - before[name] for name, value in counted(site).items()}
    assert found[IN] == sum(usage["prompt_tokens"] for usage in usages)
    assert found[f"{FIRST}_count"] == 2
    assert 0 < found[f"{NEXT}_count"] <= 398
    wait_until(lambda: gauges(site) == [0, 0, SLOTS * 1024], "the end is shown")


def test_it_answers_and_streams_the_same_text(site: Site) -> None:
    ids = [site.submit(question(name)) for name in NAMES * 3]
    with ThreadPoolExecutor(len(ids)) as pool:
        texts = list(pool.map(lambda job_id: streamed(site, job_id), ids))
    results = [result(site, job_id) for job_id in ids]
    assert [found["text"] for found in results] == texts
    assert results[: len(NAMES)] == results[-len(NAMES) :]
    assert results[1]["text"].startswith("Deserialize ``s``")
    assert results[1]["finish_reason"] == "stop"
    assert results[1]["usage"]["completion_tokens"] == 40


def test_one_prompt_that_is_too_long_fails_alone(site: Site) -> None:
    values: list[Any] = [question("zip", max_tokens=5) for _ in range(20)]
    values[7] = {"prompt": "for " * 2000}
    for n, job_id in enumerate(site.client.submit("m", *values)):
        found = site.ended(job_id)
        if n == 7:
            assert found["error"]["type"] == "input-error"
            assert "context length is 1,024" in found["error"]["message"]
        else:
            assert found["result"]["text"] == "zip(*iterables"


def test_a_cancelled_answer_makes_room(site: Site) -> None:
    long = question("zip", max_tokens=900, ignore_eos=True)
    ids = [site.submit(long) for _ in range(SLOTS)]
    for job_id in ids:
        with reading(site.stream(job_id)) as reader:
            reader.wait_for("pieces")
        assert site.api.http.delete(f"/api/v1/jobs/{job_id}").status_code in (200, 202)
    short = site.submit(question("json.loads"))
    assert result(site, short)["finish_reason"] == "stop"
    assert {site.ended(job_id)["status"] for job_id in ids} == {"cancelled"}


def killed_in_the_middle(site: Site, asked: Any) -> tuple[str, Any]:
    """A job whose process was killed while it wrote, and its result."""
    for _ in range(10):
        job_id = site.submit(asked)
        with reading(site.stream(job_id)) as reader:
            reader.wait_for("pieces")
            (pid,) = site.worker.model_pids()
            os.kill(pid, signal.SIGKILL)
            reader.wait_for("ended")
            assert "restarted" not in reader.names
        found = site.ended(job_id)
        if found["attempts"] == 2:
            return job_id, found["result"]  # else it had ended before the kill
    raise AssertionError("each of ten jobs ended before its process was killed")


@pytest.mark.slow
def test_offline_answers_that_make_way_are_the_same(site: Site) -> None:
    values = [question(NAMES[n], ignore_eos=True, max_tokens=200) for n in range(SLOTS)]
    values[1] |= {"temperature": 1.0, "seed": 7}
    values[3] |= {"temperature": 0.7, "top_p": 0.9, "seed": 8}
    expected = [result(site, site.submit(value)) for value in values]
    ids = [site.submit(value, priority=OFFLINE_STEP) for value in values]
    with ExitStack() as streams:
        readers = [streams.enter_context(reading(site.stream(job_id))) for job_id in ids]
        for reader in readers:
            reader.wait_for("pieces")
        for n in range(3 * SLOTS):
            short = site.submit(question(NAMES[n % len(NAMES)], max_tokens=5))
            assert result(site, short)["usage"]["completion_tokens"] == 5
        for reader in readers:
            reader.wait_for("ended")
            assert "restarted" not in reader.names
    assert [result(site, job_id) for job_id in ids] == expected
    assert [streamed(site, job_id) for job_id in ids] == [found["text"] for found in expected]


@pytest.mark.slow
def test_a_killed_process_does_not_change_a_text(site: Site) -> None:
    asked = question("zip", ignore_eos=True, max_tokens=250)
    expected = result(site, site.submit(asked))
    job_id, found = killed_in_the_middle(site, asked)
    assert found == expected
    assert streamed(site, job_id) == expected["text"]


@pytest.mark.slow
def test_log_probabilities_survive_a_killed_process(site: Site) -> None:
    asked = question("zip", ignore_eos=True, max_tokens=250, logprobs=1)
    first = site.submit(asked)
    assert site.ended(first)["status"] == "succeeded"
    job_id, _ = killed_in_the_middle(site, asked)
    # They are too long for the job objects.
    expected, found = (
        site.api.http.get(f"/api/v1/jobs/{one}/result").json() for one in (first, job_id)
    )
    assert found["text"] == expected["text"]
    assert [one["token"] for one in found["logprobs"]] == [
        one["token"] for one in expected["logprobs"]
    ]
    # The tokens before the kill are computed one by one, and those after it as a prompt.
    assert [one["logprob"] for one in found["logprobs"]] == pytest.approx(
        [one["logprob"] for one in expected["logprobs"]], abs=1e-3
    )
