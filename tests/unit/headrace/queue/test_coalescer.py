"""The coalescer: who is asked with whom, and that nobody is left waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headrace.errors import BrokerUnavailable, HeadraceError, JobNotFound
from headrace.queue.coalescer import Coalescer


class Calls:
    """Answers each number with its double; waits before that while it is held."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.called = asyncio.Event()
        self.failure: Exception | None = None

    async def __call__(self, numbers: list[int]) -> list[int | HeadraceError]:
        self.seen.append(numbers)
        self.called.set()
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return [JobNotFound(str(n)) if n < 0 else n * 2 for n in numbers]


def run(test: Callable[[], object]) -> None:
    asyncio.run(asyncio.wait_for(test(), 10))  # type: ignore[arg-type]


def test_what_is_asked_meanwhile_leaves_together() -> None:
    async def work() -> None:
        calls = Calls()
        coalescer = Coalescer[int, int](calls, max_items=3)
        calls.gate.clear()
        first = asyncio.create_task(coalescer.add(1))
        await calls.called.wait()
        rest = [asyncio.create_task(coalescer.add(n)) for n in (2, 3, 4, 5)]
        await asyncio.sleep(0)
        calls.gate.set()
        assert await first == 2
        assert await asyncio.gather(*rest) == [4, 6, 8, 10]
        assert calls.seen == [[1], [2, 3, 4], [5]]

    run(work)


def test_calls_are_bounded_by_bytes() -> None:
    async def work() -> None:
        calls = Calls()
        coalescer = Coalescer[int, int](calls, max_items=9, max_bytes=10, size_bytes=lambda n: n)
        await asyncio.gather(*(coalescer.add(n) for n in (4, 6, 1, 50, 2)))
        assert calls.seen == [[4, 6], [1], [50], [2]]

    run(work)


def test_errors_meet_those_who_asked() -> None:
    async def work() -> None:
        calls = Calls()
        coalescer = Coalescer[int, int](calls, max_items=9)
        found = await asyncio.gather(*map(coalescer.add, (1, -2, 3)), return_exceptions=True)
        assert (found[0], found[2]) == (2, 6)
        assert isinstance(found[1], JobNotFound)
        calls.failure = ValueError("broken")
        found = await asyncio.gather(*map(coalescer.add, (1, 2)), return_exceptions=True)
        assert [str(error) for error in found] == ["broken", "broken"]
        calls.failure = None
        assert await coalescer.add(5) == 10

    run(work)


def test_whoever_gave_up_hinders_nobody() -> None:
    async def work() -> None:
        calls = Calls()
        coalescer = Coalescer[int, int](calls, max_items=9)
        calls.gate.clear()
        gone, stays = (asyncio.create_task(coalescer.add(n)) for n in (1, 2))
        await calls.called.wait()
        gone.cancel()
        calls.gate.set()
        assert await stays == 4
        assert gone.cancelled() or isinstance(gone.exception(), asyncio.CancelledError)

    run(work)


def test_nothing_is_sent_for_a_caller_that_has_gone_before() -> None:
    async def work() -> None:
        calls = Calls()
        coalescer = Coalescer[int, int](calls, max_items=9)
        calls.gate.clear()
        first = asyncio.create_task(coalescer.add(1))
        await calls.called.wait()
        gone, stays = (asyncio.create_task(coalescer.add(n)) for n in (2, 3))
        await asyncio.sleep(0)
        gone.cancel()
        calls.gate.set()
        assert list(await asyncio.gather(first, stays)) == [2, 6]
        last = asyncio.create_task(coalescer.add(4))
        await asyncio.sleep(0)
        last.cancel()
        assert await coalescer.add(5) == 10
        assert calls.seen == [[1], [3], [5]]

    run(work)


def test_a_close_leaves_nobody_waiting() -> None:
    async def work() -> None:
        calls = Calls()
        coalescer = Coalescer[int, int](calls, max_items=1)
        calls.gate.clear()
        asked = [asyncio.create_task(coalescer.add(n)) for n in (1, 2)]
        await calls.called.wait()
        await coalescer.close()
        for task in asked:
            with pytest.raises(BrokerUnavailable):
                await task
        await coalescer.close()

    run(work)
