"""Forgetting beside a run: all of it, in order; what breaks it, and what it leaves."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from headrace.client.bulk import LOOKUP_JOBS
from headrace.errors import BrokerUnavailable
from headrace.runs.engine import cleanup
from headrace.runs.engine.cleanup import JobCleanup


def test_all_is_forgotten_by_the_thousand() -> None:
    asked: list[list[str]] = []
    forgetter = JobCleanup(lambda ids: asked.append(list(ids)))
    ids = [f"r.{n}" for n in range(2 * LOOKUP_JOBS + 1)]
    forgetter.add(ids)
    forgetter.start()
    forgetter.end()
    forgetter.join(60)
    assert not forgetter.is_alive()
    assert [len(some) for some in asked] == [LOOKUP_JOBS, LOOKUP_JOBS, 1]
    assert [job_id for some in asked for job_id in some] == ids


def test_at_the_end_whoever_waits_for_it_forgets_too() -> None:
    both, asked = threading.Barrier(2), []

    def forget(ids: Sequence[str]) -> None:
        both.wait(60)
        asked.append(list(ids))

    forgetter = JobCleanup(forget)
    ids = [f"r.{n}" for n in range(4 * LOOKUP_JOBS)]
    forgetter.add(ids)
    forgetter.start()
    forgetter.finish()
    assert forgetter.error is None
    assert sorted(job_id for some in asked for job_id in some) == sorted(ids)


def test_an_interrupt_of_who_waits_at_the_end_ends_that_wait() -> None:
    def forget(ids: Sequence[str]) -> None:
        raise KeyboardInterrupt

    forgetter = JobCleanup(forget)
    forgetter.add(["a"])
    forgetter.start()
    with pytest.raises(KeyboardInterrupt):
        forgetter.finish()


def test_an_error_ends_it_and_holds_nobody_up() -> None:
    def forget(ids: Sequence[str]) -> None:
        raise BrokerUnavailable("gone")

    forgetter = JobCleanup(forget)
    forgetter.start()
    forgetter.add(["a"])
    forgetter.join(60)
    assert isinstance(forgetter.error, BrokerUnavailable)
    forgetter.add(str(n) for n in range(cleanup.BACKLOG_MAX + 1))
    forgetter.add(["b"])


def test_who_gives_it_too_much_waits_until_some_is_forgotten() -> None:
    entered, allowed = threading.Event(), threading.Event()

    def forget(ids: Sequence[str]) -> None:
        entered.set()
        assert allowed.wait(60)

    forgetter = JobCleanup(forget)
    forgetter.start()
    forgetter.add(str(n) for n in range(cleanup.BACKLOG_MAX + LOOKUP_JOBS))
    assert entered.wait(60)
    adding = threading.Thread(target=forgetter.add, args=(["late"],), daemon=True)
    adding.start()
    assert adding.is_alive()
    allowed.set()
    adding.join(60)
    assert not adding.is_alive()
    forgetter.end(drop=True)
    forgetter.join(60)
    assert not forgetter.is_alive()
