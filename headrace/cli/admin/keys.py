"""`headrace keys`: changes API keys in Redis directly, for the server's operator."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import typer

from headrace.access.api_key import ApiKey, Scope
from headrace.access.key_store import ApiKeyStore, ListedKey, api_keys_at
from headrace.cli.shared import output
from headrace.cli.shared.confirm import ask
from headrace.config.settings import load_settings
from headrace.errors import ConfigError
from headrace.server.embedded_redis import prepared_url

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds(text: str | None, option: str, *, least: int = 0) -> float:
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


def create(
    name: str,
    scopes: Collection[Scope],
    *,
    rate: float,
    in_flight: int,
    expires_in_s: float,
    as_json: bool,
) -> None:
    """Create a key and print it."""
    with _api_keys() as key_store:
        key, text = key_store.create(
            name, scopes, rate=rate, in_flight=in_flight, expires_in_s=expires_in_s
        )
    _print_once(key, text, as_json=as_json)
    settings = load_settings(None, os.environ, {})
    if not settings.asks_for_keys:
        output.message(
            f"with these settings ({settings.public_host}, auth: {settings.auth}) the API does not "
            "require keys; set HEADRACE_AUTH=on to require them"
        )


def rotate(key_id: str, *, grace_s: float, as_json: bool) -> None:
    """Give a key a new secret and print it."""
    with _api_keys() as key_store:
        key, text = key_store.rotate(key_id, grace_s=grace_s)
    _print_once(key, text, as_json=as_json)


def list_keys(*, as_json: bool) -> None:
    """Print the keys."""
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


def revoke(ids: Sequence[str], *, yes: bool) -> None:
    """Revoke keys.

    Raises:
        ConfigError: a key does not exist; the keys before it were revoked.
    """
    ask(lambda: f"permanently revoke {output.count(len(ids), 'API key')}?", yes=yes)
    with _api_keys() as key_store:
        for key_id in ids:
            key_store.revoke(key_id)
            output.line(f"{key_id}  revoked")


@contextmanager
def _api_keys() -> Iterator[ApiKeyStore]:
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
