"""Infer on a stream: many requests at a time, and the pieces of handlers that yield as they come.

The one response of a handler that yields nothing comes in the order of the requests, as with
Triton. Pieces come at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

from api.auth.authenticator import Needs
from api.grpc.calls import text_of
from api.http.messages import Request
from api.http.problems import internal_error
from api.routes.admission import admit
from api.routes.event_stream import take_stream
from api.services import Services
from api.submission.job_request import request_trace
from extensions.inference_protocols.grpc.messages import (
    InferResponse,
    StreamResponse,
    read_request,
    write_response,
)
from extensions.inference_protocols.jobs.inference import Call, job_request, outputs_of
from extensions.inference_protocols.jobs.pieces import run_in_pieces, tensors_of
from extensions.inference_protocols.models.lookup import model_for
from extensions.inference_protocols.tensors.declarations import declaration_of
from headrace.access.api_key import Scope
from headrace.errors import HeadraceError, drop_tracebacks
from headrace.jobs.job import Job

#: The metadata of a call, and the parameter of a response, with the id of the job.
JOB: Final = "headrace-job"
#: A stream is read no further while it has this many requests in progress.
IN_FLIGHT_MAX: Final = 256
_NEEDS: Final[Needs] = Scope.SUBMIT
#: Metadata of a client that wants an error as the end of the stream.
_ERRORS_END: Final = b"triton_grpc_error"
_FINAL: Final = "triton_final_response"
_WANTS_FINAL: Final = "triton_enable_empty_final_response"


async def stream_infer(
    services: Services, request: Request, messages: AsyncIterator[Any], context: Any
) -> None:
    """Answer the requests of a stream until its client has closed its side, and all have ended."""
    take_stream(services, request)
    try:
        stream = _Stream(services, request, context)
        async with asyncio.TaskGroup() as group:
            await stream.read(messages, group)
    except* HeadraceError as errors:
        # Only one is left to a task: with it the client wants the stream to end.
        error: Any = errors
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from None
    finally:
        services.stream_limit.leave(request.caller.key_id)


class _Stream:
    """The requests and responses of one stream."""

    def __init__(self, services: Services, request: Request, context: Any) -> None:
        self._services, self._request, self._context = services, request, context
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._writing = asyncio.Lock()
        self._errors_end = request.header(_ERRORS_END).lower() == b"true"

    async def read(self, messages: AsyncIterator[Any], group: asyncio.TaskGroup) -> None:
        """Begin each request as it comes."""
        before = asyncio.Event()
        before.set()
        admitted = True  # with the call itself
        await self._room.acquire()
        async for message in messages:
            after = asyncio.Event()
            group.create_task(self._answer(message, before, after, admitted=admitted))
            before, admitted = after, False
            await self._room.acquire()

    async def _answer(
        self, message: Any, before: asyncio.Event, after: asyncio.Event, *, admitted: bool
    ) -> None:
        """Answer a request. Its only response waits for `before`; `after` is set behind it."""
        try:
            if not admitted:
                await admit(self._services, self._request, _NEEDS)
            await self._respond(message, before, after)
        except HeadraceError as error:
            if self._errors_end:
                raise
            drop_tracebacks(error)
            await self._write_error(message, error, before)
        except Exception as error:  # noqa: BLE001 - logged; the client receives its id
            await self._write_error(message, internal_error(error, self._request.path)[0], before)
        finally:
            after.set()
            self._room.release()

    async def _respond(self, message: Any, before: asyncio.Event, after: asyncio.Event) -> None:
        services, request = self._services, self._request
        model = await model_for(services, message.model_name, message.model_version)
        call = Call(request.caller, request.header, trace=request_trace(request))
        try:
            asked = read_request(message)
            wants_final = asked.parameters.pop(_WANTS_FINAL, False) is True
            validated = job_request(services, call, model, asked)
        except HeadraceError as error:
            services.counters.refused(model.name, error.code)
            raise
        declared, job_id = declaration_of(model), validated.identity.job_id
        names = {one.name for one in asked.wanted}
        in_pieces = False
        async with aclosing(run_in_pieces(services, validated)) as found:
            async for one in found:
                if not isinstance(one, Job):
                    in_pieces = True
                    after.set()
                    tensors = [t for t in tensors_of(one, declared) if not names or t.name in names]
                    response = write_response(asked, model.name, validated.model.version, tensors)
                    await self._write(response, job_id, final=False)
                    continue
                outputs = await outputs_of(services, one)
                if not in_pieces:
                    await before.wait()
                    response = write_response(asked, one.model, one.version, outputs)
                    await self._write(response, job_id, final=True)
                elif wants_final:
                    response = write_response(asked, one.model, one.version, ())
                    await self._write(response, job_id, final=True)

    async def _write(self, response: Any, job_id: str, *, final: bool) -> None:
        response.parameters[JOB].string_param = job_id
        response.parameters[_FINAL].bool_param = final
        async with self._writing:
            await self._context.write(StreamResponse(infer_response=response))

    async def _write_error(self, message: Any, error: HeadraceError, before: asyncio.Event) -> None:
        await before.wait()
        response = InferResponse(model_name=message.model_name, id=message.id)
        response.parameters[_FINAL].bool_param = True
        text = text_of(error)
        async with self._writing:
            await self._context.write(StreamResponse(error_message=text, infer_response=response))
