"""What stages of pipelines have given is freed when no stage needs it, whatever dies meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Client
from headrace.errors import ResultFreed
from headrace.redis import keys
from tests.harness.deployments.pipelines import STAGED, PipelineSite, pipeline_site
from tests.harness.handlers import staged
from tests.harness.servers.redis_servers import nothing_leaks, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import Worker
from workers.background.pipelines.stage_state import stage_job_id

MIB = 1024 * 1024
ROW = ("first", "second", "third", "fourth", "fifth")
PIPELINES: dict[str, Any] = {
    "row": {"stages": {name: {"model": "grow"} for name in ROW}},
    "tree": {
        "stages": {
            "top": {"model": "grow"},
            "left": {"model": "grow", "from": "top"},
            "right": {"model": "grow", "from": "top"},
            "join": {"model": "grow", "from": ["left", "right"], "select": "right"},
            "last": {"model": "grow"},
        }
    },
    "list": {
        "stages": {
            "cut": {},
            "weigh": {"each": "pieces[*]"},
            "then": {"model": "weigh"},
            "last": {"model": "weigh"},
        }
    },
    "sides": {
        "stages": {
            "left": {"model": "grow", "from": "input", "select": "left"},
            "right": {"model": "other", "from": "input", "select": "right"},
        }
    },
    "many": {"stages": {name: {"model": "weigh"} for name in ROW}, "max_running": 200},
}
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


def grow(server_url: str) -> dict[str, Any]:
    return {
        "handler": f"{STAGED}:{staged.Grow.__name__}",
        "options": {"redis": server_url},
        "retry_backoff_s": 0.01,
    }


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineSite]:
    folder = tmp_path_factory.mktemp("freed")
    with (
        redis_server("valkey9", *DURABLE) as server,
        pipeline_site(
            server, folder, PIPELINES, grow=grow(server.url), other=grow(server.url)
        ) as running,
    ):
        yield running


@pytest.fixture
def site(shared: PipelineSite) -> Iterator[PipelineSite]:
    log = shared.folder / "runs.log"
    log.unlink(missing_ok=True)
    yield shared
    shared.gate.unlink(missing_ok=True)
    with shared.server.client() as client:
        # What a killed background worker left is due now, and not in ten minutes.
        entries: Any = client.zrange(keys.PAYLOADS, 0, -1)
        if entries:
            client.zadd(keys.PAYLOADS, dict.fromkeys(entries, 0), xx=True)
        nothing_leaks(client)
        client.delete("hr:payloads", "hr:payloads:size", *client.scan_iter("hr:payload:*"))


def runs(site: PipelineSite) -> list[int]:
    """Which runs of `grow` there were, by what they were given."""
    return [int(line.split()[0]) for line in site.runs("grow")]


def stored(site: PipelineSite) -> list[int]:
    """How many results lay in the store while each of them ran."""
    return [int(line.split()[1]) for line in site.runs("grow")]


def check_stages(site: PipelineSite, job_id: str) -> None:
    """All are told of, to the last timing."""
    stages = site.job(job_id)["stages"]
    assert len(stages) >= 4
    for stage in stages:
        assert stage["status"] == "succeeded", stages
        assert stage["jobs"] == stage["done"] > 0, stages
        assert stage["timings"]["total"] > 0, stages


def records(site: PipelineSite) -> set[str]:
    with site.server.client() as client:
        return {name.decode().removeprefix("hr:job:") for name in client.scan_iter("hr:job:*")}


def only_its_own(site: PipelineSite, job_id: str) -> None:
    """Nothing is left of its stages' jobs."""
    ids = {stage_job_id(job_id, name, n) for name in (*ROW, "cut", "weigh") for n in range(4)}
    wait_until(lambda: not ids & records(site), "the records of its stages are removed", 30)


def background_worker(site: PipelineSite, name: str, dies: str = "", after: int = 0) -> Worker:
    """A background worker whose jobs are soon another's; dead already where `dies` says when."""
    environ = {"HEADRACE_LEASE_TTL_S": "2"}
    if not dies:
        return site.background_worker(name, **environ)
    killed = {"TEST_DIES": dies, "TEST_DIES_AFTER": str(after)}
    return site.background_worker(
        name, "tests.harness.workers.killed_background", **environ, **killed
    )


def died(worker: Worker) -> bool:
    return worker.process is not None and worker.process.poll() is not None


def test_a_row_of_five_holds_two_long_results_at_the_most(site: PipelineSite) -> None:
    running = background_worker(site, "row")
    given = {"name": "a", "n": 0, "size": MIB, "fails_once": 3}
    job_id = site.submit("row", given)
    result = site.result(job_id)
    assert (result["n"], len(result["pad"])) == (5, MIB)
    assert runs(site) == [0, 1, 2, 3, 3, 4]
    # Of each that runs, what it was given; with its own these are two, also when it is tried again.
    assert stored(site) == [0, 1, 1, 1, 1, 1]
    check_stages(site, job_id)
    site.no_payloads(results=1)
    only_its_own(site, job_id)
    running.kill()


def test_two_that_take_from_one_have_it_until_the_second_has_ended(site: PipelineSite) -> None:
    running = background_worker(site, "tree")
    result = site.result(site.submit("tree", {"name": "b", "n": 0, "size": 100_000}))
    assert result["n"] == 4
    assert runs(site) == [0, 1, 1, 2, 3]
    # The third of them has top's beside it; the join has left's and right's; the last has one.
    assert [stored(site)[n] for n in (0, 1, 3, 4)] == [0, 1, 2, 1]
    site.no_payloads(results=1)
    running.kill()


def test_what_is_freed_says_so_and_a_lost_record_brings_it_back(site: PipelineSite) -> None:
    first, http = background_worker(site, "first"), site.api.http
    site.gate.touch()
    job_id = site.submit("row", {"name": "c", "n": 0, "size": 100_000, "held_at": 4})
    wait_until(lambda: 4 in runs(site), "the fifth runs", 60)
    ids = {name: stage_job_id(job_id, name, 0) for name in ROW}
    for name in ("first", "second", "third"):
        problem = http.get(f"/api/v1/jobs/{ids[name]}/result")
        assert problem.status_code == 410, problem.text
        assert problem.json()["type"] == "/problems/result-freed"
        assert "the stages of its pipeline that take it" in problem.json()["detail"]
        job = site.job(ids[name])
        assert (job["status"], job["result"]) == ("succeeded", None)
    with Client(site.api.url) as client, pytest.raises(ResultFreed, match="have ended"):
        client.result(ids["first"])
    assert len(http.get(f"/api/v1/jobs/{ids['fourth']}/result").json()["pad"]) == 100_000
    first.kill()
    forgotten = http.post("/api/v1/jobs/forget", json={"ids": [ids["fourth"]]})
    assert forgotten.status_code == 200, forgotten.text
    site.gate.unlink()
    second = background_worker(site, "second")
    assert site.result(job_id)["n"] == 5
    # From the input on, but for the fifth, which had begun.
    assert runs(site) == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    check_stages(site, job_id)
    second.kill()


@pytest.mark.parametrize("uncleared", [False, True], ids=["cleared", "uncleared"])
def test_a_dead_letter_whose_sources_were_freed_runs_again_from_the_input(
    site: PipelineSite, uncleared: bool
) -> None:
    running = background_worker(site, "letters")
    given = {"name": f"d{uncleared}", "n": 0, "size": 100_000, "fails_once": 3}
    job_id = site.submit("row", given, max_retries=0)
    job = site.ended(job_id)
    if uncleared:
        # As if Redis had been away when it was cleared: the requeue takes the note away.
        name = keys.job(stage_job_id(job_id, "first", 0))
        with site.server.client() as client:
            client.hset(name, mapping={"s": "s", "m": "grow", "c": "1", "fd": "1"})
            client.expire(name, 600)
    assert job["error"]["message"] == "stage fourth: not just now"
    assert job["dead_lettered"] is True
    assert [s["status"] for s in job["stages"]] == [*["succeeded"] * 3, "failed", "waiting"]
    path = "/api/v1/models/row/dead-letters/requeue"
    assert site.api.http.post(path, json={"ids": [job_id]}).status_code == 200
    assert site.result(job_id)["n"] == 5
    assert runs(site) == [0, 1, 2, 3, 0, 1, 2, 3, 4]
    check_stages(site, job_id)
    site.no_payloads(results=1)
    running.kill()


def test_a_dead_letter_runs_again_though_a_neighbour_was_cancelled_with_it(
    site: PipelineSite,
) -> None:
    running, go = background_worker(site, "sides"), site.folder / "go"
    site.gate.touch()
    given = {"name": "s", "n": 0, "size": 1}
    failing = {**given, "fails_once": 0, "until": str(go)}
    job_id = site.submit(
        "sides", {"left": {**given, "held_at": 0}, "right": failing}, max_retries=0
    )
    wait_until(lambda: runs(site) == [0] and site.runs("other"), "both run", 60)
    left = stage_job_id(job_id, "left", 0)
    # The start of a job that is cancelled before is not shown any more.
    wait_until(lambda: site.job(left)["status"] == "running", "it is shown as running", 60)
    go.touch()
    assert site.ended(job_id)["dead_lettered"] is True
    assert site.job(left)["status"] == "running"
    requeue = "/api/v1/models/sides/dead-letters/requeue"
    assert site.api.http.post(requeue, json={"ids": [job_id]}).status_code == 200
    wait_until(lambda: "right" in site.stages(job_id), "it has begun anew", 60)
    # What runs goes on to its end, which is that of a cancelled job.
    site.gate.unlink()
    assert {name: one["n"] for name, one in site.result(job_id).items()} == {"left": 1, "right": 1}
    assert runs(site) == [0, 0]
    running.kill()


def test_a_cancel_in_the_middle_leaves_nothing(site: PipelineSite) -> None:
    running = background_worker(site, "cancels")
    site.gate.touch()
    job_id = site.submit("row", {"name": "e", "n": 0, "size": 100_000, "held_at": 3})
    wait_until(lambda: 3 in runs(site), "the fourth runs", 60)
    assert site.api.http.delete(f"/api/v1/jobs/{job_id}").json()["outcome"] == "asked"
    assert site.ended(job_id)["status"] == "cancelled"
    site.gate.unlink()
    site.no_payloads()
    running.kill()


def test_kills_right_after_the_note_and_after_the_freeing(site: PipelineSite) -> None:
    first = background_worker(site, "noted", dies="noted")
    given = {"name": "f", "n": 0, "size": 100_000}
    job_id = site.submit("row", given)
    wait_until(lambda: died(first), "the first background worker dies", 60)
    assert runs(site) == [0, 1]
    second = background_worker(site, "freed", dies="freed")
    wait_until(lambda: died(second), "the second background worker dies", 60)
    assert runs(site) == [0, 1, 2]
    # And all else: what was noted and freed is in the log of Redis.
    site.server.stop(kill=True)
    site.worker.kill()
    site.server.start()
    site.worker.start()
    third = background_worker(site, "third")
    result = site.result(job_id)
    assert (result["n"], len(result["pad"])) == (5, 100_000)
    assert runs(site) == [0, 1, 2, 3, 4]
    assert stored(site)[-1] == 1
    check_stages(site, job_id)
    site.no_payloads(results=1)
    only_its_own(site, job_id)
    third.kill()


def test_a_kill_between_two_calls_that_free_one_stage(site: PipelineSite) -> None:
    # `cut` takes one call; `weigh`, of four jobs, two.
    first = background_worker(site, "half", dies="half noted", after=1)
    job_id = site.submit("list", {"pieces": 4, "size": 30_000})
    wait_until(lambda: died(first), "the first background worker dies", 60)
    with site.server.client() as client:
        ids = [stage_job_id(job_id, "weigh", n) for n in range(4)]
        assert [client.exists(keys.meta(name)) for name in ids] == [0, 0, 1, 1]
    second = background_worker(site, "whole")
    weighed = [{"first": n, "bytes": 30_000} for n in range(4)]
    assert site.result(job_id) == {"given": {"given": weighed}}
    assert len(site.runs("cut")) == 1
    assert sum(map(int, site.runs("weigh"))) == 6
    check_stages(site, job_id)
    site.no_payloads()
    only_its_own(site, job_id)
    second.kill()


def test_more_jobs_at_once_than_there_are_connections_are_all_noted(site: PipelineSite) -> None:
    ids = [site.submit("many", n) for n in range(150)]
    running = background_worker(site, "many")
    for job_id in ids:
        site.result(job_id)
    assert "Too many connections" not in running.log
    check_stages(site, ids[-1])
    running.kill()


def test_what_lies_in_files_is_deleted_too(tmp_path: Path) -> None:
    folder = tmp_path / "payloads"
    folder.mkdir()
    environ = {"HEADRACE_PAYLOAD_STORE": "file", "HEADRACE_PAYLOAD_DIR": str(folder)}
    with (
        redis_server("redis7") as server,
        pipeline_site(
            server, tmp_path, {"row": PIPELINES["row"]}, environ, grow=grow(server.url)
        ) as site,
    ):
        site.background_worker(**environ)
        site.gate.touch()
        job_id = site.submit("row", {"name": "g", "n": 0, "size": 100_000, "held_at": 4})
        wait_until(lambda: 4 in runs(site), "the fifth runs", 60)

        def files() -> int:
            return sum(path.is_file() for path in folder.rglob("*"))

        wait_until(lambda: files() == 1, "what the fifth was given is all that lies there", 30)
        site.gate.unlink()
        assert site.ended(job_id)["status"] == "succeeded"
        wait_until(lambda: files() == 1, "what the whole gives is all that lies there", 30)
