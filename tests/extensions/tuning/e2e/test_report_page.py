"""The reports of `bench` and `optimize` in a real browser: readable at any width, no request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from extensions.tuning.bench.report import html
from extensions.tuning.optimize import page as variants_page
from extensions.tuning.optimize.report import BatchTime, Comparison, Variant
from headrace.config.model.optimize import Optimize
from tests.extensions.tuning.harness.measurements import load, measurement
from tests.harness.http.browser import browser_page

#: Pairs of texts of one chart that overlap, and texts that are outside of their chart.
COVERED = """() => [...document.querySelectorAll('svg')].flatMap(svg => {
  const frame = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBBox(), t]);
  const boxes = texts.filter(([, , t]) => !/rotate\\(-90/.test(t.getAttribute('transform')));
  const found = texts.map(([text, , t]) => [text, t.getBoundingClientRect()])
    .filter(([, b]) => b.left < frame.left - 1 || b.right > frame.right + 1
      || b.top < frame.top - 1 || b.bottom > frame.bottom + 1)
    .map(([text]) => `${text} is outside`);
  boxes.forEach(([one, a], n) => boxes.slice(n + 1).forEach(([other, b]) => {
    if (a.x < b.x + b.width && b.x < a.x + a.width && a.y + 2 < b.y + b.height
        && b.y + 2 < a.y + a.height) found.push(`${one} covers ${other}`);
  }));
  return found;
})"""
WIDE = """() => document.documentElement.scrollWidth - document.documentElement.clientWidth"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    long = "a model with quite a long name " * 4
    reports: dict[str, list[Any]] = {
        "one": [measurement()],
        "two": [measurement(), measurement("int8", [load(m, rate=10.0 * m) for m in (4, 9, 300)])],
        "many": [measurement(long, [load(5 + n * n, rate=10.0 * n) for n in range(1, 30)])],
        "close": [measurement(loads=[load(20 + n / 10, rate=100.0 + n) for n in range(12)])],
        "hostile": [measurement("<img src=http://127.0.0.1:9/x onerror=alert(1)>" * 3)],
        "none": [measurement(loads=[])],
    }
    paths = {name: folder / f"{name}.html" for name in reports}
    for name, some in reports.items():
        paths[name].write_text(html(some))
    paths["variants"] = folder / "variants.html"
    paths["variants"].write_text(variants_page.html(variants()))
    return paths


def variants() -> Comparison:
    """A comparison with a wide interval, and with long reasons."""
    times = [
        BatchTime(size=n, inference_ms=9.0 * n, low_ms=1.0 * n, high_ms=90.0 * n) for n in (1, 8)
    ]
    reason = "it is slower than eager: " + ", ".join(f"{n} ms for a batch of {n}" for n in range(9))
    return Comparison(
        model="resnet", device="cpu", threads=2, inputs="a/folder/with/a/long/name/" * 5,
        variants=[
            Variant(optimize=Optimize(), times=times),
            Variant(optimize=Optimize(backend="openvino", precision="int8"), times=times),
            Variant(optimize=Optimize(backend="compile"), times=times, refused=reason),
            Variant(optimize=Optimize(backend="tensorrt"), refused="not installed"),
        ],
    )  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["one", "two", "many", "close", "hostile", "none", "variants"])
def test_nothing_is_covered_or_cut_off_and_nothing_is_requested(
    chromium: Browser, pages: dict[str, Path], name: str, scheme: Any
) -> None:
    address = pages[name].as_uri()
    with browser_page(chromium) as watched:
        page = watched.page
        page.emulate_media(color_scheme=scheme)
        page.goto(address)
        for width in (1280, 380):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(COVERED) == []
            assert page.evaluate(WIDE) <= 0
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 27)")
        assert watched.requests == [address]
        assert watched.complaints == []


def test_paper_is_white_and_as_wide_as_the_page(chromium: Browser, pages: dict[str, Path]) -> None:
    with browser_page(chromium) as watched:
        page = watched.page
        page.emulate_media(color_scheme="dark", media="print")
        # A4 without its margins.
        page.set_viewport_size({"width": 718, "height": 1000})
        page.goto(pages["two"].as_uri())
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == "rgb(255, 255, 255)"
        assert page.evaluate(WIDE) <= 0
        assert page.evaluate(COVERED) == []
