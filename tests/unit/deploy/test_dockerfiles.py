"""The Dockerfiles, read without an engine: what is copied exists, and what is left is little."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from docker.utils.build import exclude_paths

from extensions.torchserve.config.launch import Flags, merge
from tests.harness.deploy import compose_file
from tests.harness.deploy.dockerfile import Dockerfile, parse

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "deploy").glob("Dockerfile.*"))
TORCHSERVE = ROOT / "deploy/torchserve"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUILD_TOOLS = r"gcc|g\+\+|build-essential|cmake|make|git|curl|wget|-dev\b|pip|hatchling"


@pytest.fixture(params=FILES, ids=lambda path: path.suffix[1:])
def file(request: pytest.FixtureRequest) -> Dockerfile:
    return parse(request.param)


def context() -> set[str]:
    """What is sent to the builder."""
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in patterns if line and not line.startswith("#")]
    return set(exclude_paths(str(ROOT), patterns))


def copied(file: Dockerfile) -> list[str]:
    """The sources of each COPY from the context."""
    texts = [text for stage in file.stages for text in stage.all("COPY")]
    words = [text.split() for text in texts if not text.startswith("--from=")]
    return [source for *sources, _ in words for source in sources]


def test_both_are_there() -> None:
    assert [path.name for path in FILES] == ["Dockerfile.api", "Dockerfile.worker"]


def test_the_parser(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(
        "# a comment\nARG BASE=python:3\nFROM ${BASE} AS one\nRUN first \\\n# between\n    second\n"
        'FROM one\nENV A=1 \\\n    B="x $A"\nENV C=${A}2 PATH=/x:$PATH\nCMD ["run", "it"]\n'
    )
    parsed = parse(path)
    assert [(stage.base, stage.name) for stage in parsed.stages] == [
        ("python:3", "one"), ("one", "")
    ]  # fmt: skip
    assert parsed.stage("one").steps == [("RUN", "first second")]
    made = parsed.final.environment({"PATH": "/bin"})
    # Values of one instruction do not see each other, as in Docker.
    assert made == {"A": "1", "B": "x ", "C": "12", "PATH": "/x:/bin"}
    assert parsed.final.command() == ["run", "it"]
    path.write_text("FROM a\nfirst line\n")
    with pytest.raises(ValueError, match="first line"):
        parse(path)


def test_every_source_exists_and_is_sent(file: Dockerfile) -> None:
    sent = context()
    for source in copied(file):
        path = ROOT / source
        assert path.exists(), source
        inside = [path] if path.is_file() else list(path.rglob("*.py"))
        assert inside
        assert {str(p.relative_to(ROOT)) for p in inside} <= sent


def test_all_that_a_wheel_is_made_of_is_copied(file: Dockerfile) -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], "pyproject.toml", "constraints.txt"}
    needed |= {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]}
    assert needed == set(copied(file))


def test_nothing_else_is_sent() -> None:
    tops = {path.partition("/")[0] for path in context()}
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    folders = {source.partition("/")[0] for source in (*wheel["packages"], *wheel["force-include"])}
    files = {"pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    # The builder always gets these two, whatever they exclude.
    assert tops - {".dockerignore", "deploy"} == folders | files
    assert not [path for path in context() if path.endswith(".pyc") or "__pycache__" in path]
    assert {path for path in context() if path.startswith("configs/")} == {"configs/models.yaml"}


def test_a_secret_or_a_model_that_lies_about_is_not_sent(tmp_path: Path) -> None:
    for name in (".env", "models/big.safetensors", "configs/secret.yaml", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "headrace/__pycache__").mkdir(parents=True)
    (tmp_path / "headrace/__pycache__/a.pyc").touch()
    (tmp_path / "headrace/a.py").touch()
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    sent = set(exclude_paths(str(tmp_path), patterns))
    assert {path for path in sent if (tmp_path / path).is_file()} == {"headrace/a.py"}


def test_it_runs_as_a_user_who_owns_nothing_but_the_home(file: Dockerfile) -> None:
    steps = file.final.steps
    user, _, group = file.final.last("USER").partition(":")
    assert int(user) > 0
    assert int(group) > 0
    after = steps[steps.index(("USER", f"{user}:{group}")) :]
    assert {word for word, _ in after} <= {"USER", "EXPOSE", "CMD"}
    assert f"useradd --uid {user}" in " ".join(file.final.all("RUN"))
    assert file.final.environment({})["HOME"] == "/var/lib/headrace"


def test_the_final_stage_has_no_build_tools(file: Dockerfile) -> None:
    for text in file.final.all("RUN"):
        assert not re.search(BUILD_TOOLS, text), text
    assert file.final.all("COPY") == [
        "--from=packages /opt/headrace /opt/headrace", "--from=code /opt/code /opt/headrace"
    ]  # fmt: skip


def test_apt_and_pip_leave_nothing_behind(file: Dockerfile) -> None:
    for stage in file.stages:
        assert not stage.all("ADD")
        for text in stage.all("RUN"):
            assert "upgrade" not in text
            if "apt-get install" in text:
                assert "--no-install-recommends" in text
                assert "rm -rf /var/lib/apt/lists/*" in text
            for install in re.findall(r"pip .*? install (.*?)(?:&&|;;|$)", text):
                assert "--no-cache-dir" in install
                assert "-c constraints.txt" in install or "--no-deps" in install


def test_images_are_pinned_and_no_address_is_written_down(file: Dockerfile) -> None:
    names = {stage.name for stage in file.stages if stage.name}
    for stage in file.stages:
        assert stage.base in names or re.fullmatch(r"[\w/.-]+:\d+\.\d+[\w.-]*", stage.base)
        for word, text in stage.steps:
            assert "://" not in text, (word, text)
            assert "index-url" not in text.replace('--extra-index-url "${TORCH_INDEX}"', "")


def test_the_compose_files_give_arguments_that_there_are() -> None:
    files = [ROOT / "docker-compose.yml", ROOT / "deploy/compose.gpu.yml"]
    for name, spec in compose_file.load(files, {})["services"].items():
        if "build" not in spec:
            continue
        file = parse(ROOT / spec["build"]["dockerfile"])
        declared = set(file.arguments)
        declared |= {t.partition("=")[0] for stage in file.stages for t in stage.all("ARG")}
        assert set(spec["build"]["args"]) <= declared, name
        extras = spec["build"]["args"]["EXTRAS"].split(",")
        assert set(extras) <= set(PROJECT["project"]["optional-dependencies"])
    api = compose_file.load(files, {})["services"]["api"]["build"]["args"]["EXTRAS"]
    assert "torch" not in api
    assert "worker" not in api


def test_they_start_our_command() -> None:
    commands = {path.suffix[1:]: parse(path).final.command() for path in FILES}
    assert commands == {"api": ["headrace", "api"], "worker": ["headrace", "worker"]}
    for path in FILES:
        assert parse(path).final.last("WORKDIR") == "/srv/headrace"


def test_the_image_in_place_of_torchserve_has_its_user_folders_ports_and_command() -> None:
    file = parse(TORCHSERVE / "Dockerfile").final
    assert file.last("USER") == "1000:1000"
    assert file.last("WORKDIR") == "/home/model-server"
    assert file.last("EXPOSE") == "8080 8081 8082"
    assert file.command() == ["serve"]
    (run,) = file.all("RUN")
    assert "useradd --uid 1000 --gid 1000" in run
    for folder in ("model-store", "wf-store", "tmp", ".headrace"):
        assert f"/home/model-server/{folder}" in run
    assert file.last("ENTRYPOINT") == '["/usr/local/bin/dockerd-entrypoint.sh"]'
    assert file.environment({})["TEMP"] == "/home/model-server/tmp"
    source, target = file.last("COPY").split()
    assert (ROOT / source, target) == (TORCHSERVE, "/tmp/torchserve")
    assert {f"{source}/{path.name}" for path in TORCHSERVE.iterdir()} <= context()


def test_the_files_of_that_image() -> None:
    launch = merge(Flags(), {}, TORCHSERVE)
    assert launch.notices == []
    assert launch.model_store == Path("/home/model-server/model-store")
    assert [(one.host, one.port) for one in launch.addresses] == [
        ("0.0.0.0", 8080), ("0.0.0.0", 8081), ("0.0.0.0", 8082)
    ]  # fmt: skip
    assert os.access(TORCHSERVE / "entrypoint.sh", os.X_OK)
    command = tomllib.loads((TORCHSERVE / "pyproject.toml").read_text())["project"]
    assert command["version"] == PROJECT["project"]["version"]
    assert command["name"] in PROJECT["project"]["optional-dependencies"]["torchserve"]
    module, _, function = command["scripts"]["torchserve"].partition(":")
    assert f"def {function}(" in (TORCHSERVE / module / "__init__.py").read_text()
