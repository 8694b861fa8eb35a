"""Answers to errors: what they let go of."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any
from weakref import ref

import pytest

from api.http.answers import COLLECT_BYTES, send_reply
from api.http.messages import Reply, Request
from api.http.problems import problem
from extensions.openai.api.errors import envelope
from extensions.torchserve.api.replies import reply_to
from headrace.errors import BrokerUnavailable, Conflict, HeadraceError
from headrace.queue.coalescer import Coalescer


class Body:
    """A body, of which a weak reference shows whether it is free."""


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def refuse(body: Body) -> None:
    """Raise an error in a frame that holds it, while another such error is handled."""
    refusal = Conflict("taken")
    try:
        earlier = BrokerUnavailable("away")
        raise earlier
    except BrokerUnavailable:
        repr(body)
        raise refusal from None


@pytest.mark.parametrize("answer", [lambda one: problem(one, "/"), envelope, reply_to])
def test_an_error_that_is_answered_holds_no_body(answer: Callable[[HeadraceError], Any]) -> None:
    body = Body()
    seen = ref(body)
    try:
        refuse(body)
    except HeadraceError as error:
        answer(error)
    del body
    assert seen() is None


def test_a_refused_call_holds_no_request() -> None:
    async def call(_: list[Body]) -> list[HeadraceError]:
        return [Conflict("taken")]

    async def ask() -> ref[Body]:
        body = Body()
        coalescer = Coalescer[Body, None](call, max_items=1)
        with pytest.raises(Conflict):
            await coalescer.add(body)
        await coalescer.close()
        return ref(body)

    assert asyncio.run(ask())() is None


def test_many_bytes_of_refused_bodies_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    collections: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda: collections.append(1))

    async def send(_: Any) -> None:
        pass

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    async def answer(status: int, size: int) -> int:
        scope = {"method": "POST", "path": "/", "query_string": b"", "headers": []}
        request = Request(scope, receive)
        request.body_bytes = size
        await send_reply(send, Reply(status, b""), request)
        return len(collections)

    async def answers() -> list[int]:
        most = COLLECT_BYTES
        return [await answer(*one) for one in ((200, most), (409, most), (409, 1), (507, most))]

    assert asyncio.run(answers()) == [0, 1, 1, 2]
