"""What the author of a handler reads when it cannot be loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from handlers.digits import Digits
from handlers.loader import load_handler
from headrace.errors import ConfigError, HandlerError
from headrace.handler import Context, Handler
from workers.model_process.executor import BatchExecutor
from workers.model_process.startup import context_of, initialize, warm_up, why_not_loaded

pytestmark = pytest.mark.usefixtures("imports_are_undone")


def load_error(folder: Path, text: str, spec: str = "mine.py") -> str:
    (folder / "mine.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_handler(spec, folder)
    # The frame above is this file's, which in the process stands for the author's.
    error = caught.value.with_traceback(caught.tb.tb_next)
    return why_not_loaded(error)


def test_an_import_that_fails_shows_the_authors_frames_alone(tmp_path: Path) -> None:
    text = load_error(tmp_path, "def load():\n    import no_such_dependency\n\nload()\n")
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.count('File "') == text.count(f'File "{tmp_path}/mine.py"') == 2
    assert "No module named 'no_such_dependency'" in text
    assert "handler 'mine.py': the import failed" in text.splitlines()[-1]


def test_a_syntax_error_shows_its_line(tmp_path: Path) -> None:
    text = load_error(tmp_path, "class Mine(Handler)\n    pass\n")
    assert f'File "{tmp_path}/mine.py", line 1' in text
    assert "class Mine(Handler)\n" in text
    assert "importlib" not in text


def test_what_to_do_is_said(tmp_path: Path) -> None:
    one = (
        "from headrace import Handler\n"
        "class {}(Handler):\n    def inference(self, items): return items\n"
    )
    text = load_error(tmp_path, one.format("One") + one.format("Two"))
    assert text.splitlines() == [
        f"handler 'mine.py': {tmp_path}/mine.py defines 2 handlers; "
        "name one after a colon: One, Two"
    ]


def test_an_error_of_ours_under_initialize_has_its_frames_and_what_to_do(tmp_path: Path) -> None:
    weights = tmp_path / "mine.txt"
    weights.write_text("no weights")
    with pytest.raises(ConfigError) as caught:
        Digits().initialize(Context("digits", "1.0", "cpu", tmp_path, weights=weights))
    text = why_not_loaded(caught.value)
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.splitlines()[-1] == f"{caught.value.message}; {caught.value.hint}"


def test_an_error_of_the_authors_begins_in_the_authors_code() -> None:
    class Mine(Handler):
        def initialize(self, context: Context) -> None:
            raise RuntimeError("weights of another model") from OSError("cut short")

    with pytest.raises(RuntimeError) as caught:
        Mine().initialize(Context("mine", "1.0", "cpu", Path()))
    text = why_not_loaded(caught.value)
    assert "in initialize" in text
    assert "OSError: cut short" in text
    assert text.endswith("RuntimeError: weights of another model\n")


@pytest.mark.parametrize(
    ("results", "text"),
    [
        ([], "inference returned 0 values for 1 inputs\n"),
        (
            [object()],
            "the result for example_input cannot be sent: builtins.object is not a JSON value\n",
        ),
    ],
)
def test_a_warm_up_with_wrong_results_is_explained_without_frames_of_ours(
    results: list[object], text: str
) -> None:
    class Mine(Handler):
        def example_input(self) -> str:
            return "water"

        def inference(self, items: list[str]) -> list[object]:
            return results

    handler = Mine()
    context = Context("mine", "1.0", "cpu", Path())
    handler.initialize(context)
    with pytest.raises(HandlerError) as caught:
        warm_up(BatchExecutor(handler, context))
    assert why_not_loaded(caught.value.with_traceback(caught.tb.tb_next)) == text


def test_an_error_in_our_code_alone_has_its_whole_traceback() -> None:
    with pytest.raises(KeyError) as caught:
        context_of({}, Context)
    text = why_not_loaded(caught.value.with_traceback(caught.tb.tb_next))
    assert "in context_of" in text
    assert text.splitlines()[-1] == "KeyError: 'model'"


def test_an_initialize_that_returns_a_coroutine_loads_nothing() -> None:
    async def later(context: Context) -> None:
        raise AssertionError(context)

    with pytest.raises(ConfigError, match="initialize returned a coroutine"):
        initialize(lambda context: later(context), Context("m", "1.0", "cpu", Path()))
