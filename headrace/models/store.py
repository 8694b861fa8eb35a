"""Keeps unpacked models in a folder, by the digest of what was unpacked.

All processes of a host share the folder. A model appears in it complete, by a rename. A process
that uses a model holds a shared lock on its folder, which ends with the process. What no process
has used for a day is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from headrace.errors import ConfigError

#: How long a model that no process uses is kept, in seconds.
UNUSED_KEEP_S: Final = 86_400
_TEMPORARY: Final = ".new-"
DOOMED: Final = ".old-"
_NOTE: Final = ".json"


class Fetched(msgspec.Struct, frozen=True):
    """A source fetched before: its folder (`key`), and its ETag, or a file's size and time."""

    source: str
    validator: str
    key: str


class UnpackedModels:
    """The folder with the unpacked models."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: dict[str, int] = {}

    def hold(self, key: str) -> Path | None:
        """Return the folder of a model and keep it for this process; None if it is not there."""
        path = self.folder / key
        if key in self._held:
            return path
        with self._writable():
            lock = lock_path(path, os.O_RDONLY | os.O_DIRECTORY, fcntl.LOCK_SH)
        if lock is None:
            return None
        self._held[key] = lock
        with contextlib.suppress(OSError):
            os.utime(path)
        return path

    def add(self, key: str, fill: Callable[[Path], None]) -> Path:
        """Make the folder of a model, and hold it.

        Args:
            fill: writes its content into an empty folder. After an error nothing is left.

        Raises:
            ConfigError: the folder cannot be written; or what `fill` raises.
        """
        found = self.hold(key)
        if found is not None:
            return found
        with self.temporary() as temporary:
            content = temporary / "content"
            content.mkdir(mode=0o755)
            fill(content)
            # If another process was faster, its folder is as good as this one.
            with contextlib.suppress(OSError):
                content.rename(self.folder / key)
        found = self.hold(key)
        if found is None:
            raise ConfigError(f"{self.folder / key}: the model's folder cannot be made")
        return found

    @contextmanager
    def temporary(self) -> Iterator[Path]:
        """Yield an empty folder on the same disk, removed at the end; or raise ConfigError."""
        path, lock = self.folder, None
        while lock is None:  # `prune` may remove it before it is locked
            path = self.folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
            with self._writable():
                path.mkdir(mode=0o700, parents=True)
                lock = lock_path(path, os.O_RDONLY | os.O_DIRECTORY, fcntl.LOCK_SH)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)

    @contextmanager
    def noted(self, source: str, name: str) -> Iterator[Note]:
        """Yield the note on a source, by a name without `/`; others that want it wait meanwhile."""
        path = self.folder / f"{name}{_NOTE}"
        lock = None
        while lock is None:  # `prune` may remove it before it is locked
            with self._writable():
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = lock_path(path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX)
        try:
            yield Note(lock, source)
        finally:
            os.close(lock)

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"{self.folder}: models cannot be unpacked here: {error.strerror}",
                hint="set HEADRACE_STATE_DIR to a folder that can be written",
            ) from error

    def prune(self, *, unused_s: float = UNUSED_KEEP_S) -> list[str]:
        """Remove models that no process has used for this long, and rests; return the models."""
        removed = []
        with contextlib.suppress(FileNotFoundError):
            for path in sorted(self.folder.iterdir()):
                if path.name.startswith((_TEMPORARY, DOOMED)):
                    remove_unused(path, 0)
                elif path.suffix == _NOTE:
                    self._prune_note(path)
                elif path.is_dir() and remove_unused(path, unused_s):
                    removed.append(path.name)
        return removed

    def _prune_note(self, path: Path) -> None:
        with locked(path, os.O_RDWR) as lock, contextlib.suppress(OSError):
            if lock is None:
                return
            known = Note(lock, "").read()
            if known is None or not (self.folder / known.key).is_dir():
                path.unlink()

    def close(self) -> None:
        """Give up all models that this process holds."""
        for lock in self._held.values():
            os.close(lock)
        self._held.clear()


class Note:
    """What the folder knows of one source, in a locked file."""

    def __init__(self, lock: int, source: str) -> None:
        self._lock = lock
        self._source = source

    def read(self) -> Fetched | None:
        """Return what was noted; None if nothing was."""
        try:
            known = msgspec.json.decode(os.pread(self._lock, 64 * 1024, 0), type=Fetched)
        except (msgspec.MsgspecError, UnicodeError):
            return None
        return known if self._source in ("", known.source) else None

    def write(self, validator: str, key: str) -> None:
        """Note what was fetched."""
        text = msgspec.json.encode(Fetched(self._source, validator, key))
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, text, 0)


def remove_unused(path: Path, unused_s: float) -> bool:
    """Remove a folder that no process holds; return whether it was removed."""
    with locked(path, os.O_RDONLY | os.O_DIRECTORY) as lock, contextlib.suppress(OSError):
        # A file's time is of the wall clock, as is this.
        if lock is None or (unused_s and time.time() - os.fstat(lock).st_mtime < unused_s):
            return False
        doomed = path.with_name(f"{DOOMED}{secrets.token_hex(8)}")
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        return True
    return False


@contextmanager
def locked(
    path: Path, flags: int, kind: int = fcntl.LOCK_EX | fcntl.LOCK_NB
) -> Iterator[int | None]:
    """Hold the lock of a file or folder, and yield it; else None, as `lock_path`."""
    lock = lock_path(path, flags, kind)
    try:
        yield lock
    finally:
        if lock is not None:
            os.close(lock)


def lock_path(path: Path, flags: int, kind: int) -> int | None:
    """Open and lock a file or folder; None if it is gone, or is locked and `kind` may not wait."""
    while True:
        try:
            opened = os.open(path, flags | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(opened, kind)
            # It may have been replaced before it was locked.
            if os.path.samestat(os.fstat(opened), path.stat()):
                return opened
        except BlockingIOError:
            os.close(opened)
            return None
        except FileNotFoundError:
            pass
        except OSError:
            os.close(opened)
            raise
        os.close(opened)
