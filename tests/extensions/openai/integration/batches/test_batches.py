"""Batches through a whole `headrace up`, with OpenAI's own SDK: rows, cancel, expiry, reruns."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.extensions.openai.harness.batches import Batches, job_line, line
from tests.harness.processes.processes import suspend
from tests.harness.servers.up import ROOT, RunningUp, running_runner
from tests.harness.wait import wait_until

HANDLERS = ROOT / "tests/harness/handlers"
ECHO = "/api/v1/models/echo/jobs"
GATED = "/api/v1/models/gated/jobs"
JOBS = "/api/v1/jobs"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    folder = tmp_path_factory.mktemp("batches")
    models: dict[str, dict[str, Any]] = {
        "echo": {"handler": "echo", "version": "2.0"},
        "gated": {
            "handler": f"{HANDLERS / 'gated.py'}:Gated",
            "max_batch_size": 1,
            "max_retries": 0,
        },
    }
    with running_runner(folder, models, HEADRACE_INLINE_LIMIT_BYTES="1000") as running:
        yield running


def test_a_batch_comes_back_line_by_line(batches: Batches, up: RunningUp) -> None:
    long = {"text": "x" * 5000}
    image = {"content_type": "image/png", "base64": "iVBORw0KGgo="}
    bodies = [1, None, "text", [1.5, {}], long, image, {"n": 2**60}]
    lines = [line(f"id {n}", "echo", body) for n, body in enumerate(bodies)]
    made = batches.create(
        lines, ECHO, metadata={"night": "7"},
        output_expires_after={"anchor": "created_at", "seconds": 7200},
    )  # fmt: skip
    assert (made.status, made.endpoint, made.model) == ("validating", ECHO, "echo")
    assert made.expires_at == made.created_at + 86_400
    batch = batches.ended(made)
    assert (batch.status, batch.metadata, batch.errors) == ("completed", {"night": "7"}, None)
    moments = (batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    assert sorted(moments) == list(moments)
    good, bad = batches.both(batch)
    assert bad == {}
    results = [good[f"id {n}"]["response"]["body"]["result"] for n in range(len(bodies))]
    # What is bytes comes back as bytes.
    assert results.pop(5)["base64"] == bodies.pop(5)["base64"]  # type: ignore[index,call-overload]
    assert results == bodies
    row = good["id 0"]
    job_id = f"{batch.id}.0"
    assert row["id"].startswith("batch_req_")
    assert row["error"] is None
    assert (row["response"]["status_code"], row["response"]["request_id"]) == (200, job_id)
    body = row["response"]["body"]
    assert (body["id"], body["model"], body["status"], body["attempts"]) == (
        job_id, "echo", "succeeded", 1,
    )  # fmt: skip
    assert body["timings"]["total"] > 0
    output = batches.client.files.retrieve(batch.output_file_id)
    assert (output.purpose, output.expires_at) == ("batch_output", output.created_at + 7200)
    assert output.filename == f"{batch.id}_output.jsonl"


def test_each_line_may_have_its_own_model_and_options(batches: Batches, up: RunningUp) -> None:
    lines = [
        job_line("a", model="echo", input=1, version="2.0"),
        job_line("b", model="gated", input=2, options={"priority": 3, "metadata": {"k": 1}}),
        job_line("c", model="gated", input={"do": "raise", "n": 3}),
        job_line("d", model="gated", input={"do": "transient"}),
    ]
    batch = batches.ended(batches.create(lines, JOBS))
    assert (batch.status, batch.model) == ("completed", None)
    good, bad = batches.both(batch)
    assert sorted(good) == ["a", "b"]
    assert good["b"]["response"]["body"]["model"] == "gated"
    assert bad["c"]["response"]["status_code"] == 500
    assert bad["c"]["error"] == {
        "code": "handler-error", "message": bad["c"]["response"]["body"]["error"]["message"],
    }  # fmt: skip
    assert "cannot do 3" in bad["c"]["error"]["message"]
    assert bad["d"]["response"]["status_code"] == 503
    assert bad["d"]["response"]["body"]["error"]["retryable"] is True


def test_lines_are_offline_unless_they_say_otherwise(
    batches: Batches, up: RunningUp, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    held = {"until": str(gate)}
    lines = [line(str(n), "gated", held) for n in range(3)]
    lines += [line("soon", "gated", held, "?priority=3&timeout=50")]
    batch = batches.create(lines, GATED)

    def depths() -> Any:
        _, found = up.request("GET", "/api/v1/queues")
        (queue,) = (one for one in found["queues"] if one["model"] == "gated")
        return queue["depth"]

    try:
        wait_until(lambda: sum(depths().values()) >= 2, "the jobs wait", 30)
        assert depths()["0"] == depths()["6"] == 0
        assert depths()["9"] >= 1
    finally:
        gate.touch()
    assert batches.ended(batch).status == "completed"


def test_errors_of_a_file_name_its_lines(batches: Batches) -> None:
    text = b"\xef\xbb\xbf" + b"\n".join([
        json.dumps(line("a", "echo", 1)).encode() + b"\r",
        b"nope",
        b"",
        json.dumps(line("a", "echo", 2)).encode(),
        json.dumps(line("b", "gated", 2)).encode(),
        json.dumps({**line("c", "echo", 2), "method": "GET"}).encode(),
    ])  # fmt: skip
    batch = batches.ended(batches.create(text + b"\n\n", ECHO))
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert batch.in_progress_at is None
    assert batch.errors.object == "list"
    assert [(error.line, error.code, error.param) for error in batch.errors.data] == [
        (2, "invalid_json_line", None),
        (4, "duplicate_custom_id", "custom_id"),
        (5, "mismatched_url", "url"),
        (6, "invalid_method", "method"),
    ]
    assert batch.output_file_id is None
    empty = batches.ended(batches.create(b"\n \n", ECHO))
    assert (empty.status, empty.errors.data[0].code) == ("failed", "empty_file")


def half_done(batches: Batches, up: RunningUp, gate: Path, window: str) -> Any:
    """A batch of which some lines have ended, one runs until the gate opens, and the rest waits.

    Return None if its window ended before, as after a pause of the machine.
    """
    lines = [line(f"quick{n}", "gated", n) for n in range(5)]
    lines += [line("runs", "gated", {"until": str(gate)})]
    lines += [line(f"waits{n}", "gated", {"do": "raise", "n": n}) for n in range(20)]
    batch = batches.create(lines, GATED, window)
    job_id = f"{batch.id}.5"

    def runs() -> bool:
        _, job = up.request("GET", f"/api/v1/jobs/{job_id}")
        return bool(job.get("status") == "running" or time.time() >= batch.expires_at)

    wait_until(runs, "the line in the midst runs", 60)
    _, job = up.request("GET", f"/api/v1/jobs/{job_id}")
    return batch if job.get("status") == "running" else None


def not_run(rows: dict[str, Any], code: str) -> list[str]:
    found = [name for name, row in rows.items() if row["error"]["code"] == code]
    assert all(rows[name]["response"] is None for name in found)
    return sorted(found)


WAITING = sorted(f"waits{n}" for n in range(20))


def is_cancelled(up: RunningUp, job_id: str) -> None:
    """Wait until a job of what waits was cancelled."""

    def look() -> bool:
        return bool(up.request("GET", f"/api/v1/jobs/{job_id}")[1].get("status") == "cancelled")

    wait_until(look, "what waits is cancelled", 60)


def test_cancel_keeps_what_has_ended_and_the_rest_runs_again_alone(
    batches: Batches, up: RunningUp, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    made = half_done(batches, up, gate, "24h")
    with pytest.raises(openai.BadRequestError, match="has not ended"):
        batches.client.batches.create(
            input_file_id=made.input_file_id, endpoint=GATED, completion_window="24h",
            extra_body={"rerun_of": made.id},
        )  # fmt: skip
    cancelling = batches.client.batches.cancel(made.id)
    assert (cancelling.status, cancelling.cancelling_at is not None) == ("cancelling", True)
    assert batches.client.batches.cancel(made.id).status == "cancelling"
    is_cancelled(up, f"{made.id}.6")
    gate.touch()
    batch = batches.ended(made)
    assert (batch.status, batch.cancelled_at is not None) == ("cancelled", True)
    good, bad = batches.both(batch)
    assert {f"quick{n}" for n in range(5)} <= set(good)
    # The running job may or may not notice the cancel.
    assert set(not_run(bad, "batch_cancelled")) >= set(WAITING)
    with pytest.raises(openai.BadRequestError, match="it is cancelled"):
        batches.client.batches.cancel(made.id)

    again = batches.client.batches.create(
        input_file_id=batch.input_file_id, endpoint=GATED, completion_window="1h",
        extra_body={"rerun_of": batch.id},
    )  # fmt: skip
    second = batches.ended(again)
    assert second.rerun_of == batch.id
    good_again, bad_again = batches.both(second)
    assert {*good_again, *bad_again} == set(bad)
    assert {row["error"]["code"] for row in bad_again.values()} == {"handler-error"}

    # Over HTTP nothing but the batch has to be named; of a rerun again only what failed.
    status, third = up.request(
        "POST", "/v1/batches", json.dumps({"rerun_of": second.id}).encode(),
        **{"Content-Type": "application/json"},
    )  # fmt: skip
    assert (status, third["input_file_id"], third["endpoint"]) == (200, made.input_file_id, GATED)
    ended = batches.ended(batches.client.batches.retrieve(third["id"]))
    assert sorted(batches.both(ended)[1]) == WAITING


@pytest.mark.slow
def test_a_batch_whose_window_is_over_gives_what_it_has(
    batches: Batches, up: RunningUp, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    for window_s in (8, 60):
        made = half_done(batches, up, gate, f"{window_s}s")
        if made is not None:
            break
    assert made.expires_at == made.created_at + window_s
    _, shown = up.request("GET", f"/v1/batches/{made.id}")
    assert shown["status"] == "in_progress" or time.time() >= made.expires_at
    # It waits for the one that runs, and for no other.
    is_cancelled(up, f"{made.id}.6")
    gate.touch()
    batch = batches.ended(made)
    assert batch.status == "expired"
    assert batch.expired_at >= batch.expires_at
    good, bad = batches.both(batch)
    assert {f"quick{n}" for n in range(5)} <= set(good)
    assert set(not_run(bad, "batch_expired")) >= set(WAITING)


def test_nothing_runs_of_a_batch_whose_window_was_over_before_a_runner_came(
    batches: Batches, up: RunningUp
) -> None:
    runner = up.record()["pids"]["runner"]
    suspend(runner)
    try:
        made = batches.create([line(f"late{n}", "echo", n) for n in range(3)], ECHO, "1s")
        wait_until(lambda: time.time() > made.expires_at + 1, "the window is over")
    finally:
        os.kill(runner, signal.SIGCONT)
    batch = batches.ended(made)
    assert batch.status == "expired"
    good, bad = batches.both(batch)
    assert good == {}
    assert not_run(bad, "batch_expired") == ["late0", "late1", "late2"]


def test_another_runner_goes_on_at_once_where_the_supervisor_sees_one_die(
    batches: Batches, up: RunningUp, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    made = half_done(batches, up, gate, "24h")
    os.kill(up.record()["pids"]["runner"], signal.SIGKILL)
    up.wait_for("released 1 batches of runner-")
    gate.touch()
    assert batches.ended(made).status == "completed"


def test_lists_and_the_async_sdk(batches: Batches, up: RunningUp) -> None:
    ids = [batches.create([line("a", "echo", n)], ECHO).id for n in range(3)]

    async def listed() -> list[str]:
        url = f"http://127.0.0.1:{up.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            found = [batch.id async for batch in client.batches.list(limit=2)]
            batch = await client.batches.retrieve(ids[0])
            assert batch.id == ids[0]
            return found

    assert asyncio.run(listed())[:3] == ids[::-1]
    for batch_id in ids:
        batches.ended(batches.client.batches.retrieve(batch_id))
