"""`headrace run` and the group `headrace runs` as typer sees them: see app.py."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from headrace.cli.shared.options import (
    FULL_OR_AWAY,
    JsonOption,
    LimitOption,
    ModelArgument,
    UrlOption,
    checked_id,
    checked_options,
    retry_option,
)

OFFLINE: Final = 9
IN_FLIGHT: Final = 4000
IN_FLIGHT_MAX: Final = 100_000
RETRY_S: Final = 86_400
LIMIT: Final = 20

runs_group: Final = typer.Typer(rich_markup_mode=None)

RunArgument = Annotated[str, typer.Argument(metavar="ID", help="The run.")]


def run(
    model: ModelArgument,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="A folder (with all below), a quoted pattern, a file of JSON lines, CSV, Parquet "
            "or tar, s3://bucket/prefix, or - for paths on standard input.",
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="Where a row per input goes; its name says the form: .jsonl, .parquet.",
        ),
    ],
    column: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="COLUMN",
            help="The column that is the input; the others are carried along [the whole row].",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="COLUMN", help="The column that names an input [its place]."),
    ] = None,
    glob: Annotated[
        list[str] | None,
        typer.Option(
            "--glob",
            metavar="PATTERN",
            help="In a folder only files whose name, or path with a /, is like this; repeatable.",
        ),
    ] = None,
    content_type: Annotated[
        str | None,
        typer.Option(
            "--content-type", metavar="TYPE", help="What the inputs are [by name or content]."
        ),
    ] = None,
    by_ref: Annotated[
        bool,
        typer.Option(
            "--by-ref",
            help="Name files to the server, which shares the disk, and send none [send them].",
        ),
    ] = False,
    online: Annotated[
        bool,
        typer.Option("--online", help="Compete with online jobs [fill the gaps they leave]."),
    ] = False,
    only_failed: Annotated[
        bool,
        typer.Option("--only-failed", help="Run again what failed, in a run that has ended."),
    ] = False,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What to call the run.")] = "",
    run_id: Annotated[
        str | None,
        typer.Option("--run-id", metavar="ID", help="Its id [a new one]."),
    ] = None,
    in_flight: Annotated[
        int,
        typer.Option(
            "--in-flight",
            min=1,
            max=IN_FLIGHT_MAX,
            metavar="N",
            show_default=False,
            help=f"Inputs under way at once [{IN_FLIGHT}].",
        ),
    ] = IN_FLIGHT,
    version: Annotated[
        str | None,
        typer.Option("--version", metavar="VERSION", help="Only for this version of the model."),
    ] = None,
    job_timeout: Annotated[
        float | None,
        typer.Option(
            "--job-timeout", metavar="SECONDS", help="An input may run for so long [the model's]."
        ),
    ] = None,
    max_retries: Annotated[
        int | None,
        typer.Option("--max-retries", metavar="N", help="After errors that pass [the model's]."),
    ] = None,
    result_ttl: Annotated[
        int | None,
        typer.Option(
            "--result-ttl",
            metavar="SECONDS",
            help="The server keeps a result for so long, until it is in the output [a day].",
        ),
    ] = None,
    keep_jobs: Annotated[
        bool,
        typer.Option(
            "--keep-jobs",
            help="Let the server keep jobs for that long also when they are in the output.",
        ),
    ] = False,
    retry: Annotated[float, retry_option(FULL_OR_AWAY, RETRY_S)] = RETRY_S,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no summary.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Run all of a folder, file or bucket through a model; the same command goes on with it."""
    from headrace.cli.runs.run import RunRequest
    from headrace.cli.runs.run import run as go

    options: dict[str, Any] = {
        "priority": 0 if online else OFFLINE,
        "timeout": job_timeout,
        "max_retries": max_retries,
        "result_ttl": result_ttl,
    }
    asked = RunRequest(
        model=model, source=source, output=output, input=column, key=key,
        glob=tuple(glob or ()), content_type=content_type, only_failed=only_failed, name=name,
        run_id=checked_id(run_id), in_flight=in_flight, version=version,
        options=checked_options(options), forget=not keep_jobs, retry_s=retry, quiet=quiet,
        as_json=as_json, by_ref=by_ref,
    )  # fmt: skip
    raise typer.Exit(go(url, asked))


@runs_group.callback(invoke_without_command=True)
def runs(
    ctx: typer.Context,
    limit: LimitOption = LIMIT,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List offline runs, that told last first; or show, cancel or resume one."""
    if ctx.invoked_subcommand is None:
        from headrace.cli.runs.records import list_runs

        list_runs(url, limit=limit, as_json=as_json)
        return
    for option, flag in (("url", "--url"), ("as_json", "--json"), ("limit", "--limit")):
        source = ctx.get_parameter_source(option)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"it goes behind {ctx.invoked_subcommand}", param_hint=flag)


@runs_group.command("show")
def show(run_id: RunArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Show how far a run is, and what goes on with it."""
    from headrace.cli.runs.records import show_run

    show_run(url, run_id, as_json=as_json)


@runs_group.command("cancel")
def cancel(run_id: RunArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """End a run within seconds, wherever it runs, and cancel what is under way."""
    from headrace.cli.runs.records import cancel_run

    raise typer.Exit(cancel_run(url, run_id, as_json=as_json))


@runs_group.command("resume")
def resume(run_id: RunArgument, url: UrlOption = None) -> None:
    """Go on with a run that was started on this machine, by the command that started it."""
    from headrace.cli.runs.records import resume_run

    resume_run(url, run_id)
