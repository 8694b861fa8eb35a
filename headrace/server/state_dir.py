"""The state directory of `headrace up`: its lock, and the record of the running instance.

The lock is a `flock` that the embedded server inherits, so it is held until that server has ended
too. Two servers must never write one append-only file.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from headrace.errors import ConfigError
from headrace.server.supervisor.proc import start_time_ticks

LOCK_NAME: Final = "lock"
RECORD_NAME: Final = "headrace.json"
#: How long the server of a killed instance may take to save and end.
LEFTOVER_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.05
_PRIVATE_MODE: Final = 0o600


@contextmanager
def locked(path: Path, *, leftover_timeout_s: float = LEFTOVER_TIMEOUT_S) -> Iterator[int]:
    """Create the directory if needed; hold its lock, and yield it for child processes.

    Args:
        leftover_timeout_s: how long to wait for the server of a killed instance.

    Raises:
        ConfigError: another instance uses the directory, or it cannot be written.
    """
    with _usable(path, "choose another with --state-dir"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE_MODE)
    try:
        _acquire(lock, path, leftover_timeout_s)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()} {start_time_ticks(os.getpid())}\n".encode(), 0)
        yield lock
    finally:
        # Not unlocked: the last process that holds the descriptor releases the lock.
        os.close(lock)


def make(path: Path, change: str) -> None:
    """Create the directory if needed, for a component that shares it; or raise ConfigError."""
    with _usable(path, change):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextmanager
def _usable(path: Path, change: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"state directory {path}: {error.strerror}", hint=change) from error


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read. It appears when it is complete."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, _PRIVATE_MODE), "w") as file:
        file.write(text)
    temporary.replace(path)


def read_record(path: Path) -> dict[str, Any]:
    """Return what the instance wrote about its components; empty if it cannot be read."""
    try:
        record = json.loads((path / RECORD_NAME).read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _acquire(lock: int, path: Path, leftover_timeout_s: float) -> None:
    deadline_s = time.monotonic() + leftover_timeout_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise ConfigError(
                    f"state directory {path}: cannot be locked: {error.strerror}",
                    hint="choose one on a local disk with --state-dir",
                ) from error
        else:
            return
        pid = _living_holder(lock)
        if pid is not None:
            raise ConfigError(
                f"state directory {path.absolute()} is in use by another headrace up, pid {pid}",
                hint="stop that one, or choose another directory with --state-dir",
            )
        if time.monotonic() > deadline_s:
            raise ConfigError(
                f"state directory {path.absolute()} is still used by the server of a headrace up "
                "that was killed",
                hint="end that server, or choose another directory with --state-dir",
            )
        time.sleep(_POLL_S)


def _living_holder(lock: int) -> int | None:
    pid, _, ticks = os.pread(lock, 100, 0).decode(errors="replace").strip().partition(" ")
    if not pid.isdecimal() or str(start_time_ticks(int(pid))) != ticks:
        return None
    return int(pid)
