"""A model on a server is reserved for one process, and what a killed one has left is taken back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from extensions.tuning.bench.reservation import reserved, take_back
from extensions.tuning.cli import tune
from headrace.client.sync_client import Client
from headrace.errors import ConfigError, InvalidRequest, ModelNotFound, ServerUnreachable
from tests.harness.workers.worker import write_models

URL = "http://there"
#: Changes a model, and is killed.
KILLED = """
import os, signal, sys
from extensions.tuning.bench.reservation import reserved
with reserved(sys.argv[1], sys.argv[2], "a command") as reservation:
    reservation.registers() if sys.argv[3:] else reservation.changes({"a": 1, "b": None})
    os.kill(os.getpid(), signal.SIGKILL)
"""


class Server:
    """A client of a server that notes what it is sent."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.session = self
        self.url = URL
        self.calls: list[tuple[Any, ...]] = []
        self._problem = problem

    def set_model_options(self, model: str, options: dict[str, Any]) -> None:
        self._note("set", model, options)

    def remove_model(self, model: str) -> None:
        self._note("remove", model)

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        if self._problem is not None:
            raise self._problem


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "headrace/reservations"


def killed(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    assert done.returncode == -signal.SIGKILL


def taken_back(server: Server, **own: Any) -> list[str]:
    return take_back(cast("Client", server), **own)


def test_only_one_process_has_a_model_of_a_server(folder: Path) -> None:
    with reserved(URL, "m", "the first"):
        with pytest.raises(ConfigError, match=r"m on http://there is in use: the first") as raised:
            reserved(URL, "m", "the second").__enter__()
        assert f"process {os.getpid()}" in str(raised.value)
        assert "wait until it ends" in str(raised.value.hint)
        with reserved(URL, "other", "x"), reserved("http://here", "m", "y"):
            pass
        assert taken_back(Server()) == []
    with reserved(URL, "m", "the third") as third:
        assert third.left is None
    assert list(folder.iterdir()) == []


def test_what_a_killed_process_has_changed_is_taken_back_once(folder: Path) -> None:
    killed(URL, "m")
    server = Server()
    with reserved(URL, "m", "the next one") as own:
        told = taken_back(server, own=own)
        assert told == ["a command was killed: the options of m are taken back"]
        assert server.calls == [("set", "m", {"a": 1, "b": None})]
        assert taken_back(server, own=own) == []
    assert list(folder.iterdir()) == []


def test_what_was_left_stays_until_it_is_taken_back(folder: Path) -> None:
    killed(URL, "m")
    server = Server(ServerUnreachable("away"))
    with pytest.raises(ServerUnreachable), reserved(URL, "m", "the next one") as own:
        taken_back(server, own=own)
    # This one ended as it should, and what the killed one has left is known.
    with reserved(URL, "m", "the last one") as last:
        assert last.left is not None
        assert last.left.options == {"a": 1, "b": None}


def test_other_models_of_the_same_server_are_taken_back_too(folder: Path) -> None:
    killed(URL, "m")
    killed(URL, "benchmark-1", "registered")
    killed("http://here", "m")
    server = Server()
    assert sorted(taken_back(server)) == [
        "a command was killed: benchmark-1 is removed",
        "a command was killed: the options of m are taken back",
    ]
    assert sorted(server.calls) == [
        ("remove", "benchmark-1"), ("set", "m", {"a": 1, "b": None}),
    ]  # fmt: skip
    assert len(list(folder.iterdir())) == 1


def test_a_model_that_is_gone_needs_nothing(folder: Path) -> None:
    killed(URL, "m")
    assert len(taken_back(Server(ModelNotFound("m")))) == 1
    assert list(folder.iterdir()) == []


def test_another_model_that_cannot_be_restored_is_named_and_does_not_stop_a_command(
    folder: Path,
) -> None:
    killed(URL, "m")
    for _ in range(2):
        assert taken_back(Server(InvalidRequest("no such option"))) == [
            "a command was killed: m is not as it was: no such option"
        ]
    assert len(list(folder.iterdir())) == 1


def test_a_file_that_is_no_reservation_is_replaced(folder: Path) -> None:
    with reserved(URL, "m", "x") as one:
        path = one.path
    path.write_text("{" * 1000)
    with reserved(URL, "m", "x") as again:
        assert (again.path, again.left) == (path, None)
    assert not path.exists()


def test_a_folder_that_cannot_be_made_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot be written") as raised:
        reserved(URL, "m", "x").__enter__()
    assert "XDG_STATE_HOME" in str(raised.value.hint)


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    # It has no entry in the list of users.
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999_999)
    with pytest.raises(ConfigError, match="no home folder") as raised:
        reserved(URL, "m", "x").__enter__()
    assert "XDG_STATE_HOME" in str(raised.value.hint)
    with pytest.raises(ConfigError, match="no home folder"):
        taken_back(Server())


def test_a_relative_state_folder_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with reserved(URL, "m", "x") as one:
        assert one.path.parent == tmp_path / "home/.local/state/headrace/reservations"
    assert not (tmp_path / "state").exists()


def test_a_models_file_is_one_file_by_whichever_path(tmp_path: Path) -> None:
    folder = tmp_path / "real"
    folder.mkdir()
    file = write_models(folder, echo={"handler": "echo"})
    link = tmp_path / "link"
    link.symlink_to(folder)
    with (
        reserved(str(file.resolve()), "echo", "the first"),
        pytest.raises(ConfigError, match="in use: the first"),
        tune._subject("echo", None, link / file.name, "the second"),
    ):
        pass
