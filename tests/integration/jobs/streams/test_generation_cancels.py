"""Each way to cancel an answer that is written: how many steps it takes in the model process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.harness.clients.celery_client import stock_client
from tests.harness.deployments.shared import SharedDeployment
from tests.harness.deployments.site import Site
from tests.harness.http.events import reading
from tests.harness.http.plain_http import PLAIN
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS
from tests.integration.jobs.outcomes.test_cancel import revoke
from tests.integration.jobs.streams.test_language_model import question

pytestmark = pytest.mark.slow

STEPS_MAX = 2
TIMEOUT_S = 1.0
#: More than one only if an answer has ended before its cancel came.
ATTEMPTS = 5
#: An answer is as long as the model allows.
LONG: dict[str, Any] = {"max_tokens": 900, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In it the handler is alone: torch would import the `cuda.py` beside it."""
    folder = tmp_path_factory.mktemp("cancels")
    shutil.copy(HANDLERS / "counted.py", folder)
    return folder


@pytest.fixture
def cancels(folder: Path) -> Path:
    return folder / "cancels.jsonl"


@pytest.fixture(scope="module")
def site(shared_deployment: SharedDeployment, folder: Path) -> Iterator[Site]:
    counted = {
        "handler": "counted.py:Counted",
        "max_batch_size": 8,
        "min_timeout_s": TIMEOUT_S,
    }
    with shared_deployment.site(folder, {"m": counted}) as found:
        yield found


@dataclass
class Cancel:
    """What the model process wrote about one job that was cancelled.

    Attributes:
        came: how many steps had been run when the cancel had come; the job may have ended by then.
        ended: how many when the job ended.
        holders: the requests that had memory then.
    """

    came: int
    ended: int
    holders: list[str]


def read(path: Path, job_id: str) -> Cancel:
    def written() -> list[Any]:
        return [json.loads(line) for line in path.read_text().splitlines()]

    (seq,) = (line[0] for line in written() if line[1] == "is" and line[3] == job_id)
    wait_until(
        lambda: any(line[:2] == [seq, "came"] for line in written()), "the cancel is written"
    )
    lines = written()
    (came,) = (line[2] for line in lines if line[:2] == [seq, "came"])
    ((_, _, ended, *holders),) = (line for line in lines if line[:2] == [seq, "ended"])
    return Cancel(came, ended, holders)


def cancelled_in_each_way(site: Site) -> tuple[str, dict[str, str]]:
    """Cancel answers beside one that is kept; return its job, and the others by the way."""
    asked = question("random.choice", **LONG)
    with ExitStack() as open_until_all_run:
        kept = site.submit(question("zip", **LONG))
        jobs = {way: site.submit(asked) for way in ("DELETE", "revoke")}
        jobs["timeout"] = site.submit(asked, timeout=TIMEOUT_S)
        http = open_until_all_run.enter_context(
            httpx2.Client(base_url=site.api.url, verify=PLAIN, timeout=60)
        )
        chat = {"model": "m", "stream": True, **asked}
        answer = open_until_all_run.enter_context(
            http.stream("POST", "/v1/chat/completions", json=chat)
        )
        first = next(line for line in answer.iter_lines() if line.startswith("data: "))
        jobs["hang-up"] = json.loads(first[6:])["id"]
        # The timeout may be over before the first piece, if the machine stands still.
        for job_id in (kept, *(jobs[way] for way in jobs if way != "timeout")):
            reader = open_until_all_run.enter_context(reading(site.stream(job_id)))
            reader.wait_for("pieces")
        assert http.delete(f"/api/v1/jobs/{jobs['DELETE']}").status_code in (200, 202)
    with stock_client(site.redis.url) as app:
        revoke(app, jobs["revoke"])
    return kept, jobs


def test_each_way_to_cancel_ends_an_answer_within_two_steps(site: Site, cancels: Path) -> None:
    expected = site.ended(site.submit(question("zip", **LONG)))["result"]
    pids = site.worker.model_pids()
    for _ in range(ATTEMPTS):
        kept, jobs = cancelled_in_each_way(site)
        found = {way: site.ended(job_id) for way, job_id in jobs.items()}
        assert site.ended(kept)["result"] == expected
        if "succeeded" not in {one["status"] for one in found.values()}:
            break
    else:
        raise AssertionError("each time an answer ended before its cancel came")
    assert found.pop("timeout")["error"]["type"] == "timeout"
    assert {one["status"] for one in found.values()} == {"cancelled"}
    others = set(jobs.values())
    for way, job_id in jobs.items():
        cancel = read(cancels, job_id)
        assert cancel.ended <= cancel.came + STEPS_MAX, way
        assert job_id not in cancel.holders, way
        assert set(cancel.holders) <= {kept, *others}, way
    assert site.worker.model_pids() == pids
