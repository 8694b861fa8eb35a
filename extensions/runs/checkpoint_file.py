"""The checkpoint of a run with a local output: a file and a lock file next to the output."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from typing_extensions import override

from headrace.errors import ConfigError, Conflict
from headrace.payloads.stores import sync_folder
from headrace.runs.interfaces import CheckpointStore


class LocalCheckpoints(CheckpointStore):
    """Stores the checkpoint in `<output>.run`, and locks `<output>.run.lock`."""

    def __init__(self, output: Path, saved: Callable[[], None] = lambda: None) -> None:
        self._output = output
        self._saved = saved
        self._path = output.with_name(f"{output.name}.run")
        self._lock_path = output.with_name(f"{output.name}.run.lock")
        self._lock: int | None = None

    @override
    def acquire(self) -> None:
        """Lock the output; the kernel unlocks it when this process ends."""
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
            except BlockingIOError:
                owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
                raise Conflict(
                    f"another run writes {self._output}"
                    + (f": process {owner}" if owner.isdigit() else ""),
                    hint="Wait until it has ended, or use another output.",
                ) from None
            except OSError as error:
                raise ConfigError(
                    f"{self._lock_path}: cannot be locked: {error.strerror}",
                    hint="Write to a disk with locks, such as a local one, and copy the output.",
                ) from None
            finally:
                if self._lock is None:
                    os.close(lock)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    @override
    def release(self) -> None:
        if self._lock is not None:
            with suppress(OSError):  # a disk that fails; the lock counts, not the file
                self._lock_path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    @override
    def load(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{self._path}: cannot be read: {error.strerror}") from None

    @override
    def save(self, data: bytes) -> None:
        with replacing(self._path) as file:
            file.write(data)
        self._saved()


def same_file(path: Path, descriptor: int) -> bool:
    """Return whether an open file is the one that is now at a path."""
    try:
        current = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(current, os.fstat(descriptor))


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a file that replaces another at the end of the block.

    A reader finds all of it or all of the old one, even after a crash.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_name(f"{path.name}.new")
    with part.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_folder(path.parent)
