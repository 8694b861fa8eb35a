"""The paths of models that declare inputs, outputs or parameters, with schemas and examples.

They are in the description that a server gives, and not in the recorded one. Each is the path of
`submit_input` with the model's own name in it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import quote

from msgspec import UNSET

from api.http.bodies import MULTIPART_TYPE
from api.openapi.schemas import ref
from api.routes.media import BINARY, QUEUED_JOB, STRING, SUCCEEDED_JOB, Schema
from headrace.config.inputs.input_schema import TYPES, InputSection
from headrace.config.model.catalog import ModelConfig
from headrace.jobs.values.media_types import JSON_TYPE

TAG: Final = {
    "name": "models of this server",
    "description": "Models that declare `inputs`, `outputs`, `parameters` or `headers` in the "
    "models file.",
}
#: The path that is shown once for each model.
PATH: Final = "/api/v1/models/{model}/jobs"
#: Below these, a `$ref` is data of a schema's author and no reference.
_DATA: Final = frozenset({"const", "enum", "default", "example", "examples"})


def add_models(
    document: dict[str, Any], models: Iterable[ModelConfig], operation: Callable[[str], Schema]
) -> dict[str, Any]:
    """Return a description with a path for each model that declares something about its jobs.

    `operation` describes a submit of an input to a path.
    """
    declared = [
        model
        for model in models
        if model.inputs or model.outputs or model.parameters or model.headers
    ]
    if not declared:
        return document
    paths, schemas = {}, {}
    for model in declared:
        schemas.update(_schemas(model))
        path = PATH.replace("{model}", quote(model.name))
        paths[path] = {"post": _submit(model, operation(PATH))}
    components = document["components"]
    return {
        **document,
        "tags": [TAG, *document["tags"]],
        "paths": {**paths, **document["paths"]},
        "components": {**components, "schemas": {**components["schemas"], **schemas}},
    }


def _submit(model: ModelConfig, operation: Schema) -> Schema:
    found = copy.deepcopy(operation)
    found["operationId"] = f"submit_to.{model.name}"
    found["summary"] = f"Submit a job for {model.name}"
    found["description"] = (
        f"Version {model.version}. The body is the input. It takes the parameters of `{PATH}` too."
    )
    found["parameters"] = [one for one in found["parameters"] if one["name"] == "wait"]
    found["parameters"] += _parameters(model)
    found["tags"] = [TAG["name"]]
    if model.inputs is not None:
        found["requestBody"] = {"required": True, "content": _content(model, model.inputs)}
    answers = found["responses"]
    own = {"model": model.name, "version": model.version, "metadata": None}
    answers["202"]["content"][JSON_TYPE]["example"] = {**QUEUED_JOB, **own}
    ended = answers["200"]["content"][JSON_TYPE]
    ended["example"] = {**SUCCEEDED_JOB, **own}
    del ended["example"]["result"]
    if (outputs := model.outputs) is not None:
        result = {} if outputs.json_schema is None else ref(_name(model, "output"))
        ended["schema"] = {"allOf": [ended["schema"], {"properties": {"result": result}}]}
        if outputs.example is not UNSET:
            ended["example"]["result"] = outputs.example
    return found


def _parameters(model: ModelConfig) -> list[Schema]:
    """Return the parameters of a model in the query, and the headers that it reads.

    The page would send a parameter that is in a form too twice, with its default.
    """
    query = []
    for name, one in model.parameters.items():
        needed = "Required, here or in a form." if one.required else ""
        text = ". ".join(filter(None, (one.description.rstrip("."), needed)))
        found = {"name": name, "in": "query", "schema": one.schema}
        query.append({**found, "description": text} if text else found)
    headers = [
        {"name": name, "in": "header", "schema": STRING, "description": "The handler reads it."}
        for name in model.headers
    ]
    return query + headers


def _content(model: ModelConfig, inputs: InputSection) -> dict[str, Schema]:
    """Return the media types of a request; the page offers the first, so the example is first."""
    json: dict[str, Schema] = {}
    example = {} if inputs.example is UNSET else {"example": inputs.example}
    kinds = [kind for kind in inputs.content_types or () if kind != JSON_TYPE]
    if inputs.json_schema is not None:
        json = {JSON_TYPE: {"schema": ref(_name(model, "input")), **example}}
    elif example:
        json = {JSON_TYPE: {"schema": TYPES["bytes"] if kinds else {}, **example}}
    elif len(kinds) < len(inputs.content_types or ()):
        json = {JSON_TYPE: {"schema": {}}}
    # A browser would send `image/*` as it is.
    named = [kind for kind in kinds if not kind.endswith("/*")] or kinds
    content = {**json, **{kind: {"schema": BINARY} for kind in named}}
    return {**content, **_form(inputs.json_schema or {})}


def _form(schema: Schema) -> dict[str, Schema]:
    """Return the form whose files and texts make such an object; none for other schemas."""
    fields = schema.get("properties", {})
    files = [name for name, field in fields.items() if _is_bytes(field)]
    needed = schema.get("required", ())
    texts = [name for name, field in fields.items() if _is_text(field)]
    # A form of one part is that part alone.
    if not files or len(needed) < 2 or not {*files, *texts}.issuperset(needed):
        return {}
    properties = {name: BINARY if name in files else STRING for name in (*files, *texts)}
    shape = {"type": "object", "properties": properties, "required": list(needed)}
    return {MULTIPART_TYPE: {"schema": shape}}


def _is_bytes(field: Any) -> bool:
    return isinstance(field, dict) and field.get("properties") == TYPES["bytes"]["properties"]


def _is_text(field: Any) -> bool:
    kinds = field.get("type", ()) if isinstance(field, dict) else ()
    return "string" in ([kinds] if isinstance(kinds, str) else kinds)


def _schemas(model: ModelConfig) -> dict[str, Schema]:
    found = {}
    for section, what in ((model.inputs, "input"), (model.outputs, "output")):
        if section is not None and section.json_schema is not None:
            name = _name(model, what)
            found[name] = _moved(section.json_schema, name)
    return found


def _name(model: ModelConfig, what: str) -> str:
    # No type has a dot in its name.
    return f"{model.name}.{what}"


def _moved(schema: Schema, name: str) -> Schema:
    """Return a schema whose references to itself begin at its place in the description."""
    if "$id" in schema:
        return schema

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(one) for one in value]
        if not isinstance(value, dict):
            return value
        found = {key: one if key in _DATA else moved(one) for key, one in value.items()}
        target = found.get("$ref")
        if isinstance(target, str) and (target == "#" or target.startswith("#/")):
            found["$ref"] = f"{ref(name)['$ref']}{target[1:]}"
        return found

    result: Schema = moved(schema)
    return result
