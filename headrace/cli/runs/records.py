"""`headrace runs`: lists, shows, cancels and resumes offline runs."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from typing import TYPE_CHECKING

from headrace.cli.shared import output
from headrace.cli.shared.exit_codes import ExitCode
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.client.models import Run


def list_runs(url: str | None, *, limit: int, as_json: bool) -> None:
    """Print the runs, latest report first."""
    from headrace import Client

    with Client(url) as client:
        found = client.runs()
    shown = found[:limit] if limit else found
    if as_json:
        for run in shown:
            output.json_line(run)
    elif shown:
        heads = ("ID", "NAME", "MODEL", "STATE", ">DONE", ">FAILED", ">RATE", "UPDATED", "OUTPUT")
        output.table(heads, [_row(run) for run in shown])
    else:
        output.message("no runs")


def show_run(url: str | None, run_id: str, *, as_json: bool) -> None:
    """Print one run.

    Raises:
        RunNotFound: no run has this id.
    """
    from headrace import Client

    with Client(url) as client:
        run = client.run_record(run_id)
    if as_json:
        output.json_line(run)
        return
    output.pairs([
        ("run", run.id), ("name", run.name), ("model", run.model), ("state", _state(run)),
        ("source", run.source), ("output", run.output), ("done", _done(run)),
        ("failed", f"{run.failed:,}"), ("rate", f"{run.per_second:,.1f}/s"),
        ("started", output.ago(run.started_at)), ("updated", output.ago(run.told_at)),
        ("host", run.host), ("folder", run.folder), ("command", shlex.join(run.command)),
        *([("error", output.short_line(run.error))] if run.error else []),
    ])  # fmt: skip


def cancel_run(url: str | None, run_id: str, *, as_json: bool) -> ExitCode:
    """Request the cancellation of a run.

    Raises:
        RunNotFound: no run has this id.
    """
    from headrace import Client

    with Client(url) as client:
        run = client.cancel_run(run_id)
    if as_json:
        output.json_line(run)
    elif run.cancel_requested:
        output.line(f"{run.id}  stops within seconds")
    else:
        output.message(f"{run.id}: not running: {run.state}")
    return ExitCode.DONE if run.cancel_requested else ExitCode.FAILED


def resume_run(url: str | None, run_id: str) -> None:
    """Replace this process by the command that started a run.

    Raises:
        RunNotFound: no run has this id.
        ConfigError: the run is active, was started elsewhere, or its folder is missing.
    """
    from headrace import Client

    with Client(url) as client:
        run = client.run_record(run_id)
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
    environ = dict(os.environ) if url is None else {**os.environ, "HEADRACE_URL": url}
    command = [sys.executable, "-P", "-m", "headrace", *run.command[1:]]
    os.execve(sys.executable, command, environ)  # noqa: S606 - no shell on purpose


def _row(run: Run) -> tuple[str, ...]:
    return (
        run.id, run.name, run.model, _state(run), _done(run), f"{run.failed:,}",
        f"{run.per_second:,.0f}/s", output.ago(run.told_at), run.output,
    )  # fmt: skip


def _state(run: Run) -> str:
    return "ending" if run.state == "running" and run.cancel_requested else run.state


def _done(run: Run) -> str:
    return f"{run.ended:,}" if run.total is None else f"{run.ended:,} of {run.total:,}"
