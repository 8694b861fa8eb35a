"""The list of words that plain English does without stays at zero in docs, code and messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import plain_english
from tests.docs.plain_english import findings


def test_no_such_word_is_in_docs_docstrings_comments_messages_or_names() -> None:
    shown = [f"{one.path}:{one.line}: {one.word}: {one.text}" for one in findings()]
    assert not shown, "\n".join(["Say it plainly (docs/glossary.md has the nouns):", *shown])


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("headrace/a.py", '"""What it was told."""\n', ["told"]),
        ("headrace/a.py", "x = 1  # whoever asks\n", ["whoever"]),
        ("headrace/a.py", 'raise E(f"{x!r} is to be a number")\n', ["is to be"]),
        ("headrace/a.py", "told = 1\n", ["told"]),
        ("headrace/a.py", 'x = "told"\n', []),
        ("headrace/a.lua", "local said = 1 -- nobody reads it\n", ["nobody"]),
        ("docs/a.md", "It stands here.\n```\nit lies there\n```\n", ["stands"]),
        ("tests/a.py", '"""What it was told."""\n', []),
    ],
)
def test_the_check_finds_them(
    name: str, text: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    path.parent.mkdir()
    path.write_text(text)
    monkeypatch.setattr(plain_english, "ROOT", tmp_path)
    assert [one.word for one in plain_english.findings_in(name)] == words
