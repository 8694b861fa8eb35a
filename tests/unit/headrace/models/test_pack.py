"""Packing the folder of a model, and the explanation of archives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.models.archive import Limits, unpack
from headrace.models.pack import explain, pack
from headrace.models.source import digest_of
from tests.harness.archives import MODEL, good_members, write_folder, write_tar, write_zip

LIMITS = Limits()


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "a.zip", "a.mar"])
def test_the_same_folder_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    """Whatever the times, the modes and the order of the files are."""
    first = write_folder(tmp_path / "first", {**MODEL, "data/b": "b", "data/a": "a"})
    second = write_folder(tmp_path / "second", dict(reversed([*MODEL.items()])))
    write_folder(second, {"data/a": "a", "data/b": "b", ".git/x": "", "__pycache__/y.pyc": ""})
    (second / "handler.py").chmod(0o700)
    os.utime(second / "handler.py", (1, 1))
    digests = set()
    for folder in (first, second):
        output = tmp_path / folder.name / name
        assert pack(folder, output, LIMITS) == ["data/a", "data/b", "handler.py", "model.yaml"]
        # The archive itself is in the folder, and is no part of it.
        pack(folder, output, LIMITS, force=True)
        digests.add(digest_of(output))
    assert len(digests) == 1
    if name.endswith("gz"):
        assert output.read_bytes()[4:8] == bytes(4), "the header has a time"
    into = tmp_path / "into"
    into.mkdir()
    unpack(output, into, LIMITS)
    assert (into / "data" / "b").read_text() == "b"
    assert {path.stat().st_mode & 0o777 for path in into.rglob("*.py")} == {0o644}


def test_what_cannot_be_packed_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder")
    output = tmp_path / "a.zip"
    cases: list[tuple[Path, Path, str]] = [
        (folder, tmp_path / "a.rar", "no name of an archive"),
        (tmp_path / "gone", output, "no such folder"),
        (write_folder(tmp_path / "empty", {"a": ""}), output, "no model.yaml"),
        (folder, tmp_path / "gone" / "a.zip", "cannot be written"),
    ]
    (tmp_path / "b.zip").touch()
    cases.append((folder, tmp_path / "b.zip", "exists"))
    linked = write_folder(tmp_path / "linked")
    (linked / "link").symlink_to("/etc/passwd")
    cases.append((linked, output, "only plain files"))
    for source, target, problem in cases:
        with pytest.raises(ConfigError, match=problem):
            pack(source, target, LIMITS)
    assert not output.exists()
    assert (tmp_path / "b.zip").read_bytes() == b""


@pytest.mark.parametrize("suffix", [".tgz", ".zip"])
def test_what_a_reader_refuses_is_not_packed(tmp_path: Path, suffix: str) -> None:
    for number, (name, problem) in enumerate((
        ("a\\b.py", "has a backslash"), ("a\nb.py", "has a control character"),
        ("C:x.py", "is an absolute path"), (os.fsdecode(b"caf\xe9.py"), "is not UTF-8"),
        ("Handler.py", "only in case"), ("/".join(["d"] * 60), "folders deep"),
    )):  # fmt: skip
        folder = write_folder(tmp_path / str(number), {**MODEL, name: ""})
        with pytest.raises(ConfigError, match=problem):
            pack(folder, tmp_path / f"{number}{suffix}", LIMITS)
    zeros = write_folder(tmp_path / "zeros", {**MODEL, "data": "0" * 2_000_000})
    few = Limits(entries=2, total_bytes=LIMITS.total_bytes, free_bytes=1_000_000)
    with pytest.raises(ConfigError, match="200 times its size"):
        pack(zeros, tmp_path / f"zeros{suffix}", few._replace(entries=9))
    with pytest.raises(ConfigError, match="more than 2 members"):
        pack(zeros, tmp_path / f"zeros{suffix}", few)
    assert [path for path in tmp_path.iterdir() if not path.is_dir()] == []


def test_files_of_systems_beside_the_model_are_no_part_of_it(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", "._model.pt", "__MACOSX/._model.yaml"):
        write_folder(folder, {name: "x"})
    assert pack(folder, tmp_path / "a.zip", LIMITS) == ["handler.py", "model.yaml"]
    outer = [(f"twice/{name}", body) for name, body in good_members()]
    systems = [(name, b"x") for name in (".DS_Store", "Thumbs.db", "__MACOSX/twice/._handler.py")]
    for path in (
        write_zip(tmp_path / "b.zip", [*systems, *outer]),
        write_tar(tmp_path / "b.tgz", [*systems, *outer]),
    ):
        found = explain(path, LIMITS)
        assert (found.name, found.problems) == ("twice", [])


def test_a_good_archive_is_explained(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar.gz", [*good_members(), ("requirements.txt", b"")])
    found = explain(path, LIMITS)
    assert (found.name, found.version, found.handler) == ("twice", "3", "handler.py")
    assert (found.described_by, found.members, found.requirements) == ("model.yaml", 3, True)
    assert (found.sha256, found.bytes) == (digest_of(path), path.stat().st_size)
    assert found.problems == []
    assert len(found.warnings) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_all_bad_members_are_named(tmp_path: Path) -> None:
    members = [("../a", b""), *good_members(), ("/b", b""), ("c\\d", b"")]
    for path in (write_zip(tmp_path / "a.zip", members), write_tar(tmp_path / "a.tgz", members)):
        assert len(explain(path, LIMITS).problems) == 3


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ([("model.yaml", b"handler: gone.py")], "the file gone.py does not exist"),
        ([("model.yaml", b"handler: a.py"), ("a.py", b"def (")], "not valid Python"),
        ([("model.yaml", b"handler: echo\nweights: w.pt")], "there is no file w.pt"),
        ([("model.yaml", b"handlr: echo")], "did you mean handler?"),
        ([("a.txt", b"")], "no model.yaml"),
    ],
)
def test_what_is_wrong_with_the_model_is_explained(
    members: list[tuple[str, bytes]], problem: str, tmp_path: Path
) -> None:
    found = explain(write_zip(tmp_path / "a.zip", members), LIMITS)
    assert problem in " ".join(found.problems)
    assert "headrace-archive-" not in " ".join(found.problems)


def test_an_archive_of_torchserve_is_explained(tmp_path: Path) -> None:
    manifest = b'{"model": {"modelName": "old", "handler": "image_classifier"}}'
    found = explain(write_zip(tmp_path / "a.mar", [("MAR-INF/MANIFEST.json", manifest)]), LIMITS)
    assert (found.name, found.handler, found.problems) == ("old", "image_classifier", [])
    assert found.warnings == []
    manifest = b'{"model": {"modelName": "old", "handler": "gone.py:handle"}}'
    found = explain(write_zip(tmp_path / "b.mar", [("MAR-INF/MANIFEST.json", manifest)]), LIMITS)
    assert found.problems == ["there is no file gone.py, its handler"]


@pytest.mark.parametrize(
    ("text", "problems", "warnings"),
    [
        ("batchSize: [", ["it is no YAML: while parsing"], []),
        ("- batchSize", ["it is no mapping"], []),
        (None, ["it cannot be read: No such file"], []),
        (
            "batchSize: 0\nuseVenv: true",
            [],
            ["batchSize: expected an", "useVenv: it has no effect"],
        ),
        ("batchSize: 4", [], []),
    ],
)
def test_what_is_wrong_with_a_config_file_is_explained(
    text: str | None,
    problems: list[str],
    warnings: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A file that cannot be read is a problem, and a value that is ignored is a warning."""
    manifest = b'{"model": {"handler": "image_classifier", "configFile": "c.yaml"}}'
    members = [("MAR-INF/MANIFEST.json", manifest)]
    if text is not None:
        members.append(("c.yaml", text.encode()))
    found = explain(write_zip(tmp_path / "a.mar", members), LIMITS)
    for lines, starts in ((found.problems, problems), (found.warnings, warnings)):
        assert len(lines) == len(starts)
        for line, start in zip(lines, starts, strict=True):
            assert line.startswith(f"MAR-INF/MANIFEST.json: configFile: c.yaml: {start}")
    assert caplog.text == ""


def test_a_folder_and_a_program_are_explained_too(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder")
    assert explain(folder, LIMITS).name == "twice"
    program = write_folder(tmp_path, {"a.pt2": ""}) / "a.pt2"
    assert explain(program, LIMITS).handler == "tensor_model"
    assert explain(write_folder(tmp_path, {"a.txt": ""}) / "a.txt", LIMITS).problems
    with pytest.raises(ConfigError, match="does not exist"):
        explain(tmp_path / "gone.zip", LIMITS)
