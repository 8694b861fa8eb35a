"""The entry point of the `headrace` command: the core's commands, and those of extensions.

A command imports what it needs when it runs, so that `headrace version` does not wait for the HTTP
client to load. It does not look for extensions either.
"""

from __future__ import annotations

import copy
import inspect
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer.models import CommandInfo

from headrace._version import __version__
from headrace.cli.admin.audit import audit
from headrace.cli.admin.dead_letters import dead_group
from headrace.cli.admin.keys import keys_group
from headrace.cli.admin.models import models_group
from headrace.cli.admin.queues import queues_group
from headrace.cli.admin.webhooks import webhooks_group
from headrace.cli.admin.workers import workers_group
from headrace.cli.jobs.jobs import cancel, discard, jobs, retry, watch
from headrace.cli.jobs.results import job_input, result
from headrace.cli.jobs.submit import submit
from headrace.cli.shared import options, output
from headrace.cli.shared.options import NumbersCommand, argument, flag, option
from headrace.config.extensions import Command, found, loaded
from headrace.config.secret_files import read_secret_files
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

MODELS_DEFAULT: Final = "default: models.yaml, else configs/models.yaml"
ModelsOption = Annotated[
    Path | None, option("--models FILE", f"Models file ({MODELS_DEFAULT}).", ...)
]
PortOption = Annotated[
    int | None, option("--port PORT", "Port of the API (default: 8080).", ..., min=1, max=65535)
]
HostOption = Annotated[
    str | None, option("--host ADDRESS", "Listen address of the API (default: 127.0.0.1).", ...)
]
WorkersOption = Annotated[
    int | None,
    option(
        "--workers N", "Number of workers (default: one per GPU, else 1).", ..., min=0, max=1024
    ),
]
_API_PROCESSES: Final = "Number of API processes on the port (default: 1)."


def _show_version(requested: bool) -> None:
    if requested:
        version()
        raise typer.Exit


@app.callback()
def every(
    _: bool = flag("--version", "Print the version.", is_eager=True, callback=_show_version),
) -> None:
    """Asynchronous inference for PyTorch models on a message queue."""
    # __main__.py ignored Ctrl-C during start-up; from here each command handles it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    read_secret_files(os.environ)


@app.command()
def up(
    state_dir: Path | None = option(
        "--state-dir DIR", "Folder for the queue's data (default: .headrace)."
    ),
    host: HostOption = None,
    port: PortOption = None,
    models: ModelsOption = None,
    no_flower: bool = flag("--no-flower", "Do not run Flower."),
    no_background: bool = flag("--no-background", "Do not run the background worker."),
    no_runner: bool = flag("--no-runner", "Do not run the batch runner."),
    workers: WorkersOption = None,
    api_processes: int | None = option("--api-processes N", _API_PROCESSES, min=1, max=256),
    reload: bool = flag("--reload", "Reload a model when its handler or the models file changes."),
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
        background=not no_background,
        without=["runner"] if no_runner else [],
        reload=reload,
    )
    Up(settings, options, os.environ).run()


@app.command()
def api(
    host: HostOption = None,
    port: PortOption = None,
    models: ModelsOption = None,
    processes: int | None = option("--processes N", _API_PROCESSES, min=1, max=256),
) -> None:
    """Run only the API, with the Redis at HEADRACE_REDIS_URL."""
    from headrace.server.component import run_api

    settings = _settings(host=host, port=port, models_file=models, api_processes=processes)
    run_api(settings, os.environ)


@app.command()
def worker(
    models: ModelsOption = None,
    workers: WorkersOption = None,
    labels: str | None = option(
        "--labels LABELS", "Labels of the workers, such as gpu=a100,zone=b."
    ),
    exit_when_idle: float | None = option(
        "--exit-when-idle SECONDS",
        "End once the workers have held no job, and none has waited, for this time.",
        min=5,
        max=86_400,
    ),
) -> None:
    """Run one worker per GPU, with the Redis at HEADRACE_REDIS_URL."""
    from headrace.server.component import run_workers

    settings = _settings(models_file=models, worker_labels=labels)
    run_workers(settings, workers, os.environ, exit_when_idle)


@app.command()
def drain(wait: bool = flag("--wait", "Return when the workers have ended.")) -> None:
    """Stop the workers of this host: they claim nothing more, and finish what runs."""
    from headrace.redis.connection import connect
    from headrace.server.host_workers import drain as drain_workers

    with connect(_settings().needed_redis_url("headrace drain")) as client:
        nodes = drain_workers(client, wait=wait)
    output.message(f"{'ended' if wait else 'stopping'}: {', '.join(nodes)}")


@app.command()
def background(models: ModelsOption = None) -> None:
    """Run the background worker (pipelines, webhooks), with the Redis at HEADRACE_REDIS_URL."""
    from headrace.server.component import run_background

    run_background(_settings(models_file=models), os.environ)


@app.command()
def flower(
    published_at: str | None = option(
        "--published-at ADDRESS",
        "Host address of the published container port; any address but loopback requires "
        "FLOWER_BASIC_AUTH (default: the listen address).",
    ),
    models: ModelsOption = None,
) -> None:
    """Run only Flower, with the Redis at HEADRACE_REDIS_URL."""
    from headrace.server.component import run_flower

    run_flower(_settings(models_file=models), published_at, os.environ)


@app.command()
def health(
    part: str = argument("PART", "One of api, worker, background, runner, flower, redis.", ...),
    workers: WorkersOption = None,
    models: bool = flag("--models", "Of a worker: its models must be loaded too."),
) -> None:
    """Health probe: exit 0 if the component in this container serves, else 1 with the reason."""
    from headrace.server.health.probe import run_check

    typer.echo(run_check(part, workers, os.environ, models=models))


@app.command()
def doctor(
    redis_url: str | None = option(
        "--redis-url URL",
        "URL of Redis (default: HEADRACE_REDIS_URL, else the Redis of headrace up here).",
    ),
    models: ModelsOption = None,
    api_url: str | None = option("--api URL", "URL of the API (default: the API on this host)."),
    strict: bool = flag("--strict", "Treat warnings as failures."),
    as_json: options.Json = False,
) -> None:
    """Check Redis, workers, models, devices and this host; print a result and a hint per check."""
    from headrace.cli.doctor.command import examine

    raise typer.Exit(examine(redis_url, models, api_url, strict=strict, as_json=as_json))


@app.command("check", hidden=True)
@app.command("check-config")
def check_config(
    file: Path | None = argument("FILE", f"Models file ({MODELS_DEFAULT})."),
    models: ModelsOption = None,
) -> None:
    """Check the settings, a models file, and the files and sources that it refers to."""
    from headrace.config.model.catalog import check_config as problems_of
    from headrace.models.catalog import load_models

    if file is not None and models is not None:
        raise ConfigError("the models file is given twice", hint="remove --models, or FILE")
    path = file or models or _settings().models_file
    problems = problems_of(path)
    if problems:
        raise ConfigError("\n".join(problems))
    for model in load_models(_settings(models_file=path)).served:
        for section in (model.inputs, model.outputs):
            # Reading the file leaves schemas alone where the package for them is missing.
            if section is not None:
                section.value_check()
    typer.echo(f"{path}: no problems found")


@app.command("apply")
def apply_models(
    file: Path | None = argument("FILE", f"Models file ({MODELS_DEFAULT})."),
    dry_run: bool = flag("--dry-run", "Print what would change, and change nothing."),
    prune: bool = flag("--prune", "Remove models and versions that the file no longer has."),
    state_dir: Path | None = option(
        "--state-dir DIR", "State directory of headrace up (default: .headrace)."
    ),
) -> None:
    """Apply a models file to the running deployment, through its Redis."""
    from headrace.cli.admin.apply import apply_file

    settings = _settings(models_file=file, state_dir=state_dir)
    apply_file(settings, dry_run=dry_run, prune=prune)


@app.command()
def init(
    folder: Path = argument("FOLDER", "Folder to write to (default: this one).", Path()),
) -> None:
    """Write a handler, a models file and a test to begin with."""
    from headrace.cli.develop.new_project import write_project

    for path in write_project(folder):
        typer.echo(path)
    go_there = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    output.message(f"next: {go_there}headrace up")


@app.command()
def archive(
    path: Path = argument(
        "PATH", "Folder of a model; with --check or --pipeline also an archive.", ...
    ),
    output: Path | None = option(
        "--output -o FILE",
        "Archive to write: .tar.gz, .tgz, .zip or .mar; with --pipeline a folder.",
    ),
    force: bool = flag("--force", "Replace the archive or the folder if it exists."),
    check: bool = flag("--check", "Explain an archive or a folder, and what is wrong with it."),
    pipeline: bool = flag("--pipeline", "Print the models file of a workflow archive (.war)."),
    as_json: options.Json = False,
) -> None:
    """Pack the folder of a model into an archive, or check an archive."""
    from headrace.cli.develop import archive

    if pipeline:
        if check or as_json:
            raise ConfigError("--pipeline goes with neither --check nor --json; remove them")
        archive.pipeline(path, output, _settings(), force=force)
        return
    if check:
        if output is not None or force:
            raise ConfigError("--check writes no archive; remove --output and --force")
        raise typer.Exit(archive.check(path, _settings(), as_json=as_json))
    if output is None:
        raise ConfigError("the archive has no name", hint="add -o model.tar.gz, or --check")
    archive.pack_folder(path, output, _settings(), force=force)


@app.command("try")
def try_handler(
    target: str = argument(
        "HANDLER", "handler.py, handler.py:Class, or a model of the models file.", ...
    ),
    inputs: list[str] | None = option("--input -i FILE", "File as an input; repeatable."),
    texts: list[str] | None = option("--text TEXT", "Text as an input; repeatable."),
    json_inputs: list[str] | None = option(
        "--json-input JSON", "JSON value as an input; repeatable."
    ),
    models: ModelsOption = None,
    device: str | None = option(
        "--device DEVICE", "torch device (default: the model's, else cpu)."
    ),
    options: str | None = option("--options JSON", "Object added to the model's options."),
    param: list[str] | None = option(
        "--param NAME=VALUE", "Value of a parameter of the model; repeatable."
    ),
) -> None:
    """Run a handler once, without a server: each method in turn, in this terminal."""
    from headrace.cli.develop.trial import run_trial
    from headrace.cli.shared.inputs import Sources
    from headrace.cli.shared.options import parameters as parameters_of

    given = inputs or json_inputs or texts
    sources = Sources(inputs or (), json_inputs or (), texts or ()) if given else None
    parameters = parameters_of(param)
    run_trial(
        target, sources, _settings(models_file=models), device, options, parameters, os.environ
    )


@app.command()
def url(
    state_dir: Path | None = option(
        "--state-dir DIR", "State directory of headrace up (default: .headrace)."
    ),
) -> None:
    """Print the URL of Redis for a Celery client, with its password."""
    from headrace.server.embedded_redis import redis_url_here

    typer.echo(redis_url_here(_settings(state_dir=state_dir)))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


for _command in (submit, result, jobs, watch, cancel, retry, discard, audit):
    app.command()(_command)
app.command("input")(job_input)


app.add_typer(models_group, name="models")
app.add_typer(queues_group, name="queues")
app.add_typer(workers_group, name="workers")
app.add_typer(dead_group, name="dead")
app.add_typer(keys_group, name="keys")
app.add_typer(webhooks_group, name="webhooks")


def _name_of(command: CommandInfo) -> str:
    return str(command.name or getattr(command.callback, "__name__", ""))


def _prepare(app: typer.Typer) -> None:
    """Set the class of each command, and its `short_help`: its first paragraph is not cut off."""
    for command in app.registered_commands:
        command.cls = NumbersCommand
        text = command.help or inspect.getdoc(command.callback) or ""
        command.short_help = text.partition("\n\n")[0]
    for group in app.registered_groups:
        inner = group.typer_instance
        if inner is None:
            continue
        callback = inner.registered_callback
        group.short_help = inspect.getdoc(callback.callback) if callback else str(inner.info.help)
        _prepare(inner)


_prepare(app)
#: The names of the core's commands.
_CORE: Final = {
    *(_name_of(command) for command in app.registered_commands),
    *(group.name for group in app.registered_groups),
}


def only(arguments: Sequence[str]) -> typer.Typer:
    """Return the app with only the requested command or group, else with all of them.

    Building every command takes a sixth of the run time of a short command. The whole app is needed
    for options before the command, for the help, for an unknown command, and for completion.
    """
    name = arguments[0] if arguments else ""
    if name == "--version":
        return app
    only = copy.copy(app)
    only.registered_commands = [
        command for command in app.registered_commands if name == _name_of(command)
    ]
    only.registered_groups = [group for group in app.registered_groups if group.name == name]
    if name and not only.registered_commands and not only.registered_groups:
        _add_commands(only, name)
    return only if only.registered_commands or only.registered_groups else every_command()


@cache
def every_command() -> typer.Typer:
    """Return the app with all commands, those of extensions too."""
    every = copy.copy(app)
    every.registered_commands = [*app.registered_commands]
    every.registered_groups = [*app.registered_groups]
    _add_commands(every)
    return every


def _add_commands(to: typer.Typer, only: str = "") -> None:
    """Add the commands of extensions, or the one of this name. A command of the core wins."""
    for extension in found().extensions.values():
        for name, command in extension.commands.items():
            if name in _CORE or (only and name != only):
                continue
            own = loaded(extension.name, f"command `{name}`", partial(_app_of, name, command))
            if own is not None:
                to.registered_commands += own.registered_commands
                to.registered_groups += own.registered_groups


def _app_of(name: str, command: Command) -> typer.Typer:
    own, made = typer.Typer(), command.load()
    if isinstance(made, typer.Typer):
        own.add_typer(made, name=name)
    else:
        own.command(name, context_settings=dict(command.context))(made)
    _prepare(own)
    typer.main.get_command(own)  # raises what is wrong with it, before it is among the others
    return own


def main() -> None:
    """Run the command; print a HeadraceError as a message without a traceback."""
    try:
        only(sys.argv[1:])()
    except HeadraceError as error:
        sys.exit(output.report(error))


def _settings(**overrides: object) -> Settings:
    # Imported here because it imports the Redis client.
    from headrace.config.settings import load_settings

    # Every other source of settings gives a path as text.
    texts = {k: str(v) if isinstance(v, Path) else v for k, v in overrides.items()}
    return load_settings(None, os.environ, texts)
