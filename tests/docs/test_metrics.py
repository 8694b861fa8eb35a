"""docs/metrics.md is held to the code: every metric, with its type and its labels, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from api.observability.metric_families import FAMILIES, Family
from headrace.observability.worker_report import SECONDS_BOUNDS

TEXT = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
ROWS = {
    cells[0].strip("`"): cells[1:]
    for cells in (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in TEXT.splitlines()
        if line.startswith("| `")
    )
}
#: Units of Prometheus' conventions that a name ends with, before `_total`.
UNITS = ("seconds", "bytes", "celsius", "watts", "ratio")


def test_every_metric_is_listed_once_and_no_other() -> None:
    assert sorted(ROWS) == sorted(family.shown for family in FAMILIES)
    assert len(ROWS) == sum(line.startswith("| `") for line in TEXT.splitlines())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_metric_as_it_is_described(family: Family) -> None:
    kind, labels, text = ROWS[family.shown]
    assert (kind, labels) == (family.kind, ", ".join(family.labels))
    assert text


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_name_follows_the_conventions(family: Family) -> None:
    assert re.fullmatch(r"headrace(_[a-z]+)+", family.name)
    # Base units only, and no suffix that belongs to a type.
    assert not re.search(r"_(total|count|sum|bucket|ms|milliseconds|mb|mib|percent)$", family.name)
    for unit in UNITS:
        assert f"_{unit}_" not in family.name
    assert family.text.endswith(".")


def test_the_buckets_that_it_names() -> None:
    ms = [f"{bound * 1000:g}" for bound in SECONDS_BOUNDS if bound < 1]
    s = [f"{bound:g}" for bound in SECONDS_BOUNDS if 1 <= bound <= 60]
    minutes = [f"{bound / 60:g}" for bound in SECONDS_BOUNDS if bound > 60]
    told = re.search(r"buckets of times are (.*) ms, (.*) s, and (.*) min\.", TEXT)
    assert told
    assert [re.split(r", | and ", part) for part in told.groups()] == [ms, s, minutes]
