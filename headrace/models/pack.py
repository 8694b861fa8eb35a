"""Packs the folder of a model into an archive; explains which model an archive or a folder holds.

The same folder gives the same bytes. The explanation has what is wrong.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import msgspec

from headrace.config.extensions import handler_extension
from headrace.config.model.handler_reference import handler_problem, parse_handler
from headrace.errors import ConfigError
from headrace.models.archive import (
    ARCHIVES,
    Limits,
    MemberRules,
    is_archive,
    is_of_system,
    read_archive,
)
from headrace.models.extension import ModelFolder, models_parts
from headrace.models.folder import examine_folder, read_file, read_folder
from headrace.models.source import digest_of

#: Files up to this size are read; of larger ones only the name counts here.
_READ_MAX_BYTES: Final = 4 * 1024 * 1024
_PROBLEMS_MAX: Final = 20
#: The first time that a zip can express.
_ZIP_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_FILE_MODE: Final = 0o100644
_UNIX: Final = 3


def pack(folder: Path, output: Path, limits: Limits, *, force: bool = False) -> list[str]:
    """Pack a model's folder; return the paths of its members.

    Hidden files, files of systems and Python's caches are left out. The archive appears when it is
    complete.

    Args:
        output: the archive; its suffix decides its format.
        limits: how much it may hold, so that a reader with the same limits accepts it.

    Raises:
        ConfigError: the folder is no model or has links, a reader would refuse a name or the
            archive, or the archive cannot be written.
    """
    if not is_archive(output.name):
        raise ConfigError(
            f"{output}: this is no name of an archive", hint=f"use one of {', '.join(ARCHIVES)}"
        )
    if output.exists() and not force:
        raise ConfigError(f"{output} exists", hint="choose another name, or add --force")
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder", hint="give the model's folder")
    read_folder(folder, str(folder))
    members = sorted(_members(folder, output), key=lambda member: member[0])
    total_bytes = _checked_bytes(members, folder, limits)
    write = _zip if output.name.lower().endswith((".zip", ".mar")) else _tar
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with temporary.open("xb") as file:
            write(file, members)
        MemberRules(str(output), temporary.stat().st_size, limits).grow(total_bytes)
        temporary.replace(output)
    except OSError as error:
        raise ConfigError(f"{output}: it cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return [name for name, _ in members]


def _members(folder: Path, output: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        if any(map(is_of_system, relative.parts)):
            continue
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ConfigError(
                f"{path}: only plain files can be packed", hint="put a copy of the file there"
            )
        if path.is_file() and path.suffix != ".pyc" and path.resolve() != output.resolve():
            yield relative.as_posix(), path


def _checked_bytes(members: list[tuple[str, Path]], folder: Path, limits: Limits) -> int:
    """Return how many bytes the members have, which a reader would accept."""
    rules = MemberRules(str(folder), limits.total_bytes, limits)
    for name, path in members:
        rules.count(path.stat().st_size)
        _, problem = rules.path_of(name, folder=False)
        if problem:
            raise ConfigError(f"{folder}: {problem}", hint="rename or remove the file")
    return rules.total_bytes


def _tar(file: IO[bytes], members: list[tuple[str, Path]]) -> None:
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, path in members:
            with path.open("rb") as content:
                info = tarfile.TarInfo(name)
                info.size = os.fstat(content.fileno()).st_size
                archive.addfile(info, content)


def _zip(file: IO[bytes], members: list[tuple[str, Path]]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in members:
            info = zipfile.ZipInfo(name, _ZIP_EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system, info.external_attr = _UNIX, _FILE_MODE << 16
            with path.open("rb") as content:
                info.file_size = os.fstat(content.fileno()).st_size
                with archive.open(info, "w") as place:
                    shutil.copyfileobj(content, place)


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
    """Return what a path is, without importing anything; raise ConfigError if it is unreadable."""
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
        model = examine_folder(folder, about.path)
    except ConfigError as error:
        text = _text(error, folder).removeprefix(f"{about.path}: ")
        about.problems.extend(text.splitlines())
        return
    _copy(model, about)
    if about.weights and not os.path.isfile(model.folder / about.weights):
        about.problems.append(f"there is no file {about.weights}, its weights")
    handler = parse_handler(model.options["handler"])
    part = models_parts().get(handler.extension)
    examine = (part and part.handler_problem) or handler_problem
    if problem := examine(handler, model.folder):
        about.problems.append(problem.replace(f"{model.folder}/", ""))
    about.problems.extend(model.problems)
    about.warnings.extend(model.warnings)
    if about.requirements:
        about.warnings.append("its packages are installed only with install_requirements: true")


def _copy(model: ModelFolder, about: Explanation) -> None:
    about.described_by, about.name = model.kind, model.name or None
    about.version = model.options.get("version")
    handler: str = model.options["handler"]
    about.handler = handler.removeprefix(f"{handler_extension(handler)}:")
    about.weights = model.options.get("weights")
    about.requirements = model.requirements is not None


def _text(error: ConfigError, path: Path) -> str:
    """Return an error without the path, which the explanation names."""
    return error.message.replace(f"{path}/", "").removeprefix(f"{path}: ")
