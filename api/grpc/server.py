"""A gRPC server within an API process: its port, its services, health, reflection and its end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2
from typing_extensions import override

from api.auth.authenticator import Open
from api.grpc.calls import Method, answer_each, handler
from api.grpc.protos import Protos
from api.grpc.room import HEALTH_ROOM, own_port
from api.http.messages import Request
from api.services import Part, Services
from headrace.config.settings import Settings
from headrace.errors import ConfigError, InvalidRequest, TooManyStreams

logger = logging.getLogger(__name__)

#: Seconds for which a stop waits for calls in progress, as that of HTTP does.
GRACE_S: Final = 4
_HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"]
_REFLECTION: Final = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
#: A server has at most so many calls. Each may fill a window of 64 KiB before its message is read.
CALLS_MAX: Final = 4096
#: Of them, the most that watch the health of a service, for which no API key is needed.
WATCHES_MAX: Final = 1024
#: The most bytes of a message of the services below. Such a call needs no API key, and may last: a
#: few long messages would take all the room.
_SHORT_BYTES: Final = 4096
#: The methods of one service, by name.
Methods = Mapping[str, Method]


class Place(NamedTuple):
    """Where a server listens: the port of a setting, with the settings' certificate if `tls`."""

    host: str
    port: int
    setting: str
    tls: bool

    @override
    def __str__(self) -> str:
        host = f"[{self.host.strip('[]')}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class GrpcServer:
    """Serves some services on one port.

    Args:
        protos: the messages of the services.
        methods: what the services have, by the full name of each. A method that is not there
            answers UNIMPLEMENTED.
    """

    def __init__(
        self, services: Services, place: Place, protos: Protos, methods: Mapping[str, Methods]
    ) -> None:
        self._services, self._place = services, place
        self._protos, self._methods = protos, methods
        self._server: Any = None
        self._health: Any = None
        self._ending: asyncio.Task[None] | None = None
        self._claim: socket.socket | None = None

    @property
    def part(self) -> Part:
        """It as what lives as long as the process does."""
        return Part(self.stop, self.start, self.dismiss)

    async def start(self) -> None:
        """Listen; raise ConfigError if the port cannot be used."""
        settings = self._services.settings
        # grpcio's asyncio has to be created within the loop.
        self._server = server = grpc.aio.server(
            options=_options(settings), maximum_concurrent_rpcs=CALLS_MAX
        )
        self._health = health.aio.HealthServicer()
        for name in self._methods:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        names = (*self._methods, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflected = reflection.aio.ReflectionServicer(names, self._protos.pool)
        for service, methods in (
            *((self._protos.service(name), methods) for name, methods in self._methods.items()),
            (_HEALTH, _of_health(self._health)),
            (_REFLECTION, {"ServerReflectionInfo": _of_reflection(reflected)}),
        ):
            server.add_generic_rpc_handlers((self._handlers(service, methods),))
        address = str(self._place)
        if settings.api_processes > 1:
            self._claim = own_port(address, self._place.setting)
        try:
            if settings.tls_cert_file is None or not self._place.tls:
                server.add_insecure_port(address)
            else:
                certificates = _Certificates(settings.tls_cert_file, settings.tls_key_file)
                server.add_secure_port(address, certificates.credentials())
        except RuntimeError:
            await server.stop(None)
            self._server = None
            raise ConfigError(
                f"{self._place.setting}: {address} cannot be used",
                hint="Another program may have the port. Choose another one.",
            ) from None
        await server.start()
        logger.info("gRPC listening on %s", address)

    def dismiss(self) -> None:
        """Take no more calls, and end once those in progress have."""
        if self._ending is None and self._server is not None:
            self._ending = asyncio.create_task(self._end())

    async def stop(self) -> None:
        """End all calls."""
        self.dismiss()
        if self._ending is not None:
            await self._ending

    async def _end(self) -> None:
        # It waits for each client that watches to take the news.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._health.enter_graceful_shutdown(), GRACE_S)
        await self._server.stop(GRACE_S)
        if self._claim is not None:
            self._claim.close()

    def _handlers(self, service: Any, methods: Methods) -> Any:
        """Return the handlers of a service, as a generated module would register them."""
        handlers, service_name = {}, service.full_name
        for described in service.methods:
            name = described.name
            if name not in methods:
                continue
            message = GetMessageClass(described.input_type)
            # For grpcio each method has a stream of messages, as it reads a single one at once.
            answers = "stream" if described.server_streaming else "unary"
            kind = getattr(grpc, f"stream_{answers}_rpc_method_handler")
            answer = handler(
                self._services, f"/{service_name}/{name}", methods[name], message,
                stream=described.client_streaming,
            )  # fmt: skip
            # Requests come as bytes, so that `calls` refuses those that are no message.
            handlers[name] = kind(answer, None, _serialize)
        return grpc.method_handlers_generic_handler(service_name, handlers)


def _of_health(servicer: Any) -> Methods:
    """Return the methods of the health service, whose messages have the limits of all others."""

    def method(answer: Any) -> Method:
        async def answered(_s: Services, _r: Request, message: Any, context: Any) -> Any:
            _check_short(message)
            return await answer(message, context)

        return Method(answered, Open.ALWAYS, room=HEALTH_ROOM)

    watches = 0

    async def watched(message: Any, context: Any) -> Any:
        nonlocal watches
        if watches >= WATCHES_MAX:
            raise TooManyStreams(
                f"{watches} calls watch the health of this server, which is the limit",
                hint="Close some, or call Check from time to time.",
                retry_after_s=5,
            )
        watches += 1
        try:
            return await servicer.Watch(message, context)
        finally:
            watches -= 1

    return {"Check": method(servicer.Check), "Watch": method(watched)}


def _of_reflection(servicer: Any) -> Method:
    async def answered(_s: Services, _r: Request, messages: Any, context: Any) -> None:
        async def each(message: Any) -> None:
            _check_short(message)

            async def only() -> AsyncIterator[Any]:
                yield message

            async for response in servicer.ServerReflectionInfo(only(), context):
                await context.write(response)

        await answer_each(messages, each, at_once=1)

    return Method(answered, Open.ALWAYS)


def _check_short(message: Any) -> None:
    if (size := message.ByteSize()) > _SHORT_BYTES:
        raise InvalidRequest(
            f"the message has {size} bytes; at most {_SHORT_BYTES} are taken here",
            hint="Send a shorter one.",
        )


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _options(settings: Settings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.body_limit_bytes),
        ("grpc.max_send_message_length", -1),
        # Else a fast connection's windows grow to megabytes, for each call.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_metadata_size", settings.header_limit_bytes),
        # Processes share the port only if there are several. `own_port` keeps others out.
        ("grpc.so_reuseport", int(settings.api_processes > 1)),
    ]


class _Certificates:
    """The certificate and its key, read again at a handshake after they have changed."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        self._files = (certificate, key or certificate)
        self._known = self._stamps()

    def credentials(self) -> Any:
        return grpc.dynamic_ssl_server_credentials(self._read(), self._changed, False)

    def _read(self) -> Any:
        certificate, key = (file.read_bytes() for file in self._files)
        return grpc.ssl_server_certificate_configuration([(key, certificate)])

    def _stamps(self) -> list[tuple[int, int]]:
        stats = (file.stat() for file in self._files)
        return [(status.st_mtime_ns, status.st_ino) for status in stats]

    def _changed(self) -> Any:
        """Return the new certificate; None if it is the known one, or cannot be read."""
        try:
            stamps = self._stamps()
            if stamps == self._known:
                return None
            read = self._read()
        except OSError:
            return None
        self._known = stamps
        return read
