"""`headrace webhooks`: shows and repeats deliveries, and prints signing secrets."""

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
    """Print a job's webhook deliveries.

    Raises:
        JobNotFound: no job has this id.
    """
    from headrace import Client

    with Client(url) as client:
        found = client.webhooks(job)
    if as_json:
        for delivery in found:
            output.json_line(delivery)
    elif not found:
        output.message(f"{job}: no webhook deliveries")
    else:
        heads = ("ID", "TYPE", "STATE", ">ATTEMPTS", "LAST", "NEXT", "URL")
        output.table(heads, [_row(delivery) for delivery in found])


def redeliver(url: str | None, job: str, delivery: str | None, *, as_json: bool) -> None:
    """Send a webhook again.

    Raises:
        JobNotFound: no job has this id.
        WebhookNotFound: the job has no such delivery.
    """
    from headrace import Client

    with Client(url) as client:
        again = client.redeliver_webhook(job, delivery)
    if as_json:
        output.json_line(again)
    else:
        output.line(f"{again.id}  redelivered")


def secret(key: str | None, *, new: bool) -> None:
    """Print the signing secrets, newest first.

    Raises:
        ConfigError: webhook_secrets is not set, or the key's id is invalid.
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
            hint="run this command with the server's settings; --new prints a first secret",
        )
    for one in found:
        output.line(written(one))


def _row(delivery: WebhookDelivery) -> tuple[str, ...]:
    last = delivery.attempts[-1] if delivery.attempts else None
    result = "" if last is None else last.error or str(last.status or "")
    following = delivery.next_attempt_at
    return (
        delivery.id,
        delivery.type,
        delivery.state,
        str(delivery.tries),
        output.short_line(result),
        following.isoformat(timespec="seconds") if following else "",
        delivery.url,
    )
