from __future__ import annotations

import asyncio
import contextlib

from headrace.queue.asyncio_tasks import cancel_and_wait


def test_a_cancel_that_was_lost_is_said_again() -> None:
    async def ended() -> tuple[int, bool]:
        heard = 0

        async def repeats() -> None:
            nonlocal heard
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    heard += 1
                    # The first is lost, as by `wait_for` before Python 3.12.
                    if heard == 2:
                        raise

        task = asyncio.create_task(repeats())
        await asyncio.sleep(0)
        await cancel_and_wait(task)
        return heard, task.cancelled()

    assert asyncio.run(ended()) == (2, True)


def test_one_that_comes_as_a_wait_is_over_ends_it_too() -> None:
    async def ended() -> bool:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def repeats() -> None:
            await asyncio.wait_for(answer, 30)
            await asyncio.Event().wait()

        task = asyncio.create_task(repeats())
        await asyncio.sleep(0)
        answer.set_result(None)
        await cancel_and_wait(task)
        return task.cancelled()

    assert asyncio.run(ended())


def test_what_a_task_raises_as_it_ends_is_its_own() -> None:
    async def ended() -> str:
        async def fails() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
            raise ValueError("at its end")

        done = asyncio.create_task(asyncio.sleep(0))
        task = asyncio.create_task(fails())
        await asyncio.sleep(0)
        await cancel_and_wait(task, done)
        return str(task.exception())

    assert asyncio.run(ended()) == "at its end"
