"""The syntax of java.util.Properties."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extensions.torchserve.config.properties import (
    parse_properties,
    properties_text,
    read_properties,
    with_variables,
)
from headrace.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a=1\nb:2\nc 3\n", {"a": "1", "b": "2", "c": "3"}),
        ("  a  =  1", {"a": "1"}),
        ("a = : 1", {"a": ": 1"}),
        ("a\t1 ", {"a": "1 "}),
        ("a", {"a": ""}),
        ("# a=1\n! b=2\n\n   # c\nd=#1", {"d": "#1"}),
        ("a=1\\\n   2\\\r\n3", {"a": "123"}),
        ("a=1\\\n# 2", {"a": "1# 2"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        ("a=1\\\\\\\n\\\nb", {"a": "1\\b"}),
        ("a\\=\\:\\ b=c", {"a=: b": "c"}),
        (r"a=http\://127.0.0.1\:8080", {"a": "http://127.0.0.1:8080"}),
        (r"a=\u00e9\u20AC\t\n\x", {"a": "é€\t\nx"}),
        (r"a=\uD83D\uDE00", {"a": "😀"}),
        (r"a=\uD83D", {"a": "�"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\\", {"a": "1"}),
        ('models={\\\n  "noop": {\\\n    "1.0": {"minWorkers": 1}\\\n  }\\\n}\nlast=x',
         {"models": '{"noop": {"1.0": {"minWorkers": 1}}}', "last": "x"}),
    ],
)  # fmt: skip
def test_values_are_read_as_java_reads_them(text: str, values: dict[str, str]) -> None:
    assert parse_properties(text) == values


_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.dictionaries(_TEXT, _TEXT))
def test_what_is_written_is_read_again(values: dict[str, str]) -> None:
    text = properties_text(values)
    assert parse_properties(text) == values
    assert text.isascii()


def test_a_file_that_is_not_utf8_is_latin_1(tmp_path: Path) -> None:
    path = tmp_path / "config.properties"
    path.write_bytes(b"a=caf\xe9")
    assert read_properties(path) == {"a": "café"}
    path.write_bytes(b"\xef\xbb\xbfa=caf\xc3\xa9")
    assert read_properties(path) == {"a": "café"}


def test_a_wrong_escape_is_an_error_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.properties"
    path.write_text("a=\\u12")
    with pytest.raises(ConfigError, match=r"config\.properties: \\u12 has not four"):
        read_properties(path)
    with pytest.raises(ConfigError, match="missing: it cannot be read: No such file"):
        read_properties(tmp_path / "missing")


def test_variables_are_replaced() -> None:
    values = {"model_store": "$$HOME$$/store/$$NAME$$", "cost": "1$ $$"}
    environ = {"HOME": "/root", "NAME": "a"}
    assert with_variables(values, environ, "x") == {"model_store": "/root/store/a", "cost": "1$ $$"}
    with pytest.raises(ConfigError, match="x: model_store: the environment variable NAME is not"):
        with_variables(values, {"HOME": "/"}, "x")
