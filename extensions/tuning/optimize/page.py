"""A comparison of variants as a table, as JSON, and as a page without requests to other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from xml.etree.ElementTree import Element

from extensions.tuning.machine import busy_warning
from extensions.tuning.optimize.report import LATE, BatchTime, Comparison, Variant
from extensions.tuning.pages.charts import Bar, bar_chart, missing
from extensions.tuning.pages.elements import element
from extensions.tuning.pages.page import facts, figure, page, section, warning
from extensions.tuning.pages.page import table as html_table
from headrace.text import duration

#: The kinds of bars, with their colours.
_KINDS: Final = {"eager": 7, "variant": 0, "refused": 1}


def table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return the headers and the rows of a comparison; `>` begins a header of numbers."""
    sizes = sizes_of(comparison)
    columns = ["backend", "precision", ">load s", ">build s", ">MiB"]
    columns += [f">ms of {n}" for n in sizes]
    columns += [f">times of {sizes[-1]}"] if sizes else []
    columns += [">error", ">agreement", "used"]
    rows = []
    for variant in comparison.variants:
        form = variant.optimize
        row = [form.backend + (f" {form.mode}" if form.mode != "default" else ""), form.precision]
        if not variant.times:
            used = "not measured" if variant.refused == LATE else "refused"
            rows.append([*row, *["-"] * (len(columns) - 3), used])
            continue
        row += [f"{variant.load_s:.1f}", f"{variant.build_s:.1f}", f"{variant.memory_mb:.0f}"]
        row += [_ms(time_of(variant, size)) for size in sizes]
        row += [gain_text(comparison, variant, sizes[-1])]
        agreement = "-" if variant.agreement is None else f"{variant.agreement:.1%}"
        row += [f"{variant.error:.1g}" if variant.error else "0", agreement]
        rows.append([*row, "refused" if variant.refused else "yes"])
    return columns, rows


def remarks(comparison: Comparison) -> Iterator[str]:
    """Yield which inputs and variants are refused and why, and which variant is best."""
    if comparison.left_out:
        yield comparison.left_out
    for variant in comparison.variants:
        if variant.refused and variant.refused != LATE:
            yield f"{variant.optimize.name} is refused: {variant.refused}"
    if text := kept_text(comparison):
        yield text
    if comparison.cut:
        yield cut_text(comparison)
    best = fastest(comparison)
    sizes = sizes_of(comparison)
    if best is None or not sizes:
        return
    if best is comparison.variants[0]:
        yield "eager is best"
        return
    gain = gain_text(comparison, best, sizes[-1])
    yield f"{best.optimize.name} is best: {gain} times as fast as eager at a batch of {sizes[-1]}"


def kept_text(comparison: Comparison) -> str:
    """Return how old the kept comparisons of outputs are; "" if all are of this run."""
    ages = [
        f"{variant.optimize.name} ({duration(variant.kept_s)} ago)"
        for variant in comparison.variants
        if variant.kept_s
    ]
    if not ages:
        return ""
    return f"outputs were compared in an earlier run: {', '.join(ages)}; --again compares again"


def cut_text(comparison: Comparison) -> str:
    """Return what was not measured for want of time."""
    late = ", ".join(
        variant.optimize.name for variant in comparison.variants if variant.refused == LATE
    )
    what = f"not built and loaded in time: {late}" if late else "not all rounds were run"
    return f"{what}; builds are kept, so another run measures more"


def fastest(comparison: Comparison) -> Variant | None:
    """Return the variant with the fastest large batch that is not refused."""
    sizes = sizes_of(comparison)
    usable = [
        (time.inference_ms, n)
        for n, variant in enumerate(comparison.variants)
        if not variant.refused and sizes and (time := time_of(variant, sizes[-1])) is not None
    ]
    return comparison.variants[min(usable)[1]] if usable else None


def sizes_of(comparison: Comparison) -> list[int]:
    """Return the batch sizes that were measured."""
    return sorted({time.size for variant in comparison.variants for time in variant.times})


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
    known = {
        "device": comparison.device,
        "threads": str(comparison.threads),
        "inputs": comparison.inputs,
        **{key.replace("_", " "): str(value) for key, value in comparison.environment.items()},
    }
    return page(
        f"Variants of {comparison.model}",
        warning(busy_warning(comparison.environment)),
        *(element("p", f"{text}.") for text in list(remarks(comparison))[-1:]),
        element("p", f"{kept}.", class_="soft") if (kept := kept_text(comparison)) else None,
        _html_table(comparison),
        *(
            element("p", element("span", f"{variant.optimize.name} ", class_="bad"),
                    f"is refused: {variant.refused}.")
            for variant in comparison.variants if variant.refused and variant.refused != LATE
        ),
        element("p", f"{cut_text(comparison)}.", class_="bad") if comparison.cut else None,
        _charts(comparison),
        section("Environment", facts((name, text) for name, text in known.items() if text)),
    )  # fmt: skip


def _html_table(comparison: Comparison) -> Element:
    columns, rows = table(comparison)
    texts = [n for n, column in enumerate(columns) if not column.startswith(">")]
    return html_table([column.lstrip(">") for column in columns], rows, texts=texts)


def _charts(comparison: Comparison) -> Element | None:
    if missing() or not sizes_of(comparison):
        return element("p", missing()) if missing() else None
    return section(
        "Time of a batch",
        element(
            "p", "Bars are medians, and lines are 95 % intervals. All variants ran in turns.",
            class_="soft",
        ),
        element(
            "div", *(_chart(comparison, size) for size in sizes_of(comparison)), class_="figures"
        ),
    )  # fmt: skip


def _chart(comparison: Comparison, size: int) -> Element:
    bars, shown = [], set()
    for n, variant in enumerate(comparison.variants):
        time = time_of(variant, size)
        if time is None:
            continue
        kind = "refused" if variant.refused else ("variant" if n else "eager")
        shown.add(kind)
        part = (_KINDS[kind], time.inference_ms)
        bars.append(Bar(variant.optimize.name, [part], time.low_ms, time.high_ms))
    title = f"Batches of {size}"
    chart = bar_chart(f"Milliseconds of a batch of {size}", bars, "milliseconds")
    legend = [(colour, kind) for kind, colour in _KINDS.items() if kind in shown]
    return figure(title, chart, legend=legend)


def _ms(time: BatchTime | None) -> str:
    if time is None:
        return "-"
    return f"{time.inference_ms:.1f}" if time.inference_ms >= 10 else f"{time.inference_ms:.2f}"
