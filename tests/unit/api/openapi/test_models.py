"""The description of a server whose models declare their inputs and outputs."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from openapi_spec_validator import validate
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from api.openapi import document
from headrace.config.inputs.input_schema import InputSection
from headrace.config.model.catalog import ModelConfig, load_catalog

MODELS = """
models:
  free: {handler: echo}
  search:
    handler: echo
    version: "2.1"
    inputs:
      fields: {text: string, rows: [{x: number}]}
      example: {text: a, rows: [{x: 1}]}
    outputs: {fields: {n: integer}, example: {n: 3}}
  tree.v-2:
    handler: echo
    inputs:
      schema:
        $ref: "#/$defs/node"
        $defs:
          node:
            type: object
            properties: {"$ref": {type: string}, next: {$ref: "#/$defs/node"}}
    outputs: {schema: {type: array, items: {$ref: "#"}}}
  picture:
    handler: echo
    inputs: {content_types: [image/png, image/*]}
    outputs: {content_types: [image/png]}
  small:
    handler: echo
    inputs:
      content_types: [image/png]
      example: {content_type: image/png, base64: aGk=}
  asked:
    handler: echo
    inputs: {fields: {question: string, image: bytes, mask: "bytes?", top: "integer?"}}
    parameters: {threshold: {type: number, default: 0.5}}
  lone:
    handler: echo
    inputs: {fields: {image: bytes, question: "string?"}}
  old:
    handler: echo
    inputs: {schema: {$schema: "http://json-schema.org/draft-07/schema#", type: integer}}
"""


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path: Path = tmp_path_factory.mktemp("models") / "models.yaml"
    path.write_text(textwrap.dedent(MODELS))
    return document("1.2.3", load_catalog(path).served)


def operation(described: dict[str, Any], model: str) -> dict[str, Any]:
    found: dict[str, Any] = described["paths"][f"/api/v1/models/{model}/jobs"]["post"]
    return found


def test_it_is_openapi(described: dict[str, Any]) -> None:
    validate(described)


def test_the_recorded_description_has_no_models(described: dict[str, Any]) -> None:
    plain = document("1.2.3")
    assert plain == document("1.2.3", [])
    assert plain["paths"].items() < described["paths"].items()
    assert next(iter(described["paths"])) == "/api/v1/models/search/jobs"
    assert "/api/v1/models/free/jobs" not in described["paths"]


def test_names_are_unique(described: dict[str, Any]) -> None:
    ids = [
        one["operationId"]
        for path in described["paths"].values()
        for method, one in path.items()
        if method != "parameters"
    ]
    assert len(set(ids)) == len(ids)


def test_examples_and_schemas(described: dict[str, Any]) -> None:
    search = operation(described, "search")
    body = search["requestBody"]["content"]["application/json"]
    assert body["example"] == {"text": "a", "rows": [{"x": 1}]}
    ended = search["responses"]["200"]["content"]["application/json"]
    example = ended["example"]
    assert (example["model"], example["version"], example["result"]) == ("search", "2.1", {"n": 3})
    registry: Registry[Any] = Registry().with_resource(
        "urn:api", Resource.from_contents(described, default_specification=DRAFT202012)
    )
    for schema, value, fits in (
        (body["schema"], body["example"], True),
        (body["schema"], {"text": 1, "rows": []}, False),
        (ended["schema"]["allOf"][1], example, True),
        (ended["schema"]["allOf"][1], {"result": {"n": "x"}}, False),
        (
            operation(described, "tree.v-2")["requestBody"]["content"]["application/json"][
                "schema"
            ],
            {"next": {"next": {"$ref": "text"}}},
            True,
        ),
        (
            operation(described, "tree.v-2")["requestBody"]["content"]["application/json"][
                "schema"
            ],
            {"next": {"next": {"$ref": 1}}},
            False,
        ),
        ({"$ref": "#/components/schemas/tree.v-2.output"}, [[[]]], True),
        ({"$ref": "#/components/schemas/tree.v-2.output"}, [[7]], False),
    ):
        absolute = _absolute(schema)
        assert Draft202012Validator(absolute, registry=registry).is_valid(value) is fits


def _absolute(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: f"urn:api{v}" if k == "$ref" else _absolute(v) for k, v in schema.items()}
    return schema


def test_data_of_a_schema_stays_as_it_is() -> None:
    data = {"$ref": "#/left/alone"}
    schema = {"enum": [data], "properties": {"a": {"default": data, "$ref": "#/x"}}}
    inputs = InputSection(schema=schema)
    found = document("1", [ModelConfig(name="m", handler="echo", inputs=inputs)])
    moved = {"default": data, "$ref": "#/components/schemas/m.input/x"}
    assert found["components"]["schemas"]["m.input"] == {"enum": [data], "properties": {"a": moved}}


def test_a_form_of_files_and_texts(described: dict[str, Any]) -> None:
    content = operation(described, "asked")["requestBody"]["content"]
    assert list(content) == ["application/json", "multipart/form-data"]
    shape = content["multipart/form-data"]["schema"]
    kinds = {name: field.get("format", "text") for name, field in shape["properties"].items()}
    assert kinds == {"image": "binary", "mask": "binary", "question": "text"}
    assert shape["required"] == ["question", "image"]
    # The page sends a default with each place that has the parameter, and twice is refused.
    query = operation(described, "asked")["parameters"]
    assert [one["name"] for one in query] == ["wait", "threshold"]
    # A form of one part is that part alone.
    for model in ("lone", "search", "old"):
        assert list(operation(described, model)["requestBody"]["content"]) == ["application/json"]


def test_bytes(described: dict[str, Any]) -> None:
    def content(model: str) -> dict[str, Any]:
        found: dict[str, Any] = operation(described, model)["requestBody"]["content"]
        return found

    # A browser would send `image/*` as it is.
    assert list(content("picture")) == ["image/png"]
    # The page offers the first: the example can be sent at once.
    assert list(content("small")) == ["application/json", "image/png"]
    assert content("small")["application/json"]["example"]["base64"] == "aGk="
    ended = operation(described, "small")["responses"]["200"]["content"]["application/json"]
    assert "result" not in ended["example"]
