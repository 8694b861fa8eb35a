"""The journal of a tuning: one JSON line per trial, so that a killed one goes on where it was.

The search and the confirmation draw nothing at random. A resumed tuning runs them again, and the
journal answers for the trials that it has. Two other lines exist: one has the loads of a trial that
was interrupted, and one has the candidates of a confirmation that begins.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from headrace.bench.measurement import Load
from headrace.errors import ConfigError
from headrace.tune.search import Trial
from headrace.tune.space import Candidate

FORMAT: Final = 2
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


class _Format(msgspec.Struct, frozen=True):
    """The part of the first line that each version reads."""

    format: int


Stage = Literal["search", "confirm"]


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag="trial"):
    """One trial.

    Attributes:
        stage: search, or confirm.
        round: the round of the confirmation.
        trial: what it found.
    """

    stage: Stage
    trial: Trial
    round: int = 0


class Part(msgspec.Struct, frozen=True, kw_only=True, tag="part"):
    """What a trial had measured when it was interrupted.

    Attributes:
        stage: search, or confirm.
        round: the round of the confirmation.
        candidate: what was measured.
        seconds: how long it took until then.
        loads: the loads that had ended.
    """

    stage: Stage
    round: int
    candidate: Candidate
    seconds: float
    loads: list[Load]


class Finalists(msgspec.Struct, frozen=True, kw_only=True, tag="confirmation"):
    """The candidates of a confirmation that begins, without the present options."""

    candidates: list[Candidate]


_Line = Entry | Part | Finalists


class Journal:
    """The file of one tuning. Only one process writes it.

    Args:
        path: the file.

    Attributes:
        entries: the trials that it has.
        finalists: the candidates of the last confirmation that has begun; None before one has.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: list[Entry] = []
        self.finalists: list[Candidate] | None = None
        self._parts: dict[tuple[str, int, str], Part] = {}
        # The trials before the last confirmation.
        self._before = 0
        self._file = -1

    @property
    def spent_s(self) -> float:
        """Return the seconds of the trials that it has, and of those that were interrupted."""
        parts_s = sum(part.seconds for part in self._parts.values())
        return parts_s + sum(entry.trial.seconds for entry in self.entries)

    @property
    def latest(self) -> list[Entry]:
        """Return the trials since the last confirmation has begun."""
        return self.entries[self._before :]

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
        stage: Stage,
        candidate: Candidate,
        number: int,
        measure: Callable[[], Trial],
    ) -> Trial:
        """Return the trial that the journal has; else measure, and write the trial.

        Raises:
            ConfigError: the file cannot be written.
        """
        # The trials of an earlier confirmation were not in turns with those of this one.
        for entry in self.entries if stage == "search" else self.latest:
            same = entry.stage == stage and entry.round == number
            if same and entry.trial.candidate.key == candidate.key:
                return entry.trial
        entry = Entry(stage=stage, round=number, trial=measure())
        self._append(entry)
        self._add(entry)
        return entry.trial

    def part(self, stage: Stage, candidate: Candidate, number: int) -> Part | None:
        """Return what an interrupted trial had measured; None if there is no such trial."""
        return self._parts.get((stage, number, candidate.key))

    def keep(self, part: Part) -> None:
        """Write what a trial has measured that is being interrupted.

        Raises:
            ConfigError: the file cannot be written.
        """
        self._append(part)
        self._add(part)

    def confirms(self, candidates: Sequence[Candidate]) -> None:
        """Write that a confirmation begins, unless it is the last one that has begun.

        Raises:
            ConfigError: the file cannot be written.
        """
        known = self.finalists
        if known is None or [one.key for one in known] != [one.key for one in candidates]:
            line = Finalists(candidates=list(candidates))
            self._append(line)
            self._add(line)

    def _add(self, line: _Line) -> None:
        match line:
            case Entry():
                self.entries.append(line)
                self._parts.pop((line.stage, line.round, line.trial.candidate.key), None)
            case Part():
                self._parts[line.stage, line.round, line.candidate.key] = line
            case Finalists():
                self.finalists, self._before = line.candidates, len(self.entries)

    def close(self) -> None:
        """Close the file; others may write it then."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self, lines: list[bytes], header: Header) -> None:
        self._check_format(lines[0])
        first = self._decoded(lines[0], 1, Header)
        for name in ("model", "objective", "where", "input", "present"):
            was, now = getattr(first, name), getattr(header, name)
            if was != now:
                what = f"{name} was {was}, not {now}"
                raise ConfigError(
                    f"{self.path}: it is the journal of another tuning: {what}",
                    hint="choose another --output",
                )
        for number, line in enumerate(lines[1:], 2):
            self._add(self._decoded(line, number, _Line))

    def _check_format(self, line: bytes) -> None:
        try:
            found = msgspec.json.decode(line, type=_Format).format
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"{self.path}: it is not a journal of headrace tune: {error}",
                hint="choose another --output",
            ) from None
        if found != FORMAT:
            age = "an older" if found < FORMAT else "a newer"
            raise ConfigError(
                f"{self.path}: it is the journal of {age} version of headrace tune",
                hint="choose another --output for a new tuning, or continue it with that version",
            )

    def _decoded(self, line: bytes, number: int, kind: Any) -> Any:
        try:
            return msgspec.json.decode(line, type=kind)
        except msgspec.MsgspecError as error:
            remedy = "remove the line, whose trial is measured again, or " if number > 1 else ""
            raise ConfigError(
                f"{self.path}: line {number} is damaged: {error}",
                hint=f"{remedy}choose another --output",
            ) from None

    def _append(self, line: Header | _Line) -> None:
        try:
            os.write(self._file, msgspec.json.encode(line) + b"\n")
            os.fsync(self._file)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {error.strerror}") from None


def _without_trials(data: bytes) -> bool:
    """Return whether an earlier tuning failed before its first trial."""
    try:
        msgspec.json.decode(data, type=Header)
    except msgspec.MsgspecError:
        return False
    return True
