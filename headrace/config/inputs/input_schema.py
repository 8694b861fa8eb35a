"""The `inputs` and `outputs` of a model or pipeline: typed fields or a JSON Schema, and an example.

The typed fields are translated to a JSON Schema when the file is read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headrace.config.inputs.tensors import TENSORS_TYPE, DeclaredTensors, json_schema
from headrace.config.suggestions import did_you_mean
from headrace.config.values import shown
from headrace.config.yaml_file import Document, Key, KeyProblem, load_yaml, read_fields
from headrace.errors import ConfigError, InvalidRequest
from headrace.jobs.values.value_check import SchemaProblem, ValueCheck, summary

_ContentType = Annotated[
    str, Meta(pattern=r"^[a-z0-9!#$&^_.+-]+/([a-z0-9!#$&^_.+-]+|\*)$", max_length=128)
]

Section = TypeVar("Section", bound="InputSection")
Where = tuple[Key, ...]


class InputSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model takes.

    Attributes:
        fields: the fields of a JSON object, each with its type: string, integer, number, boolean,
            object, bytes or any. `type?` may be left out. `[type]` is a list. A mapping is an
            object with these fields.
        schema: instead of fields: a JSON Schema, or the path of a file with one (JSON or YAML),
            which refers to this file's folder.
        tensors: instead of fields: tensors, which the handler gets and returns as arrays by name.
        content_types: the content types of values that are bytes, such as image/png or image/*.
        example: a value as a client sends or receives it in JSON; the documentation page shows it.
    """

    fields: dict[str, Any] | None = None
    schema: dict[str, Any] | Annotated[str, Meta(min_length=1)] | None = None
    tensors: DeclaredTensors | None = None
    content_types: Annotated[list[_ContentType], Meta(min_length=1, max_length=64)] | None = None
    example: Any | UnsetType = UNSET

    @property
    def json_schema(self) -> dict[str, Any] | None:
        """The schema of JSON values, after `read_keys`; None where no JSON is taken."""
        return self.schema if isinstance(self.schema, dict) else None

    def value_check(self) -> ValueCheck:
        """Return a check of values against this section.

        Raises:
            SchemaProblem: the schema is not valid.
            ConfigError: the library that checks schemas is not installed.
        """
        return ValueCheck(*self.check_frame())

    def check_frame(self) -> tuple[dict[str, Any] | None, list[str]]:
        """Return the arguments of `ValueCheck`, for another process."""
        return self.json_schema, self.content_types or []


class OutputSection(InputSection, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model returns.

    Attributes:
        enforce: whether a job fails whose result does not fit; false: the section only describes.
    """

    enforce: bool = False


#: The keys of a model or pipeline that are mappings with keys of their own.
SECTIONS: Final[dict[str, type[InputSection]]] = {"inputs": InputSection, "outputs": OutputSection}


#: The types of fields. Bytes in JSON have the form of docs/api.md.
TYPES: Final[dict[str, dict[str, Any]]] = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "object": {"type": "object"},
    "bytes": {
        "type": "object",
        "properties": {
            "content_type": {"type": "string"},
            "base64": {"type": "string", "contentEncoding": "base64"},
        },
        "required": ["content_type", "base64"],
        "additionalProperties": False,
    },
    "any": {},
}
_NEEDS: Final = "it needs fields, schema, tensors or content_types"
#: What a JSON value may be declared by.
_FORMS: Final = ("fields", "schema", "tensors")
#: A schema without any of these limits nothing.
_KEYWORDS: Final = frozenset(
    {
        "$ref", "$dynamicRef", "$recursiveRef", "type", "enum", "const", "anyOf", "oneOf", "allOf",
        "not", "if", "then", "else", "properties", "required", "additionalProperties",
        "patternProperties", "propertyNames", "minProperties", "maxProperties", "dependencies",
        "dependentRequired", "dependentSchemas", "unevaluatedProperties", "items", "prefixItems",
        "additionalItems", "unevaluatedItems", "contains", "minContains", "maxContains",
        "minItems", "maxItems", "uniqueItems", "minimum", "maximum", "exclusiveMinimum",
        "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern", "format",
    }
)  # fmt: skip


def read_keys(
    document: Document,
    keys: tuple[str, ...],
    struct: type[msgspec.Struct],
    folder: Path,
    leave: Collection[str] = (),
) -> dict[str, Any]:
    """Return the valid keys of a model or pipeline, as `read_fields`, with its two sections.

    Each mistake in a section has its own key.
    """
    written = document.at(keys)
    if not isinstance(written, dict):
        return read_fields(document, keys, struct)
    sections = {key: written[key] for key in SECTIONS if written.get(key) is not None}
    values = read_fields(document, keys, struct, leave=(*leave, *sections))
    for key in sections:
        section = _read_section(document, (*keys, key), SECTIONS[key], folder)
        if section is not None:
            values[key] = section
    return values


def _read_section(
    document: Document, keys: Where, kind: type[Section], folder: Path
) -> Section | None:
    """Read `inputs` or `outputs`; report its mistakes in the document, and return None after one.

    Its fields are translated, and its file, which refers to `folder`, is read. The section that is
    returned has its schema in `schema`, and no `fields`.
    """
    before = len(document.problems)
    written = document.at(keys)
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    if isinstance(written, dict) and not known.intersection(written):
        document.report(keys, f"{_NEEDS}; write the names of fields below `fields:`")
        return None
    values = read_fields(document, keys, kind)
    if len(document.problems) > before:
        return None
    section = msgspec.convert(values, kind)
    forms = [key for key in _FORMS if getattr(section, key) is not None]
    if not forms and section.content_types is None:
        document.report(keys, _NEEDS)
        return None
    if len(forms) > 1:
        text = f"{' and '.join(forms)} exclude each other; leave one of them out"
        document.report((*keys, forms[-1]), text)
        return None
    try:
        return _resolved(section, folder)
    except KeyProblem as problem:
        document.report((*keys, *problem.where), problem.text)
        return None


def _resolved(section: Section, folder: Path) -> Section:
    """Return a section whose schema is in `schema`."""
    where, source = ("schema",), ""
    schema: Any = section.schema
    kinds = section.content_types
    if section.tensors is not None:
        where, schema = ("tensors",), _of_tensors(section.tensors)
        kinds = [*(kinds or ()), TENSORS_TYPE]
    elif section.fields is not None:
        where, schema = ("fields",), _object(section.fields, ("fields",))
    elif isinstance(schema, str):
        source = schema
        schema = _from_file(folder / Path(schema).expanduser())
    if schema is not None:
        schema = _plain(schema, where)
        if not _KEYWORDS & schema.keys():
            text = (
                "it has no keyword of JSON Schema, such as type; use `fields` for names of fields"
            )
            raise KeyProblem(where, text)
    example = section.example
    if example is not UNSET:
        example = _plain(example, ("example",))
    resolved = msgspec.structs.replace(
        section, fields=None, schema=schema, content_types=kinds, example=example
    )
    try:
        check = resolved.value_check()
    except SchemaProblem as problem:
        path = "".join(f"/{step}" for step in problem.where)
        if source:
            raise KeyProblem(where, f"{source}: {path or '/'}: {problem.text}") from None
        raise KeyProblem((*where, *problem.where), problem.text) from None
    except ConfigError:
        # A client without the servers' packages may read the file; a server fails at its start.
        return resolved
    _check_example(resolved, check)
    return resolved


def _of_tensors(tensors: DeclaredTensors) -> dict[str, Any]:
    names = [tensor.name for tensor in tensors]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise KeyProblem(("tensors",), f"the name {twice[0]} is given twice; rename one")
    return json_schema(tensors)


def _check_example(section: InputSection, check: ValueCheck) -> None:
    if section.example is UNSET:
        return
    try:
        mistakes = check.of_input(msgspec.json.encode(section.example))
    except InvalidRequest as error:
        raise KeyProblem(("example",), error.message) from None
    if mistakes:
        raise KeyProblem(("example",), f"it does not fit: {summary(mistakes)}")


def _from_file(path: Path) -> Any:
    try:
        return load_yaml(path, what="JSON Schema").data
    except ConfigError as error:
        raise KeyProblem(("schema",), error.message.splitlines()[0]) from None


def _plain(value: Any, where: Where) -> Any:
    """Return a value of YAML as JSON has it."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        text = "it contains itself" if isinstance(error, RecursionError) else str(error)
        raise KeyProblem(where, f"not plain data: {text}") from None


def _object(fields: Mapping[Any, Any], where: Where) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, written in fields.items():
        if not isinstance(name, str):
            raise KeyProblem(where, f"a field's name must be text; write {shown(name)} in quotes")
        properties[name], optional = _typed(written, (*where, name))
        if not optional:
            required.append(name)
    found: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        found["required"] = required
    # A misspelt name is refused.
    return {**found, "additionalProperties": False}


def _typed(written: Any, where: Where) -> tuple[dict[str, Any], bool]:
    """Return the schema of a type, and whether the value may be left out, or null."""
    if isinstance(written, Mapping):
        return _object(written, where), False
    if isinstance(written, list):
        if len(written) != 1:
            raise KeyProblem(where, "a list has one type in brackets, such as [number]")
        return {"type": "array", "items": _typed(written[0], (*where, 0))[0]}, False
    if not isinstance(written, str):
        raise KeyProblem(where, f"expected a type, such as string, got {shown(written)}")
    text = written.strip()
    optional = text.endswith("?")
    text = text.removesuffix("?").rstrip()
    if text.startswith("[") and text.endswith("]"):
        schema: dict[str, Any] = {"type": "array", "items": _typed(text[1:-1], where)[0]}
    elif text in TYPES:
        schema = TYPES[text]
    else:
        near = did_you_mean(text[:64], TYPES) or f"; use one of {', '.join(TYPES)}"
        raise KeyProblem(where, f"there is no type {text[:64]!r}{near}")
    if optional and "type" in schema:
        schema = {**schema, "type": [schema["type"], "null"]}
    return schema, optional
