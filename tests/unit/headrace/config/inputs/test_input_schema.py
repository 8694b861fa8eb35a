"""`inputs` and `outputs` in the models file: typed fields, schemas, examples and their mistakes."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from api.submission.job_request import InputChecks
from headrace.cli.main import check_config as command
from headrace.config.model.catalog import Catalog, check_config, load_catalog
from headrace.errors import ConfigError


def written(folder: Path, text: str) -> Path:
    path = folder / "models.yaml"
    path.write_text(textwrap.dedent(text))
    return path


def catalog(folder: Path, inputs: str) -> Catalog:
    """A catalog of one model, `m`, with these inputs."""
    indented = textwrap.indent(textwrap.dedent(inputs), " " * 6)
    path = folder / "models.yaml"
    path.write_text(f"models:\n  m:\n    handler: echo\n    inputs:\n{indented}\n")
    return load_catalog(path)


def schema(folder: Path, inputs: str) -> dict[str, Any]:
    section = catalog(folder, inputs).get("m").inputs
    assert section is not None
    assert section.fields is None
    found = section.json_schema
    assert found is not None
    return found


def problem(folder: Path, inputs: str) -> str:
    """The one mistake, without the file's name."""
    with pytest.raises(ConfigError) as caught:
        catalog(folder, inputs)
    (line,) = caught.value.message.splitlines()
    assert check_config(folder / "models.yaml") == [line]
    return line.partition("models.yaml:")[2]


def test_typed_fields_become_a_schema(tmp_path: Path) -> None:
    found = schema(
        tmp_path,
        """
        fields:
          text: string
          top_k: integer?
          boxes: [number]
          tags: "[string]?"
          image: bytes
          more:
            flag: boolean
            any: any?
            rest: object
        """,
    )
    image = found["properties"].pop("image")
    assert image["required"] == ["content_type", "base64"]
    assert found == {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "top_k": {"type": ["integer", "null"]},
            "boxes": {"type": "array", "items": {"type": "number"}},
            "tags": {"type": ["array", "null"], "items": {"type": "string"}},
            "more": {
                "type": "object",
                "properties": {
                    "flag": {"type": "boolean"},
                    "any": {},
                    "rest": {"type": "object"},
                },
                "required": ["flag", "rest"],
                "additionalProperties": False,
            },
        },
        "required": ["text", "boxes", "image", "more"],
        "additionalProperties": False,
    }


def test_a_list_of_objects(tmp_path: Path) -> None:
    found = schema(tmp_path, "fields: {classes: [{index: integer, name: string}]}")
    assert found["properties"]["classes"]["items"]["required"] == ["index", "name"]


def test_a_schema_is_inline_or_a_file_next_to_the_models_file(tmp_path: Path) -> None:
    assert schema(tmp_path, "schema: {type: array}") == {"type": "array"}
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "in.json").write_text(json.dumps({"type": "integer", "minimum": 3}))
    assert schema(tmp_path, "schema: sub/in.json") == {"type": "integer", "minimum": 3}


def test_tensors_become_a_schema_and_count_rows(tmp_path: Path) -> None:
    found = catalog(
        tmp_path,
        """
        tensors:
          - {name: x, datatype: FP32, shape: [-1, 2]}
          - {name: y, datatype: BYTES, shape: [-1], optional: true}
        """,
    ).get("m")
    assert (found.cost, found.max_batch_cost) == ("rows", found.max_batch_size)
    assert found.inputs is not None
    assert found.inputs.content_types == ["application/vnd.headrace.tensors"]
    row = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    assert found.inputs.json_schema == {
        "type": "object",
        "properties": {
            "x": {"type": "array", "items": row},
            "y": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["x"],
        "additionalProperties": False,
    }
    fixed = catalog(tmp_path, "tensors: [{name: x, datatype: BOOL, shape: [2]}]").get("m")
    assert (fixed.cost, fixed.max_batch_cost) == ("bytes", None)


def test_a_value_of_yaml_becomes_one_of_json(tmp_path: Path) -> None:
    assert schema(tmp_path, "schema: {enum: [2026-01-02, 1]}") == {"enum": ["2026-01-02", 1]}


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (
            "text: string",
            "4: models.m.inputs: it needs fields, schema, tensors or content_types; write",
        ),
        ("example: 1", "4: models.m.inputs: it needs fields, schema, tensors or content_types"),
        ("7", "4: models.m.inputs: expected a mapping"),
        ("feilds: {a: string}", "4: models.m.inputs: it needs fields"),
        (
            "fields: {a: string}\nexampel: 1",
            "6: models.m.inputs.exampel: unknown key; did you mean example?",
        ),
        (
            "fields:\n  a: strng",
            "6: models.m.inputs.fields.a: there is no type 'strng'; did you mean string?",
        ),
        ("fields:\n  a: x", "6: models.m.inputs.fields.a: there is no type 'x'; use one of string"),
        ("fields:\n  a: [string, integer]", "6: models.m.inputs.fields.a: a list has one type"),
        ("fields:\n  a:", "6: models.m.inputs.fields.a: expected a type, such as string"),
        ("fields: {a: {1: string}}", "5: models.m.inputs.fields.a: a field's name must be text"),
        (
            "fields: {a: string}\nschema: {type: object}",
            "6: models.m.inputs.schema: fields and schema exclude each other",
        ),
        (
            "schema:\n  properties:\n    a:\n      type: int",
            "8: models.m.inputs.schema.properties.a.type: int is no type",
        ),
        ("schema: {text: string}", "5: models.m.inputs.schema: it has no keyword of JSON Schema"),
        ("schema: none.json", "5: models.m.inputs.schema: "),
        (
            "schema: {$ref: 'http://127.0.0.1:9/x.json'}",
            "5: models.m.inputs.schema: its $ref is not in the schema; nothing is fetched",
        ),
        (
            "fields: {a: integer}\nexample: {a: x}",
            '6: models.m.inputs.example: it does not fit: /a: the value is not of type "integer"',
        ),
        ("content_types: [png]", "5: models.m.inputs.content_types: "),
        (
            "tensors: [{name: x, datatype: FP32, shape: [1]}]\nfields: {a: string}",
            "5: models.m.inputs.tensors: fields and tensors exclude each other",
        ),
        (
            "tensors: [&x {name: x, datatype: BOOL, shape: [1]}, *x]",
            "5: models.m.inputs.tensors: the name x is given twice",
        ),
        ("tensors: [{name: x, datatype: float, shape: [1]}]", "5: models.m.inputs.tensors"),
        (
            "content_types: [image/png]\nexample: {a: 1}",
            "6: models.m.inputs.example: it does not fit: the value is JSON",
        ),
        ("fields: {a: string}\nenforce: true", "6: models.m.inputs.enforce: unknown key"),
    ],
)
def test_a_mistake_has_its_line_and_its_key(tmp_path: Path, inputs: str, expected: str) -> None:
    assert problem(tmp_path, inputs).startswith(expected)


def test_a_mistake_in_a_file_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"properties": {"a": {"type": "int"}}}')
    found = problem(tmp_path, "schema: in.json")
    assert found.startswith("5: models.m.inputs.schema: in.json: /properties/a/type: int is no")


def test_a_question_mark_in_braces_needs_quotes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="write a text with \\? in quotes"):
        catalog(tmp_path, "fields: {a: integer?}")


def test_outputs_can_be_enforced(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        models:
          m:
            handler: echo
            outputs: {schema: {type: integer}, enforce: true}
          n:
            handler: echo
            outputs: {schema: {type: integer}}
        """,
    )
    found = load_catalog(path)
    frames = {name: found.get(name).init_frame(tmp_path, "cpu") for name in ("m", "n")}
    assert frames["m"]["output_check"] == ({"type": "integer"}, [])
    assert frames["n"]["output_check"] is None


def test_a_pipelines_outputs_only_describe(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        models:
          m: {handler: echo}
        pipelines:
          p:
            stages: {m: {}}
            outputs:
              schema: {type: integer}
              enforce: true
        """,
    )
    (line,) = check_config(path)
    assert ":9: pipelines.p.outputs.enforce: a pipeline's outputs only describe" in line


def test_a_pipeline_has_its_own_inputs_or_those_of_its_first_stage(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        models:
          m:
            handler: echo
            inputs: {fields: {a: integer}}
          free: {handler: echo}
        pipelines:
          own:
            inputs: {fields: {b: integer}}
            stages: {m: {}}
          first:
            stages: {m: {}, free: {}}
          part:
            stages: {m: {select: x}}
          each:
            stages: {m: {each: "x[*]"}}
          joined:
            stages: {m: {from: [input]}}
          later:
            stages: {free: {}, m: {}}
        """,
    )
    found = load_catalog(path)
    fields = {}
    for model in found.served:
        section = model.inputs
        declared = (section.json_schema or {}) if section else {}
        fields[model.name] = list(declared.get("properties", ()))
    assert fields == {
        "m": ["a"], "free": [], "own": ["b"], "first": ["a"], "part": [], "each": [], "joined": [],
        "later": [],
    }  # fmt: skip


def test_without_the_library_the_message_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    # A client without the servers' packages reads the file, and does not check schemas.
    found = catalog(tmp_path, "fields: {a: string}").get("m")
    assert found.inputs is not None
    with pytest.raises(ConfigError, match="jsonschema-rs") as caught:
        InputChecks([found])
    assert "headrace[server]" in caught.value.hint
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="jsonschema-rs"):
        command(tmp_path / "models.yaml")
    # Models without inputs need no library.
    assert load_catalog(written(tmp_path, "models: {m: {handler: echo}}")).get("m").inputs is None
