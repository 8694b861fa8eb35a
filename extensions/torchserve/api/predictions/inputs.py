"""The input of a job for a handler of TorchServe, from a request.

The handler gets what TorchServe would give it: a value for the body, or one for each field of a
form. Only JSON that can be parsed and text in UTF-8 keep their type; all else is bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from api.http.bodies import (
    FORM_TYPE,
    MULTIPART_TYPE,
    Payload,
    inline_or_payload,
    json_input,
    refuse_encoding,
)
from api.http.forms import read_parts
from api.http.messages import Request
from headrace.errors import InvalidRequest
from headrace.jobs.values.encoding import BINARY_FORMS, binary_input
from headrace.jobs.values.media_types import BINARY_TYPE, JSON_TYPE

#: The name of the input of a request that is no form.
BODY: Final = "body"
_FIELDS_MAX: Final = 1000
_JSON: Final = JSON_TYPE.encode()
#: A JSON object with one of these may be one that is read as a binary input. Names may be escaped.
_MAYBE_BINARY: Final = (b"base64", b"__type__", b"\\u")
_PRINTABLE: Final = bytes(range(0x20, 0x7F))


class Given(NamedTuple):
    """The input of a job.

    Attributes:
        input: as of api.http.bodies.input_of.
        nested: it is an object with a binary input for each field.
    """

    input: bytes | Payload
    nested: bool


class Field(NamedTuple):
    """One value of a request, by its name."""

    name: str
    body: bytes
    kind: str


def read_input(
    request: Request,
    body: bytes,
    inline_limit_bytes: int,
    *,
    decode: bool = True,
    with_query: bool = False,
) -> Given:
    """Return the input of a request.

    Args:
        inline_limit_bytes: a longer input becomes a payload.
        decode: whether JSON and text reach the handler as values, or else as bytes.
        with_query: whether the parameters of the query are fields of the input.

    Raises:
        InvalidRequest: a form cannot be read.
        UnsupportedMedia: the body is compressed.
    """
    content_type = request.header(b"content-type")
    if content_type == _JSON and decode and not with_query and not request.has(b"content-encoding"):
        found = plain_json(body)  # the most frequent input
        if found is not None:
            return Given(inline_or_payload(found, inline_limit_bytes), nested=False)
    refuse_encoding(request.header(b"content-encoding"))
    kind = mime_type(content_type)
    fields = read_form(body, content_type, kind)
    query = _fields(request.query_string) if with_query else []
    if fields is None:
        if not query:
            return Given(_value(body, kind, inline_limit_bytes, decode=decode), nested=False)
        fields = [Field(BODY, body, kind)]
    found = _object([*query, *fields], decode=decode)
    return Given(inline_or_payload(found, inline_limit_bytes), nested=True)


def mime_type(content_type: bytes) -> str:
    """Return a content type without its parameters. TorchServe knows JSON in lower case only."""
    return content_type.partition(b";")[0].strip().decode("latin-1")


def read_form(body: bytes, content_type: bytes, kind: str) -> list[Field] | None:
    """Return the fields of a form; None for any other body.

    A file keeps its type, and any other field is bytes.

    Raises:
        InvalidRequest: the form cannot be read.
    """
    if kind.lower() == MULTIPART_TYPE:
        parts = read_parts(body, content_type.decode("latin-1"))
        return [
            Field(
                part.name,
                part.body,
                mime_type(part.content_type.encode("latin-1")) if part.filename else "",
            )
            for part in parts
        ]
    # `curl --data-binary` calls any bytes a form. A form has printable characters only.
    if kind.lower() != FORM_TYPE or body.translate(None, _PRINTABLE):
        return None
    return _fields(body)


def _fields(text: bytes) -> list[Field]:
    """Return the fields of a form in its one line; the values are bytes in any encoding."""
    pairs = [pair for pair in text.split(b"&") if pair]
    if len(pairs) > _FIELDS_MAX:
        raise InvalidRequest(
            f"there are more than {_FIELDS_MAX} fields", hint="Send the input as JSON."
        )
    split = (pair.replace(b"+", b" ").partition(b"=") for pair in pairs)
    return [
        Field(unquote_to_bytes(name).decode("utf-8", "replace"), unquote_to_bytes(value), "")
        for name, _, value in split
    ]


def plain_json(body: bytes) -> bytes | None:
    """Return a JSON body as the text of an input; None if it cannot be sent as it is."""
    try:
        text = json_input(body)
    except InvalidRequest:
        return None
    if text[:1] == b"{" and any(one in text for one in _MAYBE_BINARY):
        # Members by these names would be read as bytes.
        names = msgspec.json.decode(text, type=dict[str, msgspec.Raw]).keys()
        if names in BINARY_FORMS:
            return None
    return text


def _value(body: bytes, kind: str, inline_limit_bytes: int, *, decode: bool) -> bytes | Payload:
    if kind == JSON_TYPE and decode:
        text = plain_json(body)
        if text is not None:
            return inline_or_payload(text, inline_limit_bytes)
    kind = _type_of(body, kind, decode=decode)
    if kind == JSON_TYPE:
        # As a payload with this type it would be read as JSON, and so perhaps as a binary input.
        return inline_or_payload(binary_input(body, kind), inline_limit_bytes)
    if len(body) > inline_limit_bytes:
        return Payload(body, kind)
    return binary_input(body, kind)


def _type_of(body: bytes, kind: str, *, decode: bool) -> str:
    """Return the type with which bytes reach the handler as TorchServe would decode them."""
    if decode and kind == JSON_TYPE and _python_reads(body):
        return JSON_TYPE
    if decode and kind.startswith("text/"):
        try:
            body.decode()
        except UnicodeDecodeError:
            return BINARY_TYPE
        return kind
    return BINARY_TYPE


def _python_reads(body: bytes) -> bool:
    """Return whether Python's json parses it, which also reads NaN and Infinity."""
    try:
        json.loads(body.decode())
    except (ValueError, RecursionError):
        return False
    return True


def _object(fields: Iterable[Field], *, decode: bool) -> bytes:
    """Return fields as a JSON object of binary inputs; of several with one name the last counts."""
    found = {
        one.name: binary_input(one.body, _type_of(one.body, one.kind, decode=decode))
        for one in fields
    }
    if "" in found:
        raise InvalidRequest("a field of the form has no name", hint="Name each field.")
    if found.keys() in BINARY_FORMS:
        raise InvalidRequest(
            f"the fields of the form are {' and '.join(found)}, which would be read as one input",
            hint="Choose other names.",
        )
    members = [b"%b:%b" % (msgspec.json.encode(name), value) for name, value in found.items()]
    return b"{%b}" % b",".join(members)
