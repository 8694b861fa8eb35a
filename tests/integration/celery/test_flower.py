"""Flower on our app, over HTTP and in a browser, against a real worker."""

from __future__ import annotations

import html
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from headrace.jobs.job import State
from headrace.redis import keys
from tests.harness.clients.celery_client import GET_TIMEOUT_S, send, stock_client
from tests.harness.http.browser import browser
from tests.harness.monitoring.flower import PASSWORD, Flower, asked, running_flower
from tests.harness.servers.redis_servers import nothing_leaks, redis_server
from tests.harness.wait import wait_until
from tests.harness.workers.worker import HANDLERS, Client, celery_worker, write_models

SECRET = "the-input-itself"
NODE = "cpu0@test"
QUEUES = {"headrace.still", "headrace.gated", "headrace:control", "headrace:background"}


def lengths(flower: Flower) -> dict[str, int]:
    """What stands in each queue, as the Broker page has it."""
    queues = flower.json("/api/queues/length")["active_queues"]
    return {queue["name"]: queue["messages"] for queue in queues}


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    folder = tmp_path_factory.mktemp("flower")
    gated = {"handler": f"{HANDLERS / 'gated.py'}:Gated", "max_batch_size": 4}
    # Never loaded, so that its queue stands still.
    still = {**gated, "options": {"load": "fail"}}
    path = write_models(folder, gated=gated, still=still)
    with (
        redis_server() as server,
        running_flower(server.url, path, folder) as process,
        Client(server.url, path) as ours,
        ExitStack() as started,
    ):
        flower = Flower(process.port, server.url, folder, ours)
        # It is there before any worker, and knows the queues all the same.
        assert set(lengths(flower)) == QUEUES
        worker = started.enter_context(
            celery_worker(server.url, path, folder, node=NODE, arguments=())
        )
        worker.wait_ready("gated")
        wait_until(lambda: flower.json("/workers?json=1")["data"], "Flower sees a worker", 60)
        wait_until(lambda: "enabled by remote" in worker.log, "Flower has asked for events")
        yield flower
        nothing_leaks(ours.redis)


def page_of_the_worker(flower: Flower) -> str:
    """The page, which there is once the worker has answered what Flower has asked it."""

    def page() -> str:
        status, text = flower.ask("GET", f"/worker/{NODE}")
        return text if status == 200 else ""

    return wait_until(page, "Flower knows the worker", 60)


def test_workers(flower: Flower) -> None:
    before = flower.json("/workers?json=1")["data"][0]["processed"]
    with flower.running() as job_id:
        wait_until(
            lambda: flower.json("/workers?json=1")["data"][0]["active"] == 1,
            "it counts running jobs",
        )
    flower.ours.wait(job_id)
    wait_until(
        lambda: flower.json("/workers?json=1")["data"][0]["active"] == 0, "none runs any more"
    )
    (worker,) = flower.json("/workers?json=1")["data"]
    assert (worker["hostname"], worker["status"]) == (NODE, True)
    assert worker["processed"] - before == 1
    assert NODE in flower.read("/workers")


def test_a_workers_page(flower: Flower) -> None:
    page = page_of_the_worker(flower)
    for word in ("headrace.gated", "headrace.still", "headrace:control", "headrace.predict"):
        assert word in page

    def models() -> dict[str, dict[str, str]]:
        """What it was told; it waits a second for the answer of a worker, and no longer."""
        told: Any = flower.json(f"/api/workers?refresh=1&workername={NODE}")
        found: dict[str, dict[str, str]] = told[NODE]["stats"]["headrace"]
        return found

    assert wait_until(models, "the worker has answered", 60)["gated"]["state"] == "ready"
    assert "these weights are for another model" in models()["still"]["error"]


def test_queues_have_their_true_lengths_over_all_priorities(flower: Flower) -> None:
    ids = [
        job_id
        for priority, count in ((0, 3), (4, 2), (9, 1))
        for job_id in flower.ours.submit("still", *range(count), priority=priority)
    ]
    assert lengths(flower) == {**dict.fromkeys(QUEUES, 0), "headrace.still": 6}
    page = flower.read("/broker")
    assert "headrace.still" in page
    flower.ours.redis.delete(*keys.step_keys("headrace.still"), *map(keys.job, ids))


def test_a_job_with_name_state_arguments_and_runtime(flower: Flower) -> None:
    with stock_client(flower.redis_url) as app:
        image = b"\x89PNG" + SECRET.encode() * 100
        binary = send(app, "gated", image)
        good = send(app, "gated", {"do": "sleep", "s": 0.2})
        bad = send(app, "gated", {"do": "raise", "n": SECRET[:3]})
        assert binary.get(timeout=GET_TIMEOUT_S) == image
        good_task, binary_task = flower.wait_for("SUCCESS", good.id, binary.id)
        (bad_task,) = flower.wait_for("FAILURE", bad.id)
    assert good_task["name"] == "headrace.predict"
    assert good_task["kwargs"] == "{'model': 'gated', 'input': '<json, 25 bytes>'}"
    assert good_task["result"] == '{"do":"sleep","s":0.2}'
    assert good_task["worker"] == NODE
    assert 0.2 <= good_task["runtime"] < 100, "in seconds"
    assert good_task["received"] <= good_task["started"] < good_task["succeeded"]
    assert binary_task["kwargs"] == (
        f"{{'model': 'gated', 'input': '<bytes, {len(image)} bytes>'}}"
    )
    assert binary_task["result"] == f"<application/octet-stream, {len(image)} bytes>"
    assert bad_task["exception"] == "HandlerError('ValueError: cannot do the')"
    assert "raise ValueError" in bad_task["traceback"]
    page = flower.read(f"/task/{binary.id}")
    assert "application/octet-stream" in page
    everything = flower.read("/api/tasks") + page + flower.read("/tasks")
    assert SECRET not in everything


def test_a_running_job_is_started(flower: Flower) -> None:
    with flower.running() as job_id:
        flower.wait_for("STARTED", job_id)
    flower.wait_for("SUCCESS", job_id)


@pytest.mark.parametrize("query", ["?terminate=true", "?terminate=false", ""])
def test_terminate_and_revoke_cancel(flower: Flower, query: str) -> None:
    with flower.running() as job_id:
        flower.wait_for("STARTED", job_id)
        flower.json(f"/api/task/revoke/{job_id}{query}", {})
        wait_until(lambda: flower.ours.job(job_id).cancel_requested, "the worker has heard of it")
    (job,) = flower.ours.wait(job_id)
    assert job.state is State.CANCELLED
    flower.wait_for("REVOKED", job_id)


def test_revoke_cancels_a_job_that_waits_and_that_flower_does_not_know(flower: Flower) -> None:
    (waiting,) = flower.ours.submit("still", 1)
    assert flower.task(waiting) == {}
    flower.json(f"/api/task/revoke/{waiting}", {})
    (job,) = flower.ours.wait(waiting)
    assert job.state is State.CANCELLED
    flower.ours.redis.delete("headrace.still")  # where its message stands until it comes up


#: Each button that can do nothing here: its address, what the page sends, and what it is told.
REFUSALS = [
    ("worker/pool/grow/{node}", "n=2", "`replicas` in the models file"),
    ("worker/pool/shrink/{node}", "n=1", "`replicas` in the models file"),
    ("worker/pool/autoscale/{node}", "min=1&max=3", "`replicas` in the models file"),
    ("worker/pool/restart/{node}", "", "restart the worker"),
    ("worker/queue/add-consumer/{node}", "queue=headrace.gated", "is a model&#x27;s queue"),
    ("worker/queue/add-consumer/{node}", "queue=celery", "a Celery worker of your own"),
    ("worker/queue/cancel-consumer/{node}", "queue=headrace.gated", "is a model&#x27;s queue"),
    ("task/rate-limit/headrace.predict", "workername={node}&ratelimit=5", "rate of an API key"),
    ("task/timeout/headrace.predict", "workername={node}&hard=5", "`timeout_s` in the models file"),
    ("task/timeout/headrace.predict", "workername={node}&soft=5", "there is no soft limit"),
    ("task/abort/some-id", "", "/api/task/revoke/some-id"),
]


@pytest.mark.parametrize(("path", "sent", "told"), REFUSALS)
def test_a_button_that_can_do_nothing_says_what_to_do(
    flower: Flower, path: str, sent: str, told: str
) -> None:
    page_of_the_worker(flower)  # from then on it knows the worker
    body = sent.format(node=NODE).encode()

    def said() -> str:
        """The answer that says it: to one of a worker that is not there within a second, none."""
        status, text = flower.ask("POST", f"/api/{path.format(node=NODE)}", body)
        assert status == 403
        if told.replace("&#x27;", "'") not in html.unescape(text):
            raise ValueError(text)
        return text

    text = wait_until(said, told, 60)
    # The page shows the text of this answer as that of an HTML element.
    assert text.startswith("<p>") == path.startswith("task/timeout")


def test_its_api_sends_jobs_to_the_queue_of_their_model(flower: Flower) -> None:
    arguments = {"kwargs": {"model": "gated", "input": {"x": 1}}}
    answer = flower.json(f"/api/task/apply/{keys.TASK_NAME}", {**arguments, "timeout": 60})
    assert (answer["state"], answer["result"]) == ("SUCCESS", {"x": 1})
    assert flower.json(f"/api/task/result/{answer['task-id']}")["result"] == {"x": 1}
    sent = flower.json(f"/api/task/async-apply/{keys.TASK_NAME}", {"args": ["gated", 2]})
    flower.ours.wait(sent["task-id"])


def test_without_the_password_only_health_and_metrics_answer(flower: Flower) -> None:
    for path in ("/", "/workers", f"/worker/{NODE}", "/tasks", "/broker", "/api/workers"):
        assert asked(flower.port, "GET", path)[0] == 401, path
        assert asked(flower.port, "GET", path, password="me:wrong")[0] == 401, path
    assert asked(flower.port, "POST", f"/api/worker/shutdown/{NODE}", b"")[0] == 401
    assert asked(flower.port, "GET", "/healthcheck") == (200, "OK")
    assert asked(flower.port, "GET", "/metrics")[0] == 200
    other = {"Origin": "http://evil.example"}
    path = f"/api/worker/pool/grow/{NODE}"
    assert asked(flower.port, "POST", path, b"", password=PASSWORD, **other)[0] == 403


def test_the_buttons_of_its_pages_say_what_was_done(flower: Flower) -> None:
    user, _, password = PASSWORD.partition(":")
    with browser() as running, flower.running() as job_id:
        flower.wait_for("STARTED", job_id)
        page_of_the_worker(flower)
        page = running.new_page(http_credentials={"username": user, "password": password})
        page.goto(f"http://127.0.0.1:{flower.port}/worker/{NODE}")

        def told(button: str) -> str:
            page.click(button)
            toast = page.locator("#toast-container .toast-body").last
            toast.wait_for()
            text = toast.text_content() or ""
            page.evaluate("document.querySelector('#toast-container').replaceChildren()")
            return text

        def says(button: str, text: str) -> None:
            """Press until it does: a worker that does not answer within a second has no words."""
            wait_until(lambda: text in told(button), text, 60)

        says("#worker-pool-grow", "`replicas` in the models file")
        page.click("#worker-tab-limits")
        page.fill("#limits-table td:nth-child(3) input", "5")
        says("[id^=task-timeout-hard]", "`timeout_s` in the models file")
        page.goto(f"http://127.0.0.1:{flower.port}/tasks")
        page.click("[data-task-state=STARTED]")
        row = page.locator("#tasks-table tbody tr", has_text=job_id)
        row.wait_for()
        assert "'model': 'gated'" in row.inner_text()
        row.locator("a", has_text=job_id).click()
        # Its script gives the button a meaning before the page counts as loaded.
        page.wait_for_url(f"**/task/{job_id}", timeout=60_000)
        says("#task-terminate", "Revoked")
        wait_until(lambda: flower.ours.job(job_id).cancel_requested, "the worker has heard of it")
    flower.wait_for("REVOKED", job_id)


def test_metrics_name_the_worker_and_the_task(flower: Flower) -> None:
    flower.ours.wait(*flower.ours.submit("gated", 1))
    wait_until(lambda: "task-succeeded" in flower.read("/metrics"), "Flower counts it")
    text = flower.read("/metrics")
    wanted = f'flower_events_total{{task="{keys.TASK_NAME}",type="task-succeeded",worker="{NODE}"}}'
    assert wanted in text
