"""The checkpoint of a run whose output is a local file or folder: a file beside it, and a lock."""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.errors import ConfigError, Conflict

#: What a run puts beside its output, behind the output's name: checkpoint, lock, spool, and each
#: of them while it is written.
_BESIDE: Final = re.compile(r"(\.(run|lock|rows|new|upload|parquet))*")


def path_text(path: Path | str) -> str:
    """A path as JSON can say it: a byte that is not of UTF-8 stands as its number."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def is_of_output(path: str, output: str) -> bool:
    """Whether a file is a run's output, or one that lies beside it for the run.

    Args:
        path: the file.
        output: the output, in the same form; "" for none.
    """
    if not output or not path.startswith(output):
        return False
    return _BESIDE.fullmatch(path[len(output) :]) is not None


class LocalCheckpoints:
    """Keeps the checkpoint in `<output>.run`, and locks `<output>.run.lock`.

    Args:
        output: the output's path.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._path = output.with_name(f"{output.name}.run")
        self._lock_path = output.with_name(f"{output.name}.run.lock")
        self._lock: int | None = None

    def acquire(self) -> None:
        """Take the output; the kernel gives it back when this process ends.

        Raises:
            Conflict: another process has it.
            ConfigError: nothing can be written there.
        """
        while self._lock is None:
            try:
                lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise _unwritable(self._lock_path, error) from None
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The file that is locked is the one that others would lock.
                if same_file(self._lock_path, lock):
                    self._lock = lock
            except OSError:
                owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
                raise Conflict(
                    f"another run writes {self._output}"
                    + (f": process {owner}" if owner.isdigit() else ""),
                    hint="Wait for its end, or name another output.",
                ) from None
            finally:
                if self._lock is None:
                    os.close(lock)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Give it back."""
        if self._lock is not None:
            with suppress(OSError):  # a disk that takes nothing any more; the lock alone counts
                self._lock_path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def load(self) -> bytes | None:
        """What was saved last.

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
        """Keep this: written anew, then renamed.

        Raises:
            OSError: the disk is full, or cannot be written any more.
        """
        replace_file(self._path, data)


def same_file(path: Path, descriptor: int) -> bool:
    """Whether a file that is open is the one that a path names now."""
    try:
        named = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that whoever reads it, also after a crash, finds all of it or the one before.

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
    """Make the names in a folder safe over a crash of the machine.

    Raises:
        OSError: it cannot be done.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path}: cannot be written: {error.strerror}",
        hint="The folder must exist, and be yours to write to.",
    )
