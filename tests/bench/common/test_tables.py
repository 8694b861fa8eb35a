"""The tables of benchmarks, as the documents have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common.tables import Table, write_tables


def test_a_table_takes_its_place_in_a_document_and_nothing_else(tmp_path: Path) -> None:
    doc = tmp_path / "doc.md"
    doc.write_text("before <!-- one:begin -->\nold\n<!-- one:end --> after")
    table = Table("name", "ms")
    table.add("first", "1.0")
    write_tables("one", "in a test.", table, doc=doc)
    text = doc.read_text()
    assert text.startswith("before <!-- one:begin -->\nMeasured ")
    assert text.endswith("| name | ms |\n|---|---|\n| first | 1.0 |\n<!-- one:end --> after")
    assert "old" not in text
    with pytest.raises(ValueError, match="no place"):
        write_tables("two", "", table, doc=doc)
    with pytest.raises(ValueError, match="2 columns"):
        table.add("second")
