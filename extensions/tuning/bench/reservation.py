"""Reserves a model on a server for one process, which changes it for a while.

A file for each model and server has what the process changes. The process has a lock on it, and the
lock ends with the process. So a second process is refused, and what a killed one has left on the
server is taken back by the next one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.client.sync_client import Client
from headrace.errors import ConfigError, HeadraceError, ModelNotFound

#: The folder of the user's state, as the XDG Base Directory Specification has it.
_ENV_STATE: Final = "XDG_STATE_HOME"


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a reservation.

    Attributes:
        where: the URL of the server, or a models file.
        holder: the command that has reserved it, in words.
        options: what it has changed, as it was; None: not changed.
    """

    where: str
    model: str
    holder: str
    pid: int
    options: dict[str, Any] = {}
    registered: bool = False


class Reservation:
    """A model on a server, reserved for this process. `reserved` makes it.

    Args:
        file: the file, open and locked.

    Attributes:
        left: what a killed process has left on the server; None for nothing.
    """

    def __init__(self, path: Path, file: int, note: Note) -> None:
        self.path = path
        self._file = file
        earlier = _read(path)
        self.left = earlier if earlier is not None and _is_open(earlier) else None
        self._note = note
        if self.left is not None:
            self._note = msgspec.structs.replace(self.left, holder=note.holder, pid=note.pid)
        self._write()

    def changes(self, before: Mapping[str, Any]) -> None:
        """Note what options are before they are changed; None: not changed."""
        self._write(options=dict(before))

    def registers(self) -> None:
        """Note that the model is about to be registered."""
        self._write(registered=True)

    def restored(self) -> None:
        """Note that the server is as it was."""
        self.left = None
        self._write(options={}, registered=False)

    def end(self) -> None:
        """End the reservation. The file stays if something is left on the server."""
        if not _is_open(self._note):
            self.path.unlink(missing_ok=True)
        os.close(self._file)

    def _write(self, **changes: Any) -> None:
        self._note = msgspec.structs.replace(self._note, **changes)
        # Readers read the first line, so what an earlier text leaves behind it does not count.
        try:
            os.pwrite(self._file, msgspec.json.encode(self._note) + b"\n", 0)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {error.strerror}") from None


def _is_open(note: Note) -> bool:
    return bool(note.options) or note.registered


@contextmanager
def reserved(where: str, model: str, holder: str) -> Iterator[Reservation]:
    """Reserve a model on a server for this process.

    Args:
        where: the URL of the server, or the path of the models file, without symbolic links.

    Raises:
        ConfigError: another process has reserved it, the file cannot be written, or there is no
            folder for it.
    """
    name = hashlib.sha256(f"{where} {model}".encode()).hexdigest()[:16]
    path = _folder() / f"{name}.json"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = _locked(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written: {error.strerror}",
            hint=f"set {_ENV_STATE} to a folder that can be written",
        ) from None
    if file is None:
        other = _read(path)
        who = f"{other.holder}, process {other.pid}" if other is not None else "another process"
        raise ConfigError(
            f"{model} on {where} is in use: {who}",
            hint="wait until it ends, or end it; then repeat the command",
        )
    found = Reservation(path, file, Note(where=where, model=model, holder=holder, pid=os.getpid()))
    try:
        yield found
    finally:
        found.end()


def take_back(client: Client, own: Reservation | None = None) -> list[str]:
    """Take back what killed processes have left on a server; return that in words.

    Args:
        own: the reservation of this process, if it has one on this server.

    Raises:
        HeadraceError: the server does not answer, or refuses the change of the own model.
    """
    found = []
    if own is not None and own.left is not None:
        found.append(_undone(client, own.left))
        own.restored()
    for path in sorted(_folder().glob("*.json")):
        note = _read(path)
        if note is None or note.where != client.session.url or not _is_open(note):
            continue
        try:
            with reserved(note.where, note.model, note.holder) as other:
                if other.left is not None:
                    found.append(_undone(client, other.left))
                    other.restored()
        except ConfigError:
            continue  # its process runs
        except HeadraceError as error:
            found.append(f"{note.holder} was killed: {note.model} is not as it was: {error}")
    return found


def _undone(client: Client, note: Note) -> str:
    with suppress(ModelNotFound):
        if note.registered:
            client.remove_model(note.model)
            return f"{note.holder} was killed: {note.model} is removed"
        client.set_model_options(note.model, note.options)
    return f"{note.holder} was killed: the options of {note.model} are taken back"


def _folder() -> Path:
    state = Path(os.environ.get(_ENV_STATE, ""))
    # The specification has it that a relative path is ignored.
    if not state.is_absolute():
        try:
            state = Path.home() / ".local/state"
        except RuntimeError:
            raise ConfigError(
                "reservations need a folder, and this user has no home folder",
                hint=f"set {_ENV_STATE} to a folder that can be written, as an absolute path",
            ) from None
    return state / "headrace/reservations"


def _locked(path: Path) -> int | None:
    """Return the file, open and locked; None if another process has the lock."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        # A process that ends removes the file, and another one may have made a new one.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file), path.stat()):
                return file
        os.close(file)


def _read(path: Path) -> Note | None:
    try:
        return msgspec.json.decode(path.read_bytes().partition(b"\n")[0], type=Note)
    except (OSError, msgspec.MsgspecError):
        return None
