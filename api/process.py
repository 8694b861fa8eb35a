"""One API process, configured by the environment: what `python -m api` runs.

Its arguments are file descriptors that it inherits from the supervisor.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvicorn
from typing_extensions import override

from api.app import Application, create_app
from api.http.uvicorn_protocol import protocol_with, watch
from api.observability.access_log import access_log
from headrace.access.key_store import api_keys_at
from headrace.config.settings import Settings, is_loopback, load_settings
from headrace.errors import ConfigError, HeadraceError
from headrace.models.catalog import load_models
from headrace.observability import logs
from headrace.payloads.stores import build_stores
from headrace.queue.asyncio_tasks import wait_at_most
from headrace.redis.compatibility import check_broker
from headrace.registry.catalog import declared_of
from headrace.server.ports import BACKLOG, http_url, plain

logger = logging.getLogger("api")

#: Seconds between two checks of the files.
CHECK_S: Final = 10.0


def check_certificate(settings: Settings) -> None:
    """Raise ConfigError if the certificate of the settings cannot be used."""
    certificate, key = settings.tls_cert_file, settings.tls_key_file
    if certificate is None:
        if key is not None:
            raise ConfigError("tls_key_file is set, but tls_cert_file is not", hint="Set both.")
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        named = f"{certificate}" if key is None else f"{certificate} with the key {key}"
        raise ConfigError(
            f"the certificate {named} cannot be used: {error}",
            hint="tls_cert_file is the certificate and its chain in PEM, tls_key_file its key, "
            "without a passphrase.",
        ) from None


async def renew(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Reload the files whenever they change, until cancelled.

    New connections use the new certificate; open connections continue. Files that cannot be used,
    for example because only one of them is written yet, are ignored until they can.
    """
    files = [certificate] if key is None else [certificate, key]
    known = [_stamp(file) for file in files]
    while True:
        await asyncio.sleep(CHECK_S)
        stamps = [_stamp(file) for file in files]
        if stamps == known or None in stamps:
            continue
        try:
            # Loaded separately first: half a change would pair an old certificate with a new key.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            logger.warning("changed certificate %s not usable yet: %s", certificate, error)
        else:
            known = stamps
            logger.info("certificate %s reloaded", certificate)


def _stamp(file: Path) -> tuple[int, int] | None:
    """Return the time of change and the inode of a file; None for a missing file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


#: Seconds for which a stop waits for requests in progress.
SHUTDOWN_MAX_S: Final = 4
KEEP_ALIVE_S: Final = 75
#: The garbage collector runs when this many objects were added since its last run.
GC_AFTER_OBJECTS: Final = 10_000

_NO_KEY: Final = (
    "API keys are required (`auth`), but no key exists: make one with `headrace keys create`"
)
_OPEN: Final = "auth is off: everybody with access to %s may submit, read results and purge queues"


class ApiProcess(uvicorn.Server):
    """uvicorn for one application; before it stops it answers every waiting request.

    Attributes:
        ready_fd: a pipe into which it writes a line once it serves.
        plain: listening sockets that serve without TLS though there is a certificate.
    """

    ready_fd: int | None = None
    plain: Sequence[socket.socket] = ()
    _background: Sequence[asyncio.Task[None]] = ()
    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, config: uvicorn.Config, app: Application) -> None:
        super().__init__(config)
        self.app = app
        # Set by a second signal to stop.
        self._hurried = asyncio.Event()

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            await self._listen_plain()
            config = self.config
            url = http_url(config.host, config.port, tls=config.ssl is not None)
            logger.info("listening on %s", url)
            settings = self.app.settings
            jobs = [watch(self.server_state.connections, settings.request_timeout_s)]
            if config.ssl is not None and settings.tls_cert_file is not None:
                jobs.append(renew(config.ssl, settings.tls_cert_file, settings.tls_key_file))
            self._background = [asyncio.create_task(job) for job in jobs]
            if self.ready_fd is not None:
                os.write(self.ready_fd, b"\n")

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and self._loop is not None:
            self._loop.call_soon_threadsafe(self._hurried.set)
        super().handle_exit(sig, frame)

    async def _listen_plain(self) -> None:
        """Serve on `plain`, as uvicorn does on its sockets."""
        config = self.config
        loop = asyncio.get_running_loop()

        def new_protocol() -> asyncio.Protocol:
            protocol: Any = config.http_protocol_class
            instance: asyncio.Protocol = protocol(
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return instance

        for listener in self.plain:
            server = await loop.create_server(new_protocol, sock=listener, backlog=config.backlog)
            self.servers.append(server)

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve_longer()
        for task in self._background:
            task.cancel()
        if self.app.services is not None:
            self.app.services.dismiss()
        await super().shutdown(sockets)

    async def _serve_longer(self) -> None:
        """Serve for `stop_delay_s`, in which load balancers learn from `/ready` to come no more."""
        services, delay_s = self.app.services, self.app.settings.stop_delay_s
        if services is None or not delay_s:
            return
        services.stopping = True
        logger.info("stopping in %g s", delay_s)
        self._loop = asyncio.get_running_loop()
        await wait_at_most(delay_s, self._hurried)


def server_for(app: Application, host: str, port: int, log_level: str) -> ApiProcess:
    """Return the server of one application."""
    settings = app.settings
    return ApiProcess(
        uvicorn.Config(
            app,
            host=plain(host),
            port=port,
            loop="uvloop",
            http=protocol_with(settings),
            ws="none",
            lifespan="on",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            # `startup` logs one line; uvicorn's own logs four, and five at the stop.
            log_config=None,
            log_level="warning" if log_level == "info" else log_level,
            backlog=BACKLOG,
            ssl_certfile=settings.tls_cert_file,
            ssl_keyfile=settings.tls_key_file,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=SHUTDOWN_MAX_S,
        ),
        app,
    )


def _serve(settings: Settings, inherited: argparse.Namespace) -> None:
    redis_url = settings.needed_redis_url("the API")
    for warning in check_broker(redis_url).warnings():
        logger.warning("%s", warning)
    check_certificate(settings)
    for warning in _access_warnings(settings, redis_url):
        logger.warning("%s", warning)
    catalog = load_models(settings, needed=lambda _: False)
    stores = build_stores(settings, redis_url)
    try:
        stores.check()
    finally:
        stores.close()
    app = create_app(settings, catalog, declared_of(catalog))
    if settings.access_log:
        app.access_log = access_log(settings, os.environ)
    server = server_for(app, settings.host, settings.port, settings.log_level)
    server.ready_fd = inherited.ready
    # Imported modules stay: a full collection of them would pause every request.
    gc.freeze()
    # Requests leave no cycles, and 64 concurrent ones hold more than the default of 700 objects.
    gc.set_threshold(GC_AFTER_OBJECTS)
    gc.enable()
    listeners = [socket.socket(fileno=descriptor) for descriptor in inherited.socket]
    server.plain = [socket.socket(fileno=descriptor) for descriptor in inherited.plain_socket]
    # A list, so that uvicorn listens on no address of its own.
    try:
        server.run(sockets=listeners if listeners or server.plain else None)
    except SystemExit:  # uvicorn's, where the application has not started
        if app.refusal is not None:
            raise app.refusal from None
        raise


def _access_warnings(settings: Settings, redis_url: str) -> list[str]:
    if settings.asks_for_keys:
        with api_keys_at(redis_url) as keys:
            return [] if keys.all() else [_NO_KEY]
    if is_loopback(settings.public_host):
        return []
    return [_OPEN % settings.public_host]


def _inherited() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m api", description=__doc__)
    parser.add_argument(
        "--socket", type=int, action="append", default=[], metavar="FD",
        help="a listening socket to serve on instead of host and port; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--plain-socket", type=int, action="append", default=[], metavar="FD",
        help="a listening socket that serves without TLS; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--ready", type=int, metavar="FD", help="a pipe to write a line to once it serves"
    )
    return parser.parse_args()


def main() -> int:
    """Serve until SIGTERM or SIGINT; return the exit status."""
    try:
        inherited = _inherited()
        settings = load_settings(None, os.environ, {})
        logs.configure(
            settings.log_format, settings.log_level, "api",
            environ=os.environ, redis_url=settings.redis_url,
        )  # fmt: skip
        _serve(settings, inherited)
    except HeadraceError as error:
        print(f"headrace: {error.message_with_hint}", file=sys.stderr)  # noqa: T201 - for people
        return 2 if isinstance(error, ConfigError) else 3
    return 0
