"""The schemas of types: those of requests as msgspec reads them, of answers as it writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import inspect

from api.extension import examples
from api.routes.media import Schema

_TEMPLATE: Final = "#/components/schemas/{name}"
#: What the members of a request require of each other, by the name of its type.
CONDITIONS: Final[dict[str, Schema]] = {
    "JobOptions": {"dependentRequired": {"webhook_events": ["webhook"]}},
    "BatchRequest": {
        "anyOf": [{"required": ["input_file_id", "endpoint"]}, {"required": ["rerun_of"]}]
    },
    "Selection": {
        "oneOf": [
            {
                "required": ["ids"],
                "properties": {"ids": {"type": "array"}, "all": {"const": False}},
            },
            {
                "required": ["all"],
                "properties": {"ids": {"type": "null"}, "all": {"const": True}},
            },
        ]
    },
}
#: Either an input, which may be null, or a reference to one, which may have a content type.
_ONE_INPUT: Final = {
    "oneOf": [
        {
            "required": ["input"],
            "properties": {"input_ref": {"type": "null"}, "content_type": {"type": "null"}},
        },
        {
            "required": ["input_ref"],
            "properties": {"input_ref": {"type": "string"}},
            "not": {"required": ["input"]},
        },
    ]
}
CONDITIONS["JobRequest"] = CONDITIONS["NamedJobRequest"] = _ONE_INPUT


def ref(name: str) -> Schema:
    """Return a reference to a component's schema."""
    return {"$ref": _TEMPLATE.format(name=name)}


def first_paragraph(docstring: str) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join(docstring.partition("\n\n")[0].split())


def request_schemas(types: Iterable[type]) -> dict[str, Schema]:
    """Return the components of the types of requests."""
    return {name: _finished(name, schema) for name, schema in _components(types).items()}


def answer_schemas(types: Iterable[type]) -> dict[str, Schema]:
    """Return the components of the types of answers."""
    types = list(types)
    structs = {cls.__name__: cls for cls in _structs(inspect.multi_type_info(types))}
    found = {}
    for name, schema in _components(types).items():
        cls = structs.get(name)
        if cls is not None:
            _describe_as_written(schema, omit_defaults=cls.__struct_config__.omit_defaults)
        found[name] = _finished(name, schema)
    return found


def parameter_schemas(query: type[msgspec.Struct]) -> dict[str, Schema]:
    """Return the schema of each parameter of a query; none of them can be null."""
    found = _components([query])[query.__name__]["properties"]
    return {name: _without_null(schema) for name, schema in found.items()}


def _components(types: Iterable[type]) -> dict[str, Schema]:
    _, components = msgspec.json.schema_components(types, ref_template=_TEMPLATE)
    return components


def _structs(info: Any) -> Iterator[Any]:
    """Return the structs in what msgspec.inspect knows of types."""
    if isinstance(info, (list, tuple)):
        for one in info:
            yield from _structs(one)
    elif isinstance(info, inspect.StructType):
        yield info.cls
        yield from _structs([field.type for field in info.fields])
    else:
        for name in ("type", "types", "item_type", "value_type"):
            yield from _structs(getattr(info, name, ()))


def _describe_as_written(schema: Schema, *, omit_defaults: bool) -> None:
    """Turn the schema of a struct that is read into the schema of the struct that is written.

    A member with a default is always written, or if defaults are omitted never with the default.
    """
    for name, member in schema["properties"].items():
        if "default" not in member:
            continue
        if omit_defaults:
            schema["properties"][name] = _without_null(member)
        else:
            schema["required"].append(name)
        schema["properties"][name].pop("default", None)


def _without_null(schema: Schema) -> Schema:
    schema = _without_null_default(schema)
    own = {name: value for name, value in schema.items() if name != "anyOf"}
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if own and len(kinds) == 1:
        return {**own, **kinds[0], **own}
    return _merged({**schema, "anyOf": kinds}) if kinds else schema


def _without_null_default(schema: Schema) -> Schema:
    """Return a schema without its default, if that is null or a reference has it."""
    if schema.get("default", "") is None or "$ref" in schema:
        return {name: value for name, value in schema.items() if name != "default"}
    return schema


def _finished(name: str, schema: Schema) -> Schema:
    """Return a component with the first paragraph of its description, and its examples."""
    schema.pop("title")
    if "description" in schema:
        schema["description"] = first_paragraph(schema["description"])
    for member, kinds in schema["properties"].items():
        schema["properties"][member] = _merged(_without_null_default(kinds))
    schema |= CONDITIONS.get(name, {})
    return schema | ({"examples": shown} if (shown := examples().get(name)) else {})


def _merged(schema: Schema) -> Schema:
    """Return a schema whose alternatives are one simple type, or it and null, as one."""
    *kinds, last = schema.get("anyOf", [None])
    null = last == {"type": "null"}
    simple = kinds if null else [*kinds, last]
    if len(simple) != 1 or "type" not in (simple[0] or {}):
        return schema
    own = {name: value for name, value in schema.items() if name != "anyOf"}
    merged = {**simple[0], **own}
    return {**merged, "type": [merged["type"], "null"]} if null else merged
