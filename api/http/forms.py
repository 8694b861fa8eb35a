"""A form as the input of a job: its parameters, and its parts as one input.

A single part is the input itself. Several parts become a JSON object of the parts by their names,
with files as `{"content_type", "base64"}`; the model process decodes them. Parts of one name are a
list. Nothing is left out: what cannot be used is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

import msgspec
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

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
from headrace.config.suggestions import did_you_mean
from headrace.errors import InvalidRequest, UnsupportedMedia
from headrace.jobs.values.encoding import BINARY_FORMS, binary_input
from headrace.jobs.values.media_types import is_json

MAX_PARTS: Final = 100
#: The most bytes before the first part and after the last one, which are ignored.
OUTSIDE_MAX_BYTES: Final = 64 * 1024


class PartHead(NamedTuple):
    """The headers of one part; "" for those that it has not."""

    name: str
    filename: str
    content_type: str


_LET_THE_CLIENT: Final = "Let your HTTP client write this header and the body, as curl -F does."


class MultipartReader:
    """Parses a form and passes on its parts; `close` it at the end.

    It raises InvalidRequest if the content type has no boundary, or the body is not a form.
    """

    def __init__(
        self,
        content_type: str,
        on_head: Callable[[PartHead], None],
        on_data: Callable[[bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if not boundary:
            raise InvalidRequest(
                "Content-Type multipart/form-data names no boundary",
                hint=_LET_THE_CLIENT,
            )
        self._begun = self._complete = False
        self._outside_bytes = 0
        self._headers: dict[bytes, bytes] = {}
        self._name = self._value = b""
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": lambda: on_head(self._head()),
                "on_part_data": lambda data, start, end: on_data(data[start:end]),
                "on_part_end": on_end,
                "on_end": self._finish,
            },
        )

    def feed(self, piece: bytes) -> None:
        """Parse the next piece of the body."""
        if not self._complete:
            try:
                self._parser.write(piece)
            except FormParserError as error:
                what = f"the multipart body cannot be read: {error}"
                if not self._begun:
                    what = "the multipart body does not begin with the boundary of its Content-Type"
                raise InvalidRequest(what, hint=_LET_THE_CLIENT) from None
            if self._begun:
                return
        self._outside_bytes += len(piece)
        if self._outside_bytes > OUTSIDE_MAX_BYTES:
            raise InvalidRequest(
                f"the multipart body has more than {OUTSIDE_MAX_BYTES} bytes outside its parts",
                hint="Begin it with the first boundary, and end it with the last one.",
            )

    def check_complete(self) -> None:
        """Raise InvalidRequest if the last boundary is missing."""
        if not self._complete:
            raise InvalidRequest(
                "the multipart body ends before its last boundary", hint="Send all of it."
            )

    def close(self) -> None:
        """Let go of the callbacks, which lead back to the reader and to what they have stored."""
        self._parser.callbacks = {}

    def _begin(self) -> None:
        self._begun = True
        self._headers = {}
        self._name = self._value = b""

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def _head(self) -> PartHead:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        return PartHead(
            name=options.get(b"name", b"").decode("utf-8", "replace"),
            filename=options.get(b"filename", b"").decode("utf-8", "replace"),
            content_type=self._headers.get(b"content-type", b"").decode("latin-1").strip(),
        )

    def _finish(self) -> None:
        self._complete = True


class Part(NamedTuple):
    """One part of a form in memory."""

    name: str
    content_type: str
    body: bytes
    filename: str = ""


def read_parts(body: bytes, content_type: str) -> list[Part]:
    """Return the parts of a form; raise InvalidRequest if it is wrong or too long."""
    parts: list[tuple[PartHead, list[bytes]]] = []

    def begin(head: PartHead) -> None:
        if len(parts) >= MAX_PARTS:
            raise InvalidRequest(f"the form has more than {MAX_PARTS} parts", hint="Send fewer.")
        parts.append((head, []))

    reader = MultipartReader(
        content_type, begin, lambda data: parts[-1][1].append(data), lambda: None
    )
    try:
        reader.feed(body)
    finally:
        reader.close()
    reader.check_complete()
    return [
        Part(head.name, head.content_type, b"".join(pieces), head.filename)
        for head, pieces in parts
    ]


_PLAIN_TEXT: Final = "text/plain"


class Form(NamedTuple):
    """What a form gives for a job.

    Attributes:
        input: as of `input_of`.
        fields: the values of those that are parameters, by name.
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

    It raises UnsupportedMedia for a type or an encoding, also of a part, and InvalidRequest.
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
        (part,) = parts
        kind = media_type(part.content_type)
        given_input = typed_input(part.body, part.content_type, kind, inline_limit_bytes)
        return Form(given_input, fields, False)
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
        try:
            value = _value(part)
        except (InvalidRequest, UnsupportedMedia) as error:
            what = f"part {part.name[:64]!r} of the form: {error.message}"
            raise type(error)(what, hint=error.hint) from None
        members.setdefault(part.name, []).append(value)
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
