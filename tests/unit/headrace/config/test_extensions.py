"""The extensions of this Python: which are found, and which of two packages is ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.config.extensions import Extension, found, parts
from tests.harness.extensions import installed
from tests.harness.servers.up import clean_environment

#: A process that runs a user's code, whose own package is called `extensions`.
PRIVATE = """
import sys
from headrace._server import imports
imports.install()
from headrace.config.extensions import found
assert {"openai", "runs", "top", "torchserve", "tuning"} <= set(found().extensions), found()
assert "headrace._server.extensions.tuning.extension" in sys.modules
for extension in found().extensions.values():
    for load in (*(command.load for command in extension.commands.values()),
                 *extension.exports.values()):
        load()
    for point in ("settings", "api", "workers", "handlers", "models", "server", "logs", "checks"):
        if (load := getattr(extension, point)) is not None:
            load()
line = found().extensions["torchserve"].logs().line({"event": "x", "_created": 0.0})
assert line.endswith("x"), line
import extensions
assert extensions.OWNER == "user"
"""


def test_those_of_headrace_are_found() -> None:
    assert {"openai", "runs", "top", "torchserve", "tuning"} <= set(found().extensions)
    assert found().problems == {}


#: A command, which imports no code of a user.
COMMAND = """
from headrace.config.extensions import found
assert {"openai", "runs", "top", "torchserve", "tuning"} <= set(found().extensions), found()
"""


@pytest.mark.parametrize("program", [PRIVATE, COMMAND], ids=["private", "command"])
def test_ours_are_found_beside_a_package_of_the_user(tmp_path: Path, program: str) -> None:
    (tmp_path / "extensions").mkdir()
    (tmp_path / "extensions/__init__.py").write_text("OWNER = 'user'\n")
    subprocess.run(
        [sys.executable, "-c", program], check=True, cwd=tmp_path, timeout=60,
        env=clean_environment(PYTHONPATH=str(tmp_path)),
    )  # fmt: skip


def test_a_part_that_cannot_be_used_is_left_out() -> None:
    def fails() -> object:
        raise ImportError("no module")

    with installed(
        Extension(name="a", summary="", api=lambda: "part"),
        Extension(name="b", summary="", api=lambda: 5),
        Extension(name="c", summary="", api=fails),
        Extension(name="d", summary=""),
        missing="e",
    ):
        assert parts("api", str) == {"a": "part"}
        assert set(found().problems) == {"b", "c", "e"}
