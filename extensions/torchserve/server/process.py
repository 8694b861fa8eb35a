"""The server of `headrace torchserve` as a process: start it in the background, and stop it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from headrace.errors import ConfigError
from headrace.server.ports import BACKLOG
from headrace.server.supervisor import proc

PID_NAME: Final = ".model_server.pid"
#: How long a stop may take.
STOP_S: Final = 60.0
_POLL_S: Final = 0.1
#: How long another server may take to accept a connection.
_ANSWER_S: Final = 30.0
_OURS: Final = "torchserve"


def pid_file() -> Path:
    """Return the file with the id of the server's process, in the folder for temporary files."""
    return Path(tempfile.gettempdir()) / PID_NAME


class Running(NamedTuple):
    """The server that runs: Headrace, or TorchServe itself, which has the same pid file."""

    pid: int
    is_ours: bool


def running() -> Running | None:
    """Return the server that runs; None if none does.

    A file of another user counts for nothing, and so does the id of any other program.
    """
    try:
        path = pid_file()
        if path.stat().st_uid != os.geteuid():
            return None
        pid = int(path.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except (OSError, ValueError):
        return None
    if proc.start_time_ticks(pid) is None:
        return None
    arguments = command.split("\0")
    if "org.pytorch.serve" in command:
        return Running(pid, is_ours=False)
    # `python -P -m headrace torchserve` is among the first words, as is a console script.
    is_ours = any(Path(one).name == _OURS for one in arguments[:6])
    return Running(pid, is_ours=True) if is_ours else None


def start_in_background(arguments: Sequence[str]) -> bool:
    """Start `headrace torchserve` with these arguments; return whether it serves.

    It keeps the standard output, and outlives this process and its terminal. This waits until it
    serves, or has ended.

    Raises:
        ConfigError: the pid file cannot be written.
    """
    # Before the start, so that no server runs without it; 0 is the id of no process.
    write_pid(0)
    ready, opened = os.pipe()
    with os.fdopen(ready, "rb") as reader:
        try:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "headrace", _OURS, *arguments),
                    *("--foreground", f"--ready-fd={opened}"),
                ],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(opened,),
            )
        finally:
            os.close(opened)
        write_pid(process.pid)
        if reader.read(1):  # nothing, if it has ended
            return True
    process.wait()
    _remove_pid(process.pid)
    return False


def report_ready(descriptor: int) -> None:
    """Report to `start_in_background` that this server serves; it may have been interrupted."""
    with contextlib.suppress(OSError), os.fdopen(descriptor, "wb") as file:
        file.write(b"1")


def write_pid(pid: int) -> None:
    """Write the pid file, for this user alone to change.

    Raises:
        ConfigError: it cannot be written.
    """
    path = pid_file()
    try:
        # Renamed into place: a reader never finds the file empty or missing, and two processes that
        # write at once do not disturb each other.
        descriptor, name = tempfile.mkstemp(prefix=PID_NAME, dir=path.parent)
        try:
            with os.fdopen(descriptor, "w") as file:
                os.fchmod(descriptor, 0o644)
                file.write(str(pid))
            os.replace(name, path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(
            f"{path}: it cannot be written: {error.strerror}",
            hint="another user may have a server; choose another folder with TMPDIR",
        ) from error


@contextmanager
def pid_written() -> Iterator[None]:
    """Keep the id of this process in the pid file."""
    pid = os.getpid()
    write_pid(pid)
    try:
        yield
    finally:
        _remove_pid(pid)


def _remove_pid(pid: int) -> None:
    path = pid_file()
    try:
        if path.read_text() == str(pid):
            path.unlink()
    except OSError:
        pass  # another start has replaced it


def stop(pid: int, limit_s: float = STOP_S) -> bool:
    """Stop a server, and wait for its end; return whether it has ended in time."""
    started = proc.start_time_ticks(pid)
    proc.kill(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + limit_s
    while started is not None and proc.start_time_ticks(pid) == started:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def listen_unix(what: str, path: Path) -> socket.socket:
    """Listen on a Unix socket; one that a killed server has left is replaced.

    Raises:
        ConfigError: a server uses it, or it cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"{what}: cannot listen on {path}: {error.strerror or error}",
            hint="stop what uses it, or choose another path",
        ) from error
    return listener


def _answers(path: Path) -> bool:
    """Return whether a server listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_ANSWER_S)
        return client.connect_ex(str(path)) == 0
