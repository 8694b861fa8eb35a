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
from headrace.models.archive import ARCHIVES, is_archive
from headrace.models.folder import read_folder

#: The first time that a zip can express.
_ZIP_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_FILE_MODE: Final = 0o100644
_UNIX: Final = 3
_LEFT_OUT: Final = frozenset({"__pycache__", "__MACOSX"})


def pack(folder: Path, output: Path, *, force: bool = False) -> list[str]:
    """Pack a model's folder; return the paths of its members.

    Hidden files and Python's caches are left out. The archive appears when it is complete.

    Args:
        folder: the model's folder.
        output: the archive; its suffix decides its format.
        force: whether to replace a file that exists.

    Raises:
        ConfigError: the folder is no model or has links, or the archive cannot be written.
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
    write = _zip if output.name.lower().endswith((".zip", ".mar")) else _tar
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with temporary.open("xb") as file:
            write(file, members)
        temporary.replace(output)
    except OSError as error:
        raise ConfigError(f"{output}: it cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return [name for name, _ in members]


def _members(folder: Path, output: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        if any(part.startswith(".") or part in _LEFT_OUT for part in relative.parts):
            continue
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ConfigError(
                f"{path}: only plain files can be packed", hint="put a copy of the file there"
            )
        if path.is_file() and path.suffix != ".pyc" and path.resolve() != output.resolve():
            yield relative.as_posix(), path


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
