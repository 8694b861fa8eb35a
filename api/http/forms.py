"""A form as the input of a job: its parameters, and its parts as one input.

A single part is the input itself. Several parts become a JSON object of the parts by their names,
with files as `{"content_type", "base64"}`; the model process decodes them. Parts of one name are a
list. Nothing is left out: what cannot be used is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import msgspec

from api.http.bodies import (
    FORM_TYPE,
    MULTIPART_TYPE,
    Payload,
    check_charset,
    inline_or_payload,
    json_input,
    media_type,
    refuse_encoding,
    sniff,
    typed_input,
)
from api.http.multipart import Part, read_parts
from headrace.config.suggestions import did_you_mean
from headrace.errors import InvalidRequest, UnsupportedMedia
from headrace.jobs.values.encoding import BINARY_FORMS, binary_input
from headrace.jobs.values.media_types import is_json

_PLAIN_TEXT: Final = "text/plain"


class Form(NamedTuple):
    """What a form gives for a job.

    Attributes:
        input: its input, as of `input_of`.
        fields: the values of the fields that are parameters, by name.
        nested: the input is an object of several parts.
    """

    input: bytes | Payload
    fields: dict[str, str]
    nested: bool


def read_form(
    body: bytes,
    content_type: bytes,
    content_encoding: bytes,
    parameters: Collection[str],
    inline_limit_bytes: int,
) -> Form:
    """Read a form; the parts with the names of `parameters` are these.

    Raises:
        UnsupportedMedia: its type or encoding, or that of a part, is not supported.
        InvalidRequest: it cannot be read, or one of its parts cannot be used.
    """
    refuse_encoding(content_encoding)
    given = content_type.decode("latin-1").strip()
    kind = media_type(given)
    if kind != MULTIPART_TYPE:
        raise UnsupportedMedia(
            f"{kind} is not supported here", hint="Send multipart/form-data, or the input alone."
        )
    fields: dict[str, str] = {}
    parts: list[Part] = []
    for part in read_parts(body, given):
        if part.name not in parameters:
            _refuse_misspelt(part, parameters)
            parts.append(part)
        elif part.name in fields:
            raise InvalidRequest(
                f"the form has the parameter {part.name} twice", hint="Give it once."
            )
        else:
            fields[part.name] = _text(part)
    if not parts:
        raise InvalidRequest("the form has no input", hint="Send it as the part `data`.")
    if len(parts) == 1:
        [part] = parts
        kind = media_type(part.content_type)
        return Form(
            typed_input(part.body, part.content_type, kind, inline_limit_bytes), fields, False
        )
    return Form(inline_or_payload(_object(parts), inline_limit_bytes), fields, True)


def _refuse_misspelt(part: Part, parameters: Collection[str]) -> None:
    """Refuse a plain field that is probably a parameter; otherwise the handler would get it."""
    if part.filename or part.content_type or not parameters:
        return
    near = did_you_mean(part.name[:64], parameters)
    if near:
        raise InvalidRequest(
            f"unknown form field {part.name[:64]!r}{near}",
            hint="Give a part of the input a Content-Type, as in -F 'name=text;type=text/plain'.",
        )


def _object(parts: Sequence[Part]) -> bytes:
    """Return the JSON object of several parts; parts of one name are a list."""
    members: dict[str, list[bytes]] = {}
    for part in parts:
        members.setdefault(part.name, []).append(_json(part))
    if "" in members:
        raise InvalidRequest(
            "a part of the form has no name", hint="Name each part in its Content-Disposition."
        )
    if members.keys() in BINARY_FORMS:
        raise InvalidRequest(
            f"the parts of the form are {' and '.join(members)}, which would be read as one input",
            hint="Choose other names.",
        )
    fields = [
        b"%b:%b" % (msgspec.json.encode(name), b"[%b]" % b",".join(own) if own[1:] else own[0])
        for name, own in members.items()
    ]
    return b"{%b}" % b",".join(fields)


def _json(part: Part) -> bytes:
    try:
        return _value(part)
    except (InvalidRequest, UnsupportedMedia) as error:
        raise type(error)(
            f"part {part.name[:64]!r} of the form: {error.message}", hint=error.hint
        ) from None


def _value(part: Part) -> bytes:
    given, kind = part.content_type, media_type(part.content_type)
    if not kind and not part.filename:
        given = kind = _PLAIN_TEXT  # RFC 7578, 4.4
    elif kind in ("", FORM_TYPE):
        given = kind = sniff(part.body)
    if is_json(kind):
        check_charset(given)
        return json_input(part.body)
    if kind.startswith("text/"):
        check_charset(given)
    if kind == _PLAIN_TEXT:
        return msgspec.json.encode(_text(part))
    return binary_input(part.body, given)


def _text(part: Part) -> str:
    try:
        return part.body.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(
            f"the part {part.name[:64]!r} of the form is not text in UTF-8",
            hint="Send a file with its own Content-Type.",
        ) from None
