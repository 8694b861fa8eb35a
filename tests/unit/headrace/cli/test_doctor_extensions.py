"""`headrace doctor` on extensions: those that work, those that do not, and their own checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.doctor import command
from headrace.cli.doctor.check import Check, ok
from headrace.config import extensions
from headrace.config.extensions import Extension
from tests.harness.clients.doctor import breaks, found, verdict
from tests.harness.extensions import installed, write_distribution

WORKS = """
from headrace.config.extensions import Command, Extension
def fails():
    import not_installed
EXTENSION = Extension(name="{name}", summary="It greets", {more})
"""


@breaks("extensions")
def test_each_is_listed_and_what_cannot_be_imported_is_a_warning(tmp_path: Path) -> None:
    all_well = found("extensions", PYTHONPATH=str(tmp_path))
    verdict(all_well, "ok", "openai: OpenAI's API", "torchserve: ", "tuning: ")
    write_distribution(tmp_path, "well", WORKS.format(name="well", more=""))
    write_distribution(tmp_path, "absent", "import not_installed")
    write_distribution(tmp_path, "other", WORKS.format(name="else", more=""))
    write_distribution(tmp_path, "partly", WORKS.format(name="partly", more="api=fails"))
    write_distribution(tmp_path, "badly", WORKS.format(name="badly", more="api=lambda: 5"))
    write_distribution(
        tmp_path, "cli", WORKS.format(name="cli", more="commands={'x': Command(load=fails)}")
    )
    result = found("extensions", PYTHONPATH=str(tmp_path))
    verdict(
        result, "warn",
        "absent: it cannot be imported: ModuleNotFoundError: No module named 'not_installed'",
        "badly: its part `api` is no ApiPart",
        "cli: its command `x` cannot be used: ModuleNotFoundError",
        "other: other_extension:EXTENSION is no Extension of that name",
        "partly: its part `api` cannot be used: ModuleNotFoundError",
        "install what it needs here",
    )  # fmt: skip
    listed = [sentence for sentence, hint in result.parts if not hint]
    assert "well: It greets" in listed
    assert len(listed) == len(extensions.found().extensions) + 4


def test_one_that_ends_its_process_fails(tmp_path: Path) -> None:
    write_distribution(tmp_path, "exits", "raise SystemExit('no more')")
    verdict(found("extensions", PYTHONPATH=str(tmp_path)), "fail", "no more")


def test_the_checks_of_an_extension_are_in_the_report(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    def fails() -> object:
        raise RuntimeError("no checks")

    checks = (
        Check("core", "One", lambda _: ok("well")),
        Check("last", "Two", lambda _: ok("well")),
    )
    monkeypatch.setattr(command, "CHECKS", checks)
    more = Check("own", "One", lambda _: ok("well too"))
    with installed(
        Extension(name="mine", summary="", checks=lambda: (more,)),
        Extension(name="yours", summary="", checks=fails),
    ):
        assert command.examine(None, None, None, strict=False, as_json=False) == 0
    shown = capsysbinary.readouterr().out.decode().split()
    assert [word for word in shown if word in ("core", "own", "last")] == ["core", "own", "last"]
