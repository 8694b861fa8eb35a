from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from typing import Any
from xml.etree.ElementTree import Element

import msgspec
import pytest

from extensions.tuning.bench.measurement import Measurement
from extensions.tuning.bench.report import html, markdown, web
from extensions.tuning.bench.report.wording import why_again
from extensions.tuning.pages import charts
from tests.extensions.tuning.harness.measurements import load, measurement, spread, verdict

HOSTILE = (
    "</style><script>alert(1)</script><img src=x onerror=alert(1)>&amp;|`x`\n# *big*\x00\ud800"
)
NOTHING = spread(0.0)


@pytest.fixture(autouse=True, scope="module")
def drawn() -> Iterator[None]:
    """A chart that was drawn is shown again where it is the same: each takes 0.1 s of CPU."""
    kept: dict[str, Element] = {}

    def once(name: str, *arguments: Any, **more: Any) -> Element:
        key = f"{name} {arguments} {more}"
        if key not in kept:
            kept[key] = getattr(charts, name)(*arguments, **more)
        return copy.deepcopy(kept[key])

    with pytest.MonkeyPatch.context() as patch:
        for name in ("bar_chart", "column_chart", "line_chart"):
            patch.setattr(web, name, partial(once, name))
        yield


class Reader(HTMLParser):
    """Collects the tags and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def small(name: str = "resnet", **others: Any) -> Measurement:
    """A measurement of one load: the charts of each take a moment."""
    return measurement(name, [load()], **others)


def hostile() -> Measurement:
    bad = load(errors={HOSTILE: 3}, succeeded=2997, refused=HOSTILE, stages={HOSTILE: spread(1.0)})
    good = load(rate=50.0, stages={HOSTILE: spread(1.0)})
    return measurement(
        HOSTILE, [bad, good], model=HOSTILE, url=HOSTILE, version=HOSTILE, input=HOSTILE,
        currency=HOSTILE, options={HOSTILE: HOSTILE}, environment={HOSTILE: [HOSTILE]},
    )  # fmt: skip


def test_names_and_errors_are_shown_as_text() -> None:
    for page in (html([hostile()]), html([hostile(), hostile()])):
        read = Reader(page)
        assert "script" not in read.tags
        assert "img" not in read.tags
        assert not [name for name, _ in read.attributes if name.startswith("on")]
        assert "<script>alert(1)</script>" in read.text
        page.encode()
        assert "\x00" not in page


def test_names_and_errors_are_text_in_markdown_too() -> None:
    text = markdown([hostile()])
    assert not re.search(r"(?<!\\)[<`]", text)
    # A newline in a name would begin a heading or another row.
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert len(headings) == 1
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 2
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1


def test_the_page_refers_to_nothing_outside_of_it() -> None:
    page = html([small(), small("int8")])
    read = Reader(page)
    referring = [(k, v) for k, v in read.attributes if k in ("src", "href", "action", "srcset")]
    assert [pair for pair in referring if not (pair[1] or "").startswith("#")] == [
        ("href", "data:,")
    ]
    assert "url(" not in page
    assert "@import" not in page


def test_without_matplotlib_the_page_has_its_tables_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(charts, "find_spec", lambda _: None)
    read = Reader(html([measurement()]))
    assert "pip install 'headrace[bench]'" in read.text
    assert "server 50/s" in read.text
    assert "svg" not in read.tags


def test_the_page_has_every_part() -> None:
    page = html([measurement()])
    text = Reader(page).text
    for words in (
        "Benchmark of resnet50", "p99=100ms", "Throughput over p99", "Latency", "Stages",
        "Batch sizes", "CPU and memory", "0.0011 EUR for 1,000 results", "Example CPU 2.6 GHz",
        "device wait", "max batch size", "300 requests a second (300/s met the objective",
    ):  # fmt: skip
        assert words in text
    assert Reader(page).tags.count("svg") >= 3


@pytest.mark.parametrize(
    "loads",
    [
        [],
        [load()],
        [load(refused="the generator was late")],
        [load(stages={}, batch_sizes={}, usage={}, windows=[], latency_cdf=[])],
        [
            load(
                requests=1, succeeded=0, rate=0.001, latency=NOTHING, latency_cdf=[], stages={},
                batch_sizes={}, errors={"503": 1}, steady=False, verdict=verdict(met=False),
            )
        ],
        [load(latency_cdf=[(0.0, 1.0)], stages={"queued": NOTHING}, rate=0.0, duration_s=0.0)],
        [load(1e-3), load(1e7, scenario="offline", offered_rate=None)],
        [load(float("inf"), rate_high=float("inf"))],
        [load(n * n + 1.0, rate=10.0 * n) for n in range(1, 11)],
    ],
    ids=["none", "one", "refused", "bare", "failed", "zeros", "far apart", "infinite", "many"],
)  # fmt: skip
def test_any_loads_have_a_report(loads: list[object]) -> None:
    one = measurement(loads=loads)  # type: ignore[arg-type]
    page = html([one])
    assert not re.search(r'(?:nan|inf)["\s,]', Reader(page).text + " ".join(
        value or "" for _, value in Reader(page).attributes
    ))  # fmt: skip
    html([one, small("b")])
    text = markdown([one])
    assert text.count("\n| ") == (len(loads) + 1 if loads else 0)
    if not loads:
        assert "No load was run." in text


def test_no_measurement_has_a_report_too() -> None:
    assert "Benchmark" in html([])
    assert markdown([]) == ""


def test_the_objective_names_its_percentile() -> None:
    from extensions.tuning.bench.measurement import Objective

    one = small(objective=Objective(percentile=95.0, latency_ms=40.0))
    text = Reader(html([one])).text
    assert "Throughput over p95" in text
    assert "p95=40ms" in text
    assert "p95=40ms" in markdown([one])


def test_a_load_that_does_not_count_has_no_verdict() -> None:
    refused = load(refused="the generator was late", verdict=verdict(met=True))
    text = Reader(html([measurement(loads=[refused], peak=None)])).text
    assert verdict(met=True).text not in text
    assert "the figures do not count: the generator was late" in text
    assert verdict(met=True).text not in markdown([measurement(loads=[refused])])


def test_a_verdict_has_its_word_and_a_search_shows_its_end_alone() -> None:
    missed, met = verdict(met=False), verdict(met=True)
    short = msgspec.structs.replace(missed, refuted=False, text="this needs 459 requests")
    loads = [load(rate=float(n), verdict=one) for n, one in ((1, met), (2, missed), (3, short))]
    text = Reader(html([measurement(loads=loads, peak=None)])).text
    for words in ("met server 1/s: p99 is within", "missed server 2/s", "not confirmed server 3/s"):
        assert words in text
    assert "this needs 459 requests" in markdown([measurement(loads=loads, peak=None)])
    searched = Reader(html([measurement(loads=loads)])).text
    assert "300 requests a second" in searched
    assert "this needs 459 requests" not in searched
    assert "this needs 459 requests" not in markdown([measurement(loads=loads)])


def test_a_rate_that_is_sent_again_has_a_reason() -> None:
    short = msgspec.structs.replace(verdict(met=False), refuted=False)
    missed = load(offered_rate=100.0, verdict=verdict(met=False))
    reasons = {
        "as a disturbance may have been the cause": missed,
        "for longer as there were too few requests": load(offered_rate=100.0, verdict=short),
        "for longer as the latency was not steady": load(
            offered_rate=100.0, verdict=verdict(met=True), steady=False
        ),
        "as the load before does not count (late generator)": load(
            offered_rate=100.0, verdict=short, refused="late generator"
        ),
    }
    for reason, before in reasons.items():
        other = load(offered_rate=50.0, verdict=verdict(met=True))
        assert why_again(missed, [other, before, other]) == f", again {reason}"
    assert why_again(missed, [other]) == ""
