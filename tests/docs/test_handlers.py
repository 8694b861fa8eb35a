"""docs/handlers.md is held to the code: its examples run, its tables are complete."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from PIL import Image

from handlers.common.explanations import EXPLAIN, TARGET
from handlers.common.images import FORMATS, ImageOptions
from handlers.common.modules import CroppedImageOptions
from handlers.image_classifier import ClassifierOptions
from handlers.loader import VERBS, load_handler
from handlers.object_detector import DetectorOptions
from handlers.tensor_model import TensorOptions
from handlers.text_classifier import TextOptions
from headrace.config.inputs.parameters import Parameter
from headrace.config.model.catalog import load_catalog
from headrace.config.model.handler_reference import BUILTIN_HANDLERS
from headrace.errors import BY_CODE
from headrace.handler import Context
from tests.harness.pictures import encoded

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "handlers.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def table_after(heading: str) -> dict[str, list[str]]:
    """The first table after a heading: first cell, without its back quotes, to the others."""
    lines = TEXT.partition(f"{heading}\n")[2].splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("|")) + 2
    rows: dict[str, list[str]] = {}
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        rows[cells[0].strip(" `")] = cells[1:]
    return rows


def test_the_example_is_the_file_and_has_15_lines() -> None:
    example = (ROOT / "examples" / "word_count.py").read_text()
    assert blocks("python")[0] == example
    assert len(example.splitlines()) == 15


def test_the_examples_models_file_loads_it(tmp_path: Path) -> None:
    path = tmp_path / "configs" / "models.yaml"
    path.parent.mkdir()
    path.write_text(blocks("yaml")[0])
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    catalog = load_catalog(path)
    model = catalog.get("word_count")
    loaded = load_handler(model.handler, catalog.base_dir)
    assert isinstance(loaded, type)
    assert loaded.__name__ == "WordCount"


def test_the_example_with_parameters_runs_by_its_section(tmp_path: Path) -> None:
    path = tmp_path / "configs" / "models.yaml"
    path.parent.mkdir()
    path.write_text(blocks("yaml")[1])
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    model = load_catalog(path).get("colours")
    loaded = load_handler(model.handler, path.parent)
    assert isinstance(loaded, type)
    handler = loaded()
    given = [{"top_k": 2, "language": "de"}, {"top_k": 1, "language": "en"}]
    assert given[1].keys() == model.parameters.keys()
    handler.initialize(Context("colours", "1.0", "cpu", model_dir=Path(), parameters=given))
    image = encoded(Image.new("RGB", (9, 9), "yellow"))
    items = handler.preprocess([image, image])
    assert handler.postprocess(handler.inference(items)) == [["gelb"], ["yellow"]]
    assert handler.preprocess([b"none"])[0].message == "send an image"


def test_the_parameters_of_explanations_load(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(blocks("yaml")[-1])
    model = load_catalog(path).get("flowers")
    assert set(model.parameters) == {EXPLAIN, TARGET}
    assert list(model.headers) == [EXPLAIN]


def test_every_key_of_a_parameter_is_there() -> None:
    rows = table_after("## Inputs with parameters")
    named = [name.strip("` ") for row in rows for name in row.split(",")]
    assert sorted(named) == sorted(Parameter.__struct_fields__)


def test_the_test_that_is_shown_passes_and_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    space: dict[str, Any] = {}
    exec(blocks("python")[1], space)
    shown: Callable[[], None] = space["test_words_are_counted"]
    shown()
    monkeypatch.setattr(space["WordCount"], "inference", lambda self, items: items)
    with pytest.raises(AssertionError):
        shown()


def test_the_verbs_are_those_that_loading_asks_for() -> None:
    named = [name.partition("(")[0] for name in table_after("## The four verbs")]
    assert tuple(named) == VERBS


def test_every_attribute_of_the_context_is_there() -> None:
    assert list(table_after("## The context")) == [
        field.name for field in dataclasses.fields(Context) if field.init
    ]


def test_errors_have_the_status_and_retry_of_the_code() -> None:
    errors = {cls.__name__: cls for cls in BY_CODE.values()}
    rows = table_after("## Errors")
    assert len(rows) == 4
    for cell, (_, status, retried) in rows.items():
        cls = errors[re.findall(r"\w+", cell)[0]]
        assert status == str(cls.status)
        assert retried.startswith("up to") == cls.retryable


@pytest.mark.parametrize(
    ("heading", "options"),
    [
        ("### digits", ImageOptions),
        ("### image_classifier", ClassifierOptions),
        ("### image_segmenter", CroppedImageOptions),
        ("### object_detector", DetectorOptions),
        ("### text_classifier", TextOptions),
        ("### tensor_model", TensorOptions),
    ],
)
def test_options_have_their_defaults(heading: str, options: type[msgspec.Struct]) -> None:
    rows = table_after(heading)
    defaults = msgspec.structs.asdict(options())
    assert set(rows) == set(defaults)
    for name, (default, _) in rows.items():
        text = default.strip("`")
        assert (None if text == "none" else yaml.safe_load(text)) == defaults[name]


def test_every_built_in_and_format_is_named() -> None:
    for name in BUILTIN_HANDLERS:
        assert f"### {name}\n" in TEXT
    for kind in FORMATS:
        assert kind.lower() in TEXT.lower()


def test_answers_that_are_shown_are_json() -> None:
    digits, classes = (json.loads(block) for block in blocks("json"))
    assert digits["probabilities"][digits["digit"]] == digits["probability"]
    assert sum(digits["probabilities"]) == pytest.approx(1)
    assert set(classes["classes"][0]) == {"index", "name", "probability"}


def test_links_lead_somewhere() -> None:
    anchors = {
        re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in TEXT.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(#([^)]+)\)", TEXT):
        assert target in anchors
    for target in re.findall(r"\]\(([\w.]+\.md)\)", TEXT):
        assert (ROOT / "docs" / target).is_file()
