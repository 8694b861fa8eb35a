"""Infer on a stream: many requests at a time, and the pieces of handlers that yield as they come.

The one response of a handler that yields nothing comes in the order of the requests, as with
Triton. Pieces come at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec

from api.grpc.calls import Free, answer_each, text_of
from api.http.messages import Request
from api.http.problems import internal_error
from api.routes.admission import admit
from api.routes.jobs.events import LOOK_AGAIN_S
from api.routes.jobs.submission import submit_and_wait
from api.services import Services
from api.submission.job_request import ValidatedRequest
from extensions.inference_protocols.grpc.messages import (
    InferResponse,
    StreamResponse,
    request_of,
    write_response,
)
from extensions.inference_protocols.jobs import inference
from extensions.inference_protocols.models.documents import yields
from extensions.inference_protocols.models.repository import model_for
from extensions.inference_protocols.tensors.datatypes import BYTES, dense, joined, raw_of
from extensions.inference_protocols.tensors.envelope import Tensor
from extensions.inference_protocols.tensors.requests import OUTPUT, Declaration, declaration_of
from headrace.access.api_key import Scope
from headrace.errors import (
    BrokerError,
    HandlerError,
    HeadraceError,
    InvalidRequest,
    TransientError,
    drop_tracebacks,
)
from headrace.jobs.job import Job
from headrace.queue.following.piece_log import LogEvent, LogFollower, Pieces, Place

#: Metadata of a client that wants an error as the end of the stream.
_ERRORS_END: Final = b"triton_grpc_error"
_FINAL: Final = "triton_final_response"
_WANTS_FINAL: Final = "triton_enable_empty_final_response"
#: An empty value of BYTES: as it is, and as the JSON text of a model without tensors.
_NO_TEXTS: Final = tuple((BYTES, [1], joined([text])) for text in (b"", b'""'))
_Turn = asyncio.Future[None]


async def stream_infer(
    services: Services, request: Request, messages: AsyncIterator[tuple[Any, Free]], context: Any
) -> None:
    """Answer the requests of a stream until its client has closed its side, and all have ended."""
    await answer_each(messages, _Stream(services, request, context).answer)


def _chain(before: _Turn, after: _Turn) -> None:
    """Let what waits for a request wait for those before it only."""

    def over(_: _Turn) -> None:
        if not after.done():
            after.set_result(None)

    before.add_done_callback(over)


class _Stream:
    """The requests and responses of one stream."""

    def __init__(self, services: Services, request: Request, context: Any) -> None:
        self._services, self._request, self._context = services, request, context
        self._writing = asyncio.Lock()
        self._errors_end = request.header(_ERRORS_END).lower() == b"true"
        self._admitted = True  # with the call itself
        # Done when the requests so far have had their only responses.
        self._last = asyncio.get_running_loop().create_future()
        self._last.set_result(None)

    async def answer(self, message: Any) -> None:
        """Answer a request. Its only response waits for those of the requests before."""
        before, after = self._last, asyncio.get_running_loop().create_future()
        admitted, self._admitted, self._last = self._admitted, False, after
        try:
            if not admitted:
                await admit(self._services, self._request, Scope.SUBMIT)
            await self._respond(message, before, after)
        except HeadraceError as error:
            if self._errors_end:
                raise
            drop_tracebacks(error)
            await self._write_error(message, error, before)
        except Exception as error:  # noqa: BLE001 - logged; the client receives its id
            await self._write_error(message, internal_error(error, self._request.path)[0], before)
        finally:
            _chain(before, after)

    async def _respond(self, message: Any, before: _Turn, after: _Turn) -> None:
        services, request = self._services, self._request
        model = await model_for(services, message.model_name, message.model_version)
        with inference.counting_refusals(services, model):
            asked = await request_of(message)
            wants_final = asked.parameters.pop(_WANTS_FINAL, False) is True
            validated = inference.job_request(services, request, model, asked)
        declared, job_id = declaration_of(model), validated.identity.job_id
        names = {output.name for output in asked.wanted}
        in_pieces = False
        async with aclosing(_run_in_pieces(services, validated)) as steps:
            async for step in steps:
                if not isinstance(step, Job):
                    if not in_pieces:
                        _chain(before, after)
                    in_pieces = True
                    tensors = _tensors_of(step, declared)
                    tensors = [tensor for tensor in tensors if not names or tensor.name in names]
                    response = write_response(asked, model.name, validated.model.version, tensors)
                    await self._write(response, job_id, final=False)
                    continue
                outputs = await inference.outputs_of(services, step)
                if not in_pieces:
                    # The whole of no pieces is one empty text.
                    empty = len(outputs) == 1 and outputs[0][1:] in _NO_TEXTS
                    if empty and await yields(services, model):
                        outputs = []
                    await asyncio.shield(before)
                if not in_pieces or wants_final:
                    outputs = [] if in_pieces else outputs
                    response = write_response(asked, step.model, step.version, outputs)
                    await self._write(response, job_id)

    async def _write(
        self, response: Any, job_id: str = "", *, final: bool = True, error: str = ""
    ) -> None:
        if job_id:
            response.parameters[inference.JOB].string_param = job_id
        response.parameters[_FINAL].bool_param = final
        async with self._writing:
            await self._context.write(StreamResponse(infer_response=response, error_message=error))

    async def _write_error(self, message: Any, error: HeadraceError, before: _Turn) -> None:
        await asyncio.shield(before)
        response = InferResponse(model_name=message.model_name, id=message.id)
        await self._write(response, error=text_of(error))


async def _run_in_pieces(
    services: Services, request: ValidatedRequest
) -> AsyncGenerator[msgspec.Raw | Job]:
    """Submit a job. Yield each piece of its result, and then the job, which has ended.

    If the iterator is closed before, or for `max_wait_s` there was neither a piece nor the end, the
    job is cancelled. A job that begins again after the client got pieces is a TransientError.
    """
    log, wait_s, job_id = services.piece_log, services.settings.max_wait_s, request.identity.job_id
    over = False
    with log.follow(request.model.name, job_id, Place(), keeps=True) as follower:
        end = asyncio.create_task(submit_and_wait(services, request, None, math.inf))
        end.add_done_callback(lambda _: follower.wake())
        try:
            while True:
                async with asyncio.timeout(wait_s):
                    events = await _grown(follower, end)
                if not events:
                    break
                for piece in _pieces(events):
                    yield piece
            job, _ = await end
            if not job.state.final:
                raise inference.server_stops(job.id)
            over = True
            yield job
        except TimeoutError:
            raise inference.too_late(job_id, wait_s) from None
        except HeadraceError as error:
            if end.done() and end.exception() is error:
                over = True  # there is no job
                services.counters.refused(request.model.name, error.code)
            raise
        finally:
            end.cancel()
            if not over:
                await asyncio.shield(inference.cancel(services, request))


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


def _tensors_of(piece: msgspec.Raw, declared: Declaration) -> list[Tensor]:
    """Return a piece as outputs of the model; raise HandlerError if it does not fit them."""
    value = msgspec.json.decode(piece)
    if not declared.outputs or declared.native:
        data = value.encode() if isinstance(value, str) else bytes(piece)
        return [Tensor(OUTPUT.name, BYTES, [1], joined([data]))]
    if not isinstance(value, dict) and len(declared.outputs) == 1:
        value = {declared.outputs[0].name: value}
    known = {tensor.name: tensor for tensor in declared.outputs}
    if not isinstance(value, dict) or not known.keys() >= value.keys():
        raise HandlerError(f"a piece must be an object with outputs of {declared.model}")
    tensors = []
    for name, output in value.items():
        datatype = known[name].datatype
        try:
            # A value alone is one of a list, as where the pieces are joined.
            shape, values = dense(output if isinstance(output, list) else [output])
            tensors.append(Tensor(name, datatype, shape, raw_of(datatype, values)))
        except InvalidRequest as error:
            raise HandlerError(f"a piece has no output {name}: {error.message}") from None
    return tensors
