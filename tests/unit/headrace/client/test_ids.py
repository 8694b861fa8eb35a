"""The caller's own ids, which it knows before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.client import bulk
from headrace.client.http.retries import Session
from headrace.client.sansio import HttpRequest, HttpResponse, NextInput, take_inputs
from headrace.jobs.job import State
from headrace.schema.serialization import fresh_object


def ids_sent(stream: Any) -> list[str]:
    """Run a stream of submits without a server; the ids that it would send."""
    sent: list[str] = []
    came: Any = None
    while True:
        try:
            step = stream.send(came)
        except StopIteration:
            return sent
        came = None
        if isinstance(step, NextInput):
            assert isinstance(step.source, Iterator)
            came = take_inputs(step.source, step)
        elif isinstance(step, HttpRequest):
            lines = [msgspec.json.decode(line) for line in (step.body or b"").splitlines()]
            sent += [line["id"] for line in lines]
            answers = [
                fresh_object("m", "1.0", State.QUEUED, 0, None)(line["id"]) for line in lines
            ]
            came = HttpResponse(202, {}, b"\n".join(answers))


def test_each_job_of_many_has_the_id_that_stands_in_its_place() -> None:
    session = Session("http://127.0.0.1:8080", retry_s=0)
    ids = [f"scan-{n}" for n in range(5)]
    assert ids_sent(bulk.submit_many(session, "m", iter("abcde"), ids=iter(ids))) == ids
