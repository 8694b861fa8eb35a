"""Draws a view for a terminal's size. Narrow terminals show fewer columns, by width classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.cli.shared.output import one_line
from headrace.cli.top.view import STEPS, ModelRow, PlaceRow, View
from headrace.text import short_duration, short_number, short_rate, size

#: Terminal widths from which further columns are shown.
MEDIUM: Final = 70
LARGE: Final = 100
LARGER: Final = 120
WIDE: Final = 140
FULL: Final = 190
#: Spaces between two columns, and between two tables side by side.
GAP: Final = 2
TABLES_GAP: Final = 4
NAME_MAX: Final = 64
#: Minimum number of lines for models before the other tables are dropped.
MODELS_MIN: Final = 4
#: Lines of the smallest table: an empty line, the header and a row.
_TABLE_LEAST: Final = 3
_UNLIMITED: Final = 1 << 30
KEYS: Final = "q quit  s sort  r reverse  p pause  up/down"

BAR_CHARS: Final = 10
#: Shares of a bar from which it is coloured.
WARN_FROM: Final = 0.8
BAD_FROM: Final = 0.95
WARN: Final = "yellow"
BAD: Final = "bold red"
DIM: Final = "bright_black"
_STATES: Final = {
    "ready": "green", "unloaded": DIM, "failed": BAD, "restarting": "red", "no-worker": "red",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """How the viewer wants the view.

    Attributes:
        height: lines of the terminal; 0 for no limit.
        sort: the header of the column by which models are sorted; empty for the file's order.
        offset: number of models above the first visible one.
        note: text in the first line: paused, or an error.
        bad: the note is an error.
    """

    width: int
    height: int = 0
    sort: str = ""
    reverse: bool = False
    offset: int = 0
    note: str = ""
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        from_width: the terminal width from which it is shown.
        sort: the sort key of a row; None if the column cannot be sorted by.
        least: minimum width, so that columns do not move while numbers change.
    """

    head: str
    cell: Callable[[Any], Text | str]
    from_width: int = 0
    left: bool = False
    sort: Callable[[Any], float] | None = None
    least: int = 0


def bar(share: float | None, *, warn: bool = True) -> Text:
    """Return a share as a bar followed by its percentage.

    Args:
        share: 0 to 1; None returns an empty cell.
        warn: a high share is bad, as for memory, and not good, as for a GPU's utilisation.
    """
    if share is None:
        return Text("")
    full = min(max(share, 0.0), 1.0)
    filled = round(full * BAR_CHARS)
    style = "green"
    if warn and full >= WARN_FROM:
        style = BAD if full >= BAD_FROM else WARN
    drawn = Text("█" * filled, style=style)
    drawn.append("░" * (BAR_CHARS - filled), style=DIM)
    drawn.append(f" {full:4.0%}")
    return drawn


def _state(row: ModelRow) -> Text:
    if row.paused:
        return Text("paused", WARN)
    return Text(one_line(row.state), _STATES.get(row.state, WARN))


def _time_to_empty(row: ModelRow) -> Text:
    if row.eta_s is None:
        return Text("")
    return Text("never", WARN) if math.isinf(row.eta_s) else Text(short_duration(row.eta_s))


def _nonzero(value: float | None, style: str, show: Callable[[float | None], str]) -> Text:
    """Return a number that is dimmed if it is zero."""
    return Text(show(value), style if value else DIM)


def _waiting_at(step: str) -> Callable[[ModelRow], Text]:
    return lambda row: _nonzero(row.waits[step], "", short_number)


def _age(row: ModelRow) -> str:
    return short_duration(row.oldest_s) if row.oldest_s >= 0.05 else ""


def _used_of_host(row: PlaceRow, what: str) -> Text:
    most, free = row.one(f"{what}_bytes"), row.one(f"{what}_available_bytes")
    return bar((most - free) / most if most else None)


def _used_of_device(row: PlaceRow) -> Text:
    used, most = row.get("memory_used_bytes"), row.get("memory_bytes")
    return bar(None if used is None or not most else used / most)


def _shown(value: float | None, show: Callable[[float], str]) -> str:
    return "" if value is None else show(value)


MODELS: Final = (
    Column("MODEL", lambda r: one_line(r.name), left=True),
    Column("STATE", _state, left=True, least=7),
    Column("WAIT", lambda r: short_number(r.waiting), sort=lambda r: r.waiting, least=5),
    Column(
        "OLDEST",
        _age,
        MEDIUM,
        sort=lambda r: r.oldest_s,
    ),
    Column("LEASED", lambda r: short_number(r.leased), MEDIUM, sort=lambda r: r.leased),
    Column("IN/S", lambda r: short_rate(r.in_s), MEDIUM, sort=lambda r: r.in_s or 0, least=5),
    Column("OUT/S", lambda r: short_rate(r.out_s), sort=lambda r: r.out_s or 0, least=5),
    Column("P50", lambda r: short_duration(r.p50_s), LARGE, sort=lambda r: r.p50_s or 0, least=5),
    Column("P99", lambda r: short_duration(r.p99_s), MEDIUM, sort=lambda r: r.p99_s or 0, least=5),
    Column("BATCH", lambda r: _shown(r.batch, "{:.1f}".format), LARGE),
    Column(
        "FAIL/S",
        lambda r: _nonzero(r.failed_s, BAD, short_rate),
        MEDIUM,
        sort=lambda r: r.failed_s or 0,
    ),
    Column("DEAD", lambda r: _nonzero(r.dead, WARN, short_number), LARGE, sort=lambda r: r.dead),
    Column("EMPTY IN", _time_to_empty, WIDE, least=8),
    Column("READY", lambda r: f"{r.ready}/{r.replicas}", WIDE),
    Column("SCHED", lambda r: _nonzero(r.scheduled, "", short_number), WIDE),
    Column("RETRY/S", lambda r: _nonzero(r.retried_s, WARN, short_rate), FULL),
    Column("REFUSED/S", lambda r: _nonzero(r.rejected_s, WARN, short_rate), FULL),
    Column("RESTARTS", lambda r: _nonzero(r.restarts, WARN, short_number), FULL),
    Column("MEMORY", lambda r: size(r.memory) if r.memory else "", WIDE),
    *(Column(f"WAIT P{step}", _waiting_at(step), FULL) for step in STEPS),
)
#: Only where a model counts tokens.
TOKENS: Final = (
    Column("TOKENS", lambda r: short_number(r.tokens), LARGER),
    Column("TOK IN", lambda r: short_rate(r.tokens_in_s), LARGER),
    Column("TOK OUT", lambda r: short_rate(r.tokens_out_s), MEDIUM),
)
#: The column behind which these are, and the one that makes room for them.
_TOKENS_AFTER: Final = "OUT/S"
_MAKES_ROOM: Final = "FAIL/S"
HOSTS: Final = (
    Column("HOST", lambda r: one_line(r.labels[0]), left=True),
    Column("CPUS", lambda r: f"{r.one('cpus'):.0f}", MEDIUM),
    Column("CPU", lambda r: bar(r.one("cpu_ratio"), warn=False), left=True),
    Column("MEMORY", lambda r: _used_of_host(r, "memory"), left=True),
    Column("OF", lambda r: size(r.one("memory_bytes")), MEDIUM),
    Column("DISK", lambda r: _used_of_host(r, "disk"), MEDIUM, left=True),
    Column("FREE", lambda r: size(r.one("disk_available_bytes")), LARGE),
)
DEVICES: Final = (
    Column("HOST", lambda r: one_line(r.labels[0]), MEDIUM, left=True),
    Column("GPU", lambda r: one_line(r.labels[1]), left=True),
    Column("NAME", lambda r: one_line(r.name), LARGE, left=True),
    Column("BUSY", lambda r: bar(r.get("utilization_ratio"), warn=False), left=True),
    Column("MEMORY", _used_of_device, left=True),
    Column("OF", lambda r: _shown(r.get("memory_bytes"), size), LARGE),
    Column("TEMP", lambda r: _shown(r.get("temperature_celsius"), "{:.0f} °C".format), MEDIUM),
    Column("POWER", lambda r: _shown(r.get("power_watts"), "{:.0f} W".format), MEDIUM),
)
PROCESSES: Final = (
    Column("WORKER", lambda r: one_line(r.worker), left=True),
    Column("MODEL", lambda r: one_line(r.model), left=True),
    Column("MEMORY", lambda r: size(r.memory) if r.memory else ""),
)
#: Only where a worker has labels.
LABELS: Final = Column("LABELS", lambda r: one_line(r.labels), MEDIUM, left=True)
#: The columns by which models can be sorted, in the order of the key `s`.
SORTS: Final = ("", *(column.head for column in MODELS if column.sort is not None))


def lines(view: View, options: ViewOptions) -> list[Text]:
    """Draw a view; no line is wider than the terminal, and there are at most `height` lines."""
    drawn = [*_header(view, options), Text("")]
    models = ordered(view.models, options)
    offset, visible = 0, models
    if options.height:
        room = options.height - len(drawn)
        # The models' table has priority over the tables below it.
        below = _below(view, options.width, room - min(len(models), MODELS_MIN) - 2)
        rows = room - len(below) - 1
        if len(models) > rows:
            rows = max(rows - 1, 1)  # one line shows the position
        offset = min(options.offset, max(len(models) - rows, 0))
        visible = models[offset : offset + rows]
    else:
        below = _below(view, options.width, _UNLIMITED)
    columns = _model_columns(view)
    table = _table(columns, visible, options.width, options.sort, reverse=options.reverse)
    drawn += _rendered(table, options.width)
    if len(visible) < len(models):
        position = Text(f"{offset + 1}-{offset + len(visible)} of {len(models)}", DIM)
        drawn.append(_cut(position, options))
    drawn += below
    return drawn[: options.height] if options.height else drawn


def _model_columns(view: View) -> list[Column]:
    if not _counts_tokens(view):
        return list(MODELS)
    columns = []
    for column in MODELS:
        makes_room = column.head == _MAKES_ROOM
        columns.append(replace(column, from_width=LARGE) if makes_room else column)
        if column.head == _TOKENS_AFTER:
            columns += TOKENS
    return columns


def _counts_tokens(view: View) -> bool:
    return any(row.tokens is not None for row in view.models)


def ordered(models: Sequence[ModelRow], options: ViewOptions) -> list[ModelRow]:
    """Return the models in the viewer's order."""
    by = next((c.sort for c in MODELS if c.head == options.sort and c.sort is not None), None)
    if by is None:
        return list(reversed(models)) if options.reverse else list(models)
    return sorted(models, key=by, reverse=not options.reverse)


def _header(view: View, options: ViewOptions) -> list[Text]:
    first = Text(f"headrace {view.version}", style="bold")
    first.append(f"  {view.workers} worker{'' if view.workers == 1 else 's'}", style="not bold")
    if options.note:
        first.append(f"  {one_line(options.note)}", style=BAD if options.bad else WARN)
    jobs = _facts(
        ("waiting", short_number(sum(row.waiting for row in view.models))),
        ("leased", short_number(sum(row.leased for row in view.models))),
        ("in", _per_s(view.sum_of(lambda row: row.in_s))),
        ("out", _per_s(view.sum_of(lambda row: row.out_s))),
        ("failed", _per_s(view.sum_of(lambda row: row.failed_s))),
        ("dead", short_number(sum(row.dead for row in view.models))),
    )
    tokens = _facts(
        ("tokens", short_number(sum(row.tokens or 0 for row in view.models))),
        ("tokens in", _per_s(view.sum_of(lambda row: row.tokens_in_s))),
        ("tokens out", _per_s(view.sum_of(lambda row: row.tokens_out_s))),
    )
    memory = size(view.redis_memory) if view.redis_memory else ""
    if view.redis_limit:
        memory += f" of {size(view.redis_limit)}"
    servers = _facts(
        ("API", _per_s(view.requests_s)),
        ("5xx", _per_s(view.errors_s) if view.errors_s else ""),
        ("waiters", short_number(view.waiters)),
        ("Redis", memory if view.broker else "does not answer"),
        ("round trips", _per_s(view.trips_s)),
    )
    shown = (first, jobs, tokens, servers) if _counts_tokens(view) else (first, jobs, servers)
    return [_cut(line, options) for line in shown]


def _per_s(value: float | None) -> str:
    return "" if value is None else f"{short_rate(value)}/s"


def _facts(*facts: tuple[str, str]) -> Text:
    text = Text()
    for name, value in facts:
        if value:
            text.append(f"{name} ", style=DIM)
            text.append(f"{value}   ", style=BAD if value == "does not answer" else "bold")
    return text


def _cut(text: Text, options: ViewOptions) -> Text:
    text.truncate(options.width, overflow="ellipsis")
    return text


def _below(view: View, width: int, room: int) -> list[Text]:
    """Draw GPUs, hosts and processes: side by side if they fit, else one below the other.

    Args:
        view: the view.
        width: columns of the terminal.
        room: maximum number of lines; a table without room for a row is dropped.
    """
    labelled = any(row.labels for row in view.processes)
    processes = (*PROCESSES, LABELS) if labelled else PROCESSES
    parts = ((DEVICES, view.devices), (HOSTS, view.hosts), (processes, view.processes))
    drawn: list[Text] = []
    for group in _side_by_side([_table(c, rows, width) for c, rows in parts if rows], width):
        left = room - len(drawn)
        if left < _TABLE_LEAST:
            break
        drawn += [Text(""), *_rendered(group, width)][:left]
    return drawn


def _side_by_side(tables: list[Table], width: int) -> list[Table]:
    """Return grids of tables that fit side by side, in their order."""
    console = _console(width)
    groups: list[list[Table]] = []
    used = 0
    for table in tables:
        natural = console.measure(table).maximum
        if groups and used + TABLES_GAP + natural <= width:
            groups[-1].append(table)
            used += TABLES_GAP + natural
        else:
            groups.append([table])
            used = natural
    grids = []
    for group in groups:
        grid = Table.grid(padding=(0, TABLES_GAP, 0, 0))
        grid.add_row(*group)
        grids.append(grid)
    return grids


def _table(
    columns: Sequence[Column],
    rows: Sequence[Any],
    width: int,
    sort: str = "",
    *,
    reverse: bool = False,
) -> Table:
    """Return a table of the columns for this width; the first column is shortened to fit."""
    visible = [column for column in columns if width >= column.from_width]
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for at, column in enumerate(visible):
        mark = "" if column.head != sort else "^" if reverse else "v"
        table.add_column(
            column.head + mark,
            justify="left" if column.left else "right",
            min_width=column.least or None,
            max_width=NAME_MAX if at == 0 else None,
            # rich shortens only columns that may wrap; the cells themselves never wrap.
            no_wrap=at > 0,
        )
    for row in rows:
        cells = [Text.assemble(column.cell(row)) for column in visible]
        for cell in cells:
            cell.no_wrap, cell.overflow = True, "ellipsis"
        table.add_row(*cells)
    return table


def _console(width: int) -> Console:
    return Console(width=width, file=StringIO())


def _rendered(renderable: RenderableType, width: int) -> list[Text]:
    """Return the lines of a table, cut to the width."""
    rows = _console(width).render_lines(renderable, pad=False)
    drawn = [Text.assemble(*((part.text, part.style or "") for part in row)) for row in rows]
    for line in drawn:
        line.rstrip()
    return drawn
