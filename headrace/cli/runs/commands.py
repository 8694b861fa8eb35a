"""Declares `headrace run` and the command group `headrace runs`."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from headrace.cli.shared.options import (
    UNREACHABLE_OR_FULL,
    ContentTypeOption,
    JsonOption,
    LimitOption,
    MaxRetriesOption,
    ModelArgument,
    UrlOption,
    VersionOption,
    checked_id,
    checked_options,
    retry_option,
)

BATCH_PRIORITY: Final = 9
IN_FLIGHT: Final = 4000
IN_FLIGHT_MAX: Final = 100_000
RETRY_S: Final = 86_400
LIMIT: Final = 20

runs_group: Final = typer.Typer(rich_markup_mode=None)

RunArgument = Annotated[str, typer.Argument(metavar="ID", help="Run id.")]


def run(
    model: ModelArgument,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="Folder (recursive), quoted pattern, file of JSON lines, CSV, Parquet or tar, "
            "s3://bucket/prefix, or - for paths on standard input.",
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="Output with a row per input; its name sets the format: .jsonl, .parquet.",
        ),
    ],
    column: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="COLUMN",
            help="Column that is the input; the others are copied to the output "
            "(default: the whole row).",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="COLUMN",
            help="Column with the key of an input (default: its position).",
        ),
    ] = None,
    glob: Annotated[
        list[str] | None,
        typer.Option(
            "--glob",
            metavar="PATTERN",
            help="Only files of a folder whose name (or path, with a /) matches; repeatable.",
        ),
    ] = None,
    content_type: ContentTypeOption = None,
    delimiter: Annotated[
        str | None,
        typer.Option(
            "--delimiter",
            metavar="CHAR",
            help="Delimiter of CSV columns: comma, tab, semicolon, pipe, or any other character "
            "(default: comma; for .tsv files tab).",
        ),
    ] = None,
    by_ref: Annotated[
        bool,
        typer.Option(
            "--by-ref",
            help="Send file names, not contents, to a server that shares the disk.",
        ),
    ] = False,
    online: Annotated[
        bool,
        typer.Option("--online", help="Use online priority (default: batch priority)."),
    ] = False,
    only_failed: Annotated[
        bool,
        typer.Option("--only-failed", help="Run the failed inputs of an ended run again."),
    ] = False,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Name of the run in lists.")
    ] = "",
    run_id: Annotated[
        str | None,
        typer.Option("--run-id", metavar="ID", help="Id of the run (default: a new id)."),
    ] = None,
    in_flight: Annotated[
        int,
        typer.Option(
            "--in-flight",
            min=1,
            max=IN_FLIGHT_MAX,
            metavar="N",
            show_default=False,
            help=f"Maximum number of inputs in flight (default: {IN_FLIGHT}).",
        ),
    ] = IN_FLIGHT,
    version: VersionOption = None,
    job_timeout: Annotated[
        float | None,
        typer.Option(
            "--job-timeout",
            metavar="SECONDS",
            help="Maximum run time of an input (default: the model's).",
        ),
    ] = None,
    max_retries: MaxRetriesOption = None,
    result_ttl: Annotated[
        int | None,
        typer.Option(
            "--result-ttl",
            metavar="SECONDS",
            help="How long the server keeps a result that is not in the output yet "
            "(default: one day).",
        ),
    ] = None,
    keep_jobs: Annotated[
        bool,
        typer.Option(
            "--keep-jobs",
            help="Keep jobs on the server for --result-ttl after they are in the output.",
        ),
    ] = False,
    retry: Annotated[float, retry_option(UNREACHABLE_OR_FULL, RETRY_S)] = RETRY_S,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print no progress and no summary.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Run every input of a folder, file or bucket through a model; repeat it to resume."""
    from headrace.cli.runs.run import RunRequest
    from headrace.cli.runs.run import run as go

    options: dict[str, Any] = {
        "priority": 0 if online else BATCH_PRIORITY,
        "timeout": job_timeout,
        "max_retries": max_retries,
        "result_ttl": result_ttl,
    }
    request = RunRequest(
        model=model, source=source, output=output, input=column, key=key,
        glob=tuple(glob or ()), content_type=content_type, delimiter=delimiter,
        only_failed=only_failed, name=name,
        run_id=checked_id(run_id), in_flight=in_flight, version=version,
        options=checked_options(options), forget=not keep_jobs, retry_s=retry, quiet=quiet,
        as_json=as_json, by_ref=by_ref,
    )  # fmt: skip
    raise typer.Exit(go(url, request))


@runs_group.callback(invoke_without_command=True)
def runs(
    ctx: typer.Context,
    limit: LimitOption = LIMIT,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List offline runs, latest report first; or show, cancel or resume one."""
    if ctx.invoked_subcommand is None:
        from headrace.cli.runs.records import list_runs

        list_runs(url, limit=limit, as_json=as_json)
        return
    for option, flag in (("url", "--url"), ("as_json", "--json"), ("limit", "--limit")):
        source = ctx.get_parameter_source(option)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"put it after {ctx.invoked_subcommand}", param_hint=flag)


@runs_group.command("show")
def show(run_id: RunArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Show the progress of a run and the command that resumes it."""
    from headrace.cli.runs.records import show_run

    show_run(url, run_id, as_json=as_json)


@runs_group.command("cancel")
def cancel(run_id: RunArgument, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Stop a run on any host within seconds and cancel its jobs in flight."""
    from headrace.cli.runs.records import cancel_run

    raise typer.Exit(cancel_run(url, run_id, as_json=as_json))


@runs_group.command("resume")
def resume(run_id: RunArgument, url: UrlOption = None) -> None:
    """Resume a run that was started on this machine, with the command that started it."""
    from headrace.cli.runs.records import resume_run

    resume_run(url, run_id)
