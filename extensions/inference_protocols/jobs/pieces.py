"""A job whose client gets the pieces of its result while its handler yields them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec

from api.routes.jobs.events import LOOK_AGAIN_S
from api.routes.jobs.submission import submit_and_wait
from api.services import Services
from api.submission.job_request import ValidatedRequest
from extensions.inference_protocols.jobs.inference import cancel, never, server_stops, too_late
from extensions.inference_protocols.tensors.datatypes import BYTES, dense, joined, raw_of
from extensions.inference_protocols.tensors.declarations import OUTPUT, Declaration
from extensions.inference_protocols.tensors.envelope import Tensor
from headrace.config.inputs.tensors import DeclaredTensor
from headrace.errors import (
    BrokerError,
    HandlerError,
    HeadraceError,
    InvalidRequest,
    TransientError,
)
from headrace.jobs.job import Job
from headrace.queue.following.piece_log import LogEvent, LogFollower, Pieces, Place


async def run_in_pieces(
    services: Services, request: ValidatedRequest
) -> AsyncGenerator[msgspec.Raw | Job]:
    """Submit a job. Yield each piece of its result, and then the job, which has ended.

    If the iterator is closed before, the job is cancelled.

    Raises:
        JobTimeout: for `max_wait_s` there was neither a piece nor the end.
        TransientError: the job began again after the client got pieces.
        HeadraceError: it is refused, or Redis does not answer.
    """
    log = services.piece_log
    over = False
    with log.follow(request.model.name, request.identity.job_id, Place(), keeps=True) as follower:
        end = asyncio.create_task(submit_and_wait(services, request, never, math.inf))
        end.add_done_callback(lambda _: follower.wake())
        try:
            while events := await _next(services, request, follower, end):
                for piece in _pieces(events):
                    yield piece
            job, _ = await end
            if not job.state.final:
                raise server_stops(job.id)
            over = True
            yield job
        except HeadraceError as error:
            if end.done() and end.exception() is error:
                over = True  # there is no job
                services.counters.refused(request.model.name, error.code)
            raise
        finally:
            end.cancel()
            if not over:
                await asyncio.shield(cancel(services, request))


async def _next(
    services: Services, request: ValidatedRequest, follower: LogFollower, end: asyncio.Task[Any]
) -> Sequence[LogEvent]:
    wait_s = services.settings.max_wait_s
    try:
        async with asyncio.timeout(wait_s):
            return await _grown(follower, end)
    except TimeoutError:
        raise too_late(request.identity.job_id, wait_s) from None


async def _grown(follower: LogFollower, end: asyncio.Task[Any]) -> Sequence[LogEvent]:
    """Wait until the log has grown; return nothing when the job has ended and all is read."""
    while True:
        if not end.done():
            await follower.published()
        ended = end.done()
        if ended and (end.exception() or not follower.may_have_pieces):
            return ()
        try:
            events = await follower.read()
        except BrokerError:
            if ended:
                raise
            await asyncio.sleep(LOOK_AGAIN_S)
            follower.wake()
            continue
        if events or ended:
            return events


def _pieces(events: Sequence[LogEvent]) -> list[msgspec.Raw]:
    if all(isinstance(event, Pieces) for event in events):
        return [piece for event in events if isinstance(event, Pieces) for piece in event.pieces]
    raise TransientError(
        "the job began again, or some of its pieces are lost. Those that were sent do not count"
    )


def tensors_of(piece: msgspec.Raw, declared: Declaration) -> list[Tensor]:
    """Return a piece as outputs of the model.

    Raises:
        HandlerError: it does not fit them.
    """
    value = msgspec.json.decode(piece)
    if not declared.outputs or declared.native:
        data = value.encode() if isinstance(value, str) else bytes(piece)
        return [Tensor(OUTPUT.name, BYTES, [1], joined([data]))]
    if not isinstance(value, dict) and len(declared.outputs) == 1:
        value = {declared.outputs[0].name: value}
    known = {tensor.name: tensor for tensor in declared.outputs}
    if not isinstance(value, dict) or not known.keys() >= value.keys():
        raise HandlerError(f"a piece must be an object with outputs of {declared.model}")
    return [_tensor(known[name], one) for name, one in value.items()]


def _tensor(declared: DeclaredTensor, value: Any) -> Tensor:
    try:
        # A value alone is one of a list, as where the pieces are joined.
        shape, values = dense(value if isinstance(value, list) else [value])
        return Tensor(declared.name, declared.datatype, shape, raw_of(declared.datatype, values))
    except InvalidRequest as error:
        raise HandlerError(f"a piece has no output {declared.name}: {error.message}") from None
