"""The estimate of a job's tokens."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.jobs.tokens import MINUTES_MAX, TOKENS_MAX, estimate, token_field


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (b'"12345678901234"', 4 + 256),
        (b'{"prompt":"x","max_tokens":10}', 8 + 10),
        (b'{"prompt":[5,6,7],"max_tokens":1}', 3 + 1),
        (b'{"prompt":"x","max_tokens":-4}', 8),
        (b'{"prompt":"x","max_tokens":1e300}', TOKENS_MAX),
        (b'{"prompt":3}', 3 + 256),
        (b'{"messages":[{"role":1,"content":[1]}]}', 10 + 256),
        (b"{}", 1 + 256),
        (b"{" + b"[" * 50_000, 12_501 + 256),
        (b"[1,2]", 2 + 256),
    ],
)
def test_the_tokens_of_an_input(text: bytes, tokens: int) -> None:
    assert estimate(text, None, {}, "language_model")[0] == tokens


def test_new_tokens_come_from_the_input_or_the_model() -> None:
    def new(options: dict[str, Any], handler: str = "my:Model") -> int:
        return estimate(b'""', None, options, handler)[0] - 1

    assert new({}) == 0
    assert new({"max_tokens": 30}) == 30
    assert new({"max_tokens": "many"}, "language_model") == 256


def test_new_tokens_beyond_ten_minutes_of_the_key_are_not_counted() -> None:
    def tokens(text: bytes, minute: int) -> int:
        return estimate(text, None, {}, "language_model", minute)[0]

    absurd = b'{"prompt":"x","max_tokens":1000000000000}'
    assert tokens(absurd, 500) == 11 + MINUTES_MAX * 500
    assert tokens(absurd, 0) == TOKENS_MAX
    assert tokens(b'{"prompt":"x","max_tokens":60}', 6) == 8 + 60
    assert tokens(b'"x"', 20) == 1 + 200
    long = b'"%s"' % (b"x" * 40_000)
    assert tokens(long, 30) == 10_001 + 256, "its bytes are there"


def test_a_stored_input_counts_by_its_length() -> None:
    assert estimate(b"null", 4000, {"max_tokens": 5}, "echo") == (1005, "-")


def test_same_beginnings_have_the_same_prefix() -> None:
    def prefix(text: str) -> str:
        return estimate(b'{"prompt":"%s"}' % text.encode(), None, {}, "")[1]

    long = "x" * 300
    assert prefix(long + "a") == prefix(long + "b") != prefix("y" + long)
    assert prefix("short a") != prefix("short b")
    assert all(len(prefix(text)) == 8 for text in ("", "a", "\u00e9"))


def test_deadlines_sort_as_text() -> None:
    fields = [token_field(1, "-", at) for at in (None, 5.0, 1.9e9, -3, 1e12)]
    assert sorted(text.split()[1] for text in fields) == [
        "0000000000", "0000000005", "1900000000", "9999999999", "~",
    ]  # fmt: skip
