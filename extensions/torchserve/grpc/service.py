"""The methods of TorchServe's two services, and the servers on their ports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import msgspec

from api.auth.authenticator import Open
from api.grpc.calls import Method, answer_each
from api.grpc.protos import Protos
from api.grpc.server import GrpcServer, Methods, Place
from api.http.messages import Answer, Delegated, Reply, Request, ResponseCutShort
from api.services import Part, Services
from extensions.torchserve.api import tokens
from extensions.torchserve.api.app import TorchServe
from extensions.torchserve.api.descriptions import Interface, TokenKind
from extensions.torchserve.api.parts import config_of
from extensions.torchserve.api.predictions.predict import runs_torchserve
from extensions.torchserve.api.predictions.results import JOB
from extensions.torchserve.api.replies import TorchServeError, reply_to
from extensions.torchserve.config.sequences import SequenceKeys
from extensions.torchserve.config.settings import TorchServeConfig
from extensions.torchserve.grpc.requests import (
    Asked,
    Caller,
    Failure,
    failure_of,
    form_of,
)
from headrace.errors import HeadraceError, InvalidRequest

PROTOS: Final = Protos(Path(__file__).parent / "protos" / "torchserve.binpb")
_PACKAGE: Final = "org.pytorch.serve.grpc"
INFERENCE: Final = f"{_PACKAGE}.inference.InferenceAPIsService"
MANAGEMENT: Final = f"{_PACKAGE}.management.ManagementAPIsService"
_Prediction: Final = PROTOS.message(f"{_PACKAGE}.inference.PredictionResponse")
_Health: Final = PROTOS.message(f"{_PACKAGE}.inference.TorchServeHealthResponse")
_Management: Final = PROTOS.message(f"{_PACKAGE}.management.ManagementResponse")
_CUT: Final = Failure(
    grpc.StatusCode.INTERNAL, "the reply is not complete: its job failed\nInternalServerException"
)


def servers(services: Services, config: TorchServeConfig) -> Sequence[Part]:
    """Return a server for each port of a configuration."""
    calls = _Calls(services)
    interfaces: tuple[tuple[Interface, str, Methods], ...] = (
        ("inference", INFERENCE, calls.inference),
        ("management", MANAGEMENT, calls.management),
    )
    parts = []
    for interface, service, methods in interfaces:
        key = f"grpc_{interface}_port"
        if port := getattr(config, key):
            host = getattr(config, f"grpc_{interface}_address")
            place = Place(host, port, f"config.properties: {key}", tls=config.enable_grpc_ssl)
            parts.append(GrpcServer(services, place, PROTOS, {service: methods}).part)
    return parts


async def _check(kind: TokenKind, services: Services, request: Request, context: Any) -> None:
    """Check the token of a call, with the answer that TorchServe's URLs give."""
    try:
        await tokens.check(services, request, kind)
    except (TorchServeError, HeadraceError) as error:
        reply = reply_to(error)
        services.counters.answered(request.path, request.method, reply.status)
        if failure := failure_of(reply):
            await context.abort(*failure)


def _checked(kind: TokenKind, answer: Callable[..., Awaitable[Any]]) -> Method:
    """Return a method that checks a token first; its answer knows which kind it was."""
    return Method(partial(answer, checked=kind), Open.ALWAYS, partial(_check, kind))


class _Calls:
    """The methods. All are open to callers without an API key; most check a token of TorchServe."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._surface: TorchServe | None = None
        self.inference: Methods = {
            "Ping": Method(self._ping, Open.ALWAYS),
            "Predictions": _checked("inference", self._predict),
            "StreamPredictions": _checked("inference", self._predict_in_pieces),
            "StreamPredictions2": _checked("inference", self._predict_on_stream),
        }
        self.management: Methods = {
            name: _checked("management", partial(self._manage, asked))
            for name, asked in _MANAGED.items()
        }

    def _caller(self, request: Request, context: Any, checked: TokenKind = "") -> Caller:
        # The surface is built after the parts of the process.
        self._surface = self._surface or TorchServe(self._services)
        return Caller(self._surface, request.caller, context, checked)

    async def _ping(self, _s: Services, request: Request, _message: Any, context: Any) -> Any:
        caller = self._caller(request, context)
        answer = await caller.answer(Asked("inference", "GET", ("", "ping")))
        body = answer.body if isinstance(answer, Reply) else b""
        return _Health(health=body.decode().rstrip())

    async def _manage(
        self,
        asked: Callable[[Any], Asked],
        _: Services,
        request: Request,
        message: Any,
        context: Any,
        *,
        checked: TokenKind,
    ) -> Any:
        answer = await self._caller(request, context, checked).answer(asked(message))
        if failure := failure_of(answer):
            await context.abort(*failure)
        text = answer.body.decode().rstrip() if isinstance(answer, Reply) else ""
        document = msgspec.json.decode(text)
        if isinstance(document, dict) and document.keys() == {"status"}:
            text = document["status"]
        return _Management(msg=text)

    async def _predict(
        self, _: Services, request: Request, message: Any, context: Any, *, checked: TokenKind
    ) -> Any:
        caller = self._caller(request, context, checked)
        answer = await self._answered(caller, message, context)
        try:
            pieces = [piece async for piece in caller.pieces_of(answer)]
            return _Prediction(prediction=b"".join(pieces))
        except ResponseCutShort:
            return await context.abort(*_CUT)

    async def _predict_in_pieces(
        self, _: Services, request: Request, message: Any, context: Any, *, checked: TokenKind
    ) -> None:
        caller = self._caller(request, context, checked)
        answer = await self._answered(caller, message, context)
        try:
            async with aclosing(caller.pieces_of(answer)) as pieces:
                async for piece in pieces:
                    await context.write(_Prediction(prediction=piece))
        except ResponseCutShort:
            await context.abort(*_CUT)

    async def _answered(self, caller: Caller, message: Any, context: Any) -> Answer:
        answer = await caller.answer(_prediction(self._services, message))
        headers = () if isinstance(answer, Delegated) else answer.headers
        if job := dict(headers).get(JOB):
            context.set_trailing_metadata(((JOB.decode(), job.decode()),))
        if failure := failure_of(answer, predicts=True):
            await context.abort(*failure)
        return answer

    async def _predict_on_stream(
        self,
        services: Services,
        request: Request,
        messages: Any,
        context: Any,
        *,
        checked: TokenKind,
    ) -> None:
        writing, keys = asyncio.Lock(), SequenceKeys.of(config_of(services))
        caller = self._caller(request, context, checked)

        async def write(sequence: str, **fields: Any) -> None:
            async with writing:
                await context.write(_Prediction(sequence_id=sequence, **fields))

        async def predict(message: Any) -> None:
            sequence = message.sequence_id
            try:
                answer = await caller.answer(_prediction(services, message, keys))
                failure = failure_of(answer, predicts=True)
                if failure is None and not isinstance(answer, Delegated):
                    own = dict(answer.headers).get(keys.id.lower().encode())
                    sequence = own.decode() if own else sequence
                    async with aclosing(caller.pieces_of(answer)) as pieces:
                        async for piece in pieces:
                            await write(sequence, prediction=piece)
            except InvalidRequest as error:
                failure = Failure(grpc.StatusCode.INVALID_ARGUMENT, error.message)
            except ResponseCutShort:
                failure = _CUT
            if failure is not None:
                status = {"code": failure.code.value[0], "message": failure.text}
                await write(sequence, status=status)

        await answer_each(messages, predict)


def _prediction(services: Services, message: Any, keys: SequenceKeys | None = None) -> Asked:
    """Return a prediction as a request; with `keys` it is one of a sequence."""
    name = _named(message)
    fields, headers = dict(message.input), {}
    if keys is not None and message.sequence_id:
        headers[keys.id] = message.sequence_id
        if fields.get(keys.end, b"").lower() == b"true":
            headers[keys.end] = "true"
    model = services.catalog.models.get(name)
    if len(fields) == 1 and model is not None and not runs_torchserve(model):
        (body,) = fields.values()
    else:
        body, headers["content-type"] = form_of(fields) if fields else (b"", "")
    segments = ("", "predictions", name, *filter(None, [message.model_version]))
    return Asked("inference", "POST", segments, body=body, headers=headers)


def _named(message: Any) -> str:
    if not message.model_name:
        raise InvalidRequest("Parameter model_name is required.\nBadRequestException")
    return str(message.model_name)


def _of_model(method: str, message: Any, *last: str) -> Asked:
    """Return a request about a model, or a version of it; its query has the other fields."""
    names = ("model_name", "model_version")
    segments = ("", "models", _named(message), *filter(None, [message.model_version]), *last)
    query = {name: value for name, value in _query(message).items() if name not in names}
    return Asked("management", method, segments, query)


def _query(message: Any) -> Mapping[str, Any]:
    """Return the fields that a message has, as the parameters of the same names."""
    return {
        field.name: str(value).lower() if isinstance(value, bool) else value
        for field, value in message.ListFields()
    }


_MANAGED: Final[Mapping[str, Callable[[Any], Asked]]] = {
    "DescribeModel": lambda message: _of_model("GET", message),
    "ListModels": lambda message: Asked("management", "GET", ("", "models"), _query(message)),
    "RegisterModel": lambda message: Asked("management", "POST", ("", "models"), _query(message)),
    "ScaleWorker": lambda message: _of_model("PUT", message),
    "SetDefault": lambda message: _of_model("PUT", message, "set-default"),
    "UnregisterModel": lambda message: _of_model("DELETE", message),
}
