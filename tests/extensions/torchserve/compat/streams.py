"""Replies in pieces: what each server sends, chunk by chunk."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from tests.extensions.torchserve.compat.cases.table import JSON, predict
from tests.extensions.torchserve.compat.compare import registered
from tests.extensions.torchserve.compat.servers import Answer, Ask, Server
from tests.harness.http.chunks import ChunkReader, asking
from tests.harness.wait import wait_until

MODELS: Final = ("pieces", "stepped")


def _asked(model: str, *, differs: str = "", **request: Any) -> Ask:
    headers = {**JSON, "x-own": "1"}
    return predict(model, json.dumps(request).encode(), headers=headers, differs=differs)


def _pieces(*pieces: Any, differs: str = "", **request: Any) -> Ask:
    return _asked("pieces", differs=differs, pieces=pieces, **request)


ASKS: Final = (
    _pieces("a", "b", "c"),
    _pieces("alone"),
    _pieces({"a": [1]}, "bytes", 7, None, "é"),
    _pieces("a", "", "c"),
    _pieces("", "b"),
    _pieces("a", ""),
    _pieces("a", "b", headers={"content-type": "text/plain", "x-made": "1"}),
    _pieces("a", "b", status=201),
    _pieces("a", "b", status=404, differs="error-in-pieces"),
    _pieces("a", "raise", "c"),
    _pieces("raise", "b"),
    _asked("stepped", steps=3),
    _asked("stepped", steps=3, raises=1),
    _asked("stepped", steps=3, raises=2),
    replace(_asked("stepped", steps=1, differs="one-step"), unanswered_s=3),
)


class Streamed(NamedTuple):
    """An answer, its chunks, and whether its end has come."""

    answer: Answer
    chunks: list[bytes]
    whole: bool


def streamed(server: Server) -> list[Streamed]:
    """What a server answers to each request."""
    with registered(server, MODELS):
        return [_streamed(server, ask) for ask in ASKS]


def _streamed(server: Server, ask: Ask) -> Streamed:
    with asking(f"{server.url()}{ask.path}", ask.body, ask.method, ask.headers) as reader:
        if server.real and ask.unanswered_s:
            with suppress(AssertionError):
                wait_until(lambda: reader.over, "it has no answer", ask.unanswered_s)
        else:
            reader.wait_over()
        return _read(reader)


def _read(reader: ChunkReader) -> Streamed:
    chunks = list(reader.chunks)
    answer = Answer(reader.status, tuple(reader.headers.items()), b"".join(chunks))
    return Streamed(answer, chunks, reader.whole)


#: The requests of a session whose answers are compared, in their order; its stream comes last.
SESSION: Final = tuple(
    predict("session", number, headers={"ts_request_sequence_id": sequence, **more}, until=200)
    for sequence, number, more in (
        ("a", b"2", {"ts_request_sequence_start": "true"}),
        ("a", b"4", {}),
        ("a", b"-1", {}),
        ("a", b"0", {}),
        ("b", b"2", {}),
        ("a", b"3", {}),
    )
)


def session(server: Server) -> list[Streamed]:
    """What a server answers to a session that stops its stream, and to the one after its end.

    The pieces of the stream are one here: their number is a matter of time.
    """
    first, second, stop, end, other, streaming = SESSION
    with registered(server, ["session"]):
        found = [_alone(server, first), _alone(server, second)]
        url = f"{server.url()}{streaming.path}"
        with asking(url, streaming.body, headers=streaming.headers) as reader:
            reader.wait_for(2)
            found.append(_alone(server, stop))
            read = _read(reader.wait_over())
        found += [_alone(server, end), _alone(server, other)]
        (piece,) = set(read.chunks)
        answer = Answer(read.answer.status, read.answer.headers, piece)
        return [*found, Streamed(answer, [piece], read.whole)]


def _alone(server: Server, ask: Ask) -> Streamed:
    (answer,) = server.ask(ask)
    return Streamed(answer, [answer.body], whole=True)


def unlike(theirs: Streamed, ours: Streamed) -> list[str]:
    """What is not alike in the chunks and the ends of two answers."""
    pairs = (("chunks", theirs.chunks, ours.chunks), ("whole", theirs.whole, ours.whole))
    return [
        f"{name}: TorchServe has {one!r}, Headrace {other!r}"
        for name, one, other in pairs
        if one != other and theirs.answer.status < 500
    ]
