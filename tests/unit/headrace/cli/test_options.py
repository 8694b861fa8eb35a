"""What is refused of a submit's options before anything is sent."""

from __future__ import annotations

import pytest
import typer

from headrace.cli.shared.options import checked_id, checked_options, json_object


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("expires", 0.0, "--expires"),
        ("expires", float("nan"), "--expires"),
        ("countdown", -1.0, "--countdown"),
        ("timeout", 0.0, "--job-timeout"),
        ("result_ttl", 0, "--result-ttl"),
        ("max_retries", -1, "--max-retries"),
        ("retry_backoff", -0.5, "--retry-backoff"),
        ("retry_backoff_max", 86_401.0, "--retry-backoff-max"),
    ],
)
def test_a_value_that_no_job_can_have_names_its_option(name: str, value: float, flag: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"^[-0-9.na]+ is (too|not a number)") as caught:
        checked_options({name: value})
    assert caught.value.param_hint == flag


def test_what_a_job_can_have_is_passed_on_and_defaults_are_left_out() -> None:
    given = {"priority": None, "countdown": 0.0, "expires": 3.0, "metadata": {"a": 1}}
    assert checked_options(given) == {"countdown": 0.0, "expires": 3.0, "metadata": {"a": 1}}
    assert (checked_id("order:7"), checked_id(None)) == ("order:7", None)


def test_an_id_that_no_job_can_have_is_told_the_grammar() -> None:
    with pytest.raises(typer.BadParameter, match=r"'a b'.*An id has 1 to 128"):
        checked_id("a b")


def test_metadata_is_an_object_of_bounded_size() -> None:
    assert json_object('{"a": 1}') == {"a": 1}
    assert json_object(None) is None
    for bad in ("3", "{", '{"a": "' + "x" * 4096 + '"}'):
        with pytest.raises(typer.BadParameter, match=r"not a JSON object|limit is 4096"):
            json_object(bad)
