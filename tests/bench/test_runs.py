"""The benchmarks of offline runs still run; what they measure is asserted nowhere."""

from __future__ import annotations

import pytest

from benchmarks.runs import __main__ as runs


def test_lines_to_lines_and_a_celery_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_PYTHON", raising=False)
    table = runs.echo(400, 1, batch=64)
    assert [row[0] for row in table.rows][:2] == [
        "`headrace run`, resume on", "Celery group, a task per input",
    ]  # fmt: skip
    assert table.rows[2][1] == "not installed"


# Two processes load torch and the model.
def test_images_against_a_dataloader() -> None:
    table = runs.images(4, 1, batch=2)
    assert len(table.rows) == 4


def test_online_jobs_during_a_run() -> None:
    table = runs.online(1.5)
    assert [row[0][:5] for row in table.rows] == ["alone", "durin"]
