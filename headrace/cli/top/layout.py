"""Draws a view to the size of a terminal: columns are left out by their rank, never broken."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from headrace.cli.doctor.check import size
from headrace.cli.top.tables import (
    BAD,
    DIM,
    SOON,
    Column,
    age,
    bar,
    duration,
    joined,
    number,
    one_line,
    rate,
    side_by_side,
    table,
)
from headrace.cli.top.view import STEPS, ModelRow, View

#: Lines that the models get at the least, before other tables give way.
MODELS_MIN: Final = 4
#: An empty line, a head and a row.
_TABLE_LEAST: Final = 3
_ANY: Final = 1 << 30
KEYS: Final = "q quit  s sort  r reverse  p pause  up/down"

_STATES: Final = {"ready": "green", "failed": "bold red", "restarting": "red", "no-worker": "red"}


@dataclass(frozen=True, slots=True)
class Shown:
    """How the viewer wants it.

    Attributes:
        width: columns of the terminal.
        height: its lines; 0 for as many as it takes.
        sort: the head of the column that models are sorted by; empty for the order of the file.
        reverse: the other way round.
        offset: models above the first one that is shown.
        note: stands in the first line: that it is paused, or what is wrong.
        bad: the note is about something wrong.
    """

    width: int
    height: int = 0
    sort: str = ""
    reverse: bool = False
    offset: int = 0
    note: str = ""
    bad: bool = False


def _plain(text: str, style: str = "") -> Text:
    return Text(one_line(text), style=style)


def _state(row: ModelRow) -> Text:
    if row.paused:
        return _plain("paused", SOON)
    return _plain(row.state, _STATES.get(row.state, SOON))


def _eta(row: ModelRow) -> Text:
    left_s = row.eta_s
    if left_s is None:
        return Text("")
    return Text("never", style=SOON) if math.isinf(left_s) else Text(duration(left_s))


def _counted(value: float | None, style: str, show: Callable[[float | None], str]) -> Text:
    """A number that catches the eye where it is not zero."""
    return Text(show(value), style=style if value else DIM)


def _waits(step: str) -> Callable[[ModelRow], Text]:
    return lambda row: _counted(row.waits[step], "", number)


MODELS: Final = (
    Column("MODEL", lambda r: _plain(r.name), 0, left=True),
    Column("STATE", _state, 1, left=True, least=7),
    Column("WAIT", lambda r: Text(number(r.waiting)), 0, sort=lambda r: r.waiting, least=5),
    Column("OLDEST", lambda r: Text(age(r.oldest_s)), 2, sort=lambda r: r.oldest_s),
    Column("RUN", lambda r: Text(number(r.running)), 2, sort=lambda r: r.running, least=4),
    Column("IN/S", lambda r: Text(rate(r.in_s)), 3, sort=lambda r: r.in_s or 0, least=5),
    Column("OUT/S", lambda r: Text(rate(r.out_s)), 1, sort=lambda r: r.out_s or 0, least=5),
    Column("P50", lambda r: Text(duration(r.p50_s)), 5, sort=lambda r: r.p50_s or 0, least=5),
    Column("P99", lambda r: Text(duration(r.p99_s)), 3, sort=lambda r: r.p99_s or 0, least=5),
    Column("BATCH", lambda r: Text("" if r.batch is None else f"{r.batch:.1f}"), 5),
    Column("FAIL/S", lambda r: _counted(r.failed_s, BAD, rate), 4, sort=lambda r: r.failed_s or 0),
    Column("DEAD", lambda r: _counted(r.dead, SOON, number), 6, sort=lambda r: r.dead),
    Column("EMPTY IN", _eta, 6, least=8),
    Column("READY", lambda r: Text(f"{r.ready}/{r.replicas}"), 7),
    Column("SCHED", lambda r: _counted(r.scheduled, "", number), 8),
    Column("RETRY/S", lambda r: _counted(r.retried_s, SOON, rate), 8),
    Column("REFUSED/S", lambda r: _counted(r.rejected_s, SOON, rate), 9),
    Column("RESTARTS", lambda r: _counted(r.restarts, SOON, number), 9),
    Column("MEMORY", lambda r: Text(size(r.memory) if r.memory else ""), 7),
    *(Column(f"WAIT P{step}", _waits(step), 10) for step in STEPS),
)
HOSTS: Final = (
    Column("HOST", lambda r: _plain(r.name), 0, left=True),
    Column("CPUS", lambda r: Text(str(r.cpus)), 3),
    Column("CPU", lambda r: bar(r.cpu, alarming=False), 0, left=True),
    Column("MEMORY", lambda r: bar(_share(r.memory_used, r.memory)), 1, left=True),
    Column("OF", lambda r: Text(size(r.memory)), 2),
    Column("DISK", lambda r: bar(_share(r.disk_used, r.disk)), 4, left=True),
    Column("FREE", lambda r: Text(size(r.disk - r.disk_used)), 5),
)
DEVICES: Final = (
    Column("HOST", lambda r: _plain(r.host), 3, left=True),
    Column("GPU", lambda r: _plain(r.device), 0, left=True),
    Column("NAME", lambda r: _plain(r.name), 4, left=True),
    Column("BUSY", lambda r: bar(r.busy, alarming=False), 0, left=True),
    Column("MEMORY", lambda r: bar(_share(r.memory_used, r.memory)), 1, left=True),
    Column("OF", lambda r: Text("" if r.memory is None else size(r.memory)), 5),
    Column("TEMP", lambda r: Text("" if r.celsius is None else f"{r.celsius:.0f} °C"), 2),
    Column("POWER", lambda r: Text("" if r.watts is None else f"{r.watts:.0f} W"), 2),
)
PROCESSES: Final = (
    Column("WORKER", lambda r: _plain(r.worker), 0, left=True),
    Column("MODEL", lambda r: _plain(r.model), 0, left=True),
    Column("MEMORY", lambda r: Text(size(r.memory)), 0),
)
#: What models can be sorted by, in the order in which `s` goes through them.
SORTS: Final = ("", *(column.head for column in MODELS if column.sort is not None))


def _share(used: float | None, most: float | None) -> float | None:
    return None if used is None or not most else used / most


def lines(view: View, shown: Shown) -> list[Text]:
    """A view, line by line; no line is wider than the terminal, and there are no more than fit."""
    drawn = [*_header(view, shown), Text("")]
    models = ordered(view.models, shown)
    offset, part = 0, models
    if shown.height:
        room = shown.height - len(drawn)
        # Head and foot of the models' table come before anything else.
        below = _below(view, shown.width, room - min(len(models), MODELS_MIN) - 2)
        rows = room - len(below) - 1
        if len(models) > rows:
            rows = max(rows - 1, 1)  # for the line that says which are shown
        offset = min(shown.offset, max(len(models) - rows, 0))
        part = models[offset : offset + rows]
    else:
        below = _below(view, shown.width, _ANY)
    drawn += table(MODELS, part, shown.width, sort=shown.sort, reverse=shown.reverse)
    if len(part) < len(models):
        drawn.append(_cut(Text(f"{offset + 1}-{offset + len(part)} of {len(models)}", DIM), shown))
    drawn += below
    return drawn[: shown.height] if shown.height else drawn


def ordered(models: Sequence[ModelRow], shown: Shown) -> list[ModelRow]:
    """The models in the order that the viewer wants."""
    by = next((c.sort for c in MODELS if c.head == shown.sort and c.sort is not None), None)
    if by is None:
        return list(reversed(models)) if shown.reverse else list(models)
    return sorted(models, key=by, reverse=not shown.reverse)


def _header(view: View, shown: Shown) -> list[Text]:
    first = Text(f"headrace {view.version}", style="bold")
    first.append(f"  {view.workers} worker{'' if view.workers == 1 else 's'}", style="not bold")
    if shown.note:
        first.append(f"  {one_line(shown.note)}", style=BAD if shown.bad else SOON)
    waiting = sum(row.waiting for row in view.models)
    jobs = _facts(
        ("waiting", number(waiting)),
        ("running", number(sum(row.running for row in view.models))),
        ("in", _per_s(view.sum_of(lambda row: row.in_s))),
        ("out", _per_s(view.sum_of(lambda row: row.out_s))),
        ("failed", _per_s(view.sum_of(lambda row: row.failed_s))),
        ("dead", number(sum(row.dead for row in view.models))),
    )
    memory = size(view.redis_memory) if view.redis_memory else ""
    if view.redis_limit:
        memory += f" of {size(view.redis_limit)}"
    around = _facts(
        ("API", _per_s(view.requests_s)),
        ("5xx", _per_s(view.errors_s) if view.errors_s else ""),
        ("held", number(view.held)),
        ("Redis", memory if view.broker else "does not answer"),
        ("round trips", _per_s(view.trips_s)),
    )
    return [_cut(line, shown) for line in (first, jobs, around)]


def _per_s(value: float | None) -> str:
    return "" if value is None else f"{rate(value)}/s"


def _facts(*facts: tuple[str, str]) -> Text:
    text = Text()
    for name, value in facts:
        if value:
            text.append(f"{name} ", style=DIM)
            text.append(f"{value}   ", style=BAD if value == "does not answer" else "bold")
    return text


def _cut(text: Text, shown: Shown) -> Text:
    text.truncate(shown.width, overflow="ellipsis")
    return text


def _below(view: View, width: int, room: int) -> list[Text]:
    """Devices, hosts and processes: side by side where there is room, else one below the other.

    Args:
        view: what there is.
        width: of the terminal.
        room: lines that they may take; a table without room for one row is left out.
    """
    tables = ((DEVICES, view.devices), (HOSTS, view.hosts), (PROCESSES, view.processes))
    blocks = [table(columns, rows, width) for columns, rows in tables if rows]
    stacked: list[Text] = []
    for group in side_by_side(blocks, width):
        left = room - len(stacked)
        if left < _TABLE_LEAST:
            break
        stacked += [Text(""), *joined(group)][:left]
    return stacked
