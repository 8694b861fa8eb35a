"""A page: its head and style, and the sections, tables and legends in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from xml.etree.ElementTree import Element

from extensions.tuning.pages.charts import COLOURS
from extensions.tuning.pages.elements import Child, as_html, element

#: Colours that differ for people with any colour vision, on white and on black.
_LIGHT: Final = (
    "#0b62a8", "#c9510c", "#00795c", "#7a3fb5", "#a67c00", "#c2185b", "#0a8a9c", "#5d6470",
)  # fmt: skip
_DARK: Final = (
    "#5aaef2", "#f5904e", "#3fc4a0", "#b98cf0", "#dcb53a", "#f06a9d", "#45c6d8", "#a7afbb",
)  # fmt: skip
_SHADES: Final = {
    "light": "--paper:#fff;--ink:#1b1f24;--soft:#5a626c;--line:#d9dde2;--box:#f5f7f9;"
    "--good:#0a6b3d;--bad:#b3261e;--limit:#b3261e;",
    "dark": "--paper:#14171b;--ink:#e8eaed;--soft:#a2a9b3;--line:#363c44;--box:#1d2126;"
    "--good:#63d297;--bad:#ff8a80;--limit:#ff8a80;",
}
#: Nothing may be loaded from anywhere, even if a text in the page names a URL.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def _palette(shade: str, colours: Sequence[str]) -> str:
    return _SHADES[shade] + "".join(f"--c{n}:{colour};" for n, colour in enumerate(colours))


def _style() -> str:
    light, dark = _palette("light", _LIGHT), _palette("dark", _DARK)
    series = "".join(f".c{n}{{background:var(--c{n})}}" for n in range(COLOURS))
    return f""":root{{color-scheme:light dark;{light}}}
@media (prefers-color-scheme:dark){{:root{{{dark}}}}}
{_RULES}{series}
@media print{{:root{{color-scheme:light;{light}}}{_PRINT}}}
"""


_RULES: Final = """*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1.5rem 1rem 3rem;background:var(--paper);
color:var(--ink);font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 .25rem}
h2{font-size:1.2rem;margin:2.25rem 0 .5rem;border-bottom:1px solid var(--line)}
h3{font-size:1rem;margin:1rem 0 .25rem}figure h3{margin-top:0}
p{margin:.25rem 0 .75rem}.soft,caption,figcaption{color:var(--soft)}
.good{color:var(--good)}.bad{color:var(--bad)}.good,.bad{font-weight:600}
.box{background:var(--box);border-left:4px solid var(--line);padding:.6rem .9rem;margin:.75rem 0}
.box.met{border-color:var(--good)}.box.missed{border-color:var(--bad)}.box p{margin:0}
.scroll{overflow-x:auto;background:linear-gradient(90deg,var(--paper) 30%,transparent) 0/2rem,
linear-gradient(270deg,var(--paper) 30%,transparent) 100%/2rem,
linear-gradient(90deg,var(--line),transparent) 0/.7rem,
linear-gradient(270deg,var(--line),transparent) 100%/.7rem;background-repeat:no-repeat;
background-attachment:local,local,scroll,scroll}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--line);
vertical-align:top;white-space:nowrap;overflow-wrap:break-word}
th{color:var(--soft);font-weight:600;white-space:normal;vertical-align:bottom}
td.text,th.text{text-align:left}
td.text{white-space:normal;overflow-wrap:anywhere;min-width:7rem}
td.text:last-child{min-width:13rem}table.facts{width:auto}table.facts th{vertical-align:top}
table.facts td.text{min-width:0}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,27rem),1fr));
gap:1.5rem 2rem;align-items:start}
figure{margin:0;min-width:0;break-inside:avoid}figcaption{font-size:.85rem}
svg.chart{display:block;width:100%;height:auto;max-width:44rem}
svg text{font-family:system-ui,sans-serif;paint-order:stroke;stroke:var(--paper);stroke-width:3px}
ul.legend{display:flex;flex-wrap:wrap;gap:.15rem 1rem;list-style:none;margin:.25rem 0;padding:0;
font-size:.85rem}
ul.legend i{display:inline-block;width:.8rem;height:.8rem;margin-right:.4rem;
border-radius:2px;vertical-align:-.05rem}
"""
_PRINT: Final = """*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
body{max-width:none;padding:0;font-size:10pt}.figures{grid-template-columns:1fr 1fr}
.scroll{overflow:visible;background:none}h2,h3{break-after:avoid}tr{break-inside:avoid}table{font-size:8.5pt}
th,td{padding:.2rem .3rem;white-space:normal}td.text,td.text:last-child{min-width:4rem}"""


def page(title: str, *children: Child) -> str:
    """Return a page in one file: light or dark as its reader's system is, and light on paper."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        # Without it a browser asks the server for an icon.
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", _style()),
    )
    body = element("body", element("main", element("h1", title), *children))
    return as_html(element("html", head, body, lang="en"))


def section(title: str, *children: Child) -> Element:
    """Return a part of the page with a heading."""
    return element("section", element("h2", title), *children)


def warning(text: str) -> Element | None:
    """Return a warning in a box; None if there is no text."""
    return element("div", element("p", text, class_="bad"), class_="box missed") if text else None


def table(
    header: Sequence[str], rows: Iterable[Sequence[Child]], texts: Sequence[int] = (0,)
) -> Element:
    """Return a table; the columns `texts` begin at the left."""

    def cells(tag: str, row: Sequence[Child]) -> list[Element]:
        return [
            element(tag, cell, class_="text" if n in texts else None) for n, cell in enumerate(row)
        ]

    head = element("thead", element("tr", *cells("th", header)))
    body = element("tbody", *(element("tr", *cells("td", row)) for row in rows))
    return element("div", element("table", head, body), class_="scroll")


def facts(rows: Iterable[tuple[str, Child]]) -> Element:
    """Return a table of names and values."""
    lines = [
        element("tr", element("th", name, class_="text"), element("td", value, class_="text"))
        for name, value in rows
    ]
    return element("table", element("tbody", *lines), class_="facts")


def figure(
    title: str, chart: Element, caption: Child = None, legend: Sequence[tuple[int, str]] = ()
) -> Element:
    """Return a chart with a heading, a caption, and a legend of colours and names."""
    entries = [
        element("li", element("i", class_=f"c{colour % COLOURS}"), name) for colour, name in legend
    ]
    return element(
        "figure",
        element("h3", title),
        chart,
        element("ul", *entries, class_="legend") if entries else None,
        element("figcaption", caption) if caption is not None else None,
    )
