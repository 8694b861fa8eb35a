"""Draws a view for a terminal's size. Narrow terminals show fewer columns, by width classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from extensions.top.cli.view import STEPS, ModelRow, PlaceRow, View
from headrace.cli.shared.output import one_line
from headrace.text import size

#: Terminal widths from which further columns are shown.
MEDIUM: Final = 70
LARGE: Final = 100
LARGER: Final = 120
WIDE: Final = 140
FULL: Final = 190
#: In no terminal.
NEVER: Final = 1 << 30
#: Spaces between two columns, and between two tables side by side.
GAP: Final = 2
TABLES_GAP: Final = 4
NAME_MAX: Final = 64
#: Minimum number of lines for models before the other tables are dropped.
MODELS_MIN: Final = 4
#: Lines of the smallest table: an empty line, the header and a row.
_TABLE_LEAST: Final = 3
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
        value: returns its value of a row.
        show: draws the value.
        from_width: the terminal width from which it is shown.
        extended: the same in a table with the columns that only some deployments need: the tokens
            of models that count some, the labels of workers.
        sort: models can be sorted by its value.
        least: minimum width, so that columns do not move while numbers change.
    """

    head: str
    value: Callable[[Any], Any]
    show: Callable[[Any], Text | str]
    from_width: int = 0
    extended: int | None = None
    left: bool = False
    sort: bool = False
    least: int = 0

    def is_shown(self, width: int, *, extended: bool) -> bool:
        """Return whether it is shown at this width of the terminal."""
        least = self.extended if extended and self.extended is not None else self.from_width
        return width >= least


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


def short_number(value: float | None) -> str:
    """Return a count in a few characters: `1,234`, `56.7k`, `1.2M`."""
    if value is None:
        return ""
    if value < 10_000:
        return f"{value:,.0f}"
    return f"{value / 1000:.1f}k" if value < 1_000_000 else f"{value / 1_000_000:.1f}M"


def short_rate(per_second: float | None) -> str:
    """Return a rate in a few characters: `0`, `0.4`, `12`, `3,400`."""
    if per_second is None:
        return ""
    return f"{per_second:.1f}" if 0.05 <= per_second < 10 else short_number(per_second)


def short_duration(seconds: float | None) -> str:
    """Return a duration in a few characters: `3ms`, `1.2s`, `4m10s`, `2h05m`, `3d`."""
    if seconds is None:
        return ""
    if seconds < 0.9995:
        return f"{seconds * 1000:.1f}ms" if seconds < 0.00995 else f"{seconds * 1000:.0f}ms"
    if seconds < 100:
        return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"
    minutes, left_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{left_s:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours < 48 else f"{hours / 24:.0f}d"


def _state(row: ModelRow) -> Text:
    if row.paused:
        return Text("paused", WARN)
    return Text(one_line(row.state), _STATES.get(row.state, WARN))


def _time_to_empty(seconds: float | None) -> Text | str:
    return Text("never", WARN) if seconds == math.inf else short_duration(seconds)


def _nonzero(style: str, show: Callable[[Any], str]) -> Callable[[Any], Text]:
    """Return what draws a number, dimmed if it is zero."""
    return lambda value: Text(show(value), style if value else DIM)


def _age(seconds: float) -> str:
    return short_duration(seconds) if seconds >= 0.05 else ""


def _as(form: str) -> Callable[[float | None], str]:
    return lambda value: "" if value is None else form.format(value)


def _known_size(value: float | None) -> str:
    return size(value) if value else ""


def _busy(share: float | None) -> Text:
    return bar(share, warn=False)


def _used_of_host(what: str) -> Callable[[PlaceRow], float | None]:
    def used(row: PlaceRow) -> float | None:
        most, free = row.one(f"{what}_bytes"), row.one(f"{what}_available_bytes")
        return (most - free) / most if most else None

    return used


def _used_of_device(row: PlaceRow) -> float | None:
    used, most = row.get("memory_used_bytes"), row.get("memory_bytes")
    return None if used is None or not most else used / most


def _waits(step: str) -> Callable[[ModelRow], int]:
    return lambda row: row.waits[step]


# fmt: off
MODELS: Final = (
    Column("MODEL", lambda r: r.name, one_line, left=True),
    Column("STATE", lambda r: r, _state, left=True, least=7),
    Column("WAIT", lambda r: r.waiting, short_number, sort=True, least=5),
    Column("OLDEST", lambda r: r.oldest_s, _age, MEDIUM, sort=True),
    Column("LEASED", lambda r: r.leased, short_number, MEDIUM, sort=True),
    Column("IN/S", lambda r: r.in_s, short_rate, MEDIUM, sort=True, least=5),
    Column("OUT/S", lambda r: r.out_s, short_rate, sort=True, least=5),
    Column("TOKENS", lambda r: r.tokens, short_number, NEVER, LARGER),
    Column("TOK IN", lambda r: r.tokens_in_s, short_rate, NEVER, LARGER),
    Column("TOK OUT", lambda r: r.tokens_out_s, short_rate, NEVER, MEDIUM),
    Column("P50", lambda r: r.p50_s, short_duration, LARGE, sort=True, least=5),
    Column("P99", lambda r: r.p99_s, short_duration, MEDIUM, sort=True, least=5),
    Column("BATCH", lambda r: r.batch, _as("{:.1f}"), LARGE),
    # With the tokens it has no room at 80 columns.
    Column("FAIL/S", lambda r: r.failed_s, _nonzero(BAD, short_rate), MEDIUM, LARGE, sort=True),
    Column("DEAD", lambda r: r.dead, _nonzero(WARN, short_number), LARGE, sort=True),
    Column("EMPTY IN", lambda r: r.eta_s, _time_to_empty, WIDE, least=8),
    Column("READY", lambda r: f"{r.ready}/{r.replicas}", str, WIDE),
    Column("SCHED", lambda r: r.scheduled, _nonzero("", short_number), WIDE),
    Column("RETRY/S", lambda r: r.retried_s, _nonzero(WARN, short_rate), FULL),
    Column("REFUSED/S", lambda r: r.rejected_s, _nonzero(WARN, short_rate), FULL),
    Column("RESTARTS", lambda r: r.restarts, _nonzero(WARN, short_number), FULL),
    Column("MEMORY", lambda r: r.memory, _known_size, WIDE),
    *(Column(f"WAIT P{step}", _waits(step), _nonzero("", short_number), FULL) for step in STEPS),
)
HOSTS: Final = (
    Column("HOST", lambda r: r.labels[0], one_line, left=True),
    Column("CPUS", lambda r: r.one("cpus"), _as("{:.0f}"), MEDIUM),
    Column("CPU", lambda r: r.one("cpu_ratio"), _busy, left=True),
    Column("MEMORY", _used_of_host("memory"), bar, left=True),
    Column("OF", lambda r: r.one("memory_bytes"), size, MEDIUM),
    Column("DISK", _used_of_host("disk"), bar, MEDIUM, left=True),
    Column("FREE", lambda r: r.one("disk_available_bytes"), size, LARGE),
)
DEVICES: Final = (
    Column("HOST", lambda r: r.labels[0], one_line, MEDIUM, left=True),
    Column("GPU", lambda r: r.labels[1], one_line, left=True),
    Column("NAME", lambda r: r.name, one_line, LARGE, left=True),
    Column("BUSY", lambda r: r.get("utilization_ratio"), _busy, left=True),
    Column("MEMORY", _used_of_device, bar, left=True),
    Column("OF", lambda r: r.get("memory_bytes"), _known_size, LARGE),
    Column("TEMP", lambda r: r.get("temperature_celsius"), _as("{:.0f} °C"), MEDIUM),
    Column("POWER", lambda r: r.get("power_watts"), _as("{:.0f} W"), MEDIUM),
)
PROCESSES: Final = (
    Column("WORKER", lambda r: r.worker, one_line, left=True),
    Column("MODEL", lambda r: r.model, one_line, left=True),
    Column("MEMORY", lambda r: r.memory, _known_size),
    Column("LABELS", lambda r: r.labels, one_line, NEVER, MEDIUM, left=True),
)
# fmt: on
#: The columns by which models can be sorted, in the order of the key `s`.
SORTS: Final = ("", *(column.head for column in MODELS if column.sort))


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
        below = _below(view, options.width, NEVER)
    table = _table(
        MODELS, visible, options.width, options.sort, reverse=options.reverse,
        extended=_counts_tokens(view),
    )  # fmt: skip
    drawn += _rendered(table, options.width)
    if len(visible) < len(models):
        position = Text(f"{offset + 1}-{offset + len(visible)} of {len(models)}", DIM)
        drawn.append(_cut(position, options))
    drawn += below
    return drawn[: options.height] if options.height else drawn


def _counts_tokens(view: View) -> bool:
    return any(row.tokens is not None for row in view.models)


def ordered(models: Sequence[ModelRow], options: ViewOptions) -> list[ModelRow]:
    """Return the models in the viewer's order."""
    by = next((column for column in MODELS if column.sort and column.head == options.sort), None)
    if by is None:
        return list(reversed(models)) if options.reverse else list(models)
    return sorted(models, key=lambda row: by.value(row) or 0, reverse=not options.reverse)


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

    A table that has no room for a row, of at most `room` lines for all, is dropped.
    """
    labelled = any(row.labels for row in view.processes)
    parts = ((DEVICES, view.devices), (HOSTS, view.hosts), (PROCESSES, view.processes))
    tables = [_table(columns, rows, width, extended=labelled) for columns, rows in parts if rows]
    drawn: list[Text] = []
    for group in _side_by_side(tables, width):
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
    extended: bool = False,
) -> Table:
    """Return a table of the columns for this width; the first column is shortened to fit."""
    visible = [column for column in columns if column.is_shown(width, extended=extended)]
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
        cells = [Text.assemble(column.show(column.value(row))) for column in visible]
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
