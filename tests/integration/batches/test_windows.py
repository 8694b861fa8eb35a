"""Batches whose completion windows end at different times, through a whole `headrace up`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clients.openai_batches import Batches, batches_at, line
from tests.harness.servers.up import ROOT, RunningUp, running_up, write_models
from tests.harness.wait import wait_until

GATED = "/api/v1/models/gated/jobs"
#: More lines than jobs in flight.
LINES = 12


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    folder = tmp_path_factory.mktemp("windows")
    handler = f"{ROOT / 'tests/harness/handlers/gated.py'}:Gated"
    models = {"gated": {"handler": handler, "max_batch_size": 1, "schedule": "tokens"}}
    with running_up(
        folder, models=write_models(folder, models), runner=True,
        HEADRACE_RUNNER_BATCHES="1", HEADRACE_BATCH_IN_FLIGHT="4",
    ) as running:  # fmt: skip
        wait_until(lambda: running.request("GET", "/ready?models=all")[0] == 200, "loaded", 90)
        yield running


@pytest.fixture
def batches(up: RunningUp) -> Iterator[Batches]:
    with batches_at(f"http://127.0.0.1:{up.port}") as found:
        yield found


def job(up: RunningUp, batch: Any, n: int) -> dict[str, Any]:
    found: dict[str, Any] = up.request("GET", f"/api/v1/jobs/{batch.id}.{n}")[1]
    return found


def test_a_batch_whose_window_ends_first_overtakes_one_that_is_executed(
    batches: Batches, up: RunningUp, tmp_path: Path
) -> None:
    gates = [tmp_path / f"gate{n}" for n in range(LINES)]
    lines = [line(str(n), "gated", {"until": str(gate)}) for n, gate in enumerate(gates)]
    long = batches.create(lines, GATED, "48h")

    def running() -> list[int]:
        return [n for n in range(LINES) if job(up, long, n).get("status") == "running"]

    wait_until(running, "one of its jobs runs", 60)
    short = batches.create([line(str(n), "gated", n) for n in range(LINES)], GATED, "24h")
    # The runner executes one batch at a time, so it has released the long one for this.
    wait_until(lambda: job(up, short, 0).get("status") == "queued", "the short one has jobs", 60)

    def ended() -> bool:
        # What the worker has taken by then runs before; each of these waits for its gate.
        for n in running():
            gates[n].touch()
        return bool(batches.client.batches.retrieve(short.id).status == "completed")

    wait_until(ended, "the short one ends", 90)
    assert len(batches.both(batches.client.batches.retrieve(short.id))[0]) == LINES
    left = [n for n in range(LINES) if not gates[n].exists()]
    assert len(left) >= LINES - 4, "no more of its jobs were in flight"
    found = batches.client.batches.retrieve(long.id)
    assert (found.status, found.completed_at) == ("in_progress", None)
    for n in left:
        gates[n].touch()
    whole = batches.ended(long)
    assert whole.status == "completed"
    good, bad = batches.both(whole)
    assert (len(good), bad) == (LINES, {})
