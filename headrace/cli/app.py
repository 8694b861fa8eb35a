"""The client commands as typer sees them: arguments, options and help.

What they do is in the other modules, imported when a command runs: `headrace version` does not wait
for a client.
"""

from __future__ import annotations

import inspect
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli.admin.keys_app import keys_group
from headrace.cli.admin.webhook_group import webhooks_group
from headrace.cli.jobs.jobs import Status, since
from headrace.cli.queues.app import dead_group, queues_group
from headrace.cli.runs.app import run, runs_group
from headrace.cli.shared.completion import complete_model
from headrace.cli.shared.inputs import STDIN, Sources, StdinAs
from headrace.cli.shared.options import (
    FULL_OR_AWAY,
    LIMIT,
    IdsArgument,
    JsonOption,
    LimitOption,
    ModelArgument,
    TimeoutOption,
    UrlOption,
    WaitOption,
    checked_id,
    checked_options,
    json_object,
    retry_option,
)

INTERVAL_S: Final = 2.0
IN_FLIGHT: Final = 1000
IN_FLIGHT_MAX: Final = 100_000
RETRY_S: Final = 60


def register(app: typer.Typer) -> None:
    """Add the client commands."""
    for command in (submit, run, result, jobs, watch, cancel, models, top):
        app.command()(command)
    app.add_typer(runs_group, name="runs")
    app.add_typer(queues_group, name="queues")
    app.add_typer(dead_group, name="dead")
    app.add_typer(keys_group, name="keys")
    app.add_typer(webhooks_group, name="webhooks")
    _say_whole(app)


def _say_whole(app: typer.Typer) -> None:
    """Let the list of commands wrap what each does; without `short_help` it is cut off."""
    for command in app.registered_commands:
        command.short_help = command.help or inspect.getdoc(command.callback)
    for group in app.registered_groups:
        inner = group.typer_instance
        if inner is None:
            continue
        said = inner.registered_callback
        group.short_help = inspect.getdoc(said.callback) if said else str(inner.info.help)
        _say_whole(inner)


def submit(
    model: ModelArgument,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT",
            help="Files, folders (with all below), quoted patterns, or - for standard input.",
        ),
    ] = None,
    json_input: Annotated[
        list[str] | None,
        typer.Option("--json-input", metavar="JSON", help="A JSON value as an input; repeatable."),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option("--text", metavar="TEXT", help="A text as an input; repeatable."),
    ] = None,
    input_ref: Annotated[
        list[str] | None,
        typer.Option(
            "--input-ref",
            metavar="REF",
            help="What the server is to read itself: file:/folder/name or s3://bucket/key; "
            "repeatable.",
        ),
    ] = None,
    stdin_as: Annotated[
        StdinAs,
        typer.Option(
            "--stdin",
            help="What the lines of standard input are; auto: JSON where the first begins with "
            '{ [ or ", else paths.',
        ),
    ] = StdinAs.AUTO,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Append a JSON line per input as its job ends; implies --wait.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with FILE: leave out what has succeeded in it."),
    ] = False,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Outcomes in the order of the inputs.")
    ] = False,
    in_flight: Annotated[
        int,
        typer.Option(
            "--in-flight",
            min=1,
            max=IN_FLIGHT_MAX,
            metavar="N",
            help=f"With --wait: jobs under way at once [{IN_FLIGHT}].",
            show_default=False,
        ),
    ] = IN_FLIGHT,
    job_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="An id of your own, for a single input."),
    ] = None,
    content_type: Annotated[
        str | None,
        typer.Option(
            "--content-type", metavar="TYPE", help="What the files are [by name or content]."
        ),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option("--version", metavar="VERSION", help="Only for this version of the model."),
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", min=0, max=9, help="0 (first) to 9 (offline) [0].")
    ] = None,
    expires: Annotated[
        float | None,
        typer.Option("--expires", metavar="SECONDS", help="It must have started by then [never]."),
    ] = None,
    countdown: Annotated[
        float | None,
        typer.Option("--countdown", metavar="SECONDS", help="Before it joins the queue [0]."),
    ] = None,
    job_timeout: Annotated[
        float | None,
        typer.Option(
            "--job-timeout", metavar="SECONDS", help="A job may run for so long [the model's]."
        ),
    ] = None,
    result_ttl: Annotated[
        int | None,
        typer.Option(
            "--result-ttl", metavar="SECONDS", help="Results are kept for so long [a day]."
        ),
    ] = None,
    max_retries: Annotated[
        int | None,
        typer.Option("--max-retries", metavar="N", help="After errors that pass [the model's]."),
    ] = None,
    retry_backoff: Annotated[
        float | None,
        typer.Option(
            "--retry-backoff",
            metavar="SECONDS",
            help="The first retry's longest wait [the model's].",
        ),
    ] = None,
    retry_backoff_max: Annotated[
        float | None,
        typer.Option(
            "--retry-backoff-max", metavar="SECONDS", help="Any retry's longest wait [the model's]."
        ),
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option("--metadata", metavar="JSON", help="An object, given back with the job."),
    ] = None,
    webhook: Annotated[
        str | None,
        typer.Option("--webhook", metavar="URL", help="Tell it of each job's end [nobody]."),
    ] = None,
    webhook_event: Annotated[
        list[str] | None,
        typer.Option(
            "--webhook-event",
            metavar="EVENT",
            help="Tell it of started, succeeded, failed, cancelled or expired; repeatable "
            "[every end].",
        ),
    ] = None,
    retry: Annotated[float, retry_option(FULL_OR_AWAY, RETRY_S)] = RETRY_S,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bar and no summary.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Submit inputs to a model; print the jobs' ids, or with --wait their results."""
    from headrace.cli.jobs.submit import SubmitRequest
    from headrace.cli.jobs.submit import submit as go

    given = inputs or []
    sources = Sources(
        given, json_input or (), text or (),
        sys.stdin.buffer if STDIN in given else None, stdin_as, input_ref or (),
    )  # fmt: skip
    if resume and output is None:
        raise typer.BadParameter("go on with which file? Name it with -o", param_hint="--resume")
    if job_id is not None and not sources.single:
        raise typer.BadParameter("one id, and several inputs", param_hint="--id")
    options = {
        "priority": priority,
        "expires": expires,
        "countdown": countdown,
        "timeout": job_timeout,
        "result_ttl": result_ttl,
        "max_retries": max_retries,
        "retry_backoff": retry_backoff,
        "retry_backoff_max": retry_backoff_max,
        "metadata": json_object(metadata),
        "webhook": webhook,
        "webhook_events": webhook_event or None,
    }
    what = SubmitRequest(
        model=model, sources=sources, job_id=checked_id(job_id),
        options={"content_type": content_type, "version": version, **checked_options(options)},
        wait=wait or timeout is not None or output is not None, timeout_s=timeout,
        ordered=ordered, in_flight=in_flight, retry_s=retry, file=output, resume=resume,
        as_json=as_json, quiet=quiet,
    )  # fmt: skip
    raise typer.Exit(go(url, what))


def result(
    ids: IdsArgument,
    wait: WaitOption = False,
    timeout: TimeoutOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the result there; for several jobs, or their ids as names, a folder.",
        ),
    ] = None,
    retry: Annotated[float, retry_option("a server that is away", RETRY_S)] = RETRY_S,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Print the results of jobs: JSON and text as they are, and what is binary as its bytes."""
    from headrace.cli.jobs.results import Fetch, fetch

    what = Fetch(
        ids=ids, wait=wait or timeout is not None, timeout_s=timeout, target=output, retry_s=retry,
        as_json=as_json,
    )  # fmt: skip
    raise typer.Exit(fetch(url, what))


def jobs(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="These jobs; - reads ids from standard input."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="MODEL", help="Of this model only.", autocompletion=complete_model
        ),
    ] = None,
    status: Annotated[
        list[Status] | None, typer.Option("--status", help="Of this status only; repeatable.")
    ] = None,
    after: Annotated[
        datetime | None,
        typer.Option(
            "--since",
            metavar="TIME",
            parser=since,
            help="Created since then: 2026-11-21T08:00:00Z, or 90s, 15m, 2h, 3d ago.",
        ),
    ] = None,
    limit: LimitOption = LIMIT,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List jobs, newest first, or show those that are named."""
    from headrace.cli.jobs.jobs import list_jobs, show_jobs

    if ids:
        if model or status or after:
            raise typer.BadParameter("ids are given: leave out --model, --status and --since")
        raise typer.Exit(show_jobs(url, ids, as_json=as_json))
    list_jobs(url, model=model, statuses=status or (), since=after, limit=limit, as_json=as_json)


def watch(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The job.")],
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Print what becomes of a job until it has ended: its place, its progress, its end."""
    from headrace.cli.jobs.watch import watch as go

    raise typer.Exit(go(url, job_id, as_json=as_json))


def cancel(ids: IdsArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Cancel jobs: those that wait will not run, and results of those that run are discarded."""
    from headrace.cli.jobs.jobs import cancel_jobs

    raise typer.Exit(cancel_jobs(url, ids, as_json=as_json))


def models(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="This one, in detail.", autocompletion=complete_model),
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List the models, or show one with its configuration and its workers."""
    from headrace.cli.admin.models import list_models, show_model

    if model is None:
        list_models(url, as_json=as_json)
    else:
        show_model(url, model, as_json=as_json)


def top(
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            min=0.5,
            max=3600,
            metavar="SECONDS",
            show_default=False,
            help=f"Between two looks [{INTERVAL_S:g}].",
        ),
    ] = INTERVAL_S,
    once: Annotated[
        bool, typer.Option("--once", help="Print one view and end, for pipes and scripts.")
    ] = False,
    url: UrlOption = None,
) -> None:
    """Show queues, models, hosts and devices as they change, on a terminal."""
    from headrace.cli.top.command import top as go

    raise typer.Exit(go(url, interval_s=interval, once=once))
