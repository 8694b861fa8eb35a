"""`headrace init`, `headrace try` and `headrace url`, as people who write a handler run them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.redis.connection import connect
from tests.harness.clients.commands import headrace_here
from tests.harness.servers.up import ROOT, clean_environment, headrace, running_up
from tests.harness.user_project import expected, write_project

HANDLER = """
from headrace import Handler, errors

class Words(Handler):
    def preprocess(self, inputs):
        return [x if isinstance(x, str) else errors.InputError("send text") for x in inputs]

    def inference(self, items):
        self.context.progress(0.5, message="half")
        return [len(text.split()) for text in items]
"""


def write_handler(folder: Path, text: str = HANDLER) -> str:
    (folder / "words.py").write_text(text)
    return "words.py"


@pytest.mark.slow
def test_a_new_project_is_served_tested_and_tried(tmp_path: Path) -> None:
    done = headrace_here("init", "mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "mine"
    assert {path.name for path in folder.iterdir()} == {
        "handler.py", "models.yaml", "test_handler.py",
    }  # fmt: skip

    checked = headrace_here("check-config", cwd=folder)
    assert checked.stdout.strip() == "models.yaml: no problems found"
    tried = headrace("try", "my_model", "--text", "two words", cwd=folder)
    assert tried.stdout.strip() == '{"text":"TWO WORDS"}', tried.stderr
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert "1 passed" in tested.stdout, tested.stdout
    with running_up(folder, models=folder / "models.yaml") as up:
        assert up.result_of(up.submit("my_model", "hi")) == {"text": "HI"}
        assert up.record()["models_file"] == str(folder / "models.yaml")


@pytest.mark.parametrize("handler", ["handlers/mine.py", "handlers/my-own.v2.py"])
def test_try_imports_the_users_modules_and_keeps_the_users_environment(
    tmp_path: Path, handler: str
) -> None:
    tried = headrace("try", handler, "--json-input", "5", cwd=write_project(tmp_path))
    assert json.loads(tried.stdout) == expected("mine", 5, PYTHONPATH=str(ROOT)), tried.stderr


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text("mine")
    done = headrace_here("init", cwd=tmp_path)
    assert done.returncode == 2
    assert "handler.py" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["handler.py"]
    assert (tmp_path / "handler.py").read_text() == "mine"


def test_try_runs_a_batch_and_shows_each_verb(tmp_path: Path) -> None:
    handler = write_handler(tmp_path)
    (tmp_path / "in.txt").write_text("one two three")
    done = headrace("try", handler, "--input", "in.txt", "--json-input", "7", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["3"]
    for text in ("initialize", "preprocess", "inference", "postprocess", "half", "send text"):
        assert text in done.stderr


def test_try_shows_the_traceback_of_the_handler_alone(tmp_path: Path) -> None:
    handler = write_handler(tmp_path, HANDLER.replace("len(text.split())", "text.splitt()"))
    done = headrace("try", handler, "--text", "x", cwd=tmp_path)
    assert done.returncode == 1
    assert "words.py" in done.stderr
    assert "AttributeError: 'str' object has no attribute 'splitt'" in done.stderr
    assert "executor.py" not in done.stderr


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ("[]", "inference returned 0 values for 1 inputs"),
        ("[object()]", "the result cannot be sent: builtins.object is not a JSON value"),
    ],
)
def test_try_names_wrong_results_without_a_traceback(
    tmp_path: Path, results: str, message: str
) -> None:
    (tmp_path / "mine.py").write_text(
        "from headrace import Handler\n\n\nclass Mine(Handler):\n"
        f"    def inference(self, items):\n        return {results}\n"
    )
    done = headrace("try", "mine.py", "--text", "x", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_try_without_an_input_uses_the_example(tmp_path: Path) -> None:
    handler = write_handler(tmp_path)
    done = headrace("try", handler, cwd=tmp_path)
    assert done.returncode == 2
    assert "give --input FILE" in done.stderr
    write_handler(tmp_path, HANDLER + "\n    example_input = 'an example of five'\n")
    assert headrace("try", handler, cwd=tmp_path).stdout.split() == ["4"]


def test_a_breakpoint_of_the_handler_stops_in_this_terminal(tmp_path: Path) -> None:
    text = HANDLER.replace("self.context.progress", "breakpoint()\n        self.context.progress")
    handler = write_handler(tmp_path, text)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "headrace", "try", handler, "--text", "a b"],
        cwd=tmp_path, env=clean_environment(), stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    os.write(ours, b"p items[0].upper()\nc\n")
    seen = b""
    while True:
        try:
            more = os.read(ours, 4096)
        except OSError:  # Linux: the other side has closed
            break
        if not more:
            break
        seen += more
    os.close(ours)
    assert process.wait(60) == 0, seen
    assert b"'A B'" in seen
    assert b"\r\n2\r\n" in seen


def test_try_says_which_method_is_misspelt(tmp_path: Path) -> None:
    handler = write_handler(tmp_path, HANDLER.replace("inference", "inferense"))
    done = headrace("try", handler, "--text", "x", cwd=tmp_path)
    assert done.returncode == 1
    assert "method inferense, which is never called; did you mean inference?" in done.stderr


@pytest.mark.slow
def test_url_prints_what_a_celery_client_needs(tmp_path: Path) -> None:
    none = headrace_here("url", cwd=tmp_path)
    assert none.returncode == 2
    assert "HEADRACE_REDIS_URL" in none.stderr
    with running_up(tmp_path) as up:
        url = headrace_here("url", "--state-dir", str(up.state_dir), cwd=tmp_path).stdout.strip()
        assert connect(url).ping()
        there = ("--state-dir", str(up.state_dir))
        headrace_here("keys", "create", "mine", *there, cwd=tmp_path)
        assert "mine" in headrace_here("keys", "list", *there, cwd=tmp_path).stdout
    given = headrace_here("url", cwd=tmp_path, HEADRACE_REDIS_URL="redis://elsewhere:1/0")
    assert given.stdout == "redis://elsewhere:1/0\n"
