from __future__ import annotations

import logging
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from handlers.common.text import CONTRACTIONS, load_vocabulary, ngrams, token_ids, tokens
from headrace.errors import ConfigError, InputError


class Vocabulary:
    """A vocabulary of a class of its own, as older archives have it."""

    def __getitem__(self, token: str) -> int:
        if token != "word":
            raise RuntimeError("no such token")
        return 7


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello,  World!\n", ["hello", "world"]),
        ("<p>One</p> &amp;two<br/>", ["one", "two"]),
        ("I can't; you won't", ["i", "cannot", "you", "will", "not"]),
        ("I'd say it's John's", ["i", "would", "say", "it", "is", "johns"]),
        ("let's meet at 9 o'clock", ["let", "us", "meet", "at", "9", "of", "the", "clock"]),
        ("'cause we're late", ["because", "we", "are", "late"]),
        ("Café naïve — ﬁt 日本", ["cafe", "naive", "fit"]),
        ("well-known U.S. e-mail", ["wellknown", "us", "email"]),
        ("", []),
        ("?!", []),
    ],
)  # fmt: skip
def test_text_is_cleaned_in_the_order_of_torchserve(text: str, expected: list[str]) -> None:
    assert tokens(text) == expected


def test_contractions_are_common_ones() -> None:
    assert CONTRACTIONS["don't"] == "do not"
    assert CONTRACTIONS["she'll"] == "she will"
    assert CONTRACTIONS["I'm"] == "I am"
    assert CONTRACTIONS["shan't"] == "shall not"


def test_ngrams_come_by_their_size() -> None:
    words = ["here", "we", "are"]
    assert list(ngrams(words, 2)) == ["here", "we", "are", "here we", "we are"]
    assert list(ngrams(words, 3))[-1] == "here we are"
    assert list(ngrams(["one"], 3)) == ["one"]


def test_words_become_ids() -> None:
    known = {"<unk>": 0, "a": 1, "b": 2, "a b": 3}
    assert token_ids(known, ["a", "b", "c"]).tolist() == [1, 2, 0, 3, 0]
    assert token_ids(Vocabulary(), ["word"]).tolist() == [7]


def test_words_that_have_no_id_fail_the_input() -> None:
    with pytest.raises(InputError, match="'c' is not in the model's vocabulary"):
        token_ids({"a": 1}, ["a", "c"], 1)
    with pytest.raises(InputError, match="'other' is not in"):
        token_ids(Vocabulary(), ["other"])
    with pytest.raises(InputError, match="the text has no words"):
        token_ids({"a": 1}, [])


@pytest.mark.parametrize("saved", [{"a": 1}, OrderedDict(a=1)])
def test_a_plain_vocabulary_runs_no_code(tmp_path: Path, saved: Any) -> None:
    torch.save(saved, tmp_path / "v.pt")
    assert load_vocabulary(tmp_path / "v.pt") == {"a": 1}


def test_another_vocabulary_is_refused_unless_the_model_trusts_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "v.pt"
    torch.save(Vocabulary(), path)
    with pytest.raises(ConfigError) as caught:
        load_vocabulary(path)
    assert "without running code" in caught.value.message
    assert "weights_only to false" in caught.value.hint
    with caplog.at_level(logging.WARNING):
        assert load_vocabulary(path, weights_only=False)["word"] == 7
    assert f"code in {path} is run" in caplog.text


def test_files_that_are_no_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no vocabulary"):
        load_vocabulary(tmp_path / "gone.pt")
    torch.save([1], tmp_path / "list.pt")
    with pytest.raises(ConfigError, match="holds a list, not ids by token"):
        load_vocabulary(tmp_path / "list.pt")
