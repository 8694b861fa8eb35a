"""`headrace keys`: changes API keys in Redis directly, for the server's operator."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.access.api_key import Scope
from headrace.cli.shared import output
from headrace.cli.shared.confirm import confirm
from headrace.cli.shared.options import JsonOption, YesOption
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.access.api_key import ApiKey
    from headrace.access.key_store import ApiKeyStore, ListedKey

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

keys_group: Final = typer.Typer(
    help="Manage API keys in the Redis at HEADRACE_REDIS_URL, else in that of `headrace up` here.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

KeyArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the key: the middle part of its text.")
]


@keys_group.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the key in lists.")],
    scope: Annotated[
        list[Scope] | None,
        typer.Option("--scope", help="Scope of the key; repeatable (default: submit and read)."),
    ] = None,
    rate: Annotated[
        float,
        typer.Option(
            "--rate",
            min=0,
            metavar="N",
            show_default=False,
            help="Requests (and lines of bulk requests) per second (default: no limit).",
        ),
    ] = 0.0,
    in_flight: Annotated[
        int,
        typer.Option(
            "--in-flight",
            min=0,
            metavar="N",
            show_default=False,
            help="Maximum number of jobs in flight (default: no limit).",
        ),
    ] = 0,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires",
            metavar="TIME",
            help="Lifetime of the key: 90s, 15m, 2h or 30d (default: never expires).",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create an API key and print it once; Redis stores only its hash."""
    with _api_keys() as key_store:
        key, text = key_store.create(
            name,
            scope or [Scope.SUBMIT, Scope.READ],
            rate=rate,
            in_flight=in_flight,
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
def list_(as_json: JsonOption = False) -> None:
    """List the API keys without their secrets."""
    with _api_keys() as key_store:
        listed = key_store.all()
    if as_json:
        for one in listed:
            output.json_line(_json_object(one))
        return
    output.table(
        ("ID", "NAME", "SCOPES", ">RATE", ">IN FLIGHT", "CREATED", "EXPIRES"),
        [_row(one) for one in listed],
    )


@keys_group.command()
def rotate(
    key_id: KeyArgument,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace", metavar="TIME", help="How long the old secret stays valid (default: 0s)."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Give a key a new secret and print it; its id, jobs and limits stay."""
    with _api_keys() as key_store:
        key, text = key_store.rotate(key_id, grace_s=_seconds(grace, "--grace"))
    _print_once(key, text, as_json=as_json)


@keys_group.command()
def revoke(
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of the keys.")],
    yes: YesOption = False,
) -> None:
    """Revoke keys immediately and permanently; their jobs continue."""
    confirm(lambda: f"permanently revoke {output.count(len(ids), 'API key')}?", yes=yes)
    with _api_keys() as key_store:
        for key_id in ids:
            key_store.revoke(key_id)
            output.line(f"{key_id}  revoked")


def _seconds(text: str | None, option: str, *, least: int = 0) -> float:
    """Parse a duration to seconds; return 0 for None.

    Raises:
        typer.BadParameter: the text is not a duration, or is less than `least` seconds.
    """
    if text is None:
        return 0.0
    match = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if not match:
        raise typer.BadParameter(
            f"{text}: not a duration; give 90s, 15m, 2h or 30d", param_hint=option
        )
    duration_s = int(match[1]) * _UNITS_S[match[2]]
    if duration_s < least:
        raise typer.BadParameter(f"{text}: must be at least {least}s", param_hint=option)
    return float(duration_s)


@contextmanager
def _api_keys() -> Iterator[ApiKeyStore]:
    # Imported here because they import the Redis client.
    from headrace.access.key_store import api_keys_at
    from headrace.config.settings import load_settings
    from headrace.server.embedded_redis import prepared_url

    settings = load_settings(None, os.environ, {})
    url = settings.redis_url or prepared_url(settings.state_dir)
    if url is None:
        raise ConfigError(
            f"no Redis URL is set, and `headrace up` has no Redis in {settings.state_dir}",
            hint="set HEADRACE_REDIS_URL, or change to the folder where `headrace up` runs",
        )
    with api_keys_at(url) as key_store:
        yield key_store


def _print_once(key: ApiKey, text: str, *, as_json: bool) -> None:
    if as_json:
        from headrace.access.key_store import ListedKey

        output.json_line({**_json_object(ListedKey(key, 0)), "key": text})
        return
    output.line(text)
    output.message(f"the key is shown only once; its id is {key.id}")


def _json_object(one: ListedKey) -> dict[str, Any]:
    key = one.key
    return {
        "id": key.id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "rate": key.rate or None,
        "max_in_flight": key.in_flight or None,
        "in_flight": one.jobs,
        "created_at": _time(key.created_s),
        "expires_at": _time(key.expires_s) if key.expires_s else None,
        "internal": key.acts,
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
        f"{one.jobs:,}/{key.in_flight:,}" if key.in_flight else f"{one.jobs:,}",
        _time(key.created_s),
        expires,
    )


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")
