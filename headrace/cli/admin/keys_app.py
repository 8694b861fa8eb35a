"""The group `headrace keys` as typer sees it: see app.py and keys.py."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headrace.access.api_key import Scope
from headrace.cli.shared.options import JsonOption, YesOption

keys_group: Final = typer.Typer(
    help="API keys, in the Redis that HEADRACE_REDIS_URL names, else of `headrace up` here.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

KeyArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The key's id, the middle part of it.")
]


@keys_group.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is called in lists.")],
    scope: Annotated[
        list[Scope] | None,
        typer.Option("--scope", help="What it is for; repeatable [submit and read]."),
    ] = None,
    rate: Annotated[
        float,
        typer.Option(
            "--rate",
            min=0,
            metavar="N",
            show_default=False,
            help="Requests a second, and lines of bulk requests [no limit].",
        ),
    ] = 0.0,
    in_flight: Annotated[
        int,
        typer.Option(
            "--in-flight",
            min=0,
            metavar="N",
            show_default=False,
            help="Jobs that have not ended [no limit].",
        ),
    ] = 0,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="TIME", help="After 90s, 15m, 2h or 30d [never]."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make an API key and print it. It is shown this once; Redis has its hash alone."""
    from headrace.cli.admin import keys

    keys.create(
        name, scope or [Scope.SUBMIT, Scope.READ], rate=rate, in_flight=in_flight,
        expires_in_s=keys.seconds(expires, "--expires", least=1), as_json=as_json,
    )  # fmt: skip


@keys_group.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the API keys, without their secrets, which nobody has."""
    from headrace.cli.admin import keys

    keys.list_keys(as_json=as_json)


@keys_group.command()
def rotate(
    key_id: KeyArgument,
    grace: Annotated[
        str | None,
        typer.Option("--grace", metavar="TIME", help="The old one is good for so long too [0s]."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Give a key a new secret and print it: the same key, with its jobs and limits."""
    from headrace.cli.admin import keys

    keys.rotate(key_id, grace_s=keys.seconds(grace, "--grace"), as_json=as_json)


@keys_group.command()
def revoke(
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="The keys' ids.")],
    yes: YesOption = False,
) -> None:
    """Make keys none, at once and for good. Their jobs go on."""
    from headrace.cli.admin import keys

    keys.revoke(ids, yes=yes)
