"""Background threads: their mailbox, their retries and their end."""

import select
import threading
import time
from itertools import pairwise

from workers.threads import BackgroundThreads

WAIT_S = 10.0


def results(threads: BackgroundThreads[str, str], count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        assert select.select([threads.fileno()], [], [], WAIT_S)[0], "no result"
        found += threads.take_results()
    return found


def test_results_come_through_the_pipe_and_a_task_is_tried_again_after_its_pause() -> None:
    tries: dict[str, list[float]] = {}

    def work(task: str) -> float | None:
        tries.setdefault(task, []).append(time.monotonic())
        if task == "late" and (len(tries[task]) < 3 or "soon" not in tries):
            return 0.05
        threads.deliver(task)
        return None

    threads: BackgroundThreads[str, str] = BackgroundThreads(work, "test")
    threads.submit("late")
    threads.submit("soon")
    assert results(threads, 2) == ["soon", "late"]
    pauses = [after - before for before, after in pairwise(tries["late"])]
    assert len(pauses) >= 2
    assert min(pauses) >= 0.05
    assert not select.select([threads.fileno()], [], [], 0)[0], "the pipe is empty"
    assert threads.close(WAIT_S)


def test_threads_start_when_none_is_idle_up_to_their_limit() -> None:
    begun, gate, names = threading.Semaphore(0), threading.Event(), set[str]()

    def work(task: str) -> None:
        names.add(threading.current_thread().name)
        begun.release()
        gate.wait(WAIT_S)
        threads.deliver(task)

    threads: BackgroundThreads[str, str] = BackgroundThreads(work, "test", 2)
    for task in "abc":
        threads.submit(task)
    assert begun.acquire(timeout=WAIT_S)
    assert begun.acquire(timeout=WAIT_S)
    gate.set()
    assert sorted(results(threads, 3)) == ["a", "b", "c"]
    assert names == {"test-0", "test-1"}
    assert threads.close(WAIT_S)


def test_a_blocked_thread_does_not_keep_its_owner_waiting() -> None:
    gate = threading.Event()

    def work(_: str) -> None:
        gate.wait(WAIT_S)

    threads: BackgroundThreads[str, str] = BackgroundThreads(work, "test")
    threads.submit("blocked")
    assert not threads.close(0.05)
    gate.set()
    assert threads.close(WAIT_S)


def test_a_blocked_thread_holds_up_no_task_that_is_due_again() -> None:
    gate, tried = threading.Event(), set[str]()

    def work(task: str) -> float | None:
        if task == "blocked":
            gate.wait(WAIT_S)
        elif task not in tried:
            tried.add(task)
            return 0.05
        threads.deliver(task)
        return None

    threads: BackgroundThreads[str, str] = BackgroundThreads(work, "test", 2)
    for task in ("a", "b", "blocked"):
        threads.submit(task)
    try:
        assert sorted(results(threads, 2)) == ["a", "b"]
    finally:
        gate.set()
    assert results(threads, 1) == ["blocked"]
    assert threads.close(WAIT_S)
