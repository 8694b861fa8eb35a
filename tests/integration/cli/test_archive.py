"""`headrace archive`, and the commands that read sources, as people run them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.extensions.torchserve.harness.archives import write_archive
from tests.harness.archives import MODEL, good_members, write_folder, write_zip
from tests.harness.clients.commands import headrace_here
from tests.harness.servers.up import headrace


@pytest.mark.slow
def test_a_folder_is_packed_checked_tried_and_pinned(tmp_path: Path) -> None:
    write_folder(tmp_path / "twice")
    packed = headrace_here("archive", "twice", "-o", "twice.tar.gz", cwd=tmp_path)
    assert packed.returncode == 0, packed.stderr
    name, digest = packed.stdout.split()
    assert name == "twice.tar.gz"
    again = headrace_here("archive", "twice", "-o", "twice.tar.gz", cwd=tmp_path)
    assert again.returncode == 2
    assert "add --force" in again.stderr

    checked = headrace_here("archive", "--check", "twice.tar.gz", cwd=tmp_path)
    assert checked.returncode == 0
    assert "model:        twice 3\n" in checked.stdout
    assert digest in checked.stdout
    tried = headrace("try", "twice.tar.gz", "--json-input", "21", cwd=tmp_path)
    assert tried.stdout.strip() == "42", tried.stderr

    models = tmp_path / "models.yaml"
    models.write_text(f"models: {{twice: {{source: twice.tar.gz, sha256: '{digest}'}}}}")
    fine = headrace_here("check-config", cwd=tmp_path)
    assert fine.stdout == "models.yaml: no problems found\n", fine.stderr
    tried = headrace("try", "twice", "--json-input", "21", cwd=tmp_path)
    assert tried.stdout.strip() == "42", tried.stderr
    models.write_text(f"models: {{twice: {{source: twice.tar.gz, sha256: '{'0' * 64}'}}}}")
    wrong = headrace_here("check-config", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "models.twice.source: " in wrong.stderr
    assert digest in wrong.stderr


@pytest.mark.slow
def test_an_archive_of_torchserve_is_checked_and_tried(tmp_path: Path) -> None:
    handler = """
from ts.torch_handler.base_handler import BaseHandler

class Counts(BaseHandler):
    def initialize(self, context):
        self.factor = context.model_yaml_config["handler"]["factor"]

    def preprocess(self, data):
        return [len(row["body"]) for row in data]

    def inference(self, data):
        return [count * self.factor for count in data]

    def postprocess(self, data):
        return [{"letters": count} for count in data]
"""
    files = {"service.py": handler, "model-config.yaml": "handler: {factor: 2}\n"}
    folder = write_archive(tmp_path / "a", "service", files, configFile="model-config.yaml")
    members = [
        (str(file.relative_to(folder)), file.read_bytes())
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    ]
    write_zip(tmp_path / "m.mar", members)
    checked = headrace_here("archive", "--check", "m.mar", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert "model:        m 1.0\n" in checked.stdout
    assert "handler:      service\n" in checked.stdout
    assert "m.mar: no problems found" in checked.stdout
    tried = headrace("try", "m.mar", "--text", "abc", cwd=tmp_path)
    assert tried.stdout.strip() == '{"letters": 6}', tried.stderr
    failed = headrace("try", "m.mar", "--json-input", "7", cwd=tmp_path)
    assert failed.returncode == 1
    assert 'service.py", line 9' in failed.stderr
    assert "TypeError: object of type 'int' has no len()" in failed.stderr
    assert "torchserve/handler.py" not in failed.stderr


def test_an_archive_with_a_config_file_that_is_no_yaml_has_a_problem(tmp_path: Path) -> None:
    files = {"service.py": "", "model-config.yaml": "batchSize: ["}
    write_archive(tmp_path / "a", "service", files, configFile="model-config.yaml")
    checked = headrace_here("archive", "--check", "a", cwd=tmp_path)
    assert checked.returncode == 2
    assert checked.stderr.count("configFile: model-config.yaml: it is no YAML") == 1
    assert "no problems found" not in checked.stdout


def test_a_hostile_archive_is_explained_and_runs_nothing(tmp_path: Path) -> None:
    """Its module would leave a file."""
    spy = f"open({str(tmp_path / 'ran')!r}, 'w')\n"
    members = [*good_members()[:1], ("handler.py", spy.encode()), ("../up.py", spy.encode())]
    write_zip(tmp_path / "evil.zip", members)
    checked = headrace_here("archive", "--check", "evil.zip", cwd=tmp_path)
    assert checked.returncode == 2
    assert "evil.zip: '../up.py' leads out of the folder" in checked.stderr
    as_json = headrace_here("archive", "--check", "--json", "evil.zip", cwd=tmp_path)
    assert as_json.returncode == 2
    assert json.loads(as_json.stdout)["problems"] == ["'../up.py' leads out of the folder"]
    tried = headrace_here("try", "evil.zip", "--text", "x", cwd=tmp_path)
    assert tried.returncode == 2
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert {name for name in left if not name.endswith(".json")} == {"evil.zip"}


def test_what_is_no_archive_and_no_folder(tmp_path: Path) -> None:
    write_folder(tmp_path / "twice", MODEL)
    for arguments, problem in {
        ("twice",): "the archive has no name",
        ("gone", "-o", "a.zip"): "no such folder",
        ("gone.zip", "--check"): "does not exist",
        ("twice", "--check", "-o", "a.zip"): "--check writes no archive",
    }.items():
        done = headrace_here("archive", *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert problem in done.stderr


def test_a_problem_of_an_archive_names_it_once(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme.txt", "")
    checked = headrace_here("archive", "--check", "other.zip", cwd=tmp_path)
    assert checked.returncode == 2
    assert "headrace: other.zip: it has no model.yaml" in checked.stderr
