"""A call of gRPC as the client of an endpoint: it hangs up, and gets whole bodies only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import grpc
import pytest

from api.http.forms import read_parts
from api.http.messages import ClientGone, Reply, Request, ResponseCutShort, StreamingReply, Write
from extensions.torchserve.grpc.requests import Asked, Caller, failure_of, form_of
from headrace.access import api_key


class Surface:
    """One endpoint."""

    def __init__(self, endpoint: Callable[[Request], Awaitable[Any]]) -> None:
        self.endpoint = endpoint
        self.checked: list[str] = []

    async def answer(self, request: Request, *_: Any, checked: str) -> Any:
        self.checked.append(checked)
        return await self.endpoint(request)


class Context:
    def invocation_metadata(self) -> Any:
        return (("te", "trailers"), ("content-type", "application/grpc"), ("x-mine", "1"))


def caller(endpoint: Callable[[Request], Awaitable[Any]]) -> Caller:
    surface: Any = Surface(endpoint)
    return Caller(surface, api_key.EVERYBODY, Context(), "")


ASKED = Asked("inference", "POST", ("", "predictions", "m"), {"a": "1 2"}, b"body", {"X-Own": "2"})


def test_the_endpoint_gets_a_request_of_http() -> None:
    async def endpoint(request: Request) -> Reply:
        headers = {name: value for name, value in request.headers if name != b"content-length"}
        assert headers == {b"x-mine": b"1", b"x-own": b"2"}
        assert (request.method, request.query_string) == ("POST", b"a=1+2")
        assert (await request.receive())["body"] == b"body"
        return Reply(200, b"found")

    answer: Any = asyncio.run(caller(endpoint).answer(ASKED))
    assert answer.body == b"found"


def test_only_the_first_request_was_checked_with_the_call() -> None:
    key = api_key.Caller("k", sees_all=False)

    async def endpoint(request: Request) -> Reply:
        assert request.caller is key
        return Reply(200, b"")

    async def both(surface: Any) -> None:
        one_call = Caller(surface, key, Context(), "inference")
        await one_call.answer(ASKED)
        await one_call.answer(ASKED)

    surface = Surface(endpoint)
    asyncio.run(both(surface))
    assert surface.checked == ["inference", ""]


def test_a_cancelled_call_hangs_up() -> None:
    async def run() -> list[str]:
        done, begun = asyncio.Queue[str](), asyncio.Event()

        async def endpoint(request: Request) -> Reply:
            await request.receive()
            begun.set()
            await done.put((await request.receive())["type"])
            raise ClientGone

        call = asyncio.create_task(caller(endpoint).answer(ASKED))
        await begun.wait()
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        return [await done.get()]

    assert asyncio.run(run()) == ["http.disconnect"]


def test_a_stream_that_is_left_hangs_up() -> None:
    async def run() -> bool:
        gone = asyncio.Event()

        async def body(write: Write) -> None:
            try:
                while True:
                    await write(b"piece")
            except ClientGone:
                gone.set()
                raise

        calls = caller(lambda _: asyncio.sleep(0))
        async with aclosing(calls.pieces_of(StreamingReply(200, body, b""))) as pieces:
            async for piece in pieces:
                assert piece == b"piece"
                break
        return await gone.wait()

    assert asyncio.run(run())


def test_a_body_that_is_cut_is_no_answer() -> None:
    async def body(write: Write) -> None:
        await write(b"piece")
        raise ResponseCutShort

    async def run() -> list[bytes]:
        calls = caller(lambda _: asyncio.sleep(0))
        return [one async for one in calls.pieces_of(StreamingReply(200, body, b""))]

    with pytest.raises(ResponseCutShort):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("status", "name", "predicts", "code"),
    [
        (404, "ModelNotFoundException", False, grpc.StatusCode.NOT_FOUND),
        (404, "ModelNotFoundException", True, grpc.StatusCode.INTERNAL),
        (400, "BadRequestException", True, grpc.StatusCode.INVALID_ARGUMENT),
        (400, "InvalidKeyException", False, grpc.StatusCode.PERMISSION_DENIED),
        (405, "MethodNotAllowedException", False, grpc.StatusCode.PERMISSION_DENIED),
        (422, "Other", True, grpc.StatusCode.FAILED_PRECONDITION),
        (507, "InternalServerException", True, grpc.StatusCode.INTERNAL),
    ],
)
def test_a_failure_has_the_code_of_torchserve(
    status: int, name: str, predicts: bool, code: Any
) -> None:
    body = b'{"code": %d, "type": "%b", "message": "why"}' % (status, name.encode())
    assert failure_of(Reply(status, body), predicts=predicts) == (code, f"why\n{name}")


def test_fields_are_a_form_that_is_read_again() -> None:
    fields = {"data": b"\r\n--\0\xff", "": b"", 'a"b': b"1"}
    body, kind = form_of(fields)
    found = {part.name: part.body for part in read_parts(body, kind)}
    assert found["data"] == fields["data"]
    assert len(found) == 3
