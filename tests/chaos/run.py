"""One run: thousands of jobs while workers, model processes, the API and Redis are killed."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from headrace.client import map as mapping
from tests.chaos import verdict
from tests.chaos.load import Load
from tests.chaos.plan import draw_jobs, draw_kills
from tests.chaos.system import Ends, running_system
from tests.harness.wait import wait_until

#: How long a share of the jobs may take from one kill to the next.
PATIENCE_S = 300.0


def run(
    folder: Path, seed: int, *, jobs: int, kills: int, hangs: int, poison: int,
    flavour: str = "valkey9", fsync: str = "always", timeout_s: float = 6.0,
) -> None:  # fmt: skip
    """Run it, and raise AssertionError where anything is not as it must be.

    Args:
        folder: where everything lies; empty.
        seed: what is drawn comes from it; printed, so that the schedule can be repeated.
        jobs: how many, of them `hangs` that hang and `poison` that take their process with them.
        kills: how many.
        fsync: its `appendfsync`. Under `everysec` what it may lose is no fault.
        timeout_s: after how long what hangs is killed; for longer no machine should stand still.
    """
    _say(f"SEED={seed} FLAVOUR={flavour} FSYNC={fsync}: {jobs} jobs, {kills} kills")
    chance = random.Random(seed)
    planned = draw_jobs(chance, jobs, hangs, poison)
    began = time.monotonic()
    with (
        running_system(folder, flavour, fsync, timeout_s) as system,
        Ends(system.server) as ends,
        _no_second_submit(fsync),
        Load(system, planned) as load,
    ):
        for kill in draw_kills(chance, kills):
            _wait(load, kill.at)
            _say(f"{time.monotonic() - began:5.1f} s, {kill.at:.1%}: {system.kill(kill)} killed")
        _wait(load, 1)
        _say(f"{time.monotonic() - began:5.1f} s: all have ended")
        verdict.check_ends(load, ends)
        verdict.check_redis(load)
        again = verdict.check_executions(load, ends, folder)
        verdict.check_processes(system)
    told = ", ".join(f"{model} {count} of {most}" for model, (count, most) in again.items())
    cancelled = sum(state == "cancelled" for state in load.states.values())
    _say(f"{time.monotonic() - began:5.1f} s: right. {cancelled} cancelled; run again: {told}")


def _wait(load: Load, share: float) -> None:
    try:
        wait_until(partial(load.reached, share), f"{share:.1%} of the jobs have ended", PATIENCE_S)
    except AssertionError:
        _say(f"without an end: {load.open_records()}")
        raise


@contextmanager
def _no_second_submit(fsync: str) -> Iterator[None]:
    """`map` submits once more what Redis has lost, which `appendfsync always` does not allow."""
    before = mapping.RESUBMITS
    if fsync == "always":
        mapping.RESUBMITS = 0  # type: ignore[misc] # put back below
    try:
        yield
    finally:
        mapping.RESUBMITS = before  # type: ignore[misc]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
