"""What is refused before a prompt is made into tokens."""

from __future__ import annotations

import pytest

from handlers.generation.inputs import CHARACTERS_MAX, is_far_too_long

MOST = 10


@pytest.mark.parametrize(
    ("characters", "of_a_token", "long", "read"),
    [
        (MOST * CHARACTERS_MAX, 1, False, []),
        (10**7, 1, True, [160]),
        (10**7, 16, True, [160, 320, 640]),
        (1000, 1000, False, [160, 320, 640]),
    ],
)
def test_only_the_beginning_of_a_long_text_is_read(
    characters: int, of_a_token: int, long: bool, read: list[int]
) -> None:
    lengths: list[int] = []

    def tokens(text: str) -> range:
        lengths.append(len(text))
        return range(len(text) // of_a_token)

    assert is_far_too_long("a" * characters, MOST, tokens) is long
    assert lengths == read
