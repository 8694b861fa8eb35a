"""The cleanup of a run: all jobs, in order; what breaks it, and what it leaves."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from headrace.client.bulk import LOOKUP_JOBS
from headrace.errors import BrokerUnavailable
from headrace.runs import threads
from headrace.runs.threads import JobCleanup


def test_all_is_forgotten_by_the_thousand() -> None:
    deleted: list[list[str]] = []
    cleanup_thread = JobCleanup(lambda ids: deleted.append(list(ids)))
    ids = [f"r.{n}" for n in range(2 * LOOKUP_JOBS + 1)]
    cleanup_thread.add(ids)
    cleanup_thread.start()
    cleanup_thread.end()
    cleanup_thread.join(60)
    assert not cleanup_thread.is_alive()
    assert [len(some) for some in deleted] == [LOOKUP_JOBS, LOOKUP_JOBS, 1]
    assert [job_id for some in deleted for job_id in some] == ids


def test_at_the_end_the_waiting_thread_deletes_too() -> None:
    both, deleted = threading.Barrier(2), []

    def forget(ids: Sequence[str]) -> None:
        both.wait(60)
        deleted.append(list(ids))

    cleanup_thread = JobCleanup(forget)
    ids = [f"r.{n}" for n in range(4 * LOOKUP_JOBS)]
    cleanup_thread.add(ids)
    cleanup_thread.start()
    cleanup_thread.finish()
    assert cleanup_thread.error is None
    assert sorted(job_id for some in deleted for job_id in some) == sorted(ids)


def test_an_interrupt_of_who_waits_at_the_end_ends_that_wait() -> None:
    def forget(ids: Sequence[str]) -> None:
        raise KeyboardInterrupt

    cleanup_thread = JobCleanup(forget)
    cleanup_thread.add(["a"])
    cleanup_thread.start()
    with pytest.raises(KeyboardInterrupt):
        cleanup_thread.finish()


def test_an_error_ends_it_and_blocks_no_thread() -> None:
    def forget(ids: Sequence[str]) -> None:
        raise BrokerUnavailable("gone")

    cleanup_thread = JobCleanup(forget)
    cleanup_thread.start()
    cleanup_thread.add(["a"])
    cleanup_thread.join(60)
    assert isinstance(cleanup_thread.error, BrokerUnavailable)
    cleanup_thread.add(str(n) for n in range(threads.BACKLOG_MAX + 1))
    cleanup_thread.add(["b"])


def test_who_gives_it_too_much_waits_until_some_is_forgotten() -> None:
    entered, allowed = threading.Event(), threading.Event()

    def forget(ids: Sequence[str]) -> None:
        entered.set()
        assert allowed.wait(60)

    cleanup_thread = JobCleanup(forget)
    cleanup_thread.start()
    cleanup_thread.add(str(n) for n in range(threads.BACKLOG_MAX + LOOKUP_JOBS))
    assert entered.wait(60)
    adding = threading.Thread(target=cleanup_thread.add, args=(["late"],), daemon=True)
    adding.start()
    assert adding.is_alive()
    allowed.set()
    adding.join(60)
    assert not adding.is_alive()
    cleanup_thread.end(drop=True)
    cleanup_thread.join(60)
    assert not cleanup_thread.is_alive()
