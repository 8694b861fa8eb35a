"""docs/doctor.md is held to the checks that there are, and each check to a test that breaks it."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.cli.doctor.command import all_checks

ROOT = Path(__file__).parents[2]
CHECKS = all_checks()
NAMES = [check.name for check in CHECKS]


def test_every_check_is_in_the_table_in_its_order() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs/doctor.md").read_text(), re.MULTILINE)
    assert rows == NAMES
    assert len(set(NAMES)) == len(NAMES)


def test_every_check_has_a_test_that_breaks_what_it_looks_at() -> None:
    broken = {
        name
        for file in [
            *ROOT.glob("tests/unit/headrace/cli/test_doctor*.py"),
            *ROOT.glob("tests/integration/cli/test_doctor*.py"),
            *ROOT.glob("tests/extensions/**/test_doctor*.py"),
        ]
        for names in re.findall(r"^@breaks\(([^)]*)\)", file.read_text(), re.MULTILINE)
        for name in re.findall(r'"([\w-]+)"', names)
    }
    assert broken == set(NAMES)


def test_every_check_has_a_description() -> None:
    for check in CHECKS:
        assert (check.run.__doc__ or "").startswith(f"`{check.name}`"), check.name
