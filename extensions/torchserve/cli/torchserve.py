"""`headrace torchserve`, also as the command `torchserve`: TorchServe's flags and messages."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

import typer

from extensions.torchserve.config.key_file import remove_keys
from extensions.torchserve.config.launch import KEY_FILE, Flags, Launch, merge
from extensions.torchserve.config.settings import TORCHSERVE_VERSION
from headrace._version import __version__
from headrace.cli.shared import output
from headrace.errors import HeadraceError

_RUNNING: Final = "TorchServe is already running, please use torchserve --stop to stop TorchServe."


def torchserve(context: typer.Context) -> None:
    """Serve TorchServe's archives and URLs, with TorchServe's own options; see --help."""
    run(context.args)


def main() -> None:
    """Run the command `torchserve`."""
    run(sys.argv[1:])


def run(arguments: Sequence[str]) -> None:
    """Run the command with these arguments; an error ends it with status 1."""
    options = _parser().parse_args(arguments)
    if options.version:
        typer.echo(f"TorchServe Version is {TORCHSERVE_VERSION}")
        typer.echo(f"It is served by Headrace {__version__}")
    elif options.stop:
        _stop()
    else:
        # TorchServe starts without --start too.
        _start(options, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="torchserve", description="Serve TorchServe's archives and URLs with Headrace."
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("-v", "--version", action="store_true", help="print the version")
    action.add_argument("--start", action="store_true", help="start the server")
    action.add_argument("--stop", action="store_true", help="stop the server")
    parser.add_argument("--ts-config", metavar="FILE", default="", help="config.properties")
    parser.add_argument("--model-store", metavar="DIR", default="", help="folder of the archives")
    parser.add_argument(
        "--workflow-store", metavar="DIR", default="", help="folder of the workflow archives"
    )
    parser.add_argument(
        "--models", metavar="MODEL", nargs="+", default=[],
        help="models to load at the start: archive.mar, name=archive.mar, or all",
    )  # fmt: skip
    for name in ("--log-config", "--cpp-log-config"):
        parser.add_argument(name, metavar="FILE", default="", help="no effect")
    parser.add_argument("--foreground", action="store_true", help="do not return; show the log")
    parser.add_argument(
        "--no-config-snapshots", "--ncs", action="store_true", dest="no_snapshots",
        help="write no snapshots, and do not start from the last one",
    )  # fmt: skip
    parser.add_argument(
        "--plugins-path", "--ppath", metavar="DIR", default="", dest="plugins_path",
        help="no effect",
    )  # fmt: skip
    parser.add_argument(
        "--disable-token-auth", "--dt", action="store_true", help="ask for no token"
    )
    parser.add_argument("--enable-model-api", action="store_true", help="register models over HTTP")
    # The server in the background reports there that it serves.
    parser.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    return parser


def _stop() -> None:
    from extensions.torchserve.server import process

    server = process.running()
    if server is None:
        typer.echo("TorchServe is not currently running.")
    elif not server.is_ours:
        _fail(f"Process {server.pid} is TorchServe and not Headrace; stop it with its own command.")
    else:
        ended = process.stop(server.pid)
        typer.echo("TorchServe has stopped." if ended else "Stopping TorchServe took too long.")
        process.pid_file().unlink(missing_ok=True)
    remove_keys(Path(KEY_FILE))


def _start(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    from extensions.torchserve.server import process

    server = process.running()
    # The process in the background finds its own id there.
    if server is not None and server.pid != os.getpid():
        _fail(_RUNNING)
    try:
        launch = _launch(options)
        if not options.foreground:
            # The server itself reports what is wrong, and this process has its exit status.
            if not process.start_in_background(arguments):
                sys.exit(1)
            return
        from extensions.torchserve.server.server import TorchServer

        with process.pid_written():
            TorchServer(launch, os.environ, options.ready_fd).run()
    except HeadraceError as error:
        _fail(output.error_text(error) or error.code)


def _launch(options: argparse.Namespace) -> Launch:
    for name in ("log_config", "cpp_log_config"):
        path = getattr(options, name)
        if path and not Path(path).is_file():
            _fail(f"--{name.replace('_', '-')} file not found: {path}")
    temporary = os.environ.get("TEMP")
    if temporary and not Path(temporary).is_dir():
        _fail(f"Invalid temp directory: {temporary}, please check TEMP environment variable.")
    options.models = tuple(options.models)
    flags = Flags(**{name: getattr(options, name) for name in Flags._fields})
    launch = merge(flags, os.environ, Path.cwd())
    for key in ("model_store", "workflow_store"):
        path = getattr(options, key)
        if path and not Path(path).expanduser().is_dir():
            _fail(f"--{key.replace('_', '-')} directory not found: {path}")
    if launch.model_store is None:
        _fail("Missing mandatory parameter --model-store")
    if not launch.model_store.is_dir():
        _fail(f"--model-store directory not found: {launch.model_store}")
    return launch


def _fail(text: str) -> NoReturn:
    typer.echo(text)
    sys.exit(1)
