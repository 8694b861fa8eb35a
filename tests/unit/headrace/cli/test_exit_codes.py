"""Exit codes, moments, and what is remembered of a run."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer

from headrace import errors
from headrace.cli.jobs.jobs import since
from headrace.cli.jobs.outcomes import PreviousRows
from headrace.cli.jobs.submit import Tracker
from headrace.cli.shared.exit_codes import ExitCode, exit_code
from headrace.cli.shared.inputs import Input
from headrace.cli.shared.output import error_text, printable, short_line
from tests.harness.servers.up import clean_environment


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), 2),
        (errors.InvalidRequest("x"), 2),
        (errors.ModelNotFound("x"), 2),
        (errors.BrokerUnavailable("x"), 3),
        (errors.ServerUnreachable("x"), 3),
        (errors.UnexpectedAnswer("x"), 3),
        (errors.QueueNotFound("x"), 2),
        (errors.JobNotFound("x"), 4),
        (errors.LetterNotFound("x"), 4),
        (errors.WaitTimeout("x"), 5),
        (errors.InputError("x"), 1),
        (errors.HandlerError("x"), 1),
    ],
)
def test_an_error_has_its_exit_code(error: errors.HeadraceError, code: int) -> None:
    assert exit_code(error) == code


def test_of_several_exit_codes_the_highest_applies() -> None:
    assert max(ExitCode.FAILED, ExitCode.UNKNOWN_ID, ExitCode.DONE) is ExitCode.UNKNOWN_ID


def test_a_hint_follows_its_message() -> None:
    assert error_text(errors.InputError("bad", hint="mend it")) == "bad; mend it"
    assert error_text(errors.InputError("bad", hint="Mend it.")) == "bad. Mend it"
    assert "`headrace up`" in error_text(errors.ServerUnreachable("away", hint="whatever"))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86400)]
)
def test_a_moment_is_how_long_ago(text: str, seconds: int) -> None:
    ago = timedelta(seconds=seconds)
    before, moment, after = datetime.now(UTC), since(text), datetime.now(UTC)
    assert before - ago <= moment <= after - ago


def test_or_a_time() -> None:
    assert since("2026-11-21T08:00:00Z") == datetime(2026, 11, 21, 8, tzinfo=UTC)
    assert since("2026-11-21").tzinfo is not None


@pytest.mark.parametrize("text", ["", "yesterday", "5", "5 m", "-5m", "99999999999999999999d"])
def test_or_nothing_that_is_known(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="not a time"):
        since(text)


def test_what_strangers_wrote_moves_no_cursor() -> None:
    assert printable("a\x1b[2Jb\tc\nd\x07\u202eé") == "a\\x1b[2Jb\tc\nd\\x07\\u202eé"
    assert short_line(" a\r\n  b\x1bc ") == "a b\\x1bc"
    assert short_line("x" * 201) == "x" * 200 + "…"


def test_the_tracker_knows_what_has_not_come_back() -> None:
    inputs = [Input(key, Path(key)) for key in "abc"]
    tracker = Tracker(inputs, PreviousRows())
    values, ids = tracker.values(), tracker.ids()
    sent = [(next(values), next(ids)) for _ in range(2)]
    assert [one.key for one in tracker.in_flight.values()] == ["a", "b"]
    assert [one.job_id for one in tracker.in_flight.values()] == [job_id for _, job_id in sent]
    del tracker.in_flight[0]
    assert [one.key for one in tracker.in_flight.values()] == ["b"]
    assert tracker.in_flight[1].place == 1


def test_the_tracker_puts_aside_what_cannot_be_sent() -> None:
    bad = errors.InvalidRequest("no such file")
    inputs = [Input("a", 1), Input("b", bad), Input("c", 3), Input("d", bad)]
    tracker = Tracker(inputs, PreviousRows())
    assert list(tracker.values()) == [1, 3]
    assert [one.place for one in tracker.in_flight.values()] == [0, 2]
    assert [sent.key for sent, _ in tracker.invalid(before=2)] == ["b"]
    assert [sent.key for sent, _ in tracker.invalid()] == ["d"]
    assert list(tracker.invalid()) == []


def test_a_command_loads_only_what_it_needs() -> None:
    program = "import headrace.cli.main, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env=clean_environment(),
    ).stdout.split()  # fmt: skip
    assert "headrace.cli.jobs.submit" in loaded
    assert not {"httpx2", "redis", "rich", "headrace.client"} & set(loaded)
