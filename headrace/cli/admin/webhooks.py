"""`headrace webhooks`: shows and repeats deliveries, and prints signing secrets."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

import typer

from headrace.cli.shared import options, output
from headrace.cli.shared.options import argument, client_of, flag, group
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.schema.operation import WebhookDelivery

webhooks_group: Final = group("Show and redeliver webhooks; print their signing secrets.")

_COLUMNS: Final = ("ID", "TYPE", "STATE", ">ATTEMPTS", "LAST", "NEXT", "URL")


@webhooks_group.command()
def show(job: options.JobId, as_json: options.Json = False, url: options.Url = None) -> None:
    """Show the webhook deliveries of a job and the result of their attempts."""
    with client_of(url) as client:
        found = client.webhooks(job)
    output.listing(found, _COLUMNS, _row, as_json=as_json, empty=f"{job}: no webhook deliveries")


@webhooks_group.command()
def redeliver(
    job: options.JobId,
    delivery: str | None = argument("DELIVERY", "Delivery id from `show` (default: the newest)."),
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """Send a webhook again with the same id."""
    with client_of(url) as client:
        again = client.redeliver_webhook(job, delivery)
    output.item(again, f"{again.id}  redelivered", as_json=as_json)


@webhooks_group.command()
def secret(
    key: str | None = argument("KEY", "Id of an API key (default: the server's own secret)."),
    new: bool = flag("--new", "Print a new secret to put first in webhook_secrets."),
) -> None:
    """Print the secrets that verify the webhooks of an API key, newest first."""
    # Imported here because they import the Redis client.
    from headrace.config.settings import load_settings
    from headrace.webhooks.signing import new_secret, secrets_of, written

    if new and key:
        raise typer.BadParameter(
            "--new cannot be combined with KEY: a key's secret is derived from the server's",
            param_hint="--new",
        )
    if new:
        output.line(new_secret())
        return
    if key is not None and not re.fullmatch(r"[0-9a-f]{12}", key):
        from headrace.access.key_store import no_key

        raise no_key(key)
    secrets = secrets_of(load_settings(None, os.environ, {}).webhook_secrets, key or "")
    if not secrets:
        raise ConfigError(
            "webhook_secrets is not set here",
            hint="run this command with the server's settings; --new prints a first secret",
        )
    for one in secrets:
        output.line(written(one))


def _row(delivery: WebhookDelivery) -> tuple[str, ...]:
    last = delivery.attempts[-1] if delivery.attempts else None
    result = "" if last is None else last.error or str(last.status or "")
    next_at = delivery.next_attempt_at
    return (
        delivery.id,
        delivery.type,
        delivery.state,
        str(delivery.tries),
        output.short_line(result),
        next_at.isoformat(timespec="seconds") if next_at else "",
        delivery.url,
    )
