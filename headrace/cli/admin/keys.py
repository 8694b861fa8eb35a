"""`headrace keys`: changes API keys in Redis directly, for the server's operator."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.access.api_key import Scope
from headrace.cli.shared import options, output
from headrace.cli.shared.options import argument, group, option, parsed_seconds
from headrace.text import count

if TYPE_CHECKING:
    from headrace.access.api_key import ApiKey
    from headrace.access.key_store import ApiKeyStore, ListedKey

keys_group: Final = group(
    "Manage API keys in the Redis at HEADRACE_REDIS_URL, else in that of `headrace up` here."
)

#: Longer durations are beyond what a date can be.
_DURATION_CHARS: Final = 7
_COLUMNS: Final = (
    "ID", "NAME", "SCOPES", ">RATE", "?>TOKENS", ">IN FLIGHT", "CREATED", "EXPIRES",
)  # fmt: skip

StateDir = Annotated[
    Path | None,
    option("--state-dir DIR", "State directory of headrace up (default: .headrace).", ...),
]
KeyArgument = Annotated[str, argument("ID", "Id of the key: the middle part of its text.", ...)]


@keys_group.command()
def create(
    name: str = argument("NAME", "Name of the key in lists.", ...),
    scope: list[Scope] | None = option(
        "--scope SCOPE",
        "Scope of the key: submit, read or manage; repeatable (default: submit and read).",
    ),
    rate: float = option(
        "--rate N",
        "Requests and jobs per second (default: no limit).",
        0.0,
        min=0,
    ),
    in_flight: int = option(
        "--in-flight N", "Maximum number of jobs in flight (default: no limit).", 0, min=0
    ),
    tokens_per_minute: int = option(
        "--tokens-per-minute N",
        "Tokens a minute of jobs of models with `schedule: tokens` (default: no limit).",
        0,
        min=0,
    ),
    expires: str | None = option(
        "--expires TIME", "Lifetime of the key: 90s, 15m, 2h or 30d (default: never expires)."
    ),
    state_dir: StateDir = None,
    as_json: options.Json = False,
) -> None:
    """Create an API key and print it once; Redis stores only its hash."""
    with _api_keys(state_dir) as key_store:
        key, text = key_store.create(
            name,
            scope or [Scope.SUBMIT, Scope.READ],
            rate=rate,
            in_flight=in_flight,
            tokens_per_minute=tokens_per_minute,
            expires_in_s=_seconds(expires, "--expires", least=1),
        )
    _print_once(key, text, as_json=as_json)
    from headrace.config.settings import load_settings

    settings = load_settings(None, os.environ, {})
    if not settings.asks_for_keys:
        output.message(
            f"with these settings ({settings.public_host}, auth: {settings.auth}) the API does not "
            "require keys; set HEADRACE_AUTH=on to require them"
        )


@keys_group.command("list")
def list_(state_dir: StateDir = None, as_json: options.Json = False) -> None:
    """List the API keys without their secrets."""
    with _api_keys(state_dir) as key_store:
        listed = key_store.all()
    if as_json:
        for one in listed:
            output.json_line(_json_object(one.key, one.jobs))
    else:
        output.table(_COLUMNS, map(_row, listed))


@keys_group.command()
def rotate(
    key_id: KeyArgument,
    grace: str | None = option(
        "--grace TIME", "How long the old secret stays valid (default: 0s)."
    ),
    state_dir: StateDir = None,
    as_json: options.Json = False,
) -> None:
    """Give a key a new secret and print it; its id, jobs and limits stay."""
    with _api_keys(state_dir) as key_store:
        key, text = key_store.rotate(key_id, grace_s=_seconds(grace, "--grace"))
    _print_once(key, text, as_json=as_json)


@keys_group.command()
def revoke(
    ids: list[str] = argument("ID", "Ids of the keys.", ...),
    state_dir: StateDir = None,
    yes: options.Yes = False,
) -> None:
    """Revoke keys immediately and permanently; their jobs continue."""
    output.confirm(lambda: f"permanently revoke {count(len(ids), 'API key')}?", yes=yes)
    with _api_keys(state_dir) as key_store:
        for key_id in ids:
            key_store.revoke(key_id)
            output.line(f"{key_id}  revoked")


def _seconds(text: str | None, flag: str, *, least: int = 0) -> float:
    """Parse a duration to seconds, None to 0; raise BadParameter for others, or below `least`."""
    if text is None:
        return 0.0
    duration_s = parsed_seconds(text) if len(text) <= _DURATION_CHARS else None
    if duration_s is None:
        raise typer.BadParameter(
            f"{text}: not a duration; give 90s, 15m, 2h or 30d", param_hint=flag
        )
    if duration_s < least:
        raise typer.BadParameter(f"{text}: must be at least {least}s", param_hint=flag)
    return float(duration_s)


def _api_keys(state_dir: Path | None) -> AbstractContextManager[ApiKeyStore]:
    # Imported here because they import the Redis client.
    from headrace.access.key_store import api_keys_at
    from headrace.config.settings import load_settings
    from headrace.server.embedded_redis import redis_url_here

    given = {} if state_dir is None else {"state_dir": str(state_dir)}
    return api_keys_at(redis_url_here(load_settings(None, os.environ, given)))


def _print_once(key: ApiKey, text: str, *, as_json: bool) -> None:
    output.item({**_json_object(key, 0), "key": text}, text, as_json=as_json)
    if not as_json:
        output.message(f"the key is shown only once; its id is {key.id}")


def _json_object(key: ApiKey, jobs: int) -> dict[str, Any]:
    return {
        **key.members(jobs),
        "created_at": _time(key.created_s),
        "expires_at": _time(key.expires_s) if key.expires_s else None,
    }


def _row(one: ListedKey) -> tuple[str, ...]:
    key = one.key
    expires = ""
    if key.expired(time.time()):
        expires = "expired"
    elif key.expires_s:
        expires = _time(key.expires_s)
    return (
        key.id,
        output.short_line(key.name),
        ",".join(sorted(key.scopes)),
        f"{key.rate:g}/s" if key.rate else "",
        f"{key.tokens_per_minute:,}/min" if key.tokens_per_minute else "",
        f"{one.jobs:,}/{key.in_flight:,}" if key.in_flight else f"{one.jobs:,}",
        _time(key.created_s),
        expires,
    )


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")
