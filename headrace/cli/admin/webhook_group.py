"""The group `headrace webhooks` as typer sees it: see app.py and webhooks.py."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headrace.cli.shared.options import JsonOption, UrlOption

webhooks_group: Final = typer.Typer(
    help="Show and redeliver webhooks; print their signing secrets.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

JobArgument = Annotated[str, typer.Argument(metavar="ID", help="Job id.")]


@webhooks_group.command()
def show(job: JobArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Show the webhook deliveries of a job and the result of their attempts."""
    from headrace.cli.admin import webhooks

    webhooks.show(url, job, as_json=as_json)


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
    from headrace.cli.admin import webhooks

    webhooks.redeliver(url, job, delivery, as_json=as_json)


@webhooks_group.command()
def secret(
    key: Annotated[
        str | None,
        typer.Argument(metavar="KEY", help="Id of an API key (default: the server's own secret)."),
    ] = None,
    new: Annotated[
        bool, typer.Option("--new", help="Print a new secret to put first in webhook_secrets.")
    ] = False,
) -> None:
    """Print the secrets that verify the webhooks of an API key, newest first."""
    from headrace.cli.admin import webhooks

    if new and key:
        raise typer.BadParameter(
            "--new cannot be combined with KEY: a key's secret is derived from the server's",
            param_hint="--new",
        )
    webhooks.secret(key, new=new)
