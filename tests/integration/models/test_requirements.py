"""Environments of models, with real installers and no index."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.config.environment import with_packages
from headrace.errors import ConfigError
from headrace.models.requirements import UNUSED_KEEP_S, installed, prune
from tests.harness.archives import write_wheel

#: Uses an environment, becomes another program, and says so; it ends with its standard input.
USER = """\
import os, sys
from pathlib import Path
from headrace.models.requirements import installed
installed(Path(sys.argv[1]), Path(sys.argv[2]))
code = "import sys; print('ready', flush=True); sys.stdin.read()"
os.execv(sys.executable, [sys.executable, "-c", code])
"""
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def quick_installer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have uv install where it is beside Python, also in other processes: pip takes seconds."""
    scripts = sysconfig.get_path("scripts")
    monkeypatch.setenv("PATH", os.pathsep.join([scripts, os.environ["PATH"]]))


@pytest.fixture(params=["pip", "uv"])
def installer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pip":
        monkeypatch.setattr("headrace.models.requirements.shutil.which", lambda _: None)
    else:
        uv = shutil.which("uv", path=sysconfig.get_path("scripts"))
        if uv is None:
            pytest.skip("uv is not installed beside Python")
        monkeypatch.setattr("headrace.models.requirements.shutil.which", lambda _: uv)
    return str(request.param)


def requirements(folder: Path, *lines: str) -> Path:
    (folder / "wheels").mkdir(parents=True, exist_ok=True)
    write_wheel(folder / "wheels", "weather", "TODAY = 'rain'\n")
    file = folder / "requirements.txt"
    file.write_text("".join(f"{line}\n" for line in ("--no-index", "--find-links wheels", *lines)))
    return file


def test_packages_come_before_those_of_the_server(installer: str, tmp_path: Path) -> None:
    packages = installed(requirements(tmp_path, "weather"), tmp_path / "environments")
    assert (packages / "weather.py").exists()
    shadow = packages / "msgspec.py"
    shadow.write_text("SHADOW = True\n")
    code = "import weather, msgspec; print(weather.TODAY, msgspec.SHADOW)"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=with_packages(os.environ, packages),
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert ran.stdout == "rain True\n"


def test_the_same_file_is_installed_once(installer: str, tmp_path: Path) -> None:
    file, environments = requirements(tmp_path, "weather"), tmp_path / "environments"
    first = installed(file, environments)
    (first / "mark").touch()
    assert (installed(file, environments) / "mark").exists()
    file.write_text(file.read_text() + "# changed\n")
    assert installed(file, environments) != first


def test_what_the_server_has_is_not_installed_again_by_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.models.requirements.shutil.which", lambda _: None)
    packages = installed(requirements(tmp_path, "weather", "msgspec>=0.1"), tmp_path / "e")
    assert not (packages / "msgspec").exists()


def test_a_failure_has_the_installers_words_and_is_tried_again(
    installer: str, tmp_path: Path
) -> None:
    file = requirements(tmp_path, "no-such-package-1")
    with pytest.raises(ConfigError, match=f"{installer} cannot install it") as caught:
        installed(file, tmp_path / "environments")
    assert "no-such-package-1" in caught.value.message
    last = caught.value.message.splitlines()[-1]
    assert last.startswith(f"{installer} cannot install requirements.txt: ")
    assert "status" not in last
    write_wheel(tmp_path / "wheels", "no_such_package_1", "")
    assert (installed(file, tmp_path / "environments") / "no_such_package_1.py").exists()


@pytest.mark.usefixtures("quick_installer")
def test_processes_that_start_at_once_install_once(tmp_path: Path) -> None:
    file, environments = requirements(tmp_path, "weather"), tmp_path / "environments"
    processes = [SPAWN.Process(target=installed, args=(file, environments)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    assert len(list(environments.glob("*/complete"))) == 1


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be installed in"):
        installed(requirements(tmp_path, "weather"), tmp_path / "file" / "environments")


@contextmanager
def user_of(file: Path, environments: Path) -> Iterator[None]:
    """A process that uses the environment of a file."""
    command = [sys.executable, "-c", USER, str(file), str(environments)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
        process.communicate("", timeout=60)


def aged(environments: Path) -> list[Path]:
    """As though the last process had begun to use these environments long ago."""
    found = sorted(path.parent for path in environments.glob("*/complete"))
    for path in found:
        long_ago = path.stat().st_mtime - UNUSED_KEEP_S - 1
        os.utime(path, (long_ago, long_ago))
    return found


@pytest.mark.usefixtures("quick_installer")
def test_only_what_no_model_names_and_no_process_uses_is_removed(tmp_path: Path) -> None:
    environments = tmp_path / "environments"
    files = [requirements(tmp_path / name, "weather") for name in ("one", "two")]
    with user_of(files[1], environments):
        pass
    (second,) = aged(environments)
    with user_of(files[0], environments):
        old = aged(environments)
        assert len(old) == 2
        (first,) = set(old) - {second}
        assert prune(environments, [files[1]]) == [], "one is used, the other is named"
        assert prune(environments, []) == [second.name]
    assert first.is_dir()
    assert not second.exists()
    with user_of(files[1], environments):
        pass
    assert prune(environments, []) == [first.name], "the other is new"
    assert second.is_dir()
    assert not list(environments.glob(".old-*"))


@pytest.mark.usefixtures("quick_installer")
def test_nothing_is_removed_while_a_models_file_cannot_be_read(tmp_path: Path) -> None:
    environments = tmp_path / "environments"
    with user_of(requirements(tmp_path, "weather"), environments):
        pass
    (old,) = aged(environments)
    assert prune(environments, [tmp_path / "gone.txt"]) == []
    assert prune(tmp_path / "none", []) == []
    assert prune(environments, []) == [old.name]
