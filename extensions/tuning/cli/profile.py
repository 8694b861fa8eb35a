"""`headrace profile`: where the time of a running model goes, by operator or by function."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from headrace.cli.shared import options, output
from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.options import argument, client_of, flag, option
from headrace.errors import ConfigError
from headrace.text import size

if TYPE_CHECKING:
    from headrace import Client
    from headrace.schema.operation import Profile

_POLL_S: Final = 0.25
#: Read as text, and printed.
_TABLES: Final = ("operators.txt", "functions.txt")
_COLUMNS: Final = ("ID", "MODEL", "VERSION", "KIND", "STATE", "AT", ">SIZE")


def profile(
    model: str | None = argument(
        "MODEL", "The model.", None, autocompletion=options.complete_model
    ),
    batches: int = option("--batches N", "Batches of a trace (default: 5).", 5, min=1, max=100),
    stack: bool = flag("--stack", "Sample the stacks of the verbs instead; needs no torch."),
    seconds: float = option(
        "--seconds S",
        "Time limit of a trace, or how long to sample (default: 10).",
        10.0,
        min=0.1,
        max=300,
    ),
    version: str = option("--version VERSION", "The version (default: the default one).", ""),
    into: Path | None = option("--output -o DIR", "Folder for the files (default: profile-ID)."),
    fetch: str | None = option("--fetch ID", "Save a profile of the last hour.", None),
    listed: bool = flag("--list", "List the profiles of the last hour."),
    as_json: options.Json = False,
    url: options.Url = None,
) -> None:
    """Profile a model process under load: PyTorch traces of its batches, or samples of stacks."""
    if (model is not None) + (fetch is not None) + listed != 1:
        raise ConfigError("give one of MODEL, --fetch ID and --list")
    with client_of(url) as client:
        if listed:
            output.listing(client.profiles(), _COLUMNS, _row, as_json=as_json, empty="no profiles")
            return
        if model is not None:
            kind = "stack" if stack else "trace"
            found = client.request_profile(
                model, kind=kind, batches=batches, seconds=seconds, version=version
            )
            output.message(f"profile {found.id} of {found.model} {found.version}")
        else:
            found = client.profile(fetch or "")
        while found.state in ("requested", "running"):
            time.sleep(_POLL_S)
            found = client.profile(found.id)
        if found.state == "failed":
            output.message(found.error or "the profile failed")
            raise typer.Exit(ExitCode.FAILED)
        folder = into or Path(f"profile-{found.id}")
        tables = _save(client, found, folder)
    if as_json:
        output.json_line(found)
        return
    for text in tables:
        output.line(text.rstrip())
    output.message(f"saved in {folder}: {', '.join(file.name for file in found.files)}")


def _save(client: Client, found: Profile, folder: Path) -> list[str]:
    """Save the files; return the tables among them."""
    tables = []
    for file in found.files:
        body = client.profile_file(found.id, file.name)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # A server chooses the names, and no file may be outside of the folder.
            (folder / Path(file.name).name).write_bytes(body)
        except OSError as error:
            raise ConfigError(
                f"{folder} cannot be written: {error.strerror}",
                hint=f"save it elsewhere: headrace profile --fetch {found.id} --output DIR",
            ) from error
        if file.name in _TABLES:
            tables.append(body.decode("utf-8", "replace"))
    return tables


def _row(found: Profile) -> tuple[str, ...]:
    total = size(sum(file.bytes for file in found.files))
    at = f"{found.at:%Y-%m-%d %H:%M:%S}"
    return (found.id, found.model, found.version, found.kind, found.state, at, total)
