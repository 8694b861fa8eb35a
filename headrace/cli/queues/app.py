"""The groups `headrace queues` and `headrace dead` as typer sees them: see app.py."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headrace.cli.shared.completion import complete_letter, complete_model
from headrace.cli.shared.options import (
    LIMIT,
    JsonOption,
    LimitOption,
    ModelArgument,
    UrlOption,
    YesOption,
)

queues_group: Final = typer.Typer(rich_markup_mode=None)
dead_group: Final = typer.Typer(
    help="Dead letters: what could not run, kept until somebody looks.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ModelsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL", help="The models whose queues they are.", autocompletion=complete_model
    ),
]
_LETTERS: Final = typer.Argument(
    metavar="ID", help="The letters; - reads ids from standard input.",
    autocompletion=complete_letter,
)  # fmt: skip
LettersArgument = Annotated[list[str], _LETTERS]
SomeLettersArgument = Annotated[list[str] | None, _LETTERS]
AllOption = Annotated[bool, typer.Option("--all", help="All dead letters of the model.")]


@queues_group.callback(invoke_without_command=True)
def queues(ctx: typer.Context, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Show of every queue what waits, what runs, and how much room there is; or hold one."""
    if ctx.invoked_subcommand is None:
        from headrace.cli.queues.queues import list_queues

        list_queues(url, as_json=as_json)
        return
    # Dropped in silence they would send a purge to another server than was meant.
    for name, option in (("url", "--url"), ("as_json", "--json")):
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"it goes behind {ctx.invoked_subcommand}", param_hint=option)


def _holding(verb: str, summary: str, *, paused: bool) -> None:
    @queues_group.command(verb, help=summary)
    def command(models: ModelsArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
        from headrace.cli.queues.queues import pause_queues

        pause_queues(url, models, paused=paused, as_json=as_json)


_holding(
    "pause",
    "Let no worker claim from queues; submits are taken as ever, and jobs that run go on.",
    paused=True,
)
_holding("resume", "Let workers claim from queues again.", paused=False)


@queues_group.command("purge")
def purge_queues(
    models: ModelsArgument,
    yes: YesOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Cancel all that waits in queues, also what is scheduled; jobs that run go on."""
    from headrace.cli.queues.queues import purge

    purge(url, models, yes=yes, as_json=as_json)


@dead_group.command("list")
def list_letters(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Of this model only.", autocompletion=complete_model),
    ] = None,
    limit: LimitOption = LIMIT,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List dead letters, newest first."""
    from headrace.cli.queues.dead_letters import show_list

    show_list(url, model, limit=limit, as_json=as_json)


@dead_group.command("show")
def show_letters(
    model: ModelArgument,
    ids: LettersArgument,
    raw: Annotated[
        bool, typer.Option("--raw", help="The task message of one letter as it is, and no more.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Show dead letters whole: with the traceback, and the message where it is no job."""
    from headrace.cli.queues.dead_letters import show, show_raw

    if not raw:
        raise typer.Exit(show(url, model, ids, as_json=as_json))
    if as_json or len(ids) != 1:
        raise typer.BadParameter("of one letter, and without --json", param_hint="--raw")
    raise typer.Exit(show_raw(url, model, ids[0]))


def _on_letters(verb: str, summary: str) -> None:
    @dead_group.command(verb, help=summary)
    def command(
        model: ModelArgument,
        ids: SomeLettersArgument = None,
        every: AllOption = False,
        yes: YesOption = False,
        as_json: JsonOption = False,
        url: UrlOption = None,
    ) -> None:
        from headrace.cli.queues import dead_letters

        act = dead_letters.requeue if verb == "requeue" else dead_letters.purge
        raise typer.Exit(
            act(url, dead_letters.LetterSelection(model, ids or [], every, yes), as_json=as_json)
        )


_on_letters(
    "requeue", "Put dead letters back into their queue: each job keeps its id and its input."
)
_on_letters("purge", "Remove dead letters for good; their jobs stay failed.")
