"""The entry point of the `headrace` command, and the commands that run servers."""

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
from headrace.cli.client_commands import register
from headrace.cli.shared import output
from headrace.cli.shared.exit_codes import exit_code
from headrace.cli.shared.options import JsonOption
from headrace.errors import ConfigError, HeadraceError

if TYPE_CHECKING:
    from headrace.config.settings import Settings

app = typer.Typer(
    name="headrace",
    no_args_is_help=True,
    # Plain text: boxes would break long paths, and markup would hide text in brackets.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

ModelsOption = Annotated[
    Path | None,
    typer.Option("--models", metavar="FILE", help="Models file (default: configs/models.yaml)."),
]
PortOption = Annotated[
    int | None, typer.Option("--port", min=1, max=65535, help="Port of the API (default: 8080).")
]
HostOption = Annotated[
    str | None, typer.Option("--host", help="Listen address of the API (default: 127.0.0.1).")
]
_API_PROCESSES_HELP: Final = "Number of API processes on the port (default: 1)."
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers", min=0, max=1024, help="Number of workers (default: one per GPU, else 1)."
    ),
]


def _show_version(requested: bool) -> None:
    if requested:
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
    # __main__.py ignored Ctrl-C during start-up; from here each command handles it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@app.command()
def up(
    state_dir: Annotated[
        Path | None,
        typer.Option(
            "--state-dir", metavar="DIR", help="Folder for the queue's data (default: .headrace)."
        ),
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
        bool, typer.Option("--no-runner", help="Do not run the batch runner.")
    ] = False,
    workers: WorkersOption = None,
    api_processes: Annotated[
        int | None, typer.Option("--api-processes", min=1, max=256, help=_API_PROCESSES_HELP)
    ] = None,
) -> None:
    """Run everything on this machine: Redis (unless HEADRACE_REDIS_URL is set), API and workers."""
    # Imported here to keep `headrace version` fast.
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
    """Run only the API, with the Redis at HEADRACE_REDIS_URL."""
    from headrace.server.component import run_api

    settings = _settings(host=host, port=port, models_file=models, api_processes=processes)
    run_api(settings, os.environ)


@app.command()
def worker(models: ModelsOption = None, workers: WorkersOption = None) -> None:
    """Run one worker per GPU, with the Redis at HEADRACE_REDIS_URL."""
    from headrace.server.component import run_workers

    run_workers(_settings(models_file=models), workers, os.environ)


# The command's old name, kept for one release.
@app.command("errands", hidden=True)
@app.command()
def background(models: ModelsOption = None) -> None:
    """Run the background worker (pipelines, webhooks), with the Redis at HEADRACE_REDIS_URL."""
    from headrace.server.component import run_background

    run_background(_settings(models_file=models), os.environ)


@app.command()
def runner(host: HostOption = None, port: PortOption = None) -> None:
    """Run the batch runner, with the API at HEADRACE_URL and the Redis at HEADRACE_REDIS_URL."""
    from headrace.server.component import run_runner

    run_runner(_settings(host=host, port=port), os.environ)


@app.command()
def flower(
    published_at: Annotated[
        str | None,
        typer.Option(
            "--published-at",
            metavar="ADDRESS",
            help="Host address of the published container port; any address but loopback requires "
            "FLOWER_BASIC_AUTH (default: the listen address).",
        ),
    ] = None,
    models: ModelsOption = None,
) -> None:
    """Run only Flower, with the Redis at HEADRACE_REDIS_URL."""
    from headrace.server.component import run_flower

    run_flower(_settings(models_file=models), published_at, os.environ)


@app.command()
def health(
    part: Annotated[
        str,
        typer.Argument(
            metavar="PART", help="One of api, worker, background, runner, flower, redis."
        ),
    ],
    workers: WorkersOption = None,
) -> None:
    """Health probe: exit 0 if the component in this container serves, else 1 with the reason."""
    from headrace.server.health_probe import run_check

    typer.echo(run_check(part, workers, os.environ))


@app.command()
def doctor(
    redis_url: Annotated[
        str | None,
        typer.Option(
            "--redis-url",
            metavar="URL",
            help="URL of Redis (default: HEADRACE_REDIS_URL, else the Redis of headrace up here).",
        ),
    ] = None,
    models: ModelsOption = None,
    api_url: Annotated[
        str | None,
        typer.Option(
            "--api", metavar="URL", help="URL of the API (default: the API on this host)."
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as failures.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check Redis, workers, models, devices and this host; print a result and a hint per check."""
    from headrace.cli.doctor.command import examine

    raise typer.Exit(examine(redis_url, models, api_url, strict=strict, as_json=as_json))


@app.command("check-config")
def check_config(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Models file (default: configs/models.yaml)."),
    ] = None,
) -> None:
    """Check the settings, a models file, and the files that it refers to."""
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
    """Return the app with only the requested command or group, else with all of them.

    Building every command takes a sixth of the run time of a short command. The whole app is needed
    for options before the command, for the help, for an unknown command, and for completion.
    """
    name = arguments[0] if arguments else ""
    only = copy.copy(app)
    only.registered_commands = [
        command
        for command in app.registered_commands
        if command.callback and name == (command.name or command.callback.__name__)
    ]
    only.registered_groups = [group for group in app.registered_groups if group.name == name]
    return only if only.registered_commands or only.registered_groups else app


def main() -> None:
    """Run the command; print a HeadraceError as a message without a traceback."""
    try:
        only(sys.argv[1:])()
    except HeadraceError as error:
        for line in (output.error_text(error) or error.code).splitlines():
            output.message(line)
        sys.exit(exit_code(error))


def _settings(**overrides: object) -> Settings:
    # Imported here because it imports the Redis client.
    from headrace.config.settings import load_settings

    # Every other source of settings gives a path as text.
    texts = {k: str(v) if isinstance(v, Path) else v for k, v in overrides.items()}
    return load_settings(None, os.environ, texts)
