"""The journal keeps each trial, and a tuning goes on with what it has."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from extensions.tuning.tune.journal import NAME, Header, Journal
from extensions.tuning.tune.search import Trial
from extensions.tuning.tune.space import Candidate
from headrace.errors import ConfigError

HEADER = Header(model="m", objective="p99=100ms", where="private", input="x", present={})
ONE, TWO = (Candidate(label=f"{n}", options={"max_batch_size": n}) for n in (1, 2))


def trial(candidate: Candidate, rate: float) -> Trial:
    return Trial(candidate=candidate, rate=rate, low=rate, seconds=2.5)


def unexpected() -> Trial:
    raise AssertionError("measured again")


def filled(path: Path) -> None:
    journal = Journal(path)
    journal.begin(HEADER, resume=False)
    journal.recorded("search", ONE, 0, lambda: trial(ONE, 10.0))
    journal.recorded("search", TWO, 0, lambda: trial(TWO, 20.0))
    journal.recorded("confirm", ONE, 1, lambda: trial(ONE, 11.0))
    journal.close()


def test_a_resumed_journal_answers_for_its_trials(tmp_path: Path) -> None:
    filled(tmp_path / NAME)

    journal = Journal(tmp_path / NAME)
    journal.begin(HEADER, resume=True)

    assert journal.recorded("search", TWO, 0, unexpected).rate == 20.0
    assert journal.recorded("confirm", ONE, 1, unexpected).rate == 11.0
    assert journal.spent_s == 7.5
    # The same candidate in another round is another trial.
    assert journal.recorded("confirm", ONE, 0, lambda: trial(ONE, 12.0)).rate == 12.0
    journal.close()
    assert len((tmp_path / NAME).read_bytes().splitlines()) == 5


def test_a_confirmation_counts_no_trials_of_an_earlier_one(tmp_path: Path) -> None:
    journal = Journal(tmp_path / NAME)
    journal.begin(HEADER, resume=False)
    journal.recorded("confirm", ONE, 0, lambda: trial(ONE, 10.0))
    journal.recorded("search", TWO, 0, lambda: trial(TWO, 20.0))
    # The last one counts until another one begins.
    assert journal.recorded("confirm", ONE, 0, unexpected).rate == 10.0
    assert not journal.confirms
    journal.confirmation = []
    journal.recorded("confirm", ONE, 0, lambda: trial(ONE, 11.0))
    journal.close()

    again = Journal(tmp_path / NAME)
    again.begin(HEADER, resume=True)
    assert again.confirms
    assert [entry.trial.rate for entry in again.confirmation] == [11.0]
    assert again.recorded("confirm", ONE, 0, unexpected).rate == 11.0
    assert again.recorded("search", TWO, 0, unexpected).rate == 20.0
    assert again.spent_s == 3 * 2.5
    again.close()


@pytest.mark.parametrize("cut", [1, 30, 90])
def test_a_torn_last_line_is_measured_again(tmp_path: Path, cut: int) -> None:
    filled(tmp_path / NAME)
    data = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(data[:-cut])

    journal = Journal(tmp_path / NAME)
    journal.begin(HEADER, resume=True)

    assert journal.recorded("search", TWO, 0, unexpected).rate == 20.0
    assert journal.recorded("confirm", ONE, 1, lambda: trial(ONE, 13.0)).rate == 13.0
    journal.close()
    assert len((tmp_path / NAME).read_bytes().splitlines()) == 4


def test_a_journal_with_a_torn_first_line_begins_again(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b'{"model":')
    journal = Journal(tmp_path / NAME)
    journal.begin(HEADER, resume=True)
    journal.close()
    assert msgspec.json.decode((tmp_path / NAME).read_bytes(), type=Header) == HEADER


def test_an_existing_journal_is_continued_only_on_request(tmp_path: Path) -> None:
    filled(tmp_path / NAME)
    with pytest.raises(ConfigError, match="trials of an earlier tuning") as raised:
        Journal(tmp_path / NAME).begin(HEADER, resume=False)
    assert "--resume" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("field", "value"),
    [("model", "other"), ("objective", "p95=1ms"), ("where", "http://x"), ("present", {"a": 1})],
)
def test_the_journal_of_another_tuning_is_refused(
    tmp_path: Path, field: str, value: object
) -> None:
    filled(tmp_path / NAME)
    other = msgspec.structs.replace(HEADER, **{field: value})
    with pytest.raises(ConfigError, match=f"{field} was"):
        Journal(tmp_path / NAME).begin(other, resume=True)


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match="not a journal"):
        Journal(tmp_path / NAME).begin(HEADER, resume=True)


def test_a_damaged_line_is_named_and_can_be_removed(tmp_path: Path) -> None:
    filled(tmp_path / NAME)
    lines = (tmp_path / NAME).read_bytes().splitlines(keepends=True)
    (tmp_path / NAME).write_bytes(b"".join([*lines[:2], b"{x\n", *lines[3:]]))
    damaged = Journal(tmp_path / NAME)
    with pytest.raises(ConfigError, match="line 3 is damaged: JSON is malformed") as raised:
        damaged.begin(HEADER, resume=True)
    damaged.close()
    assert "remove the line, whose trial is measured again" in str(raised.value.hint)
    (tmp_path / NAME).write_bytes(b"".join([*lines[:2], *lines[3:]]))
    journal = Journal(tmp_path / NAME)
    journal.begin(HEADER, resume=True)
    assert journal.recorded("search", ONE, 0, unexpected).rate == 10.0
    assert journal.recorded("search", TWO, 0, lambda: trial(TWO, 21.0)).rate == 21.0
    journal.close()


def test_only_one_process_writes_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / NAME)
    journal.begin(HEADER, resume=False)
    with pytest.raises(ConfigError, match="another process writes it"):
        Journal(tmp_path / NAME).begin(HEADER, resume=True)
    journal.close()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        Journal(tmp_path / "file" / NAME).begin(HEADER, resume=False)
