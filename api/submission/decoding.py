"""Decode queries and JSON bodies; an unknown name suggests the nearest."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any, Final, Generic, TypeVar

import msgspec

from api.http.bodies import not_json, read_body
from api.http.messages import Request, unknown_name
from headrace.config.suggestions import allowed_values, not_a_choice
from headrace.errors import InvalidParameter, InvalidRequest
from headrace.jobs.options import JobOptions
from headrace.jobs.values.media_types import BOM

OPTION_NAMES: Final = frozenset(JobOptions.__struct_fields__)

_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_AT = re.compile(r" - at (?:`key` in )?`\$\.?(.*)`$")
_NAME = re.compile(r"\W")
_LEAVE_OUT: Final = ", or leave it out for the default"

Shape = TypeVar("Shape", bound=msgspec.Struct)


class JsonDecoder(Generic[Shape]):
    """Decodes a kind of JSON body."""

    def __init__(self, shape: type[Shape]) -> None:
        self._decode = msgspec.json.Decoder(shape).decode
        self._shape = shape

    def decode(self, body: bytes) -> Shape:
        """Decode a body; raise InvalidRequest if it is not JSON in UTF-8, or a member is wrong."""
        body = body.removeprefix(BOM)
        try:
            decoded = self._decode(body)
            if not body.isascii():
                body.decode()
        except msgspec.ValidationError as error:
            raise invalid_member(error, "member", self._shape) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise not_json(error, body) from None
        return decoded

    async def read(self, request: Request, limit_bytes: int) -> Shape:
        """Read and decode a body whose limit is fixed."""
        return self.decode(await read_body(request, limit_bytes, fixed=True))


@cache
def parameters_of(query: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each parameter of a query."""
    _, components = msgspec.json.schema_components([query])
    properties: dict[str, dict[str, Any]] = components[query.__name__]["properties"]
    return properties


def read_query(request: Request, shape: type[Shape], *, ignore_unknown: bool = False) -> Shape:
    """Return the query of a request; raise InvalidRequest if it is wrong. Commas separate lists."""
    schemas = parameters_of(shape)
    texts = request.query(frozenset(schemas), ignore_unknown=ignore_unknown)
    values = {
        name: text.split(",") if schemas[name].get("type") == "array" else text
        for name, text in texts.items()
    }
    try:
        query = msgspec.convert(values, shape, strict=False)
    except msgspec.ValidationError as error:
        at = _AT.search(str(error))
        name = _NAME.split(at[1] if at else "")[0]
        raise _not_valid(name, texts.get(name, ""), shape) from None
    for name, text in texts.items():
        value = getattr(query, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise _not_valid(name, text, shape)
    return query


def read_cursor(pattern: str, text: str) -> tuple[int, str]:
    """Return the number and the text of a cursor; raise InvalidRequest for another text."""
    if not re.fullmatch(pattern, text, re.DOTALL):
        raise InvalidRequest(
            f"query parameter cursor: {text[:64]!r} is not a cursor of this API",
            hint="Send the cursor of the previous page unchanged.",
        )
    number, _, rest = text.partition("-")
    return int(number), rest


def _not_valid(name: str, text: str, shape: type[msgspec.Struct]) -> InvalidParameter:
    hint = _remedy(shape, name, _LEAVE_OUT)
    return InvalidParameter(f"query parameter {name}: {text[:32]!r} is not valid", name, hint=hint)


def _remedy(shape: type[msgspec.Struct], where: str, more: str = "") -> str:
    allowed = allowed_values(shape, where)
    return f"Give {allowed}{more}." if allowed else "GET /openapi.json has what this route takes."


def invalid_member(
    error: msgspec.ValidationError, what: str, shape: type[msgspec.Struct]
) -> InvalidParameter:
    """Return the error for a msgspec error; it names the member at fault."""
    known, text = frozenset(shape.__struct_fields__), str(error)
    at = _AT.search(text)
    where = at.group(1) if at else ""
    text = _AT.sub("", text)
    unknown = _UNKNOWN.fullmatch(text)
    if unknown:
        name = unknown.group(1)
        if not where and name in OPTION_NAMES and "input" in known:
            hint = f'Put it into options: {{"options": {{"{name}": VALUE}}}}.'
            text = f"unknown member {name!r}: it is an option of the job"
            return InvalidParameter(text, name, hint=hint)
        names = OPTION_NAMES if where == "options" else known
        wrong = unknown_name("option" if where == "options" else what, name, names)
        return InvalidParameter(wrong.message, name[:64], hint=wrong.hint)
    hint = _remedy(shape, where, _LEAVE_OUT if what == "query parameter" else "")
    if missing := _MISSING.fullmatch(text):
        hint = _remedy(shape, f"{where}.{missing[1]}", f" as {missing[1]}")
    if problem := not_a_choice(error, shape):
        text = problem.removeprefix(f"{where}: ")
    text = text[:1].lower() + text[1:]
    message = f"{what} {where}: {text}" if where else text
    return InvalidParameter(message, _NAME.split(where)[0], hint=hint)
