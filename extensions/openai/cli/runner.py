"""`headrace runner`: the batch runner on a given Redis."""

from __future__ import annotations

import os
from typing import Annotated

from headrace.cli.shared.options import option


def runner(
    host: Annotated[
        str | None, option("--host ADDRESS", "Listen address of the API (default: 127.0.0.1).", ...)
    ] = None,
    port: Annotated[
        int | None, option("--port PORT", "Port of the API (default: 8080).", ..., min=1, max=65535)
    ] = None,
) -> None:
    """Run the batch runner, with the API at HEADRACE_URL and the Redis at HEADRACE_REDIS_URL."""
    # Imported here because the help of `headrace` lists this command.
    from extensions.openai.batches.runner import BatchRunner
    from headrace.config.environment import ENV_URL
    from headrace.config.settings import load_settings
    from headrace.observability import logs
    from headrace.redis.compatibility import check_broker
    from headrace.server.components import INCARNATION
    from headrace.server.ports import http_url

    environ = os.environ
    settings = load_settings(None, environ, {"host": host, "port": port})
    url = settings.needed_redis_url("headrace runner")
    logs.configure(
        settings.log_format, settings.log_level, "runner", environ=environ, redis_url=url
    )
    check_broker(url)
    local_url = http_url(settings.host, settings.port, tls=settings.tls)
    api_url = environ.get(ENV_URL) or local_url
    BatchRunner(settings, url, api_url, environ.get(INCARNATION, "")).run()
