"""The formats of answers: of OpenAI's API, and vLLM's `structured_outputs`, as a job has them."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Meta

from headrace.errors import InvalidParameter

STRUCTURED_OUTPUTS: Final = Meta(
    description="As in vLLM: `json`, `json_object`, `regex`, `choice` or `grammar`."
)


#: Members of vLLM's `structured_outputs` that change nothing while they are false.
_OFF: Final = frozenset(
    {"json_object", "disable_fallback", "disable_any_whitespace", "disable_additional_properties"}
)


def shape_of_outputs(given: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the field `structured` of a job for `structured_outputs`; None for any text."""
    members = (given or {}).items()
    return {name: value for name, value in members if value or name not in _OFF} or None


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
            return {"json_object": True}
        case "json_schema":
            inner = given if inside is None else given.get(inside)
            schema = inner.get("schema") if isinstance(inner, dict) else None
            if not isinstance(schema, dict):
                place = ".".join(filter(None, (param, inside, "schema")))
                raise InvalidParameter(
                    f"{place} is no object", param, hint="Give a JSON schema there."
                )
            return {"json": schema}
    raise InvalidParameter(
        f"{param}.type is unknown", param, hint="Give text, json_object or json_schema."
    )
