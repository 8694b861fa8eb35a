"""How a hang-up is noticed."""

from __future__ import annotations

import asyncio

from api.http.messages import HangUp, Message


class Client:
    """Sends the rest of a body, and hangs up when the test says so."""

    def __init__(self) -> None:
        self.leaves = asyncio.Event()
        self._rest: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive(self) -> Message:
        if self._rest:
            return self._rest.pop()
        await self.leaves.wait()
        return {"type": "http.disconnect"}


def test_all_waits_of_a_request_notice_that_its_client_is_gone() -> None:
    async def run() -> None:
        client, called = Client(), asyncio.Event()
        with HangUp(client.receive, called.set) as hang_up:
            waits = [asyncio.create_task(hang_up.receive()) for _ in range(2)]
            await asyncio.sleep(0)
            assert not any(wait.done() for wait in waits)
            client.leaves.set()
            await called.wait()
            assert hang_up.gone
            assert {(await wait)["type"] for wait in waits} == {"http.disconnect"}

    asyncio.run(run())


def test_waits_can_end_although_the_client_is_there() -> None:
    async def run() -> None:
        client = Client()
        with HangUp(client.receive) as hang_up:
            hang_up.end_waits()
            await hang_up.receive()
            assert not hang_up.gone
        client.leaves.set()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not hang_up.gone, "nothing watches any more"

    asyncio.run(run())
