"""Packs the folder of a model into an archive: the same folder gives the same bytes."""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from headrace.errors import ConfigError
from headrace.models.archive import ARCHIVES, Limits, MemberRules, is_archive, is_of_system
from headrace.models.folder import read_folder

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
