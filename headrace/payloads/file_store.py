"""The payload store `file`: one file per payload, in a folder that all hosts share.

A file gets its name when it is complete on disk, so a reader never sees a partial payload. Folders
have mode 0700 and files 0600.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

from typing_extensions import override

from headrace.errors import ConfigError, StoreFull, StoreUnavailable
from headrace.payloads.store import Note, PayloadStore, missing, name_in

_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class FilePayloadStore(PayloadStore):
    """Payloads in a folder.

    Args:
        folder: the folder, the same on every host; created if it is missing.
    """

    name: ClassVar[str] = "file"

    def __init__(self, note: Note, folder: Path) -> None:
        super().__init__(note)
        self.folder = folder.absolute()

    @override
    def read(self, ref: str, start: int, length: int | None) -> bytes:
        try:
            with open(os.open(self._path(ref), _READ_FLAGS), "rb") as file:
                file.seek(start)
                return file.read(-1 if length is None else length)
        except OSError as error:
            raise self._why(error, ref) from error

    @override
    def size(self, ref: str) -> int:
        try:
            return self._path(ref).lstat().st_size
        except OSError as error:
            raise self._why(error, ref) from error

    @override
    def delete(self, ref: str) -> None:
        path = self._path(ref)
        try:
            for leftover in (_unfinished(path), path):
                leftover.unlink(missing_ok=True)
        except OSError as error:
            raise self._why(error, ref) from error

    @override
    def check(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"payload_dir: {self.folder} cannot be created: {error.strerror}",
                hint="Set it to a folder that the API and all workers may write to.",
            ) from None
        if not os.access(self.folder, os.R_OK | os.W_OK | os.X_OK):
            raise ConfigError(
                f"payload_dir: this user may not read and write {self.folder}",
                hint="Run the API and all workers as the owner of the folder.",
            )

    @override
    def _write(self, name: str, body: bytes) -> None:
        path = self._path(f"{self.name}:{name}")
        unfinished = _unfinished(path)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(unfinished, _WRITE_FLAGS, 0o600), "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(path)
            sync_folder(path.parent)
        except OSError as error:
            # A disk that is full needs the room.
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise self._why(error, name) from error

    def _path(self, ref: str) -> Path:
        # Subfolders keep the folders small for the file system.
        name = name_in(ref, self.name)
        return self.folder / name[:2] / name

    def _why(self, error: OSError, ref: str) -> Exception:
        if isinstance(error, FileNotFoundError) and self.folder.is_dir():
            return missing(ref)
        # Clients see no path; the log does, by the cause.
        if error.errno in _NO_ROOM:
            return StoreFull(
                "the disk of the payload store is full",
                hint="Make room, or move payload_dir.",
            )
        return StoreUnavailable(
            f"the payload store `file` cannot be used: {os.strerror(error.errno or errno.EIO)}",
            hint="See the server's log. payload_dir must be the same folder on all hosts.",
        )


def _unfinished(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, even if the machine crashes.

    Raises:
        OSError: the folder cannot be synced.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
