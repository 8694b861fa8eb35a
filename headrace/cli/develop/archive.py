"""`headrace archive`: packs the folder of a model, and explains archives."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import typer

from headrace.cli.shared.exit_codes import ExitCode
from headrace.cli.shared.output import json_text, message, printable
from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.models.archive import Limits, unpack
from headrace.models.extension import PipelineArchive, pipeline_readers
from headrace.models.pack import Explanation, explain, pack
from headrace.models.source import digest_of
from headrace.text import count, size

MODELS_FILE: Final = "models.yaml"


def pack_folder(folder: Path, output: Path, settings: Settings, *, force: bool) -> None:
    """Pack a model's folder, and print the archive's digest; raise ConfigError if that fails."""
    limits = Limits(total_bytes=settings.model_limit_bytes)
    members = pack(folder, output, limits, force=force)
    message(f"packed {count(len(members), 'file')}, {size(output.stat().st_size)}")
    typer.echo(f"{output}  sha256:{digest_of(output)}")


def pipeline(path: Path, output: Path | None, settings: Settings, *, force: bool) -> None:
    """Print the pipeline of a workflow archive as a models file, or write it with its files.

    Raises:
        ConfigError: the archive is no workflow, no pipeline can express it, or the folder exists.
    """
    with _workflow(path, settings) as (found, folder):
        text = found.text(found.name)
        if output is None:
            typer.echo(text, nl=False)
            if found.needed_file:
                message(f"{found.needed_file} has functions of it: -o FOLDER writes this file too")
            return
        target = output / found.name
        if target.exists() and not force:
            raise ConfigError(f"{target} exists", hint="choose another folder, or add --force")
        try:
            shutil.copytree(folder, target, dirs_exist_ok=True)
            (output / MODELS_FILE).write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{output}: cannot be written: {error.strerror}") from error
    typer.echo(output / MODELS_FILE)


@contextmanager
def _workflow(path: Path, settings: Settings) -> Iterator[tuple[PipelineArchive, Path]]:
    """Give a workflow, and the folder with its files as long as the context lasts."""
    readers = pipeline_readers()
    if not readers:
        raise ConfigError("no extension reads workflows", hint="`headrace doctor` lists extensions")
    if not path.is_file():
        hint = f"name a workflow archive ({', '.join(readers)})"
        raise ConfigError(f"{path}: there is no such file", hint=hint)
    # One of another name is read as the first kind, whose message has what is missing.
    read = readers.get(path.suffix.lower()) or next(iter(readers.values()))
    with tempfile.TemporaryDirectory(prefix="headrace-workflow-") as name:
        unpack(path, Path(name), Limits(total_bytes=settings.model_limit_bytes))
        yield read(Path(name), str(path)), Path(name)


def check(path: Path, settings: Settings, *, as_json: bool) -> ExitCode:
    """Print what an archive is, and what is wrong; return the exit code, or raise ConfigError."""
    if path.suffix.lower() in pipeline_readers():
        with _workflow(path, settings) as (workflow, _):
            if as_json:
                typer.echo(json_text(workflow.document(workflow.name)))
                return ExitCode.DONE
            for line in workflow.lines():
                typer.echo(printable(line))
        typer.echo(f"{path}: no problems found; --pipeline prints the pipeline")
        return ExitCode.DONE
    found = explain(path, Limits(total_bytes=settings.model_limit_bytes))
    if as_json:
        typer.echo(json_text(found))
        return ExitCode.USAGE if found.problems else ExitCode.DONE
    for line in _lines(found):
        typer.echo(printable(line))
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
