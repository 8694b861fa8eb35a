"""Shell completion with names from the server; completes nothing if the server is slow."""

from __future__ import annotations

import os
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec
import typer

_DEFAULT_URL: Final = "http://127.0.0.1:8080"
#: A shell must not hang when the user presses Tab.
TIMEOUT_S: Final = 0.5


class _Model(msgspec.Struct):
    name: str


class _Models(msgspec.Struct):
    models: list[_Model]


class _DeadLetter(msgspec.Struct):
    id: str


class _DeadLetters(msgspec.Struct):
    dead_letters: list[_DeadLetter]


Shape = TypeVar("Shape", _Models, _DeadLetters)


def complete_model(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the models whose names begin with `incomplete`; none without an answer in time."""
    page = _get(ctx, "", _Models)
    models = page.models if page else []
    return [model.name for model in models if model.name.startswith(incomplete)]


def complete_dead_letter(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the model's newest dead letters whose ids begin with `incomplete`."""
    model = quote(str(ctx.params.get("model") or ""), safe="")
    page = _get(ctx, f"/{model}/dead-letters", _DeadLetters)
    dead_letters = page.dead_letters if page else []
    return [found.id for found in dead_letters if found.id.startswith(incomplete)]


def _get(ctx: typer.Context, path: str, shape: type[Shape]) -> Shape | None:
    import httpx2

    url = ctx.params.get("url") or os.environ.get("HEADRACE_URL") or _DEFAULT_URL
    try:
        answer = httpx2.get(f"{url.rstrip('/')}/api/v1/models{path}", timeout=TIMEOUT_S)
        return msgspec.json.decode(answer.content, type=shape)
    except (httpx2.HTTPError, httpx2.InvalidURL, msgspec.MsgspecError):
        return None
