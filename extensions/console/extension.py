"""What this extension adds."""

from __future__ import annotations

from typing import Final

from headrace.config.extensions import Extension


def _api() -> object:
    from extensions.console.api_part import PART

    return PART


def _server() -> object:
    from headrace.server.extension import ServerPart

    return ServerPart(pages={"console": "/console"})


EXTENSION: Final = Extension(
    name="console",
    summary="The console: pages in a browser that show a deployment and mend it",
    api=_api,
    server=_server,
)
