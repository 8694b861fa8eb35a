"""The building blocks of the description: schemas, parameters, answers, operations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

Schema = dict[str, Any]

JSON: Final = "application/json"
MODEL_NAME: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"
JOB_ID: Final = r"^[A-Za-z0-9_.:@-]{1,128}$"

STRING: Final = {"type": "string"}
BOOLEAN: Final = {"type": "boolean"}
BINARY: Final = {"type": "string", "format": "binary"}
TIME: Final = {"type": "string", "format": "date-time"}
COUNT: Final = {"type": "integer", "minimum": 0}
AMOUNT: Final = {"type": "number", "minimum": 0}
MODEL: Final = {"type": "string", "pattern": MODEL_NAME}

#: The pattern of each parameter of a path, and an example that exists on every server.
_PATH_PARAMETERS: Final[dict[str, tuple[str, str]]] = {
    "model": (MODEL_NAME, "echo"),
    "job_id": (JOB_ID, ""),
    "run_id": (JOB_ID, ""),
    "name": (r"^[^\s/]{1,255}$", ""),
    "queue": (r"^headrace\.[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$", "headrace.echo"),
    "code": (r"^[a-z-]{1,64}$", "queue-full"),
    "file_id": (r"^[^\s/]{1,64}$", ""),
    "batch_id": (r"^[^\s/]{1,64}$", ""),
}


def ref(name: str) -> Schema:
    """Return a reference to a component's schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def nullable(schema: Schema) -> Schema:
    """Return the schema that allows null too."""
    return {**schema, "type": [schema["type"], "null"]}


def array(items: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def described(schema: Schema, description: str) -> Schema:
    """Return the schema with a description."""
    return {**schema, "description": description}


def object_of(
    properties: dict[str, Schema], *, optional: tuple[str, ...] = (), **members: Any
) -> Schema:
    """Return the schema of an object; every property but the optional ones is required."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "required": required, "properties": properties, **members}


def properties_of(struct: type[msgspec.Struct], texts: Mapping[str, str]) -> dict[str, Schema]:
    """Return the properties of a struct as msgspec decodes them.

    Args:
        struct: the struct.
        texts: the descriptions, by the name of the property.
    """
    _, components = msgspec.json.schema_components([struct])
    found = {}
    for name, schema in components[struct.__name__]["properties"].items():
        kinds = schema.get("anyOf", [schema])
        found[name] = next(kind for kind in kinds if kind.get("type") != "null")
        if len(kinds) > 1:
            found[name] = nullable(found[name])
        if name in texts:
            found[name] = described(found[name], texts[name])
    return found


def parameter(
    name: str, schema: Schema, description: str = "", *, where: str = "query", **members: Any
) -> dict[str, Any]:
    """Return a parameter of the query or, by `where`, of the headers."""
    found = {"name": name, "in": where, "schema": schema}
    return {**found, **({"description": description} if description else {}), **members}


def path_parameters(path: str) -> list[dict[str, Any]]:
    """Return the parameters of a path's template."""
    return [_path_parameter(name, path) for name in re.findall(r"\{(\w+)\}", path)]


def _path_parameter(name: str, path: str) -> dict[str, Any]:
    pattern, example = _PATH_PARAMETERS["queue" if path.startswith("/api/v1/queues") else name]
    schema = {"type": "string", "pattern": pattern}
    found = {"name": name, "in": "path", "required": True, "schema": schema}
    return {**found, "example": example} if example else found


def answer(
    description: str,
    schema: Schema,
    *,
    headers: dict[str, Any] | None = None,
    example: Any = None,
    **members: Any,
) -> dict[str, Any]:
    """Return a JSON answer; without an example that of its schema applies."""
    media = {"schema": schema} if example is None else {"schema": schema, "example": example}
    found = {"description": description, "content": {JSON: media}, **members}
    return {**found, "headers": headers} if headers else found


def ok(description: str, component: str, status: str = "200") -> dict[str, Any]:
    """Return the only successful answer of an operation, by the name of its schema."""
    return {status: answer(description, ref(component))}


def json_body(component: str, *, required: bool = True) -> dict[str, Any]:
    """Return a JSON body, by the name of its schema."""
    return {"required": required, "content": {JSON: {"schema": ref(component)}}}


class Description(NamedTuple):
    """What the description adds to an operation of the table.

    Attributes:
        summary: its effect, in a few words.
        answers: its answers by status, without problems.
        problems: the codes of its problems, besides those that every such operation has.
        parameters: its parameters, besides those of its path.
        body: its requestBody.
    """

    summary: str
    answers: dict[str, Any]
    problems: Sequence[str] = ()
    parameters: Sequence[dict[str, Any]] = ()
    body: dict[str, Any] | None = None


#: The descriptions of some operations, by operationId.
Descriptions = dict[str, Description]
