"""Batches whose completion windows end at different times, through a whole `headrace up`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.extensions.openai.harness.batches import Batches, line
from tests.harness.servers.up import ROOT, RunningUp, running_runner
from tests.harness.wait import wait_until

GATED = "/api/v1/models/gated/jobs"
#: All of them can be in flight.
LINES = 12


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    folder = tmp_path_factory.mktemp("windows")
    handler = f"{ROOT / 'tests/harness/handlers/gated.py'}:Gated"
    models = {
        "gated": {
            "handler": handler, "max_batch_size": 1, "schedule": "tokens",
            "options": {"log": str(folder / "runs.log")},
        }
    }  # fmt: skip
    settings = {"HEADRACE_RUNNER_BATCHES": "3", "HEADRACE_BATCH_IN_FLIGHT": str(LINES)}
    with running_runner(folder, models, **settings) as running:
        yield running


def job(up: RunningUp, batch: Any, n: int) -> dict[str, Any]:
    found: dict[str, Any] = up.request("GET", f"/api/v1/jobs/{batch.id}.{n}")[1]
    return found


def queue(up: RunningUp, *below: str) -> Any:
    status, found = up.request("POST", "/".join(["/api/v1/queues/headrace.gated", *below]))
    assert status == 200
    return found


def test_a_batch_whose_window_ends_first_overtakes_those_that_are_executed(
    batches: Batches, up: RunningUp, tmp_path: Path
) -> None:
    places = [(window, n) for window in ("48h", "49h", "50h") for n in range(LINES)]
    gates = {place: tmp_path / "-".join(map(str, place)) for place in places}
    long = {
        window: batches.create(
            [line(str(n), "gated", {"until": str(gates[window, n])}) for n in range(LINES)],
            GATED, window,
        )
        for window in ("48h", "49h", "50h")
    }  # fmt: skip

    def running() -> list[tuple[str, int]]:
        return [(w, n) for w, n in places if job(up, long[w], n).get("status") == "running"]

    wait_until(running, "one of their jobs runs", 60)
    short = batches.create([line(str(n), "gated", n) for n in range(LINES)], GATED, "24h")
    # The runner executes three batches at a time, so it has released one of them for this.

    def queued() -> bool:
        return all(job(up, short, n).get("status") == "queued" for n in range(LINES))

    wait_until(queued, "the short one has its jobs", 60)

    def ended() -> bool:
        # What the worker has taken by then runs before; each of these waits for its gate.
        for place in running():
            gates[place].touch()
        return bool(batches.client.batches.retrieve(short.id).status == "completed")

    wait_until(ended, "the short one ends", 90)
    assert len(batches.both(batches.client.batches.retrieve(short.id))[0]) == LINES
    left = [place for place in places if not gates[place].exists()]
    assert len(left) >= len(places) - 4, "no more of their jobs ran before"
    for batch in long.values():
        assert batches.client.batches.retrieve(batch.id).completed_at is None
    for place in left:
        gates[place].touch()
    for batch in long.values():
        whole = batches.ended(batch)
        good, bad = batches.both(whole)
        assert (whole.status, len(good), bad) == ("completed", LINES, {})


def test_jobs_of_three_batches_run_by_the_ends_of_their_windows(
    batches: Batches, up: RunningUp
) -> None:
    queue(up, "pause")
    windows = ("72h", "24h", "48h")
    made = {
        window: batches.create([line(str(n), "gated", n) for n in range(4)], GATED, window)
        for window in windows
    }

    def waiting() -> bool:
        _, found = up.request("GET", "/api/v1/queues")
        return bool(found["queues"][0]["depth"]["9"] == 4 * len(windows))

    wait_until(waiting, "all of their jobs wait", 60)
    queue(up, "resume")
    for batch in made.values():
        assert batches.ended(batch).status == "completed"
    ran = (up.folder / "runs.log").read_text().split("\n")
    of = {batch.id: window for window, batch in made.items()}
    order = [of[name] for text in ran if (name := text.partition(".")[0]) in of]
    assert order == ["24h"] * 4 + ["48h"] * 4 + ["72h"] * 4
