"""README and guides, run as a reader would: each `$` line in a shell, each Python block."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.develop.new_project import write_project
from headrace.server.ports import free_port
from tests.harness.servers.up import ROOT, RunningUp, clean_environment, running_up, write_models
from tests.harness.wait import wait_until

# A session is tens of commands, each a process.

ADDRESS = "http://127.0.0.1:8080"
DOCUMENTS = ("README.md", "docs/quickstart.md")


def blocks(document: str, language: str) -> list[str]:
    return blocks_of((ROOT / document).read_text("utf-8"), language)


def blocks_of(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    folder = tmp_path_factory.mktemp("documents")
    models: dict[str, dict[str, Any]] = {
        "echo": {"handler": "echo"},
        "digits": {"handler": "digits"},
        "words": {"handler": str(ROOT / "examples/word_count.py"), "max_batch_size": 64},
        "python_docs": {"handler": "language_model"},
    }
    with running_up(folder, models=write_models(folder, models)) as running:
        wait_until(lambda: running.request("GET", "/ready?models=all")[0] == 200, "loaded", 90)
        yield running


@pytest.fixture
def project_up(tmp_path: Path) -> Iterator[RunningUp]:
    """The project that docs/quickstart.md starts with, beside the demo's models."""
    write_project(tmp_path)
    models = {"digits": {"handler": "digits"}, "echo": {"handler": "echo"}}
    mine = {"my_model": {"handler": "handler.py"}}
    with running_up(tmp_path, models=write_models(tmp_path, models | mine)) as running:
        yield running


def test_the_commands_of_the_readme_give_what_they_promise(up: RunningUp) -> None:
    run_curl(up, "README.md")


def test_the_commands_of_the_quickstart_give_what_they_promise(project_up: RunningUp) -> None:
    run_curl(project_up, "docs/quickstart.md")


def run_curl(up: RunningUp, document: str) -> None:
    """Run the document's curl commands: none is answered with a problem, some jobs succeed."""
    job_id, statuses = "", []
    for block in (block for block in blocks(document, "console") if "curl" in block):
        for line in block.splitlines():
            assert line.startswith("$ curl -s "), f"{document}: {line}"
            command = line[2:].replace(ADDRESS, f"http://127.0.0.1:{up.port}")
            done = subprocess.run(
                ["bash", "-c", command], cwd=ROOT, env=clean_environment(ID=job_id),
                capture_output=True, text=True, timeout=60, check=True,
            )  # fmt: skip
            answer = json.loads(done.stdout)
            assert "digts" in line or "problems" not in str(answer.get("type", "")), answer
            job_id = answer.get("id", job_id)
            statuses.append(answer.get("status"))
    assert statuses.count("succeeded") >= 2, statuses


@pytest.mark.parametrize(
    "document", ["README.md", "docs/cli.md", "docs/offline.md", "docs/operations.md"]
)
def test_the_sessions_with_headrace_print_what_is_shown(
    up: RunningUp, tmp_path: Path, document: str
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    sessions = [block for block in blocks(document, "console") if "curl" not in block]
    assert sessions
    run_sessions(up, tmp_path, sessions)


@pytest.mark.slow
def test_a_file_becomes_a_canary_as_the_document_of_models_shows(tmp_path: Path) -> None:
    _, _, rest = (ROOT / "docs/models.md").read_text("utf-8").partition("\n## From a file to a c")
    section = rest.partition("\n## ")[0]
    found = {language: blocks_of(section, language) for language in ("python", "yaml", "console")}
    for name, text in zip(("words.py", "words2.py"), found["python"], strict=True):
        (tmp_path / name).write_text(text)
    models = tmp_path / "models.yaml"
    models.write_text(found["yaml"][0])
    with running_up(tmp_path, models=models, HEADRACE_MODEL_API="true") as up:
        run_sessions(up, tmp_path, found["console"])


def test_the_way_from_torchserve_is_as_its_document_shows(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    make = [sys.executable, "examples/torchserve/make_archive.py", "model_store"]
    subprocess.run(make, cwd=tmp_path, env=clean_environment(), check=True, timeout=60)
    ports = {name: free_port() for name in ("inference", "management", "metrics")}
    lines = (f"{name}_address=http://127.0.0.1:{port}\n" for name, port in ports.items())
    (tmp_path / "config.properties").write_text("".join(lines))
    text = (ROOT / "docs/migrating-from-torchserve.md").read_text("utf-8")
    for written, port in zip(("8080", "8081", "8082"), ports.values(), strict=True):
        text = text.replace(f"127.0.0.1:{written}", f"127.0.0.1:{port}")
    (tmp_path / "tmp").mkdir()
    environ = {
        "TEMP": str(tmp_path / "tmp"),
        "HEADRACE_URL": f"http://127.0.0.1:{ports['inference']}",
    }
    try:
        run_commands(tmp_path, blocks_of(text, "console"), environ)
    finally:
        stop = [sys.executable, "-m", "headrace", "torchserve", "--stop"]
        env = clean_environment(**environ)
        subprocess.run(stop, cwd=tmp_path, env=env, check=False, timeout=90)


def run_sessions(up: RunningUp, folder: Path, sessions: list[str]) -> None:
    """Run each command in a folder; it prints what is shown after it, if anything is."""
    run_commands(folder, sessions, {"HEADRACE_URL": f"http://127.0.0.1:{up.port}"})


def run_commands(folder: Path, sessions: list[str], variables: Mapping[str, str]) -> None:
    """Run each command in a folder; it prints what is shown after it, if anything is."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = clean_environment(**variables, PATH=path)
    for command, *shown in (part.splitlines() for b in sessions for part in b.split("$ ")[1:]):
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command], cwd=folder, env=environ, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}"
        assert done.stdout or " > " in command, command
        printed, expected = plain(done.stdout), plain("\n".join(shown))
        if "…" in expected:
            at = expected.index("…")
            del printed[at : len(printed) - (len(expected) - at - 1)]
            del expected[at]
        assert printed == expected or not shown, f"{command}: {done.stdout}"


def plain(text: str) -> list[str]:
    """The lines of an output without what differs from run to run: ids, numbers, folders."""
    for pattern, instead in (
        (r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID"),
        (r" \([\d,.]+/s\)", ""),
        (r"(?<= )/\S+/", "FOLDER/"),
        (r"\d+(\.\d+)?(e-\d+)?", "0"),
    ):
        text = re.sub(pattern, instead, text)
    return [" ".join(line.split()) for line in text.splitlines()]


def run_python(up: RunningUp, code: str) -> str:
    """Run a script as a reader of the documents would; what it prints."""
    url = f"http://127.0.0.1:{up.port}"
    done = subprocess.run(
        [sys.executable, "-c", code.replace(ADDRESS, url)], cwd=ROOT, capture_output=True,
        text=True, check=False, timeout=60, env=clean_environment(HEADRACE_URL=url),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_python_session_prints_the_digits(up: RunningUp) -> None:
    session = next(block for block in blocks("README.md", "python") if "Client" in block)
    first, *others = run_python(up, session).splitlines()
    assert first.startswith("succeeded 3 ")
    assert len(others) == len(list((ROOT / "examples/digits").glob("*.png")))
    assert all(line[0] == line[-1] for line in others)


def test_the_clients_document_runs_from_beginning_to_end(up: RunningUp) -> None:
    printed = run_python(up, "\n".join(blocks("docs/sdk.md", "python")))
    for expected in (
        "3\n", "{'batch': 7}", "7\n[[1.0, 0.0], [0.0, 1.0]]", "succeeded [1, 2]", "3_0705.png 3",
        "0 {'words': 2}\n1 send text\n2 {'words': 3}", "removed cancelled", "('words', 'ready')",
        "1 cancelled\n0 {}\n", "{'x': 1}\n0\n1\n2\n", "input-error ",
    ):  # fmt: skip
        assert expected in printed, printed


def test_the_offline_document_runs(up: RunningUp, tmp_path: Path) -> None:
    session = next(block for block in blocks("docs/offline.md", "python") if "Client" in block)
    printed = run_python(up, session.replace("digits.parquet", str(tmp_path / "digits.parquet")))
    assert printed.startswith("12 succeeded 0 failed\n")
    assert "3_0705.png 3\n" in printed
    assert printed.endswith(
        "['name', 'image', 'status', 'result', 'error', 'attempts', 'timings']\n"
    )


def test_the_handler_in_the_readme_is_the_example_and_has_15_lines() -> None:
    (handler,) = (block for block in blocks("README.md", "python") if "Handler" in block)
    assert handler == (ROOT / "examples/word_count.py").read_text("utf-8")
    assert len(handler.splitlines()) <= 15


def test_no_link_of_a_document_leads_nowhere() -> None:
    outside = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")
    for path in [*(ROOT / name for name in outside), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_make_targets_that_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in (*DOCUMENTS, "CONTRIBUTING.md", "docs/performance.md"):
        named = set(
            re.findall(
                r"^make ([a-z-]+)|`make ([a-z-]+)", (ROOT / document).read_text(), re.MULTILINE
            )
        )
        assert {one or two for one, two in named} <= targets, document
    assert Path(ROOT / ".ci/run").stat().st_mode & 0o111
