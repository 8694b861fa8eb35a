"""What schemas are made of."""

from __future__ import annotations

from typing import Any, Final

Schema = dict[str, Any]

MODEL_NAME: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"
QUEUE_NAME: Final = r"^headrace\.[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"

STRING: Final = {"type": "string"}
TIME: Final = {"type": "string", "format": "date-time"}
COUNT: Final = {"type": "integer", "minimum": 0}
MODEL: Final = {"type": "string", "pattern": MODEL_NAME}


def ref(name: str) -> Schema:
    """A reference to a component's schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def nullable(schema: Schema) -> Schema:
    """The schema, or null."""
    return {**schema, "type": [schema["type"], "null"]}


def array(items: Schema) -> Schema:
    """A list of such items."""
    return {"type": "array", "items": items}


def object_of(
    properties: dict[str, Schema], *, optional: tuple[str, ...] = (), **members: Any
) -> Schema:
    """An object whose properties are all there, other than the optional ones."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "required": required, "properties": properties, **members}
