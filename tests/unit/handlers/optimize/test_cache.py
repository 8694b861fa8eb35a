"""The names of builds and verdicts depend on the calibration inputs."""

from __future__ import annotations

from pathlib import Path

from handlers.optimize.cache import folder_digest


def test_a_digest_is_that_of_the_files_of_a_folder_or_of_one_file(tmp_path: Path) -> None:
    for name, text in (("one", "1"), ("two", "2"), ("again", "1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "input.json").write_text(text)
    one, two, again = (str(tmp_path / name) for name in ("one", "two", "again"))
    assert folder_digest(one) == folder_digest(again) != folder_digest(two)
    assert folder_digest(f"{one}/input.json") == folder_digest(one)
    assert folder_digest(f"{two}/input.json") == folder_digest(two)
    missing = {folder_digest(f"{one}/missing"), folder_digest(f"{two}/missing")}
    assert missing.isdisjoint({folder_digest(one), folder_digest(two), folder_digest(None)})
