"""`headrace runs`: lists, shows, cancels and resumes offline runs."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.cli.shared import options, output
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.options import argument, client_of
from headrace.errors import ConfigError, RunNotFound
from headrace.text import ago

if TYPE_CHECKING:
    from headrace.client import Client
    from headrace.schema.runs import Run

runs_group: Final = typer.Typer(rich_markup_mode=None)

RunArgument = Annotated[str, argument("ID", "Run id, or the name of --name.", ...)]

_COLUMNS: Final = (
    "ID", "NAME", "MODEL", "STATE", ">DONE", ">FAILED", ">RATE", "UPDATED", "OUTPUT",
)  # fmt: skip


@runs_group.callback(invoke_without_command=True)
def runs(
    ctx: typer.Context,
    limit: options.Limit = options.LIMIT,
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """List offline runs, latest report first; or show, cancel or resume one."""
    if ctx.invoked_subcommand is not None:
        options.refuse_before_subcommand(ctx)
        return
    with client_of(url) as client:
        found = client.runs()[: limit or None]
    output.listing(found, _COLUMNS, _row, as_json=as_json, empty="no runs")


@runs_group.command()
def show(run_id: RunArgument, as_json: options.Json = False, url: options.Url = None) -> None:
    """Show the progress of a run and the command that resumes it."""
    with client_of(url) as client:
        run = _run_of(client, run_id)
    if as_json:
        output.json_line(run)
        return
    output.pairs([
        ("run", run.id), ("name", run.name), ("model", run.model), ("state", _state(run)),
        ("source", run.source), ("output", run.output), ("done", _done(run)),
        ("failed", f"{run.failed:,}"), ("rate", f"{run.per_second:,.1f}/s"),
        ("started", ago(run.started_at)), ("updated", ago(run.told_at)),
        ("host", run.host), ("folder", run.folder), ("command", shlex.join(run.command)),
        *([("error", output.short_line(run.error))] if run.error else []),
    ])  # fmt: skip


@runs_group.command()
def cancel(run_id: RunArgument, as_json: options.Json = False, url: options.Url = None) -> None:
    """Stop a run on any host within seconds and cancel its jobs in flight."""
    with client_of(url) as client:
        run = client.cancel_run(_run_of(client, run_id).id)
    if as_json:
        output.json_line(run)
    elif run.cancel_requested:
        output.line(f"{run.id}  stops within seconds")
    else:
        output.message(f"{run.id}: not running: {run.state}")
    raise typer.Exit(ExitCode.DONE if run.cancel_requested else ExitCode.FAILED)


@runs_group.command()
def resume(run_id: RunArgument, url: options.Url = None) -> None:
    """Resume a run that was started on this machine, with the command that started it."""
    with client_of(url) as client:
        run = _run_of(client, run_id)
    command_line = f"cd {shlex.quote(run.folder)} && {shlex.join(run.command)}"
    if run.state == "running":
        raise ConfigError(f"{run.id} is running on {run.host}", hint="Watch it with headrace runs.")
    if run.command[:2] != ["headrace", "run"]:
        raise ConfigError(f"{run.id} was not started with headrace run")
    if run.host != socket.gethostname():
        raise ConfigError(
            f"{run.id} was started on {run.host}", hint=f"Resume it there: {command_line}"
        )
    if not os.path.isdir(run.folder):
        raise ConfigError(f"{run.folder}, the folder of {run.id}, does not exist")
    output.message(command_line)
    sys.stdout.flush()
    os.chdir(run.folder)
    # Replace this process by the command.
    environ = dict(os.environ) if url is None else {**os.environ, "HEADRACE_URL": url}
    command = [sys.executable, "-P", "-m", "headrace", *run.command[1:]]
    os.execve(sys.executable, command, environ)  # noqa: S606 - no shell on purpose


def _run_of(client: Client, wanted: str) -> Run:
    """Return the run with this id, else the only one with this name.

    Raises:
        RunNotFound: no run has it.
        ConfigError: several runs have this name.
    """
    try:
        return client.run_record(wanted)
    except RunNotFound:
        named = [run for run in client.runs() if run.name == wanted]
        if not named:
            raise
    if len(named) > 1:
        listed = ", ".join(run.id for run in named[:5])
        raise ConfigError(
            f"{len(named)} runs are called {wanted!r}", hint=f"Give the id of one: {listed}."
        )
    return named[0]


def _row(run: Run) -> tuple[str, ...]:
    return (
        run.id, run.name, run.model, _state(run), _done(run), f"{run.failed:,}",
        f"{run.per_second:,.0f}/s", ago(run.told_at), run.output,
    )  # fmt: skip


def _state(run: Run) -> str:
    return "ending" if run.state == "running" and run.cancel_requested else run.state


def _done(run: Run) -> str:
    return f"{run.ended:,}" if run.total is None else f"{run.ended:,} of {run.total:,}"
