"""Infer on a stream: many requests at a time, and the pieces of handlers that yield as they come.

The one response of a handler that yields nothing comes in the order of the requests, as with
Triton. Pieces come at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Final

from api.auth.authenticator import Needs
from api.grpc.calls import Free, answer_each, text_of
from api.http.messages import Request
from api.http.problems import internal_error
from api.routes.admission import admit
from api.services import Services
from api.submission.job_request import request_trace
from extensions.inference_protocols.grpc.messages import (
    InferResponse,
    StreamResponse,
    request_of,
    write_response,
)
from extensions.inference_protocols.jobs.inference import JOB, Call, job_request, outputs_of
from extensions.inference_protocols.jobs.pieces import run_in_pieces, tensors_of
from extensions.inference_protocols.models.descriptions import yields
from extensions.inference_protocols.models.lookup import model_for
from extensions.inference_protocols.tensors.datatypes import BYTES, joined
from extensions.inference_protocols.tensors.declarations import declaration_of
from extensions.inference_protocols.tensors.envelope import Tensor
from headrace.access.api_key import Scope
from headrace.errors import HeadraceError, drop_tracebacks
from headrace.jobs.job import Job

_NEEDS: Final[Needs] = Scope.SUBMIT
#: Metadata of a client that wants an error as the end of the stream.
_ERRORS_END: Final = b"triton_grpc_error"
_FINAL: Final = "triton_final_response"
_WANTS_FINAL: Final = "triton_enable_empty_final_response"


async def stream_infer(
    services: Services, request: Request, messages: AsyncIterator[tuple[Any, Free]], context: Any
) -> None:
    """Answer the requests of a stream until its client has closed its side, and all have ended."""
    await answer_each(messages, _Stream(services, request, context).answer)


#: An empty value of BYTES: as it is, and as the JSON text of a model without tensors.
_NO_TEXTS: Final = tuple((BYTES, [1], joined([one])) for one in (b"", b'""'))
_Turn = asyncio.Future[None]


def _chain(before: _Turn, after: _Turn) -> None:
    """Let what waits for a request wait for those before it only."""

    def over(_: _Turn) -> None:
        if not after.done():
            after.set_result(None)

    before.add_done_callback(over)


def _is_no_text(outputs: Sequence[Tensor]) -> bool:
    """Return whether outputs are the whole of no pieces, or one empty text."""
    return len(outputs) == 1 and outputs[0][1:] in _NO_TEXTS


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
            _chain(before, after)

    async def _respond(self, message: Any, before: _Turn, after: _Turn) -> None:
        services, request = self._services, self._request
        model = await model_for(services, message.model_name, message.model_version)
        call = Call(request.caller, request.header, trace=request_trace(request))
        try:
            asked = await request_of(message)
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
                    if not in_pieces:
                        _chain(before, after)
                    in_pieces = True
                    tensors = [t for t in tensors_of(one, declared) if not names or t.name in names]
                    response = write_response(asked, model.name, validated.model.version, tensors)
                    await self._write(response, job_id, final=False)
                    continue
                outputs = await outputs_of(services, one)
                if not in_pieces:
                    if _is_no_text(outputs) and await yields(services, model):
                        outputs = []
                    await asyncio.shield(before)
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

    async def _write_error(self, message: Any, error: HeadraceError, before: _Turn) -> None:
        await asyncio.shield(before)
        response = InferResponse(model_name=message.model_name, id=message.id)
        response.parameters[_FINAL].bool_param = True
        text = text_of(error)
        async with self._writing:
            await self._context.write(StreamResponse(error_message=text, infer_response=response))
