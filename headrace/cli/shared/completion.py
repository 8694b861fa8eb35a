"""Names from the server, for the shell's completion: at once or not at all."""

from __future__ import annotations

import os
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec
import typer

_DEFAULT_URL: Final = "http://127.0.0.1:8080"
#: A shell that hangs at a tab is worse than one that completes nothing.
TIMEOUT_S: Final = 0.5


class _Model(msgspec.Struct):
    name: str


class _Models(msgspec.Struct):
    models: list[_Model]


class _Letter(msgspec.Struct):
    id: str


class _Letters(msgspec.Struct):
    dead_letters: list[_Letter]


Shape = TypeVar("Shape", _Models, _Letters)


def complete_model(ctx: typer.Context, incomplete: str) -> list[str]:
    """The models whose names begin so; none where the server does not answer in time."""
    found = _ask(ctx, "", _Models)
    models = found.models if found else []
    return [model.name for model in models if model.name.startswith(incomplete)]


def complete_letter(ctx: typer.Context, incomplete: str) -> list[str]:
    """The model's newest dead letters whose ids begin so."""
    model = quote(str(ctx.params.get("model") or ""), safe="")
    found = _ask(ctx, f"/{model}/dead-letters", _Letters)
    letters = found.dead_letters if found else []
    return [letter.id for letter in letters if letter.id.startswith(incomplete)]


def _ask(ctx: typer.Context, below: str, shape: type[Shape]) -> Shape | None:
    import httpx2

    url = ctx.params.get("url") or os.environ.get("HEADRACE_URL") or _DEFAULT_URL
    try:
        answer = httpx2.get(f"{url.rstrip('/')}/api/v1/models{below}", timeout=TIMEOUT_S)
        return msgspec.json.decode(answer.content, type=shape)
    except (httpx2.HTTPError, httpx2.InvalidURL, msgspec.MsgspecError):
        return None
