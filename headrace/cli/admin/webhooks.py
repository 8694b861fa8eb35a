"""`headrace webhooks show`, `redeliver` and `secret`."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from headrace.cli.shared import output
from headrace.config.settings import load_settings
from headrace.errors import ConfigError
from headrace.webhooks.signing import new_secret, secrets_of, written

if TYPE_CHECKING:
    from headrace.client.models import WebhookDelivery


def show(url: str | None, job: str, *, as_json: bool) -> None:
    """Show a job's deliveries.

    Raises:
        JobNotFound: there is no such job.
    """
    from headrace import Client

    with Client(url) as client:
        found = client.webhooks(job)
    if as_json:
        for delivery in found:
            output.json_line(delivery)
    elif not found:
        output.say(f"{job}: no webhook was told of it yet")
    else:
        heads = ("ID", "TYPE", "STATE", ">TRIES", "LAST", "NEXT", "URL")
        output.table(heads, [_row(delivery) for delivery in found])


def redeliver(url: str | None, job: str, delivery: str | None, *, as_json: bool) -> None:
    """Tell a webhook again.

    Raises:
        JobNotFound, WebhookNotFound: there is no such job, or delivery of it.
    """
    from headrace import Client

    with Client(url) as client:
        again = client.redeliver_webhook(job, delivery)
    if as_json:
        output.json_line(again)
    else:
        output.line(f"{again.id}  is told again")


def secret(key: str | None, *, new: bool) -> None:
    """Print secrets.

    Raises:
        ConfigError: there are none, or the key's id is none.
    """
    if new:
        output.line(new_secret())
        return
    if key is not None and not re.fullmatch(r"[0-9a-f]{12}", key):
        from headrace.access.key_store import no_key

        raise no_key(key)
    found = secrets_of(load_settings(None, os.environ, {}).webhook_secrets, key or "")
    if not found:
        raise ConfigError(
            "webhook_secrets is not set here",
            hint="run this where the server's settings are; --new prints a secret for a first one",
        )
    for one in found:
        output.line(written(one))


def _row(delivery: WebhookDelivery) -> tuple[str, ...]:
    last = delivery.attempts[-1] if delivery.attempts else None
    said = "" if last is None else last.error or str(last.status or "")
    following = delivery.next_attempt_at
    return (
        delivery.id,
        delivery.type,
        delivery.state,
        str(delivery.tries),
        output.short_line(said),
        following.isoformat(timespec="seconds") if following else "",
        delivery.url,
    )
