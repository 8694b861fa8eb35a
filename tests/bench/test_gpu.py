"""The GPU benchmark runs whole on a CPU, with tiny models; its figures are asserted nowhere."""

from __future__ import annotations

from benchmarks.common.tables import DOC
from benchmarks.gpu.__main__ import COLUMNS, HEAD, Plan, rows, written
from benchmarks.gpu.load import p99
from benchmarks.gpu.workloads import SEED_FORMS, workloads


def test_every_row_is_measured() -> None:
    about, head, *measured = rows(Plan("cpu", (1,), (2,), seconds=0.1, pairs=1))
    assert " on CPU, " in about
    assert head == HEAD
    assert len(measured) == len(SEED_FORMS) * len(workloads(tiny=True))
    for line in measured:
        _, *cells, _ = (cell.strip() for cell in line.split("|"))
        assert len(cells) == len(COLUMNS)
        figures = [float(cell.partition(" ")[0].replace(",", "")) for cell in cells[2:]]
        share = figures.pop(4)
        assert share >= 0  # of a server that stood still it is 0 in two digits
        assert min(figures) > 0


def test_the_document_has_its_place() -> None:
    text = written(DOC.read_text("utf-8"), "| a table |")
    assert text.count("| a table |") == 1
    assert written(text, "x").replace("\nx\n", "\n| a table |\n") == text


def test_percentile() -> None:
    assert p99(list(range(1, 101))) == 99
    assert p99([7.0]) == 7.0
