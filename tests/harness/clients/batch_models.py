"""Models of the handler `Batches`, and what their log says."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.harness.workers.worker import HANDLERS


class Line(msgspec.Struct):
    """A batch that began, as the handler saw it, or one that ended."""

    model: str
    at: float = 0.0
    ids: list[str] = []
    items: list[Any] = []
    ended: bool = False


@dataclass
class BatchLog:
    """The log of all models of a folder, in the order in which their batches began."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "batches.log"

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    def model(
        self, *, gated: bool = False, pause_s: float = 0.0, item_s: float = 0.0, **keys: Any
    ) -> dict[str, Any]:
        """A model for `write_models`; a gated one runs nothing to its end until `open_gate`."""
        options: dict[str, Any] = {"log": str(self.path), "pause_s": pause_s, "item_s": item_s}
        if gated:
            options["gate"] = str(self.gate)
        return {"handler": f"{HANDLERS / 'batches.py'}:Batches", "options": options, **keys}

    def open_gate(self) -> None:
        self.gate.touch()

    def lines(self, model: str | None = None) -> list[Line]:
        """The batches that began."""
        return [line for line in self.all() if not line.ended and model in (None, line.model)]

    def most_at_once(self) -> int:
        """The most batches that ran at the same time."""
        running = most = 0
        for line in self.all():
            running += -1 if line.ended else 1
            most = max(most, running)
        return most

    def all(self) -> list[Line]:
        if not self.path.exists():
            return []
        text = self.path.read_text()
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [msgspec.convert(json.loads(line), Line) for line in whole]


class Use(NamedTuple):
    """The device's time that a model has used, in seconds, as far as that can be told."""

    least_s: float = 0.0
    most_s: float = 0.0


def uses(log: BatchLog, without: str = "") -> Iterator[tuple[str, dict[str, Use]]]:
    """Each batch's model, and what all had used when it began; one model may be left out.

    The time of a batch begins at its hand-over, but not before the batch before it has ended. It
    ends when its worker sees the end, before the next one begins. So a batch is charged for no less
    than it has run.
    """
    used: dict[str, Use] = defaultdict(Use)
    all_ = [line for line in log.all() if line.model != without]
    began, ended = ([one for one in all_ if one.ended is over] for over in (False, True))
    for n, (begin, end) in enumerate(zip(began, ended, strict=False)):
        yield begin.model, used.copy()
        since = ended[n - 1].at if n else begin.at
        until = began[n + 1].at if n + 1 < len(began) else end.at
        least_s, most_s = used[begin.model]
        used[begin.model] = Use(least_s + end.at - begin.at, most_s + until - since)
