"""The checkpoint of a run with a local output: a file and a lock file next to the output."""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.errors import ConfigError, Conflict

#: The suffixes of a run's files next to its output: checkpoint, lock, spool, and temporary files.
_OWN_SUFFIXES: Final = re.compile(r"(\.(run|lock|rows|new|upload|parquet))*")


def path_text(path: Path | str) -> str:
    """Return a path as JSON text; a byte that is not UTF-8 is escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def is_of_output(path: str, output: str) -> bool:
    """Return whether a file is a run's output, or one of the run's files next to it.

    Args:
        path: the file.
        output: the output, in the same form; "" for none.
    """
    if not output or not path.startswith(output):
        return False
    return _OWN_SUFFIXES.fullmatch(path[len(output) :]) is not None


class LocalCheckpoints:
    """Stores the checkpoint in `<output>.run`, and locks `<output>.run.lock`.

    Args:
        output: the output's path.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._path = output.with_name(f"{output.name}.run")
        self._lock_path = output.with_name(f"{output.name}.run.lock")
        self._lock: int | None = None

    def acquire(self) -> None:
        """Lock the output; the kernel unlocks it when this process ends.

        Raises:
            Conflict: another process has it.
            ConfigError: the folder cannot be written to.
        """
        while self._lock is None:
            try:
                lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise ConfigError(
                    f"{self._lock_path}: cannot be written: {error.strerror}",
                    hint="The folder must exist, and you must be allowed to write to it.",
                ) from None
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Another process may have removed the file between open and lock.
                if same_file(self._lock_path, lock):
                    self._lock = lock
            except OSError:
                owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
                raise Conflict(
                    f"another run writes {self._output}"
                    + (f": process {owner}" if owner.isdigit() else ""),
                    hint="Wait until it has ended, or use another output.",
                ) from None
            finally:
                if self._lock is None:
                    os.close(lock)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Unlock the output."""
        if self._lock is not None:
            with suppress(OSError):  # a disk that fails; the lock counts, not the file
                self._lock_path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def load(self) -> bytes | None:
        """Return what was saved last.

        Raises:
            ConfigError: it cannot be read.
        """
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{self._path}: cannot be read: {error.strerror}") from None

    def save(self, data: bytes) -> None:
        """Write a new file and rename it over the old one.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        replace_file(self._path, data)


def same_file(path: Path, descriptor: int) -> bool:
    """Return whether an open file is the one that is now at a path."""
    try:
        current = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(current, os.fstat(descriptor))


def replace_file(path: Path, data: bytes) -> None:
    """Write a file; a reader finds all of it or all of the old one, even after a crash.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_name(f"{path.name}.new")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, even if the machine crashes.

    Raises:
        OSError: the folder cannot be synced.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
