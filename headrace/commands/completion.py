"""Names of models from the server, for the shell's completion: at once or not at all."""

from __future__ import annotations

import os
from typing import Final

import msgspec
import typer

_DEFAULT_URL: Final = "http://127.0.0.1:8080"
#: A shell that hangs at a tab is worse than one that completes nothing.
TIMEOUT_S: Final = 0.5


class _Model(msgspec.Struct):
    name: str


class _Models(msgspec.Struct):
    models: list[_Model]


def complete_model(ctx: typer.Context, incomplete: str) -> list[str]:
    """The models whose names begin so; none where the server does not answer in time."""
    import httpx2

    url = ctx.params.get("url") or os.environ.get("HEADRACE_URL") or _DEFAULT_URL
    try:
        answer = httpx2.get(f"{url.rstrip('/')}/api/v1/models", timeout=TIMEOUT_S)
        found = msgspec.json.decode(answer.content, type=_Models)
    except (httpx2.HTTPError, httpx2.InvalidURL, msgspec.MsgspecError):
        return []
    return [model.name for model in found.models if model.name.startswith(incomplete)]
