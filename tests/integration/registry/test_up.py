"""`headrace up --reload`, SIGHUP, `headrace apply` and `headrace models`, as a user runs them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clients.commands import Commands
from tests.harness.servers.up import RunningUp, running_up
from tests.harness.wait import wait_until

HANDLER = """
from headrace import Handler


class Answers(Handler):
    def inference(self, items):
        return ["%s" for _ in items]
"""
MODELS = "models: {words: {handler: answers.py, max_batch_size: %d}}\n"


class Site(Commands):
    """A running deployment with a handler of the user's own, and the commands in its folder."""

    def __init__(self, up: RunningUp, folder: Path) -> None:
        super().__init__(f"http://127.0.0.1:{up.port}", folder)
        self.up = up

    def write_handler(self, text: str) -> None:
        (self.folder / "answers.py").write_text(HANDLER % text if len(text) < 20 else text)

    def write_models(self, size: int, more: str = "") -> None:
        (self.folder / "models.yaml").write_text(MODELS % size + more)

    def answer(self, model: str = "words") -> Any:
        return self.up.result_of(self.up.submit(model, {}))

    def size(self) -> int:
        (model,) = self.json("models", "words")
        return int(model["max_batch_size"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "answers.py").write_text(HANDLER % "first")
    (tmp_path / "models.yaml").write_text(MODELS % 8)
    return tmp_path


@pytest.fixture
def site(folder: Path) -> Iterator[Site]:
    with running_up(
        folder, "--reload", models=folder / "models.yaml", PYTHONDONTWRITEBYTECODE="1"
    ) as up:
        yield Site(up, folder)


@pytest.mark.slow
def test_a_saved_file_is_reloaded_and_a_wrong_one_is_shown_with_its_line(site: Site) -> None:
    assert site.answer() == "first"
    site.write_handler("second")
    wait_until(lambda: site.answer() == "second", "the saved handler answers")

    site.write_handler(HANDLER % "third" + "def (\n")
    site.up.wait_for("answers.py:8: invalid syntax")
    assert site.answer() == "second"
    site.write_models(16)
    wait_until(lambda: site.size() == 16, "the saved models file is applied")
    assert site.answer() == "second"
    site.write_models(4, "nonsense: true\n")
    site.up.wait_for("unknown key")
    assert site.size() == 16


@pytest.mark.slow
def test_a_models_file_is_applied_by_hand_or_by_a_signal(folder: Path) -> None:
    with running_up(folder, models=folder / "models.yaml") as up:
        site = Site(up, folder)
        apply = ("apply", "models.yaml", "--state-dir", str(up.state_dir))
        site.write_models(4)
        assert site.lines(*apply, "--dry-run") == ["words: applied the file: max_batch_size=4"]
        assert site.size() == 8
        site.lines(*apply)
        wait_until(lambda: site.size() == 4, "the file is applied")
        assert site.lines(*apply) == []
        site.write_models(2)
        up.process.send_signal(signal.SIGHUP)
        wait_until(lambda: site.size() == 2, "the file is applied after SIGHUP")


@pytest.mark.slow
def test_under_nohup_sighup_stays_ignored(folder: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with running_up(folder, models=folder / "models.yaml") as up:
            status = Path(f"/proc/{up.process.pid}/status").read_text()
    finally:
        signal.signal(signal.SIGHUP, before)
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    assert ignored & 1 << signal.SIGHUP - 1


@pytest.mark.slow
def test_a_model_from_registration_to_removal(folder: Path) -> None:
    with running_up(folder, models=folder / "models.yaml", HEADRACE_MODEL_API="true") as up:
        site = Site(up, folder)
        site.lines("models", "add", "new", "handler=answers.py", "max_batch_size=2")
        assert site.answer("new") == "first"
        site.write_handler("second")
        site.lines("models", "add", "new", "handler=answers.py", "--version", "2.0")
        site.lines("models", "promote", "new", "2.0", "--wait", "50")
        assert site.answer("new") == "second"
        site.write_handler("raise RuntimeError('no such luck')\n")
        assert "no such luck" in site.complaint("models", "reload", "new", "--wait", "50", rc=1)
        site.lines("models", "scale", "new", "0")
        table = site.lines("models", "diff")
        assert [line.split()[:3] for line in table[1:]] == [
            ["new", "1.0", "not"], ["new", "2.0", "not"], ["new", "2.0", "default_version"],
        ]  # fmt: skip
        wait_until(
            lambda: site.json("models", "new")[0]["ready_replicas"] == 1, "only 1.0 has a process"
        )
        complaint = site.complaint("models", "remove", "new", "--version", "2.0", rc=2)
        assert "2.0 is the default version" in complaint
        site.lines("models", "remove", "new", "--wait", "50")
        assert [model["name"] for model in site.json("models")] == ["words"]
        changes = [change["what"] for change in site.json("models", "changes")]
        assert changes[:2] == ["removed the model", "set replicas=0 of version 2.0"]
