"""The progress of a run on one line."""

from __future__ import annotations

import pytest

from extensions.runs.cli.progress import RateMeter, line_of
from headrace.client.offline import RunProgress


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ("", ""),
        ("queue-full", ", waits for room in the queue"),
        ("rate-limited", ", waits for its API key's limit"),
        ("too-many-in-flight", ", waits for jobs of its API key to end"),
        ("a-new-one", ", waits for a limit"),
    ],
)
def test_the_line_names_the_limit_that_a_run_waits_for(limit: str, text: str) -> None:
    progress = RunProgress(total=8, succeeded=2, limit=limit)
    assert line_of("docs", progress, RateMeter(2, 0)) == f"docs: 2 of 8 (25.0 %), 0.0/s{text}"
