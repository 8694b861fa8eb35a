"""Text from tokens: whole characters, whole tokens, and the end at a stop text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.generation.answer_text import Detokenizer

#: Token n is the n-th of these bytes.
PIECES = [
    b"a",
    b"b",
    b"ab",
    b"ST",
    b"OP",
    b"STOP",
    b" ",
    b"\xe2",
    b"\x82",
    b"\xac",
    b"x\xc3",
    b"\xa9",
]


def decode(tokens: Sequence[int]) -> str:
    return b"".join(PIECES[token] for token in tokens).decode(errors="replace")


def fed(
    tokens: Sequence[int], stop: Sequence[str] = (), before: Sequence[int] = ()
) -> tuple[list[str], list[int], bool]:
    """The texts and tokens that are released, token by token; and whether it was stopped."""
    reader = Detokenizer(decode, stop, before)
    texts, released = [], []
    for place, token in enumerate(tokens):
        text, taken = reader.add([token], last=place == len(tokens) - 1)
        texts.append(text)
        released += taken
        if reader.stopped:
            break
    return texts, released, reader.stopped


@given(st.lists(st.integers(0, len(PIECES) - 1), max_size=70))
def test_all_of_the_text_is_released(tokens: list[int]) -> None:
    texts, released, _ = fed(tokens)
    assert released == tokens
    # Bytes that are no characters may be replaced in other places where they are cut.
    if "\N{REPLACEMENT CHARACTER}" not in decode(tokens):
        assert "".join(texts) == decode(tokens)


def test_a_character_of_three_tokens_comes_at_once() -> None:
    assert fed([0, 7, 8, 9])[0] == ["a", "", "", "€"]


@pytest.mark.parametrize(
    ("tokens", "texts"),
    [
        ([0, 5, 0], ["a", ""]),
        ([0, 3, 4, 0], ["a", "", ""]),
        ([0, 3, 0], ["a", "", "STa"]),
        ([3, 3, 4], ["", "ST", ""]),
    ],
)
def test_a_stop_text_ends_it_and_is_left_out(tokens: list[int], texts: list[str]) -> None:
    found, _, stopped = fed(tokens, ["STOP"])
    assert found == texts
    assert stopped == (len(found) < len(tokens) or tokens[-1] == 4)


@given(
    st.lists(st.integers(0, 6), max_size=20),
    st.lists(st.sampled_from(["STOP", "ab", "b a", "OPS"]), max_size=2),
)
def test_the_text_is_what_is_before_the_first_stop_text(tokens: list[int], stop: list[str]) -> None:
    texts, released, stopped = fed(tokens, stop)
    whole = decode(tokens)
    # The first that is complete counts, as it ends the answer.
    ends = [whole.find(one) + len(one) for one in stop if one in whole]
    assert stopped == bool(ends)
    if not ends:
        assert "".join(texts) == whole
        return
    used = decode(released)
    places = [used.find(one) for one in stop if one in used]
    assert "".join(texts) == used[: min(places)]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=20), st.data())
def test_it_goes_on_after_the_tokens_that_were_released(
    tokens: list[int], data: st.DataObject
) -> None:
    stop = ["STOP"]
    reader = Detokenizer(decode, stop)
    texts, released = [], []
    crash = data.draw(st.integers(0, len(tokens)))
    for token in tokens[:crash]:
        text, taken = reader.add([token])
        texts.append(text)
        released += taken
        if reader.stopped:
            break
    again = Detokenizer(decode, stop, released)
    assert again.stopped == reader.stopped
    if not again.stopped:
        more, _, _ = fed(tokens[len(released) :], stop, released)
        texts += more
    assert "".join(texts) == "".join(fed(tokens, stop)[0])
