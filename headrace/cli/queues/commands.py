"""Declares the command groups `headrace queues` and `headrace dead`."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from headrace.cli.shared.completion import complete_dead_letter, complete_model
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
    help="List, show, requeue and purge dead letters: messages that could not be processed.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ModelsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL", help="Models whose queues to change.", autocompletion=complete_model
    ),
]
_DEAD_LETTERS: Final = typer.Argument(
    metavar="ID", help="Dead letter ids; - reads ids from standard input.",
    autocompletion=complete_dead_letter,
)  # fmt: skip
DeadLettersArgument = Annotated[list[str], _DEAD_LETTERS]
OptionalDeadDeadLettersArgument = Annotated[list[str] | None, _DEAD_LETTERS]
AllOption = Annotated[bool, typer.Option("--all", help="Select all dead letters of the model.")]


@queues_group.callback(invoke_without_command=True)
def queues(ctx: typer.Context, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """List the queues with waiting and running jobs and free room; or change a queue."""
    if ctx.invoked_subcommand is None:
        from headrace.cli.queues.queues import list_queues

        list_queues(url, as_json=as_json)
        return
    # An ignored --url would send a purge to the wrong server.
    for name, option in (("url", "--url"), ("as_json", "--json")):
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"put it after {ctx.invoked_subcommand}", param_hint=option)


def _pause_command(verb: str, summary: str, *, paused: bool) -> None:
    @queues_group.command(verb, help=summary)
    def command(models: ModelsArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
        from headrace.cli.queues.queues import pause_queues

        pause_queues(url, models, paused=paused, as_json=as_json)


_pause_command(
    "pause",
    "Stop workers from claiming jobs; submits are still accepted, running jobs continue.",
    paused=True,
)
_pause_command("resume", "Let workers claim jobs again.", paused=False)


@queues_group.command("purge")
def purge_queues(
    models: ModelsArgument,
    yes: YesOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Cancel all waiting and scheduled jobs of queues; running jobs continue."""
    from headrace.cli.queues.queues import purge

    purge(url, models, yes=yes, as_json=as_json)


@dead_group.command("list")
def list_dead_letters(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="Only this model (default: all).", autocompletion=complete_model
        ),
    ] = None,
    limit: LimitOption = LIMIT,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List dead letters, newest first."""
    from headrace.cli.queues.dead_letters import show_list

    show_list(url, model, limit=limit, as_json=as_json)


@dead_group.command("show")
def show_dead_letters(
    model: ModelArgument,
    ids: DeadLettersArgument,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Write only the task message of one dead letter, unchanged."),
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Show dead letters in full: the traceback, and the message if it is not a job."""
    from headrace.cli.queues.dead_letters import show, show_raw

    if not raw:
        raise typer.Exit(show(url, model, ids, as_json=as_json))
    if as_json or len(ids) != 1:
        raise typer.BadParameter(
            "--raw takes one id and cannot be combined with --json", param_hint="--raw"
        )
    raise typer.Exit(show_raw(url, model, ids[0]))


def _dead_letter_command(verb: str, summary: str) -> None:
    @dead_group.command(verb, help=summary)
    def command(
        model: ModelArgument,
        ids: OptionalDeadDeadLettersArgument = None,
        every: AllOption = False,
        yes: YesOption = False,
        as_json: JsonOption = False,
        url: UrlOption = None,
    ) -> None:
        from headrace.cli.queues import dead_letters

        act = dead_letters.requeue if verb == "requeue" else dead_letters.purge
        raise typer.Exit(
            act(
                url, dead_letters.DeadLetterSelection(model, ids or [], every, yes), as_json=as_json
            )
        )


_dead_letter_command("requeue", "Requeue dead letters; each job keeps its id and its input.")
_dead_letter_command("purge", "Delete dead letters permanently; their jobs stay failed.")
