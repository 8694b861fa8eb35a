"""`headrace archive`: packs the folder of a model, and explains archives."""

from __future__ import annotations

from pathlib import Path

import msgspec
import typer

from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.output import count, message, size
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.models.explain import Explanation, explain
from headrace.models.members import Limits
from headrace.models.pack import pack
from headrace.models.source import digest_of


def pack_folder(folder: Path, output: Path, *, force: bool) -> None:
    """Pack a model's folder; print the archive's digest.

    Raises:
        ConfigError: the folder is no model, or the archive cannot be written.
    """
    members = pack(folder, output, force=force)
    message(f"packed {count(len(members), 'file')}, {size(output.stat().st_size)}")
    typer.echo(f"{output}  sha256:{digest_of(output)}")


def check(path: Path, settings: Settings, *, as_json: bool) -> ExitCode:
    """Print what an archive is and what is wrong with it; return the exit code.

    Raises:
        ConfigError: it cannot be read.
    """
    found = explain(path, Limits(total_bytes=settings.model_limit_bytes))
    if as_json:
        typer.echo(msgspec.json.encode(found))
        return ExitCode.USAGE if found.problems else ExitCode.DONE
    for line in _lines(found):
        typer.echo(line)
    if found.problems:
        raise ConfigError("\n".join(f"{path}: {text}" for text in found.problems))
    typer.echo(f"{path}: no problems found")
    return ExitCode.DONE


def _lines(found: Explanation) -> list[str]:
    facts = {
        "model": " ".join(filter(None, (found.name, found.version))),
        "described by": found.described_by,
        "handler": found.handler,
        "weights": found.weights,
        "packages": "requirements.txt" if found.requirements else "",
        "content": f"{count(found.members, 'file')}, {size(found.unpacked_bytes)}"
        if found.members
        else "",
        "digest": f"sha256:{found.sha256}" if found.sha256 else "",
    }
    lines = [f"{name + ':':14}{value}" for name, value in facts.items() if value]
    return [*lines, *(f"warning: {text}" for text in found.warnings)]
