"""Declares the command group `headrace keys`; keys.py implements it."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headrace.access.api_key import Scope
from headrace.cli.shared.options import JsonOption, YesOption

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
    from headrace.cli.admin import keys

    keys.create(
        name, scope or [Scope.SUBMIT, Scope.READ], rate=rate, in_flight=in_flight,
        expires_in_s=keys.seconds(expires, "--expires", least=1), as_json=as_json,
    )  # fmt: skip


@keys_group.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the API keys without their secrets."""
    from headrace.cli.admin import keys

    keys.list_keys(as_json=as_json)


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
    from headrace.cli.admin import keys

    keys.rotate(key_id, grace_s=keys.seconds(grace, "--grace"), as_json=as_json)


@keys_group.command()
def revoke(
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of the keys.")],
    yes: YesOption = False,
) -> None:
    """Revoke keys immediately and permanently; their jobs continue."""
    from headrace.cli.admin import keys

    keys.revoke(ids, yes=yes)
