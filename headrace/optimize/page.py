"""A comparison of variants as a table, as JSON, and as a page without requests to other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

import msgspec

from headrace.optimize.report import BatchTime, Comparison, Variant

_BAR_PX: Final = 340
_ROW_PX: Final = 26
_NAME_PX: Final = 190
_STYLE: Final = """
:root { color-scheme: light dark; --text: #1d2327; --soft: #5c6670; --line: #d5dade;
  --back: #fff; --bar: #2f7f86; --own: #9aa5ad; --bad: #b3423a; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8eb; --soft: #9aa5ad; --line: #3a4249;
  --back: #15191c; --bar: #58b3ba; --own: #6b757d; --bad: #e58a80; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; white-space: nowrap; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child, td.why { text-align: left; }
td.why { white-space: normal; min-width: 18rem; color: var(--bad); }
dl { display: grid; grid-template-columns: max-content auto; gap: .1rem 1rem; color: var(--soft); }
dd { margin: 0; } svg { max-width: 100%; height: auto; } svg text { fill: var(--text);
  font: 13px system-ui, sans-serif; } .bar { fill: var(--bar); } .eager { fill: var(--own); }
.refused { fill: var(--bad); } .interval { stroke: var(--text); stroke-width: 1.5; }
@media print { body { margin: 0; max-width: none; } }
"""


def as_json(comparison: Comparison) -> str:
    """Return the whole document, with line breaks."""
    text = msgspec.json.encode(comparison)
    return msgspec.json.format(text, indent=1).decode() + "\n"


def table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return the headers and the rows of a comparison; `>` begins a header of numbers."""
    sizes = sizes_of(comparison)
    columns = [
        "backend",
        "precision",
        ">load s",
        ">build s",
        ">MiB",
        *(f">ms of {n}" for n in sizes),
    ]
    columns += [f">times of {sizes[-1]}"] if sizes else []
    columns += [">error", ">agreement", "used"]
    rows = []
    for variant in comparison.variants:
        row = [_backend(variant), variant.optimize.precision]
        if not variant.times:
            rows.append([*row, *["-"] * (len(columns) - 3), "refused"])
            continue
        row += [f"{variant.load_s:.1f}", f"{variant.build_s:.1f}", f"{variant.memory_mb:.0f}"]
        row += [_ms(time_of(variant, size)) for size in sizes]
        row += [gain_text(comparison, variant, sizes[-1])]
        row += [f"{variant.error:.1g}" if variant.error else "0", _share(variant.agreement)]
        rows.append([*row, "refused" if variant.refused else "yes"])
    return columns, rows


def remarks(comparison: Comparison) -> Iterator[str]:
    """Yield why variants are refused, and which one is best."""
    for variant in comparison.variants:
        if variant.refused:
            yield f"{variant.optimize.name} is refused: {variant.refused}"
    best = fastest(comparison)
    sizes = sizes_of(comparison)
    if best is None or not sizes:
        return
    if best is comparison.variants[0]:
        yield "eager is best"
        return
    gain = gain_text(comparison, best, sizes[-1])
    yield f"{best.optimize.name} is best: {gain} times as fast as eager at a batch of {sizes[-1]}"


def fastest(comparison: Comparison) -> Variant | None:
    """Return the variant with the fastest large batch that is not refused."""
    sizes = sizes_of(comparison)
    usable = [
        (time.inference_ms, n)
        for n, one in enumerate(comparison.variants)
        if not one.refused and sizes and (time := time_of(one, sizes[-1])) is not None
    ]
    return comparison.variants[min(usable)[1]] if usable else None


def sizes_of(comparison: Comparison) -> list[int]:
    """Return the batch sizes that were measured."""
    return sorted({time.size for one in comparison.variants for time in one.times})


def time_of(variant: Variant, size: int) -> BatchTime | None:
    """Return the time of a batch of this size; None if it was not measured."""
    return next((time for time in variant.times if time.size == size), None)


def gain_text(comparison: Comparison, variant: Variant, size: int) -> str:
    """Return how many times as fast as eager a variant is, such as "1.52"."""
    eager, own = time_of(comparison.variants[0], size), time_of(variant, size)
    if eager is None or own is None or not own.inference_ms:
        return "-"
    return f"{eager.inference_ms / own.inference_ms:.2f}"


def html(comparison: Comparison) -> str:
    """Return the page."""
    name = escape(comparison.model)
    facts = {
        "device": comparison.device,
        "threads": str(comparison.threads),
        "inputs": comparison.inputs,
        **{key.replace("_", " "): str(value) for key, value in comparison.environment.items()},
    }
    charts = "".join(
        f"<h2>Milliseconds of a batch of {size}</h2>{_chart(comparison, size)}"
        for size in sizes_of(comparison)
    )
    listed = "".join(
        f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd>" for key, text in facts.items()
    )
    notes = "".join(f"<p>{escape(text)}.</p>" for text in list(remarks(comparison))[-1:])
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>Variants of {name}</title><style>{_STYLE}</style></head><body>"
        f"<h1>Variants of {name}</h1>{notes}<div class=wide>{_html_table(comparison)}</div>{charts}"
        "<p>Bars are medians; lines are 95 % intervals. All variants ran in turns.</p>"
        f"<h2>Environment</h2><dl>{listed}</dl></body></html>\n"
    )


def _html_table(comparison: Comparison) -> str:
    columns, rows = table(comparison)
    head = "".join(f"<th>{escape(one.lstrip('>'))}</th>" for one in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}"
        f"<td class=why>{escape(variant.refused)}</td></tr>"
        for variant, row in zip(comparison.variants, rows, strict=True)
    )
    return f"<table><thead><tr>{head}<th></th></tr></thead><tbody>{body}</tbody></table>"


def _chart(comparison: Comparison, size: int) -> str:
    found = [(one, time) for one in comparison.variants if (time := time_of(one, size)) is not None]
    most = max((time.high_ms for _, time in found), default=1.0) or 1.0
    rows = "".join(
        _bar(n, variant, time, _BAR_PX / most) for n, (variant, time) in enumerate(found)
    )
    width, height = _NAME_PX + _BAR_PX + 90, len(found) * _ROW_PX + 6
    return (
        f"<svg viewBox='0 0 {width} {height}' width='{width}' height='{height}' role='img' "
        f"aria-label='Milliseconds of a batch of {size}, by variant'>{rows}</svg>"
    )


def _bar(n: int, variant: Variant, time: BatchTime, px_per_ms: float) -> str:
    top = n * _ROW_PX + 4
    kind = "refused" if variant.refused else ("eager" if n == 0 else "bar")
    width = time.inference_ms * px_per_ms
    low, high = (_NAME_PX + value * px_per_ms for value in (time.low_ms, time.high_ms))
    return (
        f"<text x='0' y='{top + 14}'>{escape(variant.optimize.name)}</text>"
        f"<rect class='{kind}' x='{_NAME_PX}' y='{top}' width='{width:.1f}' height='18' rx='2'/>"
        f"<line class='interval' x1='{low:.1f}' x2='{high:.1f}' y1='{top + 9}' y2='{top + 9}'/>"
        f"<text x='{max(_NAME_PX + width, high) + 8:.1f}' y='{top + 14}'>{_ms(time)}</text>"
    )


def _backend(variant: Variant) -> str:
    mode = variant.optimize.mode
    return variant.optimize.backend + (f" {mode}" if mode != "default" else "")


def _ms(time: BatchTime | None) -> str:
    if time is None:
        return "-"
    return f"{time.inference_ms:.1f}" if time.inference_ms >= 10 else f"{time.inference_ms:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def markdown(comparison: Comparison) -> str:
    """Return the table in Markdown."""
    columns, rows = table(comparison)
    names = [one.lstrip(">") for one in columns]
    rule = ["---:" if one.startswith(">") else "---" for one in columns]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (names, rule, *rows))
