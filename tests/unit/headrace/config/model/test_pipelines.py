"""Pipelines as they are declared, in the models file and from Python; and paths into JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Pipeline
from headrace.config.inputs.json_path import find, parse_path, path_text
from headrace.config.model.catalog import Catalog, load_catalog
from headrace.errors import ConfigError, InvalidRequest, ModelNotFound

MODELS = {"detect": {"handler": "echo"}, "digits": {"handler": "echo"}}


def catalog(folder: Path, pipelines: Any) -> Catalog:
    path = folder / "models.yaml"
    path.write_text(yaml.safe_dump({"models": MODELS, "pipelines": pipelines}, sort_keys=False))
    return load_catalog(path)


def test_what_is_left_out_is_filled_in(tmp_path: Path) -> None:
    written = {
        "faces": {"stages": {"detect": None, "classify": {"model": "digits", "each": "a[*]"}}}
    }
    found = catalog(tmp_path, written)
    pipeline = found.pipelines["faces"]
    detect, classify = pipeline.stages
    assert (detect.model, detect.sources, detect.spread) == ("detect", ("input",), False)
    assert (classify.sources, classify.path, classify.spread) == (("detect",), ("a", None), True)
    assert (pipeline.result, pipeline.joined) == (("classify",), False)
    assert pipeline.models == ["detect", "digits"]
    # From outside it is a model; a worker serves it not.
    assert found.get("faces").queue == "headrace.faces"
    assert [model.name for model in found.served] == ["detect", "digits", "faces"]
    assert set(found.models) == set(MODELS)
    with pytest.raises(ModelNotFound, match="did you mean faces"):
        found.get("facs")


def test_stages_run_behind_what_they_take_from(tmp_path: Path) -> None:
    stages = {
        "last": {"model": "digits", "from": ["second", "detect"]},
        "second": {"model": "digits", "from": "detect"},
        "detect": {"from": "input"},
    }
    pipeline = catalog(tmp_path, {"p": {"stages": stages}}).pipelines["p"]
    assert [stage.name for stage in pipeline.stages] == ["detect", "second", "last"]
    assert pipeline.stages[-1].joined


def test_leaves_are_the_result(tmp_path: Path) -> None:
    stages = {"detect": {}, "a": {"model": "digits"}, "b": {"model": "digits", "from": "detect"}}
    pipeline = catalog(tmp_path, {"p": {"stages": stages}}).pipelines["p"]
    assert (pipeline.result, pipeline.joined) == (("a", "b"), True)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (
            {"stages": {"detect": {"form": "input"}}},
            "p.stages.detect.form: unknown key; did you mean",
        ),
        (
            {"stages": {"detect": {}}, "timeout": 1},
            "p.timeout: unknown key; did you mean timeout_s",
        ),
        ({"stages": {"detct": {}}}, "p.stages.detct: no model 'detct' is registered; did you mean"),
        ({"stages": {"x": {"model": "digts"}}}, "p.stages.x.model: no model 'digts' is registered"),
        ({"stages": {"detect": {"from": "y"}}}, "p.stages.detect.from: there is no stage 'y'"),
        ({"stages": {"detect": {"from": "detect"}}}, "form a cycle: detect -> detect"),
        (
            {"stages": {"detect": {"from": "b"}, "b": {"model": "digits", "from": "detect"}}},
            "form a cycle",
        ),
        ({"stages": {"detect": {"each": "a", "select": "a"}}}, "exclude each other"),
        ({"stages": {"detect": {"each": "a"}}}, "each: each needs a list"),
        ({"stages": {"detect": {"select": "a[*]"}}}, "select: [*] matches several"),
        ({"stages": {"detect": {"select": "a b"}}}, "select: 'a b' is not a path; write names"),
        ({"stages": {"x": {"model": "p"}}}, "p.stages.x.model: p is a pipeline; a stage needs"),
        ({"stages": {"detect": {"from": ["input", "input"]}}}, "a name is given twice"),
        ({"stages": {"input": {"model": "detect"}}}, "input is the name of the pipeline's input"),
        ({"stages": {"1 x": {"model": "detect"}}}, "a stage's name has"),
        ({"stages": {}}, "at least one stage"),
        ({}, "p.stages: expected a mapping of at least one stage, the key is missing"),
        (7, "expected a mapping with the key `stages`"),
        ({"stages": {"detect": 3}}, "p.stages.detect: expected a mapping"),
        ({"stages": {"detect": {}}, "result": "x"}, "p.result: there is no stage 'x'"),
        (
            {"stages": {"detect": {}, "b": {"model": "digits", "from": "input"}}, "result": "b"},
            "p.stages.detect: its result is unused",
        ),
        ({"stages": {"detect": {}}, "max_items": 0}, "p.max_items: expected int >= 1"),
        ({"stages": {f"s{n}": {"model": "digits"} for n in range(65)}}, "at most 64 stages"),
    ],
)
def test_mistakes_name_their_file_line_and_key(tmp_path: Path, written: Any, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        catalog(tmp_path, {"p": written})
    assert problem in caught.value.message
    assert caught.value.message.startswith(f"{tmp_path / 'models.yaml'}:")
    assert "pipelines.p" in caught.value.message


@pytest.mark.parametrize(
    ("pipelines", "problem"),
    [
        ({"detect": {"stages": {"detect": {}}}}, "pipelines.detect: a model has this name"),
        ({"a b": {"stages": {"detect": {}}}}, "a pipeline's name has 1 to 64"),
        ({}, "expected a mapping of at least one pipeline"),
        ([1], "expected a mapping of at least one pipeline"),
    ],
)
def test_names_of_pipelines(tmp_path: Path, pipelines: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        catalog(tmp_path, pipelines)


def test_from_python_it_is_the_same(tmp_path: Path) -> None:
    built = (
        Pipeline("faces", timeout_s=30)
        .then("detect")
        .each("classify", "crops[*]", model="digits")
        .then("whole", model="digits", take="input")
        .then("both", model="digits", take=["classify", "whole"], select="whole")
        .gives("classify", "both")
    )
    found = catalog(tmp_path, built.section())
    (tmp_path / "b.yaml").write_text(yaml.safe_dump({"models": MODELS}) + built.yaml())
    assert load_catalog(tmp_path / "b.yaml").pipelines == found.pipelines
    assert found.pipelines["faces"].timeout_s == 30


@pytest.mark.parametrize(
    ("built", "problem"),
    [
        (lambda: Pipeline("p").then("a", take="b").section(), "p.stages.a.from: there is no stage"),
        (lambda: Pipeline("p").then("a").then("a"), "p: there is already a stage a"),
        (lambda: Pipeline("p").section(), "p: "),
        (lambda: Pipeline("p", timeout=3).then("a").section(), "p: Object contains unknown field"),
    ],
)
def test_mistakes_in_python(built: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        built()


TEXT = (
    b' {"a" : [1, "x]\\"", {"b": null , "a": [ ] } , -2.5e3], "c d":{"a":true}, "a2": "\\u00e9"} '
)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("a[0]", [b"1"]),
        ("a[*]", [b"1", b'"x]\\""', b'{"b": null , "a": [ ] }', b"-2.5e3"]),
        ("a[2].b", [b"null"]),
        ("a[2].a[*]", []),
        ('["c d"].a', [b"true"]),
        ("a2", [b'"\\u00e9"']),
    ],
)
def test_a_path_finds_the_text(path: str, found: list[bytes]) -> None:
    assert [TEXT[start:end] for start, end in find(TEXT, parse_path(path))] == found


@pytest.mark.parametrize("path", ["b", "a[9]", "a.b", "a[*].b", "a2[0]", '["c d"][0]'])
def test_a_path_that_leads_nowhere(path: str) -> None:
    with pytest.raises(InvalidRequest, match="there is no"):
        find(TEXT, parse_path(path))


@pytest.mark.parametrize("text", [b"", b"{", b"[1,]", b"\xff", b"nul"])
def test_what_is_no_json(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not JSON"):
        find(text, parse_path("[*]"))


@pytest.mark.parametrize("path", ["", ".a", "a.", "a[", "a[-1]", "a[b]", "1a", "a b", "a..b"])
def test_what_is_no_path(path: str) -> None:
    with pytest.raises(ValueError, match="is not a path"):
        parse_path(path)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=50)
@given(st.lists(JSON), st.integers(0, 3), st.booleans())
def test_each_element_is_found_whatever_it_is(values: list[Any], indent: int, plain: bool) -> None:
    text = json.dumps({"x": values}, indent=indent or None, ensure_ascii=plain).encode(
        errors="surrogatepass"
    )
    try:
        text.decode()
    except UnicodeDecodeError:
        return
    spans = find(text, parse_path("x[*]"))
    assert [json.loads(text[start:end]) for start, end in spans] == values


def test_the_text_of_a_path() -> None:
    assert path_text(parse_path("a.b[0][*].c")) == "a.b[0][*].c"
