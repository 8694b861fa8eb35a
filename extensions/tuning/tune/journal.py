"""The journal of a tuning: one JSON line per trial, so that a killed one goes on where it was.

The search and the confirmation draw nothing at random. A resumed tuning runs them again, and the
journal answers for the trials that it has. A trial that was interrupted is not in it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from extensions.tuning.tune.search import Trial
from extensions.tuning.tune.space import Candidate
from headrace.errors import ConfigError

NAME: Final = "trials.jsonl"


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: what is tuned. A journal goes on only with the same values.

    Attributes:
        where: the URL of the server, or "private".
        input: the inputs in words.
    """

    model: str
    objective: str
    where: str
    input: str
    present: dict[str, Any]


Stage = Literal["search", "confirm"]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One trial."""

    stage: Stage
    trial: Trial
    round: int = 0


class Journal:
    """The file of one tuning. Only one process writes it.

    Attributes:
        entries: the trials that it has.
        confirmation: those of the last confirmation, as trials of an earlier one were not in turns
            with them. The caller empties it to begin another one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self.confirmation: list[Entry] = []
        self._file = -1

    @property
    def spent_s(self) -> float:
        """Return the seconds of the trials that it has."""
        return sum(entry.trial.seconds for entry in self.entries)

    @property
    def confirms(self) -> bool:
        """Return whether the last trial is one of a confirmation."""
        return bool(self.entries) and self.entries[-1].stage == "confirm"

    def begin(self, header: Header, *, resume: bool) -> None:
        """Open the file, and read the trials of an earlier process.

        Raises:
            ConfigError: it has trials and `resume` is not set, belongs to another tuning, is in
                use, or cannot be read or written.
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
        # A kill may have left the last line incomplete.
        whole = data[: data.rfind(b"\n") + 1]
        lines = whole.splitlines()
        if not resume and len(lines) > 1:
            raise ConfigError(
                f"{self.path}: it has the trials of an earlier tuning",
                hint="add --resume to continue it, or choose another --output",
            )
        if not resume:
            whole, lines = b"", []
        os.ftruncate(self._file, len(whole))
        os.lseek(self._file, 0, os.SEEK_END)
        if lines:
            self._read(lines, header)
        else:
            self._append(header)

    def recorded(
        self, stage: Stage, candidate: Candidate, number: int, measure: Callable[[], Trial]
    ) -> Trial:
        """Return the trial that the journal has; else measure, and write the trial.

        Raises:
            ConfigError: the file cannot be written.
        """
        for entry in self.entries if stage == "search" else self.confirmation:
            same = entry.stage == stage and entry.round == number
            if same and entry.trial.candidate.key == candidate.key:
                return entry.trial
        entry = Entry(stage=stage, round=number, trial=measure())
        self._append(entry)
        self._add(entry)
        return entry.trial

    def close(self) -> None:
        """Close the file; others may write it then."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _add(self, entry: Entry) -> None:
        if entry.stage == "confirm":
            if not self.confirms:
                self.confirmation = []
            self.confirmation.append(entry)
        self.entries.append(entry)

    def _read(self, lines: list[bytes], header: Header) -> None:
        try:
            first = msgspec.json.decode(lines[0], type=Header)
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"{self.path}: it is not a journal of headrace tune: {error}",
                hint="choose another --output",
            ) from None
        for name in Header.__struct_fields__:
            was, now = getattr(first, name), getattr(header, name)
            if was != now:
                what = f"{name} was {was}, not {now}"
                raise ConfigError(
                    f"{self.path}: it is the journal of another tuning: {what}",
                    hint="choose another --output",
                )
        for number, line in enumerate(lines[1:], 2):
            try:
                self._add(msgspec.json.decode(line, type=Entry))
            except msgspec.MsgspecError as error:
                raise ConfigError(
                    f"{self.path}: line {number} is damaged: {error}",
                    hint="remove the line, whose trial is measured again, or choose another "
                    "--output",
                ) from None

    def _append(self, line: Header | Entry) -> None:
        try:
            os.write(self._file, msgspec.json.encode(line) + b"\n")
            os.fsync(self._file)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {error.strerror}") from None
