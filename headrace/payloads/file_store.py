"""The payload store `file`: one file each, in a folder that all hosts share.

A file appears under its name only when all of it is on the disk, so that a reader sees a whole
payload or none. Folders are 0700 and files 0600.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import ClassVar, Final

from typing_extensions import override

from headrace.errors import ConfigError, StoreFull, StoreUnavailable
from headrace.payloads.store import PayloadAccount, PayloadStore, missing, name_in

_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class FilePayloadStore(PayloadStore):
    """Payloads in a folder.

    Args:
        account: told of each payload before it is written.
        folder: the folder, the same on every host; made if it is not there.
    """

    name: ClassVar[str] = "file"

    def __init__(self, account: PayloadAccount, folder: Path) -> None:
        super().__init__(account)
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
                f"payload_dir: {self.folder} cannot be made: {error.strerror}",
                hint="Name a folder that the API and every worker may write to.",
            ) from None
        if not os.access(self.folder, os.R_OK | os.W_OK | os.X_OK):
            raise ConfigError(
                f"payload_dir: {self.folder} may not be read and written by this user",
                hint="Run the API and every worker as the user that the folder belongs to.",
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
            _sync_folder(path.parent)
        except OSError as error:
            raise self._why(error, name) from error

    def _path(self, ref: str) -> Path:
        # Two levels, so that no folder grows beyond what a file system likes.
        name = name_in(ref, self.name)
        return self.folder / name[:2] / name

    def _why(self, error: OSError, ref: str) -> Exception:
        if isinstance(error, FileNotFoundError) and self.folder.is_dir():
            return missing(ref)
        # What clients read names no path; the log does, by the cause.
        if error.errno in _NO_ROOM:
            return StoreFull(
                "the disk of the payload store is full", hint="Make room, or move payload_dir."
            )
        return StoreUnavailable(
            f"the payload store `file` cannot be used: {os.strerror(error.errno or errno.EIO)}",
            hint="See the server's log; payload_dir must be the same folder on every host.",
        )


def _unfinished(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _sync_folder(folder: Path) -> None:
    """The name itself is on the disk only after this."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
