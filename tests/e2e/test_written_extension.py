"""docs/extensions.md: its extension is installed as a distribution of its own, and works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.extensions import write_distribution
from tests.harness.servers.up import ROOT, clean_environment, headrace, running_up

TEXT = (ROOT / "docs/extensions.md").read_text("utf-8")
FILES = dict(re.findall(r"^```(?:toml|python)\n# (\S+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
LINES_MAX = 60


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the distribution, and with one whose package is missing."""
    project, target = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("site")
    for name, text in FILES.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)
    (project / "greeting/__init__.py").touch()
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
        "--no-build-isolation", "--target", str(target), str(project),
    ]  # fmt: skip
    subprocess.run(command, check=True, cwd=project, env=clean_environment(), timeout=300)
    write_distribution(target, "lacking", "import not_installed\n")
    return target


def test_it_is_small() -> None:
    code = [line for name in FILES for line in FILES[name].splitlines() if name.endswith(".py")]
    assert len([line for line in code if line]) <= LINES_MAX


def test_its_command_runs(site: Path, tmp_path: Path) -> None:
    path = str(site)
    done = headrace("greet", "Ada", cwd=tmp_path, PYTHONPATH=path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello, Ada\n", "")
    assert "Greet someone." in headrace("--help", cwd=tmp_path, PYTHONPATH=path).stdout


def test_its_url_is_served_beside_an_extension_that_lacks_a_package(
    site: Path, tmp_path: Path
) -> None:
    path = str(site)
    with running_up(tmp_path, PYTHONPATH=path, HEADRACE_GREETING_WORD="Moin") as up:
        assert up.request("GET", "/greeting") == (200, {"text": "Moin from echo"})
        assert up.result_of(up.submit("echo", 5)) == 5
        described = up.request("GET", "/openapi.json")[1]["paths"]["/greeting"]["get"]
        assert described["summary"] == "Greet the client in the name of the models"
        done = headrace("doctor", cwd=tmp_path, PYTHONPATH=path)
    assert "lacking: it cannot be imported: ModuleNotFoundError" in done.stdout
    assert "greeting: Greets by a URL and by a command" in done.stdout


def test_its_settings_are_checked(site: Path, tmp_path: Path) -> None:
    variables = {"PYTHONPATH": str(site), "HEADRACE_GREETING_WRD": "Moin"}
    done = headrace("check-config", cwd=tmp_path, **variables)
    assert done.returncode == 2
    assert "HEADRACE_GREETING_WRD: unknown variable; did you mean HEADRACE_GREETING_WORD?" in (
        done.stderr
    )
