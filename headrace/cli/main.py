"""The `headrace` command. Each command is a few lines; what it does is in a module of its own."""

from __future__ import annotations

import copy
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace._version import __version__
from headrace.cli.app import register
from headrace.cli.shared import output
from headrace.cli.shared.exit_codes import exit_code
from headrace.cli.shared.options import JsonOption
from headrace.errors import ConfigError, HeadraceError

if TYPE_CHECKING:
    from headrace.config.settings import Settings

app = typer.Typer(
    name="headrace",
    no_args_is_help=True,
    # Plain help and plain errors: no box cuts a path in two, no `[default]` is taken for markup.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

ModelsOption = Annotated[
    Path | None, typer.Option("--models", metavar="FILE", help="The models file.")
]
PortOption = Annotated[
    int | None, typer.Option("--port", min=1, max=65535, help="The API's port [8080].")
]
HostOption = Annotated[
    str | None, typer.Option("--host", help="The address that the API listens on [127.0.0.1].")
]
_API_PROCESSES_HELP: Final = "How many processes the API has on its port [1]."
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers", min=0, max=1024, help="How many workers [one per GPU, or one without]."
    ),
]


def _show_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def every(
    _: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version."),
    ] = False,
) -> None:
    """Asynchronous inference for PyTorch models on a message queue."""
    # What __main__.py has held off; each command hears of it in its own way.
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@app.command()
def up(
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", metavar="DIR", help="Where jobs are kept [.headrace]."),
    ] = None,
    host: HostOption = None,
    port: PortOption = None,
    models: ModelsOption = None,
    no_flower: Annotated[bool, typer.Option("--no-flower", help="Do not run Flower.")] = False,
    no_background: Annotated[
        bool, typer.Option("--no-background", help="Do not run the background worker.")
    ] = False,
    no_errands: Annotated[bool, typer.Option("--no-errands", hidden=True)] = False,
    no_runner: Annotated[
        bool, typer.Option("--no-runner", help="Do not run the runner of batches.")
    ] = False,
    workers: WorkersOption = None,
    api_processes: Annotated[
        int | None, typer.Option("--api-processes", min=1, max=256, help=_API_PROCESSES_HELP)
    ] = None,
) -> None:
    """Run everything on this machine: Redis (unless one is named), API, workers and the rest."""
    # Imported here, so that `headrace version` does not wait for it.
    from headrace.server.up import Up, UpOptions

    settings = _settings(
        state_dir=state_dir, host=host, port=port, models_file=models, api_processes=api_processes
    )
    options = UpOptions(
        workers=workers,
        flower=not no_flower,
        background=not (no_background or no_errands),
        runner=not no_runner,
    )
    Up(settings, options, os.environ).run()


@app.command()
def api(
    host: HostOption = None,
    port: PortOption = None,
    models: ModelsOption = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, max=256, help=_API_PROCESSES_HELP)
    ] = None,
) -> None:
    """Run the API alone, on the Redis that HEADRACE_REDIS_URL names."""
    from headrace.server.component import run_api

    settings = _settings(host=host, port=port, models_file=models, api_processes=processes)
    run_api(settings, os.environ)


@app.command()
def worker(models: ModelsOption = None, workers: WorkersOption = None) -> None:
    """Run one worker per GPU, on the Redis that HEADRACE_REDIS_URL names."""
    from headrace.server.component import run_workers

    run_workers(_settings(models_file=models), workers, os.environ)


# The command's old name, kept for one release.
@app.command("errands", hidden=True)
@app.command()
def background(models: ModelsOption = None) -> None:
    """Run the background worker (pipelines, webhooks), on the Redis at HEADRACE_REDIS_URL."""
    from headrace.server.component import run_background

    run_background(_settings(models_file=models), os.environ)


@app.command()
def runner(host: HostOption = None, port: PortOption = None) -> None:
    """Drive batches, over the API at HEADRACE_URL (or --host and --port), on HEADRACE_REDIS_URL."""
    from headrace.server.component import run_runner

    run_runner(_settings(host=host, port=port), os.environ)


@app.command()
def flower(
    published_at: Annotated[
        str | None,
        typer.Option(
            "--published-at",
            metavar="ADDRESS",
            help="Where a container's port is published [where it listens]. Another than loopback "
            "wants FLOWER_BASIC_AUTH.",
        ),
    ] = None,
    models: ModelsOption = None,
) -> None:
    """Run Flower alone, on the Redis that HEADRACE_REDIS_URL names."""
    from headrace.server.component import run_flower

    run_flower(_settings(models_file=models), published_at, os.environ)


@app.command()
def health(
    part: Annotated[
        str,
        typer.Argument(metavar="PART", help="api, worker, background, runner, flower or redis."),
    ],
    workers: WorkersOption = None,
) -> None:
    """Say whether the part that runs beside this command serves: status 0, or 1 with the reason."""
    from headrace.server.health_probe import run_check

    typer.echo(run_check(part, workers, os.environ))


@app.command()
def doctor(
    redis_url: Annotated[
        str | None,
        typer.Option(
            "--redis-url",
            metavar="URL",
            help="The Redis [HEADRACE_REDIS_URL, else of headrace up here].",
        ),
    ] = None,
    models: ModelsOption = None,
    api_url: Annotated[
        str | None, typer.Option("--api", metavar="URL", help="The API [the one on this host].")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="A warning counts as a failure too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Look at Redis, workers, models, devices and this host: a line each, and what to do."""
    from headrace.cli.doctor.command import examine

    raise typer.Exit(examine(redis_url, models, api_url, strict=strict, as_json=as_json))


@app.command("check-config")
def check_config(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="The models file [configs/models.yaml].")
    ] = None,
) -> None:
    """Check the settings and a models file, and the files that it names."""
    from headrace.config.model_catalog import check_config as problems_of

    path = file or _settings().models_file
    problems = problems_of(path)
    if problems:
        raise ConfigError("\n".join(problems))
    typer.echo(f"{path}: no problems found")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


register(app)


def only(arguments: Sequence[str]) -> typer.Typer:
    """The app with the one command or group that is asked for, else with all of them.

    To put all of them together takes a sixth of what a short command takes. Options before the
    command, the help, a word that is no command, and completion, which has no arguments, get all.
    """
    asked = arguments[0] if arguments else ""
    only = copy.copy(app)
    only.registered_commands = [
        command
        for command in app.registered_commands
        if command.callback and asked == (command.name or command.callback.__name__)
    ]
    only.registered_groups = [group for group in app.registered_groups if group.name == asked]
    return only if only.registered_commands or only.registered_groups else app


def main() -> None:
    """Run the command; an error that we raise on purpose becomes a line, not a traceback."""
    try:
        only(sys.argv[1:])()
    except HeadraceError as error:
        for line in (output.advice(error) or error.code).splitlines():
            output.say(line)
        sys.exit(exit_code(error))


def _settings(**overrides: object) -> Settings:
    # Imported here: it brings the Redis client.
    from headrace.config.settings import load_settings

    # As text, which is how every other source gives a path.
    given = {k: str(v) if isinstance(v, Path) else v for k, v in overrides.items()}
    return load_settings(None, os.environ, given)
