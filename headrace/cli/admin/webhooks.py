"""`headrace webhooks`: shows and repeats deliveries, and prints signing secrets."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli.shared import output
from headrace.cli.shared.options import JsonOption, UrlOption
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.client.models import WebhookDelivery

webhooks_group: Final = typer.Typer(
    help="Show and redeliver webhooks; print their signing secrets.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

JobArgument = Annotated[str, typer.Argument(metavar="ID", help="Job id.")]


@webhooks_group.command()
def show(job: JobArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Show the webhook deliveries of a job and the result of their attempts."""
    from headrace import Client

    with Client(url) as client:
        deliveries = client.webhooks(job)
    if as_json:
        for delivery in deliveries:
            output.json_line(delivery)
    elif not deliveries:
        output.message(f"{job}: no webhook deliveries")
    else:
        heads = ("ID", "TYPE", "STATE", ">ATTEMPTS", "LAST", "NEXT", "URL")
        output.table(heads, [_row(delivery) for delivery in deliveries])


@webhooks_group.command()
def redeliver(
    job: JobArgument,
    delivery: Annotated[
        str | None,
        typer.Argument(metavar="DELIVERY", help="Delivery id from `show` (default: the newest)."),
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Send a webhook again with the same id."""
    from headrace import Client

    with Client(url) as client:
        again = client.redeliver_webhook(job, delivery)
    if as_json:
        output.json_line(again)
    else:
        output.line(f"{again.id}  redelivered")


@webhooks_group.command()
def secret(
    key: Annotated[
        str | None,
        typer.Argument(metavar="KEY", help="Id of an API key (default: the server's own secret)."),
    ] = None,
    new: Annotated[
        bool,
        typer.Option("--new", help="Print a new secret to put first in webhook_secrets."),
    ] = False,
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
