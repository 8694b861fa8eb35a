"""What is refused before a prompt is made into tokens."""

from __future__ import annotations

import pytest

from handlers.generation.inputs import CHARACTERS_MAX, is_far_too_long

MOST = 20


@pytest.mark.parametrize(
    ("characters", "of_a_token", "long", "read"),
    [
        (MOST * CHARACTERS_MAX, 1, False, []),
        (10**7, 1, True, [320]),
        (10**7, 16, True, [320, 640, 1280, 2560, 5120]),
        (1000, 1000, False, [320, 640]),
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


@pytest.mark.parametrize("cut", [1, 99, 100, 101])
def test_a_long_word_that_is_one_token_can_be_cut(cut: int) -> None:
    """WordPiece has one token for a word of more than 100 characters, many for its beginning."""
    # Each process that collects these tests would take time to import it.
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.pre_tokenizers import WhitespaceSplit

    tokenizer = Tokenizer(WordPiece({"?": 0, "a": 1, "##a": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    text = "a" * (CHARACTERS_MAX * MOST - cut - 1) + " " + "a" * 1000
    assert len(tokenizer.encode(text).ids) == 2
    assert not is_far_too_long(text, MOST, lambda part: tokenizer.encode(part).ids)
