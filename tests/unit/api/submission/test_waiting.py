"""How long a request waits."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from api.http.messages import Message, Receive
from api.submission.waiting import (
    WATCH_AFTER_S,
    PendingWait,
    PendingWaits,
    preferred_wait_s,
    query_wait_s,
)
from headrace.errors import InvalidRequest
from headrace.queue.following.waiters import JobWaiter


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        (b"wait=5", 5),
        (b"WAIT=5", 5),
        (b'wait="5"', 5),
        (b" respond-async , wait = 7 ", 7),
        (b"return=minimal; x=1, wait=7; y=2", 7),
        (b"wait=100", 60),
        (b"wait=0", 0),
        (b"", None),
        (b"wait", None),
        (b"wait=", None),
        (b"wait=-1", None),
        (b"wait=1.5", None),
        (b"wait=soon", None),
        (b"await=5", None),
        (b"wait=99999999999", None),
    ],
)
def test_an_invalid_preference_is_ignored(prefer: bytes, seconds: float | None) -> None:
    assert preferred_wait_s(prefer, 60) == seconds


def test_a_wait_that_is_asked_for_must_be_a_number() -> None:
    assert query_wait_s(None, 60) is None
    assert query_wait_s("0.5", 60) == 0.5
    assert query_wait_s("61", 60) == 60
    for wrong in ("", "x", "-1", "nan", "inf"):
        with pytest.raises(InvalidRequest, match="wait"):
            query_wait_s(wrong, 60)


def test_each_pending_has_its_own_end_and_one_that_is_over_is_forgotten() -> None:
    async def silent() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def hangs_up() -> Message:
        return {"type": "http.disconnect"}

    async def work() -> None:
        loop = asyncio.get_running_loop()
        waits = PendingWaits()

        async def wait(seconds: float, receive: Receive) -> tuple[bool, bool, float]:
            began = loop.time()
            awaited = JobWaiter("a")
            with PendingWait(waits, awaited, seconds, receive) as pending:
                assert await awaited.woken() is None
                return pending.late, pending.gone, loop.time() - began

        async def later(seconds: float, receive: Receive) -> tuple[bool, bool, float]:
            await asyncio.sleep(0.1)
            return await wait(seconds, receive)

        with PendingWait(waits, JobWaiter("b"), 30, hangs_up) as over:
            pass
        found = await asyncio.gather(
            wait(0.05, hangs_up), wait(WATCH_AFTER_S + 0.05, silent), wait(30, hangs_up),
            later(30, hangs_up), later(WATCH_AFTER_S + 0.05, silent),
        )  # fmt: skip
        ends = [(late, gone) for late, gone, _ in found]
        assert ends == [(True, False), (True, False), (False, True), (False, True), (True, False)]
        least = (0.05, WATCH_AFTER_S + 0.05, WATCH_AFTER_S, WATCH_AFTER_S, WATCH_AFTER_S + 0.05)
        for (_, _, took), at_least in zip(found, least, strict=True):
            assert took >= at_least - 0.003
        assert not over.gone
        assert not waits._recent
        # The clock goes on once none is left.
        assert (await wait(30, hangs_up))[1]

    uvloop.run(asyncio.wait_for(work(), 60))
