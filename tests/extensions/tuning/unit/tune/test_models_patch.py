"""Edits of a models file keep all that they do not change."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from extensions.tuning.tune.models_patch import edited, patch, snippet
from headrace.errors import ConfigError

FILE = """\
# The models of the shop.
models:
  other: {handler: echo}

  words:
    handler: word_count.py   # ours
    # Chosen by hand in May.
    max_batch_size: 8  # was 4
    allowed_batch_sizes:
      - 4
      - 8
    # The end.
  last:
    handler: echo
"""
ROOT = Path(__file__).resolve().parents[5]


def test_a_value_is_replaced_and_all_else_stays() -> None:
    found = edited(FILE, "words", {"max_batch_size": 16})
    assert found == FILE.replace("max_batch_size: 8 ", "max_batch_size: 16 ")


def test_a_new_key_follows_the_first_value() -> None:
    found = edited(FILE, "words", {"max_batch_delay_ms": 0.0, "optimize": {"backend": "openvino"}})
    assert found == FILE.replace(
        "# ours\n", "# ours\n    optimize: {backend: openvino}\n    max_batch_delay_ms: 0\n"
    )


def test_a_list_in_lines_is_replaced_and_the_comment_after_it_stays() -> None:
    found = edited(FILE, "words", {"allowed_batch_sizes": [1, 2]})
    assert found == FILE.replace(":\n      - 4\n      - 8\n", ": [1, 2]\n")


def test_a_mapping_in_braces_gets_a_key() -> None:
    found = edited(FILE, "other", {"replicas": 2})
    assert found == FILE.replace("{handler: echo}", "{handler: echo, replicas: 2}")


def test_what_is_there_already_changes_nothing() -> None:
    assert edited(FILE, "words", {"max_batch_size": 8}) == FILE


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("x: &base {handler: echo}\nmodels:\n  words: *base\n", {"replicas": 2}),
        ("models:\n  a: {replicas: &n 2, handler: echo}\n  words: {replicas: *n}\n",
         {"replicas": 3}),
        ("models:\n  words: {replicas: &n 2}\n  a: {replicas: *n}\n", {"replicas": 3}),
    ],
)  # fmt: skip
def test_what_is_shared_by_aliases_is_not_edited(text: str, options: dict[str, Any]) -> None:
    assert edited(text, "words", options) is None


def test_a_key_of_a_merge_is_overridden() -> None:
    text = "x: &base\n  replicas: 1\nmodels:\n  words:\n    <<: *base\n    handler: echo\n"
    found = edited(text, "words", {"replicas": 2})
    assert found is not None
    assert yaml.safe_load(found)["models"]["words"] == {"handler": "echo", "replicas": 2}
    assert yaml.safe_load(found)["x"] == {"replicas": 1}


def test_the_models_file_of_this_repository_can_be_edited() -> None:
    text = (ROOT / "configs/models.yaml").read_text()
    found = edited(text, "image_classifier", {"max_batch_size": 4, "replicas": 2})
    assert found is not None
    before, after = text.splitlines(), found.splitlines()
    assert [line for line in before if line not in after] == ["    max_batch_size: 16"]
    assert [line for line in after if line not in before] == [
        "    replicas: 2",
        "    max_batch_size: 4",
    ]


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch")
def test_the_patch_applies(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(FILE)
    text = patch(path, "words", {"max_batch_size": 16, "replicas": 2})
    (tmp_path / "models.patch").write_text(text)
    subprocess.run(["patch", str(path), str(tmp_path / "models.patch")], check=True)
    assert path.read_text() == edited(FILE, "words", {"max_batch_size": 16, "replicas": 2})


def test_a_file_that_cannot_be_edited_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("x: &base {handler: echo}\nmodels:\n  words: *base\n")
    with pytest.raises(ConfigError, match="cannot be edited in place"):
        patch(path, "words", {"replicas": 2})


def test_the_snippet_is_a_models_file() -> None:
    options = {"max_batch_size": 16, "optimize": {"backend": "openvino", "precision": "int8"}}
    assert yaml.safe_load(snippet("words", options)) == {"models": {"words": options}}
