"""Reading a job's event stream, as a browser does."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.harness.http.plain_http import PLAIN
from tests.harness.wait import wait_until

READ_S = 60


@dataclass(frozen=True)
class Event:
    id: str
    name: str
    data: Any

    @property
    def index(self) -> int:
        """Of the last piece, in a stream of pieces."""
        return int(self.id.removesuffix("-ended").split(".")[0])


def events_of(lines: Iterator[str]) -> Iterator[Event]:
    """What the lines of a stream say, comments left out."""
    fields: dict[str, str] = {}
    for line in lines:
        if not line:
            if "data" in fields:
                yield Event(fields["id"], fields["event"], json.loads(fields["data"]))
            fields = {}
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        fields[name] = f"{fields[name]}\n{value}" if name in fields else value


@dataclass
class Reader:
    """Reads one stream in a thread of its own.

    Attributes:
        events: what has come so far.
        status: of the answer; 0 before it.
        over: the stream has ended, or broken (`error`).
    """

    events: list[Event] = field(default_factory=list)
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    over: bool = False
    error: str = ""
    connection: socket.socket | None = None

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.events]

    @property
    def last(self) -> str:
        return self.events[-1].id

    def wait_for(self, name: str, count: int = 1) -> Event:
        """The count-th event of that name."""

        def found() -> Event | None:
            over = self.over  # first: the last event comes right before the end
            named = [event for event in self.events if event.name == name]
            assert len(named) >= count or not over, (self.names, self.status, self.error)
            return named[count - 1] if len(named) >= count else None

        event = wait_until(found, f"{name} is told, {count} times; by now {self.names}", READ_S)
        assert event is not None
        return event

    def wait_over(self) -> list[Event]:
        wait_until(lambda: self.over, "the stream ends", READ_S)
        return self.events


@contextlib.contextmanager
def reading(
    url: str, last_id: str = "", body: Any = None, method: str = "", **headers: str
) -> Iterator[Reader]:
    """A stream that is read until the context ends; with a body, of a submit that asks for it."""
    reader = Reader()
    if body is not None:
        headers = {"accept": "text/event-stream", **headers}
    if last_id:
        headers["last-event-id"] = last_id
    client = httpx2.Client(timeout=READ_S, verify=PLAIN)

    def read() -> None:
        try:
            verb = method or ("GET" if body is None else "POST")
            with client.stream(verb, url, headers=headers, json=body) as response:
                reader.connection = response.extensions["network_stream"].get_extra_info("socket")
                reader.headers = dict(response.headers)
                reader.status = response.status_code
                for event in events_of(response.iter_lines()):
                    reader.events.append(event)
        except (httpx2.HTTPError, RuntimeError, OSError) as error:
            reader.error = repr(error)
        finally:
            reader.over = True

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        wait_until(lambda: reader.status or reader.over, f"{url} answers", READ_S)
        yield reader
    finally:
        # While another thread reads from it, closing it alone would not end the connection.
        with contextlib.suppress(OSError):
            if reader.connection is not None:
                reader.connection.shutdown(socket.SHUT_RDWR)
        client.close()
