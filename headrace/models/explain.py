"""Explains an archive or a folder: which model it holds, and what is wrong with it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from headrace.config.extensions import handler_extension
from headrace.config.model.handler_reference import handler_problem, parse_handler
from headrace.errors import ConfigError
from headrace.models.archive import Limits, is_archive, read_archive
from headrace.models.extension import ModelFolder, models_parts
from headrace.models.folder import examine_folder, read_file
from headrace.models.source import digest_of

#: Files up to this size are read; of larger ones only the name counts here.
_READ_MAX_BYTES: Final = 4 * 1024 * 1024
_PROBLEMS_MAX: Final = 20


class Explanation(msgspec.Struct, kw_only=True):
    """What an archive or a folder is.

    Attributes:
        sha256: the archive's digest; None for a folder.
        described_by: `model.yaml`, `MAR-INF/MANIFEST.json`, or the name of its only program.
        weights: its weights or program.
        requirements: whether it names packages.
        problems: why it cannot be used, one sentence each.
    """

    path: str
    sha256: str | None = None
    bytes: int = 0
    members: int = 0
    unpacked_bytes: int = 0
    described_by: str = ""
    name: str | None = None
    version: str | None = None
    handler: str | None = None
    weights: str | None = None
    requirements: bool = False
    problems: list[str] = msgspec.field(default_factory=list)
    warnings: list[str] = msgspec.field(default_factory=list)


def explain(path: Path, limits: Limits) -> Explanation:
    """Return what a folder, an archive or a program is. Nothing is imported or kept.

    Raises:
        ConfigError: it does not exist or cannot be read.
    """
    about = Explanation(path=str(path))
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file()]
        about.members = len(files)
        about.unpacked_bytes = sum(file.stat().st_size for file in files)
        _describe(path, about)
        return about
    if not path.is_file():
        raise ConfigError(f"{path}: it does not exist", hint="correct the path")
    about.sha256, about.bytes = digest_of(path), path.stat().st_size
    if not is_archive(path.name):
        try:
            _copy(read_file(path, str(path)), about)
        except ConfigError as error:
            about.problems.append(_text(error, path))
        return about
    with tempfile.TemporaryDirectory(prefix="headrace-archive-") as folder:
        _read(path, Path(folder), limits, about)
        if not about.problems:
            _describe(Path(folder), about)
    return about


def _read(path: Path, folder: Path, limits: Limits, about: Explanation) -> None:
    """Read a whole archive, and write its small files into a folder; of others an empty one."""

    def report(problem: str) -> None:
        if len(about.problems) < _PROBLEMS_MAX:
            about.problems.append(problem)

    try:
        for member, _ in read_archive(path, limits, report):
            about.members += not member.folder
            about.unpacked_bytes += member.bytes
        if about.problems:
            return
        for member, chunks in read_archive(path, limits, report):
            if member.folder:
                continue
            small = member.bytes <= _READ_MAX_BYTES
            body = b"".join(chunk for chunk in chunks if small)
            place = folder / member.path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(body)
    except ConfigError as error:
        about.problems.append(_text(error, path))
    except OSError as error:
        raise ConfigError(f"{path}: it cannot be read: {error.strerror or error}") from error


def _describe(folder: Path, about: Explanation) -> None:
    try:
        found = examine_folder(folder, about.path)
    except ConfigError as error:
        text = _text(error, folder).removeprefix(f"{about.path}: ")
        about.problems.extend(text.splitlines())
        return
    _copy(found, about)
    if about.weights and not os.path.isfile(found.folder / about.weights):
        about.problems.append(f"there is no file {about.weights}, its weights")
    handler = parse_handler(found.options["handler"])
    part = models_parts().get(handler.extension)
    examine = (part and part.handler_problem) or handler_problem
    if problem := examine(handler, found.folder):
        about.problems.append(problem.replace(f"{found.folder}/", ""))
    about.problems.extend(found.problems)
    about.warnings.extend(found.warnings)
    if about.requirements:
        about.warnings.append("its packages are installed only with install_requirements: true")


def _copy(found: ModelFolder, about: Explanation) -> None:
    about.described_by, about.name = found.kind, found.name or None
    about.version = found.options.get("version")
    handler: str = found.options["handler"]
    about.handler = handler.removeprefix(f"{handler_extension(handler)}:")
    about.weights = found.options.get("weights")
    about.requirements = found.requirements is not None


def _text(error: ConfigError, path: Path) -> str:
    """Return an error without the path, which the explanation names."""
    return error.message.replace(f"{path}/", "").removeprefix(f"{path}: ")
