"""Declares the client commands for typer: arguments, options and help.

Their implementations are in the other modules, which a command imports when it runs; so
`headrace version` does not wait for the HTTP client to load.
"""

from __future__ import annotations

import inspect
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli.admin.keys import keys_group
from headrace.cli.admin.webhooks import webhooks_group
from headrace.cli.jobs.jobs import Status, since
from headrace.cli.queues.commands import dead_group, queues_group
from headrace.cli.runs.commands import run, runs_group
from headrace.cli.shared.completion import complete_model
from headrace.cli.shared.inputs import STDIN, Sources, StdinAs
from headrace.cli.shared.options import (
    LIMIT,
    UNREACHABLE,
    UNREACHABLE_OR_FULL,
    ContentTypeOption,
    IdsArgument,
    JsonOption,
    LimitOption,
    MaxRetriesOption,
    ModelArgument,
    TimeoutOption,
    UrlOption,
    VersionOption,
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
    _set_short_help(app)


def _set_short_help(app: typer.Typer) -> None:
    """Set each command's `short_help`, so that the list of commands is not cut off."""
    for command in app.registered_commands:
        command.short_help = command.help or inspect.getdoc(command.callback)
    for group in app.registered_groups:
        inner = group.typer_instance
        if inner is None:
            continue
        callback = inner.registered_callback
        group.short_help = inspect.getdoc(callback.callback) if callback else str(inner.info.help)
        _set_short_help(inner)


def submit(
    model: ModelArgument,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT",
            help="Files, folders (recursive), quoted patterns, or - for standard input.",
        ),
    ] = None,
    json_input: Annotated[
        list[str] | None,
        typer.Option("--json-input", metavar="JSON", help="JSON value as an input; repeatable."),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option("--text", metavar="TEXT", help="Text as an input; repeatable."),
    ] = None,
    input_ref: Annotated[
        list[str] | None,
        typer.Option(
            "--input-ref",
            metavar="REF",
            help="File or object that the server reads: file:/folder/name or s3://bucket/key; "
            "repeatable.",
        ),
    ] = None,
    stdin_as: Annotated[
        StdinAs,
        typer.Option(
            "--stdin",
            help="Kind of the lines on standard input; auto: JSON if the first line begins with "
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
            help="Append a JSON line per input to FILE as its job ends; implies --wait.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue FILE: skip inputs that succeeded in it."),
    ] = False,
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Print results in the order of the inputs.")
    ] = False,
    in_flight: Annotated[
        int,
        typer.Option(
            "--in-flight",
            min=1,
            max=IN_FLIGHT_MAX,
            metavar="N",
            help=f"Maximum number of jobs in flight with --wait (default: {IN_FLIGHT}).",
            show_default=False,
        ),
    ] = IN_FLIGHT,
    job_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Job id for a single input (default: a new id)."),
    ] = None,
    content_type: ContentTypeOption = None,
    version: VersionOption = None,
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority", min=0, max=9, help="Priority, 0 (first) to 9 (batch) (default: 0)."
        ),
    ] = None,
    expires: Annotated[
        float | None,
        typer.Option(
            "--expires",
            metavar="SECONDS",
            help="Expire the job if it has not started within SECONDS (default: never).",
        ),
    ] = None,
    countdown: Annotated[
        float | None,
        typer.Option(
            "--countdown",
            metavar="SECONDS",
            help="Delay before the job joins the queue (default: 0).",
        ),
    ] = None,
    job_timeout: Annotated[
        float | None,
        typer.Option(
            "--job-timeout",
            metavar="SECONDS",
            help="Maximum run time of a job (default: the model's).",
        ),
    ] = None,
    result_ttl: Annotated[
        int | None,
        typer.Option(
            "--result-ttl",
            metavar="SECONDS",
            help="How long the server keeps the result (default: one day).",
        ),
    ] = None,
    max_retries: MaxRetriesOption = None,
    retry_backoff: Annotated[
        float | None,
        typer.Option(
            "--retry-backoff",
            metavar="SECONDS",
            help="Maximum wait before the first retry (default: the model's).",
        ),
    ] = None,
    retry_backoff_max: Annotated[
        float | None,
        typer.Option(
            "--retry-backoff-max",
            metavar="SECONDS",
            help="Maximum wait before any retry (default: the model's).",
        ),
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata", metavar="JSON", help="JSON object that is returned with the job."
        ),
    ] = None,
    webhook: Annotated[
        str | None,
        typer.Option("--webhook", metavar="URL", help="URL to notify when each job ends."),
    ] = None,
    webhook_event: Annotated[
        list[str] | None,
        typer.Option(
            "--webhook-event",
            metavar="EVENT",
            help="Event to notify: started, succeeded, failed, cancelled or expired; repeatable "
            "(default: every end).",
        ),
    ] = None,
    retry: Annotated[float, retry_option(UNREACHABLE_OR_FULL, RETRY_S)] = RETRY_S,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print no progress bar and no summary.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Submit inputs to a model; print the job ids, or with --wait the results."""
    from headrace.cli.jobs.submit import SubmitRequest
    from headrace.cli.jobs.submit import submit as go

    arguments = inputs or []
    sources = Sources(
        arguments, json_input or (), text or (),
        sys.stdin.buffer if STDIN in arguments else None, stdin_as, input_ref or (),
    )  # fmt: skip
    if resume and output is None:
        raise typer.BadParameter("--resume requires --output FILE", param_hint="--resume")
    if job_id is not None and not sources.single:
        raise typer.BadParameter("--id can only be used with one input", param_hint="--id")
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
    request = SubmitRequest(
        model=model, sources=sources, job_id=checked_id(job_id),
        options={"content_type": content_type, "version": version, **checked_options(options)},
        wait=wait or timeout is not None or output is not None, timeout_s=timeout,
        ordered=ordered, in_flight=in_flight, retry_s=retry, file=output, resume=resume,
        as_json=as_json, quiet=quiet,
    )  # fmt: skip
    raise typer.Exit(go(url, request))


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
            help="Write the result to FILE; for several jobs, an existing folder "
            "(default: standard output).",
        ),
    ] = None,
    retry: Annotated[float, retry_option(UNREACHABLE, RETRY_S)] = RETRY_S,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Print the results of jobs: JSON and text as a line, binary results as bytes."""
    from headrace.cli.jobs.results import ResultRequest, fetch

    request = ResultRequest(
        ids=ids, wait=wait or timeout is not None, timeout_s=timeout, target=output, retry_s=retry,
        as_json=as_json,
    )  # fmt: skip
    raise typer.Exit(fetch(url, request))


def jobs(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID",
            help="Job ids; - reads ids from standard input (default: the newest jobs).",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Only jobs of this model (default: all).",
            autocompletion=complete_model,
        ),
    ] = None,
    status: Annotated[
        list[Status] | None,
        typer.Option("--status", help="Only jobs with this status; repeatable (default: any)."),
    ] = None,
    after: Annotated[
        datetime | None,
        typer.Option(
            "--since",
            metavar="TIME",
            parser=since,
            help="Only jobs created since TIME: 2026-11-21T08:00:00Z, or 90s, 15m, 2h, 3d ago.",
        ),
    ] = None,
    limit: LimitOption = LIMIT,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List jobs, newest first, or show the jobs with these ids."""
    from headrace.cli.jobs.jobs import list_jobs, show_jobs

    if ids:
        if model or status or after:
            raise typer.BadParameter("ids cannot be combined with --model, --status or --since")
        raise typer.Exit(show_jobs(url, ids, as_json=as_json))
    list_jobs(url, model=model, statuses=status or (), since=after, limit=limit, as_json=as_json)


def watch(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="Job id.")],
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Print a job's events until it ends: queue position, progress, outcome."""
    from headrace.cli.jobs.watch import watch as go

    raise typer.Exit(go(url, job_id, as_json=as_json))


def cancel(ids: IdsArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Cancel jobs: waiting jobs do not run, and results of running jobs are discarded."""
    from headrace.cli.jobs.jobs import cancel_jobs

    raise typer.Exit(cancel_jobs(url, ids, as_json=as_json))


def models(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="Show this model in detail (default: list all).",
            autocompletion=complete_model,
        ),
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List the models, or show the configuration and the workers of one model."""
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
            help=f"Time between two updates (default: {INTERVAL_S:g}).",
        ),
    ] = INTERVAL_S,
    once: Annotated[
        bool, typer.Option("--once", help="Print one view and exit; for pipes and scripts.")
    ] = False,
    url: UrlOption = None,
) -> None:
    """Show a live view of queues, models, hosts and devices."""
    from headrace.cli.top.command import top as go

    raise typer.Exit(go(url, interval_s=interval, once=once))
