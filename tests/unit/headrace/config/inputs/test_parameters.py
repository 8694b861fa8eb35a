"""Parameters of models: as the models file declares them, and the values of jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from headrace.config.inputs.parameters import (
    RESERVED_NAMES,
    Parameter,
    check_parameters,
    example_values,
    with_defaults,
)
from headrace.config.model.catalog import Catalog, load_catalog
from headrace.errors import ConfigError, InvalidRequest

DECLARED = {
    "question": Parameter(type="string", required=True),
    "language": Parameter(type="string", enum=["en", "de"], default="en"),
    "top_k": Parameter(type="integer", minimum=1, maximum=10),
    "threshold": Parameter(type="number", minimum=0, default=0.5),
    "exact": Parameter(type="boolean"),
}


def loaded(path: Path, parameters: Any, **model: Any) -> Catalog:
    file = path / "models.yaml"
    model = {"handler": "echo", "parameters": parameters, **model}
    file.write_text(yaml.safe_dump({"models": {"m": model}}))
    return load_catalog(file)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        (["a"], "models.m.parameters: expected mapping, got ['a']"),
        ({"a b": {"type": "string"}}, "a parameter's name has 1 to 64"),
        ({"wait": {"type": "string"}}, "this name has another meaning in a submit"),
        ({"a": None}, "models.m.parameters.a: expected a mapping"),
        ({"a": {}}, "models.m.parameters.a: the key `type` is missing"),
        (
            {"a": {"type": "text"}},
            "a.type: expected boolean, integer, number or string, got 'text'",
        ),
        ({"a": {"type": "string", "defualt": "x"}}, "unknown key; did you mean default?"),
        ({"a": {"type": "string", "minimum": 1}}, "only a number or an integer has one"),
        ({"a": {"type": "number", "minimum": 2, "maximum": 1}}, "it is greater than the maximum"),
        ({"a": {"type": "integer", "default": "3"}}, "a.default: expected an integer, got '3'"),
        ({"a": {"type": "integer", "default": 2.5}}, "a.default: expected an integer, got 2.5"),
        ({"a": {"type": "integer", "default": True}}, "a.default: expected an integer, got True"),
        ({"a": {"type": "boolean", "default": 1}}, "a.default: expected a boolean, got 1"),
        ({"a": {"type": "integer", "maximum": 3, "default": 4}}, "an integer of at most 3, got 4"),
        ({"a": {"type": "string", "enum": [True]}}, "a.enum: expected a string, got True"),
        ({"a": {"type": "string", "enum": ["x"], "default": "y"}}, "expected one of x, got 'y'"),
        ({"a": {"type": "string", "default": "x", "required": True}}, "required parameter has non"),
        ({f"p{n}": {"type": "string"} for n in range(65)}, "has at most 64 parameters"),
    ],
)
def test_mistakes_in_a_declaration(tmp_path: Path, parameters: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, parameters)
    assert says in caught.value.message


@pytest.mark.parametrize("name", ["authorization", "cookie", "x-api-key", "te"])
def test_a_header_that_no_handler_gets(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"no handler gets {name}"):
        loaded(tmp_path, {}, headers=["x-tenant", name])


def test_no_parameter_has_the_name_of_an_option() -> None:
    assert {"priority", "timeout", "metadata", "wait", "data"} <= RESERVED_NAMES


def test_what_is_declared_is_what_the_servers_use(tmp_path: Path) -> None:
    written = msgspec.to_builtins(DECLARED)
    model = loaded(tmp_path, written, headers=["x-tenant"]).models["m"]
    assert model.parameters == DECLARED
    assert model.headers == ["x-tenant"]
    assert model.init_frame(Path(), "cpu")["example_parameters"] == {
        "question": "", "language": "en", "top_k": None, "threshold": 0.5, "exact": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "becomes"),
    [
        ("question", "7", "7"),
        ("top_k", "7", 7),
        ("top_k", 7.0, 7),
        ("top_k", "8.0", 8),
        ("threshold", "1e-3", 0.001),
        ("threshold", 1, 1),
        ("exact", "TRUE", True),
        ("exact", "0", False),
        ("exact", False, False),
    ],
)
def test_a_value_has_the_declared_type(name: str, value: Any, becomes: Any) -> None:
    found = check_parameters(DECLARED, {"question": "q", name: value}, "m")[name]
    assert found == becomes
    assert type(found) is type(becomes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("question", 7),
        ("question", ["q"]),
        ("language", "fr"),
        ("top_k", 0),
        ("top_k", "11"),
        ("top_k", "1_0"),
        ("top_k", " "),
        ("top_k", ""),
        ("top_k", True),
        ("top_k", 1.5),
        ("top_k", 10**20),
        ("threshold", "nan"),
        ("threshold", "Infinity"),
        ("threshold", float("inf")),
        ("threshold", -0.1),
        ("threshold", 10**400),
        ("exact", 1),
        ("exact", "on"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_expected(name: str, value: Any) -> None:
    expected = DECLARED[name].expected
    with pytest.raises(InvalidRequest) as caught:
        check_parameters(DECLARED, {"question": "q", name: value}, "m")
    assert caught.value.message.startswith(f"parameter {name}: expected {expected}, got ")


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_parameters(DECLARED, {"topk": 1, "exact": 3}, "m")
    assert caught.value.message == (
        "unknown parameter 'topk'; did you mean top_k?; parameter exact: expected a boolean, "
        "got 3; parameter question is missing: expected a string"
    )
    assert caught.value.hint == (
        "Model m takes: question (a string); language (one of en, de); top_k (an integer from 1 to "
        "10); threshold (a number of at least 0); exact (a boolean)."
    )


def test_null_is_not_set() -> None:
    given = check_parameters(DECLARED, {"question": "q", "threshold": None}, "m")
    assert given == {"question": "q"}
    assert with_defaults(DECLARED, given) == {
        "question": "q", "language": "en", "top_k": None, "threshold": 0.5, "exact": None,
    }  # fmt: skip
    with pytest.raises(InvalidRequest, match="question is missing"):
        check_parameters(DECLARED, {"question": None}, "m")


def test_an_example_is_a_value_that_is_valid() -> None:
    declared = {
        name: msgspec.structs.replace(one, default=None, required=True)
        for name, one in DECLARED.items()
    }
    examples = example_values(declared)
    assert examples == {
        "question": "", "language": "en", "top_k": 1, "threshold": 0, "exact": False,
    }  # fmt: skip
    assert check_parameters(declared, examples, "m") == examples


def test_a_pipeline_takes_the_parameters_of_its_models(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    second: dict[str, Any] = {"top_k": {"type": "integer", "default": 3, "required": False}}
    models = {
        "a": {"handler": "echo", "parameters": {"top_k": {"type": "integer", "required": True}},
              "headers": ["x-a"]},
        "b": {"handler": "echo", "parameters": second, "headers": ["x-a", "x-b"]},
    }  # fmt: skip
    text = {"models": models, "pipelines": {"p": {"stages": {"a": None, "b": None}}}}
    file.write_text(yaml.safe_dump(text))
    pipeline = load_catalog(file).get("p")
    assert pipeline.parameters == {"top_k": Parameter(type="integer", required=True)}
    assert pipeline.headers == ["x-a", "x-b"]
    second["top_k"]["maximum"] = 3
    file.write_text(yaml.safe_dump(text))
    with pytest.raises(ConfigError, match=r"pipelines\.p\.stages: its models declare the par"):
        load_catalog(file)
