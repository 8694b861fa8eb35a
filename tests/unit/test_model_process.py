"""What the author of a handler reads when it cannot be loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from handlers.loading import load_handler
from workers.model_process import why_not_loaded


@pytest.fixture(autouse=True)
def _imports_are_undone() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def told(folder: Path, text: str, spec: str = "mine.py") -> str:
    (folder / "mine.py").write_text(text)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any error, as the process has it
        load_handler(spec, folder)
    return why_not_loaded(caught.value)


def test_an_import_that_fails_shows_the_authors_frames_alone(tmp_path: Path) -> None:
    text = told(tmp_path, "def load():\n    import no_such_dependency\n\nload()\n")
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.count('File "') == text.count(f'File "{tmp_path}/mine.py"') == 2
    assert "No module named 'no_such_dependency'" in text
    assert "handler 'mine.py': its import failed" in text.splitlines()[-1]


def test_a_syntax_error_shows_its_line(tmp_path: Path) -> None:
    text = told(tmp_path, "class Mine(Handler)\n    pass\n")
    assert f'File "{tmp_path}/mine.py", line 1' in text
    assert "class Mine(Handler)\n" in text
    assert "importlib" not in text


def test_what_to_do_is_said(tmp_path: Path) -> None:
    one = "from headrace import Handler\nclass {}(Handler): pass\n"
    text = told(tmp_path, one.format("One") + one.format("Two"))
    assert text.splitlines() == [
        f"handler 'mine.py': {tmp_path}/mine.py defines 2 handlers; "
        "name one after a colon: One, Two"
    ]
