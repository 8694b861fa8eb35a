"""The group `headrace webhooks` as typer sees it: see app.py and webhooks.py."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headrace.cli.shared.options import JsonOption, UrlOption

webhooks_group: Final = typer.Typer(
    help="Webhooks: what was told of a job, and the secrets that sign it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

JobArgument = Annotated[str, typer.Argument(metavar="ID", help="The job.")]


@webhooks_group.command()
def show(job: JobArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Show what webhooks were told of a job: each delivery, and how its tries went."""
    from headrace.cli.admin import webhooks

    webhooks.show(url, job, as_json=as_json)


@webhooks_group.command()
def redeliver(
    job: JobArgument,
    delivery: Annotated[
        str | None,
        typer.Argument(metavar="DELIVERY", help="Which, as show lists them [the newest]."),
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Tell a webhook again, under the same id."""
    from headrace.cli.admin import webhooks

    webhooks.redeliver(url, job, delivery, as_json=as_json)


@webhooks_group.command()
def secret(
    key: Annotated[
        str | None,
        typer.Argument(metavar="KEY", help="The API key, by its id [no key: the server's own]."),
    ] = None,
    new: Annotated[
        bool, typer.Option("--new", help="Print a new one, to be put in front of webhook_secrets.")
    ] = False,
) -> None:
    """Print the secrets, the newest first, by which an API key's owner verifies webhooks."""
    from headrace.cli.admin import webhooks

    if new and key:
        raise typer.BadParameter("a key's secret follows from the server's", param_hint="--new")
    webhooks.secret(key, new=new)
