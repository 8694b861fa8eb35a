"""The formats of answers: of OpenAI's API, and vLLM's `structured_outputs`, as a job has them."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Meta

from handlers.generation.structure import Shape
from headrace.errors import InputError, InvalidParameter

_OUTPUTS: Final = "structured_outputs"

STRUCTURED_OUTPUTS: Final = Meta(
    description="As in vLLM: `json`, `json_object`, `regex`, `choice` or `grammar`."
)


#: Members of vLLM's `structured_outputs` that change nothing while they are false.
_OFF: Final = frozenset(
    {"json_object", "disable_fallback", "disable_any_whitespace", "disable_additional_properties"}
)


def shape_of_outputs(given: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the field `structured` of a job for `structured_outputs`; None for any text.

    Raises:
        InvalidParameter: it has not exactly one shape, or one that does not fit.
    """
    members = (given or {}).items()
    shape = {name: value for name, value in members if value or name not in _OFF}
    if not shape:
        return None
    try:
        name, _ = msgspec.convert(shape, Shape).given(_OUTPUTS)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        message, hint = f"{_OUTPUTS}{place.rstrip('`')}: {text}", "Give one of vLLM's shapes."
    except InputError as error:
        message, _, hint = str(error).partition("; ")
    else:
        return {**shape, "field": f"{_OUTPUTS}.{name}"}
    raise InvalidParameter(message, _OUTPUTS, hint=hint)


def shape_of_format(given: dict[str, Any], param: str, inside: str | None) -> dict[str, Any] | None:
    """Return the field `structured` of a job's input; None for any text.

    `strict` changes nothing: an answer always fits its schema.

    Args:
        inside: the member that has the schema's own members; None if the format itself has them.

    Raises:
        InvalidParameter: it is no format, or has no schema.
    """
    match given.get("type"):
        case "text":
            return None
        case "json_object":
            return {"json_object": True, "field": param}
        case "json_schema":
            inner = given if inside is None else given.get(inside)
            schema = inner.get("schema") if isinstance(inner, dict) else None
            place = ".".join(filter(None, (param, inside, "schema")))
            if not isinstance(schema, dict):
                raise InvalidParameter(
                    f"{place} is no object", param, hint="Give a JSON schema there."
                )
            return {"json": schema, "field": place}
    raise InvalidParameter(
        f"{param}.type is unknown", param, hint="Give text, json_object or json_schema."
    )
