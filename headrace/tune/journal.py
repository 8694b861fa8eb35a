"""The journal of a tuning: one JSON line per trial, so that a killed one goes on where it was.

The search and the confirmation draw nothing at random. A resumed tuning runs them again, and the
journal answers for the trials that it has.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from headrace.errors import ConfigError
from headrace.tune.search import Trial
from headrace.tune.space import Candidate

FORMAT: Final = 1
NAME: Final = "trials.jsonl"


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: what is tuned. A journal goes on only with the same values.

    Attributes:
        model: the model.
        objective: the objective as it was given.
        where: the URL of the server, or "private".
        input: the inputs in words.
        present: the present options.
    """

    model: str
    objective: str
    where: str
    input: str
    present: dict[str, Any]
    format: int = FORMAT


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One trial.

    Attributes:
        stage: search, or confirm.
        round: the round of the confirmation.
        trial: what it found.
    """

    stage: Literal["search", "confirm"]
    trial: Trial
    round: int = 0


class Journal:
    """The file of one tuning. Only one process writes it.

    Args:
        path: the file.

    Attributes:
        entries: the trials that it has.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self._file = -1

    @property
    def spent_s(self) -> float:
        """Return the seconds of the trials that it has."""
        return sum(entry.trial.seconds for entry in self.entries)

    def begin(self, header: Header, *, resume: bool) -> None:
        """Open the file, and read the trials of an earlier process.

        Raises:
            ConfigError: it exists and `resume` is not set, belongs to another tuning, is in use, or
                cannot be read or written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(self.path, flags, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            data = self.path.read_bytes()
        except BlockingIOError:
            raise ConfigError(
                f"{self.path}: another process writes it", hint="wait, or choose another --output"
            ) from None
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {error.strerror}") from None
        if not data:
            self._append(header)
            return
        # A kill may have left the last line incomplete.
        whole = data[: data.rfind(b"\n") + 1]
        if not resume and not _without_trials(whole):
            raise ConfigError(
                f"{self.path}: it has the trials of an earlier tuning",
                hint="add --resume to continue it, or choose another --output",
            )
        if not resume:
            whole = b""
        os.ftruncate(self._file, len(whole))
        os.lseek(self._file, 0, os.SEEK_END)
        if not whole:
            self._append(header)
            return
        self._read(whole.splitlines(), header)

    def recorded(
        self,
        stage: Literal["search", "confirm"],
        candidate: Candidate,
        number: int,
        measure: Callable[[], Trial],
    ) -> Trial:
        """Return the trial that the journal has; else measure, and write the trial.

        Raises:
            ConfigError: the file cannot be written.
        """
        for entry in self.entries:
            same = entry.stage == stage and entry.round == number
            if same and entry.trial.candidate.key == candidate.key:
                return entry.trial
        entry = Entry(stage=stage, round=number, trial=measure())
        self._append(entry)
        self.entries.append(entry)
        return entry.trial

    def close(self) -> None:
        """Close the file; others may write it then."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self, lines: list[bytes], header: Header) -> None:
        try:
            first = msgspec.json.decode(lines[0], type=Header)
            self.entries = [msgspec.json.decode(line, type=Entry) for line in lines[1:]]
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"{self.path}: it is not a journal of headrace tune: {error}",
                hint="choose another --output",
            ) from None
        for name in ("format", "model", "objective", "where", "input", "present"):
            was, now = getattr(first, name), getattr(header, name)
            if was != now:
                what = f"{name} was {was}, not {now}"
                raise ConfigError(
                    f"{self.path}: it is the journal of another tuning: {what}",
                    hint="choose another --output",
                )

    def _append(self, line: Header | Entry) -> None:
        try:
            os.write(self._file, msgspec.json.encode(line) + b"\n")
            os.fsync(self._file)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {error.strerror}") from None


def in_use(path: Path) -> bool:
    """Return whether a process writes a journal."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _without_trials(data: bytes) -> bool:
    """Return whether an earlier tuning failed before its first trial."""
    try:
        msgspec.json.decode(data, type=Header)
    except msgspec.MsgspecError:
        return False
    return True
