"""`map`: any number of inputs through a model, a bounded number of them at a time.

How they are submitted and looked up is in window.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import TypeVar

from typing_extensions import Unpack

from headrace.client.bulk import CHUNK_JOBS, GATHER_S, BulkEntry, Ids, namer
from headrace.client.models import Result
from headrace.client.requests import Options, job_line
from headrace.client.retries import Session
from headrace.client.sansio import NextInput, Stream, TakenInput, Yield, source_of
from headrace.client.window import Window
from headrace.errors import InvalidRequest

In = TypeVar("In")


def map_inputs(
    session: Session,
    model: str,
    inputs: Iterable[In] | AsyncIterable[In],
    *,
    in_flight: int = 1000,
    ordered: bool = True,
    return_errors: bool = False,
    ids: Ids[In] = None,
    content_type: str | None = None,
    version: str | None = None,
    **options: Unpack[Options],
) -> Stream[Result[In]]:
    """Run every input through a model, also while servers are restarted.

    Each input becomes one job under one id, however often it has to be said, and gives one result.
    Memory does not grow with the number of inputs: so many as `in_flight` are held.

    Args:
        session: the server.
        model: the model's name.
        inputs: any number of them, also without end; they are taken as there is room. What they
            raise is raised again once the results of those before are out.
        in_flight: how many are taken and not given back at the most.
        ordered: give the results in the order of the inputs, and not as the jobs end.
        return_errors: give a result with its `error` where an input fails, and do not raise it.
        ids: the id of each job, in step with the inputs, or what makes it from an input. A second
            run with the same ids finds the results of the first while they are kept.
        content_type: what every input is, where its kind does not say so.
        version: only for this version of the model.
        options: as for `submit`, for every job.

    Yields:
        A result for every input.

    Raises:
        JobError: without `return_errors`, a job did not succeed.
        RequestError: without `return_errors`, an input was refused.
        ServerUnreachable: the server was away for longer than `retry_s`. Its jobs go on.
        BrokerError: its Redis was away, or full, for longer than `retry_s`. Its jobs go on.
        StoreUnavailable: its payload store was away for longer than `retry_s`. Its jobs go on.
    """
    if in_flight < 1:
        raise InvalidRequest(f"in_flight is {in_flight}", hint="Give 1 or more.")

    def line(entry: BulkEntry) -> bytes:
        return job_line(model, entry.input, content_type, version, options, entry.job_id)

    source, name = source_of(inputs), namer(ids)
    window: Window[In] = Window(session, line, ordered=ordered)
    chunk = min(CHUNK_JOBS, max(1, in_flight // 4))
    taken, short = TakenInput([], ended=False), False
    index = 0
    while not taken.ended or window.held:
        room = in_flight - window.held
        if window.waiting:
            yield from window.submit(glance=short)
        elif not taken.ended and (room >= chunk or not window.open):
            count = min(chunk, room)
            taken = yield NextInput(source, count, GATHER_S)
            # A slow source is not to hold back what has ended.
            short = len(taken.inputs) < count
            for value in taken.inputs:
                window.add(BulkEntry(index, value, name(value)))
                index += 1
        else:
            yield from window.look()
        results = window.released()
        if not return_errors:
            yield from _raising(results)
        elif results:
            yield Yield(results)
    if taken.error is not None:
        raise taken.error


def _raising(results: list[Result[In]]) -> Stream[Result[In]]:
    for at, result in enumerate(results):
        if result.error is not None:
            yield Yield(results[:at])
            raise result.error
    if results:
        yield Yield(results)
