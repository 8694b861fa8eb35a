"""docs/models.md is held to the code: valid examples, and the right limits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from api.routes.admin.registry import TUNING
from headrace.config.model.catalog import load_catalog
from headrace.config.model.handler_reference import BUILTIN_HANDLERS
from headrace.models.archive import ARCHIVES, MIB, Limits
from headrace.models.folder import MODEL_FILE, PROGRAMS, read_folder
from headrace.models.store import UNUSED_KEEP_S
from headrace.registry.model import HIDDEN_OPTIONS

TEXT = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
FLAT = " ".join(TEXT.split())


@pytest.mark.parametrize("text", BLOCKS)
def test_an_example_is_valid(text: str, tmp_path: Path) -> None:
    if text.startswith("models:"):
        path = tmp_path / "models.yaml"
        path.write_text(text)
        assert load_catalog(path).models
    else:
        (tmp_path / MODEL_FILE).write_text(text)
        found = read_folder(tmp_path, "docs")
        assert found.name == "sentiment"


def test_every_form_is_named() -> None:
    for suffix in (*ARCHIVES, *PROGRAMS):
        assert f"`{suffix}`" in TEXT
    assert "tensor_model" in BUILTIN_HANDLERS


def test_the_limits_are_those_of_the_code() -> None:
    limits = Limits()
    assert f"more than {limits.entries:,} members" in FLAT
    assert f"more than {limits.ratio} times the archive's size" in FLAT
    assert f"(from {limits.free_bytes // MIB} MiB on)" in FLAT
    assert UNUSED_KEEP_S == 86_400
    assert "for a day after that" in FLAT


def test_what_a_client_may_set_and_see_is_that_of_the_code() -> None:
    may_set = re.search(
        r"may set these options, and no others: (.*?)\. The values of (.*?) are", FLAT
    )
    assert may_set is not None
    assert set(re.findall("`(.+?)`", may_set[1])) == TUNING
    assert set(re.findall("`(.+?)`", may_set[2])) == HIDDEN_OPTIONS
