"""Pipelines over HTTP: rows and trees of models, errors, cancels, and nothing left behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import chain
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from headrace.redis import keys
from tests.harness.clients.celery_client import stock_client
from tests.harness.deployments.pipelines import PipelineSite, pipeline_site
from tests.harness.servers.redis_servers import nothing_leaks, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.stock_worker import ours

PIECES = {"model": "weigh", "each": "pieces[*]"}
PIPELINES: dict[str, Any] = {
    "pieces": {"stages": {"cut": None, "weigh": PIECES}},
    "row": {
        "stages": {
            "cut": None,
            "count": {"model": "weigh", "select": "count"},
            "again": {"model": "weigh"},
        },
    },
    "tree": {
        "stages": {
            "cut": {},
            "left": {"model": "weigh", "from": "input"},
            "right": {"model": "weigh", "from": "cut", "select": "pieces[0]"},
            "join": {"model": "weigh", "from": ["left", "right", "cut"]},
        },
        "result": ["join", "right"],
    },
    "image": {"stages": {"weigh": {"select": "kind"}, "again": {"model": "weigh"}}},
    "picture": {"stages": {"weigh": {"select": "kind"}}},
    "raw_kind": {"stages": {"weigh": {}, "again": {"model": "weigh"}}},
    "through": {"stages": {"cut": {}, "narrow": {"each": "pieces[*]"}}},
    "raw": {"stages": {"cut": {}}},
    "half": {"stages": {"weigh": {}}, "max_running": 2},
    "kinds": {"stages": {"weigh": {"each": "[*]"}}},
    "few": {"stages": {"cut": {}, "weigh": PIECES}, "max_items": 3},
    "offline_end": {"stages": {"cut": {}, "weigh": {**PIECES, "priority": 9}}},
    "late": {"stages": {"cut": {}, "weigh": PIECES}, "timeout_s": 2.0},
}


NARROW = {"max_queue_depth": 2, "max_batch_size": 1}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineSite]:
    folder = tmp_path_factory.mktemp("pipelines")
    with (
        redis_server() as server,
        pipeline_site(server, folder, PIPELINES, narrow=NARROW) as running,
    ):
        running.background_worker()
        yield running
        with server.client() as client:
            nothing_leaks(client)


def weighed(count: int, size: int) -> list[dict[str, int]]:
    return [{"first": n % 256, "bytes": size} for n in range(count)]


@pytest.mark.parametrize("size", [1, 100_000], ids=["in the message", "in the store"])
def test_a_list_is_spread_over_the_next_model(site: PipelineSite, size: int) -> None:
    job_id = site.submit("pieces", {"pieces": 5, "size": size})
    assert site.result(job_id) == weighed(5, size)
    job = site.job(job_id)
    assert job["model"] == "pieces"
    stages = {stage["name"]: stage for stage in job["stages"]}
    assert [(s["status"], s["jobs"], s["done"]) for s in job["stages"]] == [
        ("succeeded", 1, 1), ("succeeded", 5, 5)
    ]  # fmt: skip
    assert stages["cut"]["timings"]["inference"] >= 0
    assert stages["weigh"]["timings"]["total"] > 0
    site.no_payloads()
    with site.server.client() as client:
        wait_until(
            lambda: list(client.scan_iter("hr:job:*")) == [f"hr:job:{job_id}".encode()],
            "its own record is all that is left",
        )
        client.delete(f"hr:job:{job_id}")


def test_an_empty_list_runs_nothing(site: PipelineSite) -> None:
    before = len(site.runs("weigh"))
    job_id = site.submit("pieces", {"pieces": 0, "size": 1})
    assert site.result(job_id) == []
    assert len(site.runs("weigh")) == before


def test_models_in_a_row(site: PipelineSite) -> None:
    assert site.result(site.submit("row", {"pieces": 2, "size": 1})) == {"given": {"given": 2}}


@pytest.mark.parametrize("size", [1, 50_000], ids=["in the message", "in the store"])
def test_branches_and_a_join(site: PipelineSite, size: int) -> None:
    given = {"pieces": 2, "size": size}
    result = site.result(site.submit("tree", given))
    assert result["right"] == {"first": 0, "bytes": size}
    joined = result["join"]["given"]
    assert list(joined) == ["left", "right", "cut"]
    assert joined["left"] == {"given": given}
    assert joined["right"] == result["right"]
    assert joined["cut"]["count"] == 2
    assert len(joined["cut"]["pieces"]) == 2
    site.no_payloads(results=1 if size > 1 else 0)
    clear(site)


def test_what_is_no_json_is_passed_on_and_given(site: PipelineSite) -> None:
    assert site.result(site.submit("image", {"kind": "image"})) == {"first": 0x89, "bytes": 100_004}
    site.no_payloads()
    kind, body = site.result(site.submit("picture", {"kind": "image"}))
    assert (kind, body[:4], len(body)) == ("image/png", b"\x89PNG", 100_004)
    site.no_payloads(results=1)
    clear(site)


def test_a_long_result_is_the_last_stages_own_payload(site: PipelineSite) -> None:
    job_id = site.submit("raw", {"pieces": 3, "size": 40_000})
    assert len(site.result(job_id)["pieces"]) == 3
    site.no_payloads(results=1)
    clear(site)


def test_a_long_input_goes_by_reference(site: PipelineSite) -> None:
    given = {"pieces": 1, "size": 1, "rest": "x" * 100_000}
    assert site.result(site.submit("pieces", given)) == weighed(1, 1)
    site.no_payloads()


def test_a_stage_that_fails_ends_its_job_and_no_other(site: PipelineSite) -> None:
    bad = site.submit("pieces", {"pieces": 20, "size": 30_000})
    good = site.submit("pieces", {"pieces": 3, "size": 30_000})
    assert site.result(good) == weighed(3, 30_000)
    job = site.ended(bad)
    assert job["status"] == "failed"
    assert job["error"]["type"] == "input-error"
    assert job["error"]["message"] == "stage weigh (14 of 20): thirteen is refused"
    assert {s["name"]: s["status"] for s in job["stages"]} == {
        "cut": "succeeded", "weigh": "failed"
    }  # fmt: skip
    site.no_payloads()


@pytest.mark.parametrize(
    ("pipeline", "value", "code", "message"),
    [
        ("pieces", {"pieces": 1}, "handler-error", "stage cut: "),
        ("row", [1], "handler-error", "stage cut: "),
        ("image", [1], "invalid-request", "stage weigh: there is no kind"),
        ("few", {"pieces": 4, "size": 1}, "payload-too-large", "stage weigh: 4 elements"),
    ],
)
def test_errors_name_their_stage(
    site: PipelineSite, pipeline: str, value: object, code: str, message: str
) -> None:
    job = site.ended(site.submit(pipeline, value))
    assert job["status"] == "failed"
    assert job["error"]["type"] == code, job["error"]
    assert job["error"]["message"].startswith(message), job["error"]


def test_its_dead_letter_stands_for_that_of_the_stage(site: PipelineSite) -> None:
    http = site.api.http
    job_id = site.submit("picture", {"kind": "transient"}, max_retries=0)
    job = site.ended(job_id)
    assert job["error"] == {
        "type": "transient-error", "message": "stage weigh: not just now", "retryable": False
    }  # fmt: skip
    assert job["dead_lettered"] is True
    letters = http.get("/api/v1/models/picture/dead-letters").json()["dead_letters"]
    assert [letter["id"] for letter in letters] == [job_id]

    def none_of_the_stage() -> bool:
        return not http.get("/api/v1/models/weigh/dead-letters").json()["dead_letters"]

    wait_until(none_of_the_stage, "the stage's own letter is gone", 30)
    # Elements that fail while their neighbour's failure is being dealt with.
    several = [site.submit("kinds", ["transient"] * 40, max_retries=0) for _ in range(10)]
    for name in several:
        assert site.ended(name)["error"]["message"].endswith(" of 40): not just now")
    wait_until(none_of_the_stage, "those of all elements are gone", 30)
    before = len(site.runs("weigh"))
    path = "/api/v1/models/picture/dead-letters/requeue"
    assert http.post(path, json={"ids": [job_id]}).status_code == 200
    wait_until(lambda: len(site.runs("weigh")) == before + 1, "all of it runs again", 60)
    assert site.ended(job_id)["status"] == "failed"
    for name in ("picture", "kinds"):
        http.post(f"/api/v1/models/{name}/dead-letters/purge", json={"all": True})


def test_a_stock_client_takes_it_for_a_task(site: PipelineSite) -> None:
    with stock_client(site.server.url) as app:
        first = ours(app, "pieces", {"pieces": 2, "size": 1})
        then = ours(app, "image")
        alone = first.apply_async()
        assert alone.get(timeout=60) == weighed(2, 1)
        # The list is the input of the next, which finds no `kind` in it.
        row = chain(ours(app, "row", {"pieces": 3, "size": 1}), ours(app, "raw_kind")).apply_async()
        assert row.get(timeout=60) == {"given": {"given": {"given": {"given": 3}}}}
        broken = chain(first, then).apply_async()
        with pytest.raises(Exception, match="there is no kind"):
            broken.get(timeout=60)


def test_what_follows_is_told_of_a_job_that_is_cancelled_while_it_waits(site: PipelineSite) -> None:
    parked = keys.parked(keys.queue_name("pieces"))
    with stock_client(site.server.url) as app, site.server.client() as client:
        first = ours(app, "pieces", {"pieces": 2, "size": 1}).set(countdown=600)
        sent = chain(first, ours(app, "image")).apply_async()
        assert isinstance(sent.parent, AsyncResult)
        waits = sent.parent.id
        wait_until(lambda: client.hexists(parked, waits), "it is put off", 60)
        assert site.api.http.delete(f"/api/v1/jobs/{waits}").json()["outcome"] == "removed"
        with pytest.raises(TaskRevokedError):
            sent.get(timeout=60)
        wait_until(
            lambda: not client.exists(keys.orphaned("headrace.pieces")), "it is done with", 60
        )


def test_a_full_queue_of_a_model_is_waited_for(site: PipelineSite) -> None:
    # `narrow` takes two jobs that wait, and the list has six.
    assert site.result(site.submit("through", {"pieces": 6, "size": 1})) == weighed(6, 1)


def test_offline_jobs_that_found_no_room_are_taken_once_there_is_some(site: PipelineSite) -> None:
    site.gate.touch()
    try:
        ids = [site.submit("half", n, priority=9) for n in range(6)]
        wait_until(lambda: site.job(ids[0])["status"] == "running", "the first runs", 60)
        assert {site.job(name)["status"] for name in ids[1:]} == {"queued"}
    finally:
        site.gate.unlink()
    # Nothing is pushed any more that would tell of them.
    assert [site.result(name) for name in ids] == [{"given": n} for n in range(6)]


def test_a_cancel_ends_what_is_under_way(site: PipelineSite) -> None:
    site.gate.touch()
    try:
        job_id = site.submit("pieces", {"pieces": 2, "size": 1})
        wait_until(lambda: site.stages(job_id).get("cut", {}).get("jobs"), "the cut has begun", 60)
        waiting = site.submit("pieces", {"pieces": 2, "size": 1}, countdown=3600)
        assert site.api.http.delete(f"/api/v1/jobs/{waiting}").json()["outcome"] == "removed"
        assert site.api.http.delete(f"/api/v1/jobs/{job_id}").json()["outcome"] == "asked"
        assert site.ended(job_id)["status"] == "cancelled"
    finally:
        site.gate.unlink()
    site.no_payloads()


def test_a_timeout_names_what_was_under_way(site: PipelineSite) -> None:
    site.gate.touch()
    try:
        job = site.ended(site.submit("late", {"pieces": 2, "size": 1}))
        assert job["error"]["type"] == "timeout"
        assert "cut" in job["error"]["message"]
    finally:
        site.gate.unlink()


def test_it_is_addressed_as_a_model_is(site: PipelineSite) -> None:
    http = site.api.http
    body = {"model": "pieces", "input": {"pieces": 1, "size": 2}}
    first = http.put("/api/v1/jobs/mine-1", json=body, params={"wait": 60})
    assert first.status_code == 200
    assert first.json()["result"] == weighed(1, 2)
    assert [stage["name"] for stage in first.json()["stages"]] == ["cut", "weigh"]
    again = http.put("/api/v1/jobs/mine-1", json=body)
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json() == first.json()
    other = http.put("/api/v1/jobs/mine-1", json={**body, "input": {"pieces": 2, "size": 2}})
    assert other.status_code == 409
    listed = http.get("/api/v1/jobs", params={"model": "pieces"}).json()["jobs"]
    assert "mine-1" in {job["id"] for job in listed}
    # Stages' jobs are no one's to list.
    everything = http.get("/api/v1/jobs", params={"limit": 1000}).json()["jobs"]
    assert {job["model"] for job in everything} <= set(PIPELINES)
    models = {one["name"]: one for one in http.get("/api/v1/models").json()["models"]}
    assert models["pieces"]["state"] == "ready"
    detail = http.get("/api/v1/models/tree").json()
    assert detail["handler"] == "pipeline"
    assert detail["stages"][-1] == {
        "name": "join", "model": "weigh", "from": ["left", "right", "cut"]
    }  # fmt: skip
    metrics = http.get("/metrics").text
    assert 'model="pieces"' in metrics
    assert http.get("/ready", params={"models": "all"}).status_code == 200
    queues = {queue["model"] for queue in http.get("/api/v1/queues").json()["queues"]}
    assert {"pieces", "cut"} <= queues


def clear(site: PipelineSite) -> None:
    """Forget the results that are kept."""
    with site.server.client() as client:
        client.delete("hr:payloads", "hr:payloads:size", *client.scan_iter("hr:payload:*"))


def test_jobs_that_wait_in_a_paused_queue_run_once_it_is_resumed(site: PipelineSite) -> None:
    queue = f"/api/v1/queues/{keys.queue_name('raw')}"
    assert site.api.http.post(f"{queue}/pause").status_code == 200
    job_id = site.submit("raw", {"pieces": 1, "size": 1})
    time.sleep(1.5)  # for the claim that finds the queue paused
    assert site.job(job_id)["status"] == "queued"
    assert site.api.http.post(f"{queue}/resume").status_code == 200
    assert site.ended(job_id, 30)["status"] == "succeeded"


def test_a_stage_runs_at_its_own_priority(site: PipelineSite) -> None:
    site.api.http.post("/api/v1/queues/headrace.weigh/pause").raise_for_status()
    try:
        job_id = site.submit("offline_end", {"pieces": 2, "size": 1}, priority=3)
        path = "/api/v1/queues"
        wait_until(
            lambda: (
                {q["name"]: q for q in site.api.http.get(path).json()["queues"]}["headrace.weigh"][
                    "depth"
                ]["9"]
                == 2
            ),
            "the second stage waits at step 9",
        )
    finally:
        site.api.http.post("/api/v1/queues/headrace.weigh/resume").raise_for_status()
    assert site.result(job_id) == weighed(2, 1)
