"""What a command answers to a number that it cannot use."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from headrace.cli.main import every_command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("submit m --result-ttl 20s", "'20s' is not a whole number; give seconds without a unit, "
         "such as 20"),
        ("submit m --timeout 2h", "'2h' is not a number; give seconds without a unit, "
         "such as 7200"),
        ("submit m --expires soon", "'soon' is not a number; give seconds without a unit, "
         "such as 20"),
        ("submit m --priority 1.5", "'1.5' is not a whole number"),
        ("submit m --priority 10", "10 is too large; give at most 9"),
        ("submit m --timeout nan", "nan is not a number"),
        ("run m x.jsonl --in-flight 0", "0 is too small; give at least 1"),
        ("up --port http", "'http' is not a whole number"),
        ("up --workers -1", "-1 is too small; give at least 0"),
        ("models scale m 1 --wait 5s", "'5s' is not a number; give seconds without a unit, "
         "such as 5"),
    ],
)  # fmt: skip
def test_a_wrong_number_is_answered_with_what_to_give(arguments: str, message: str) -> None:
    done = CliRunner().invoke(every_command(), arguments.split())

    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
