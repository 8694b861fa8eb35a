"""Read request bodies, and convert them to the wire form of an input.

The wire form is JSON text: a JSON body as the client sent it, and anything else as
`{"content_type", "base64"}` (headrace/jobs/values/encoding.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from api.http.messages import ClientGone, Request
from headrace.errors import InvalidRequest, PayloadTooLarge, UnsupportedMedia
from headrace.jobs.values.encoding import binary_input, why_not_json
from headrace.jobs.values.media_types import BINARY_TYPE, BOM, JSON_TYPE, image_type, is_json
from headrace.schema.lines import CONTENT_TYPE_MAX_CHARS

FORM_TYPE: Final = "application/x-www-form-urlencoded"
MULTIPART_TYPE: Final = "multipart/form-data"

_MEDIA_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+")
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([^\s";]+)', re.IGNORECASE)
_UTF8: Final = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})
_RAW: Final = msgspec.json.Decoder(msgspec.Raw)


async def read_body(request: Request, limit_bytes: int, *, fixed: bool = False) -> bytes:
    """Read the body; refuse it as soon as it exceeds the limit.

    Args:
        fixed: the limit is the route's own, which `body_limit_bytes` does not raise.

    Raises:
        PayloadTooLarge: it is larger than the limit.
        ClientGone: the client hung up before the end.
    """
    declared = request.header(b"content-length")
    if declared and int(declared) > limit_bytes:
        # A client with `Expect: 100-continue` then does not send it.
        raise _too_large(request, limit_bytes, f"has {int(declared)} bytes", fixed)
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        if len(body) > limit_bytes:
            raise _too_large(request, limit_bytes, f"has {len(body)} bytes", fixed)
    else:
        body = await _read_rest(request, limit_bytes, body, fixed)
    request.body_bytes = len(body)
    return body


async def _read_rest(request: Request, limit_bytes: int, first: bytes, fixed: bool) -> bytes:
    chunks, size = [first], len(first)
    more = True
    while more and size <= limit_bytes:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        more = message.get("more_body", False)
    if size > limit_bytes:
        raise _too_large(request, limit_bytes, f"has more than {limit_bytes} bytes", fixed)
    return b"".join(chunks)


def _too_large(request: Request, limit_bytes: int, what: str, fixed: bool) -> PayloadTooLarge:
    request.drain = True
    if fixed:
        hint = "Send a smaller body. The limit of this route is fixed."
    else:
        hint = "Send a smaller input, or raise body_limit_bytes (HEADRACE_BODY_LIMIT_BYTES)."
    return PayloadTooLarge(f"the body {what}; the limit is {limit_bytes}", hint=hint)


def require_json(request: Request, hint: str = "Send JSON.") -> None:
    """Raise UnsupportedMedia if a body is not JSON by its type, or is compressed."""
    # curl sends FORM_TYPE for everything.
    require_type(request, lambda kind: kind in ("", FORM_TYPE) or is_json(kind), hint)


def require_type(request: Request, known: Callable[[str], bool], hint: str) -> None:
    """Raise UnsupportedMedia if a body has an unknown type, or is compressed."""
    kind = media_type(request.header(b"content-type").decode("latin-1"))
    if not known(kind):
        raise UnsupportedMedia(f"content type {kind} is not supported here", hint=hint)
    refuse_encoding(request.header(b"content-encoding"))


class Payload(NamedTuple):
    """An input that is too long for its message; `kind` is its content type, "" for JSON text."""

    body: bytes
    kind: str


def is_form(content_type: bytes) -> bool:
    """Return whether a body has several parts."""
    return content_type[:10].lower() == b"multipart/"


def input_of(
    body: bytes, content_type: bytes, content_encoding: bytes, inline_limit_bytes: int
) -> bytes | Payload:
    """Return the wire form of a body that is the input; above the limit, the body itself.

    A form has its own (api/http/forms.py).

    Raises:
        UnsupportedMedia: its type or encoding is not supported.
        InvalidRequest: its type is JSON, but the body is not.
    """
    if content_type == b"application/json" and not content_encoding:
        return inline_or_payload(json_input(body), inline_limit_bytes)
    refuse_encoding(content_encoding)
    given = content_type.decode("latin-1").strip()
    return typed_input(body, given, media_type(given), inline_limit_bytes)


def inline_or_payload(input_json: bytes, inline_limit_bytes: int) -> bytes | Payload:
    """Return an input's JSON text; above the limit, as a payload."""
    return input_json if len(input_json) <= inline_limit_bytes else Payload(input_json, "")


def json_input(body: bytes) -> bytes:
    """Return a JSON body without surrounding whitespace; raise InvalidRequest if it is not JSON."""
    body = body.removeprefix(BOM)
    try:
        raw = bytes(_RAW.decode(body))
        if not raw.isascii():
            raw.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error, body) from None
    return raw


def not_json(error: Exception, body: bytes) -> InvalidRequest:
    """Return the error for a body that is not JSON."""
    if not body.strip():
        return InvalidRequest("the body is empty", hint="Send JSON.")
    return InvalidRequest(
        f"the body is not JSON: {why_not_json(error, body)}",
        hint="Correct it, or send it with its own Content-Type.",
    )


def media_type(content_type: str) -> str:
    """Return the lower-case type without parameters, "" for none; or raise UnsupportedMedia."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind and (not _MEDIA_TYPE.fullmatch(kind) or len(content_type) > CONTENT_TYPE_MAX_CHARS):
        raise UnsupportedMedia(
            f"Content-Type {content_type[:64]!r} is not a media type",
            hint="Give one such as image/png or application/json, or none.",
        )
    return kind


def refuse_encoding(content_encoding: bytes) -> None:
    """Raise UnsupportedMedia if a body is compressed."""
    if content_encoding.strip().lower() not in (b"", b"identity"):
        shown = content_encoding.decode("latin-1")[:64]
        raise UnsupportedMedia(
            f"Content-Encoding {shown!r} is not supported here", hint="Send the body uncompressed."
        )


def typed_input(
    body: bytes, content_type: str, kind: str, inline_limit_bytes: int
) -> bytes | Payload:
    """Return the wire form of bytes, as `input_of`; `kind` is the media type of `content_type`."""
    if kind in ("", FORM_TYPE):
        # curl --data-binary sends FORM_TYPE whatever the bytes are.
        kind = content_type = sniff(body)
    if is_json(kind):
        check_charset(content_type)
        return inline_or_payload(json_input(body), inline_limit_bytes)
    if kind.startswith("text/"):
        check_charset(content_type)
    if len(body) > inline_limit_bytes:
        return Payload(body, content_type)
    return binary_input(body, content_type)


def check_charset(content_type: str) -> None:
    """Raise UnsupportedMedia for text in another character set than UTF-8."""
    charset = _CHARSET.search(content_type)
    if charset and charset.group(1).lower() not in _UTF8:
        raise UnsupportedMedia(
            f"charset {charset.group(1)[:32]!r} is not supported here",
            hint="Send the text as UTF-8.",
        )


def sniff(body: bytes) -> str:
    """Return the type of bytes without one: by their first bytes, else JSON, text or binary."""
    if image := image_type(body):
        return image
    if not body:
        return BINARY_TYPE
    try:
        json_input(body)
    except InvalidRequest:
        pass
    else:
        return JSON_TYPE
    try:
        body.decode()
    except UnicodeDecodeError:
        return BINARY_TYPE
    return BINARY_TYPE if b"\0" in body else "text/plain"


# gc=False: no field can lead back to it (CONTRIBUTING.md, Rules).
class Line(msgspec.Struct, frozen=True, gc=False):
    """One line: its number from 1, empty ones included; its text, None above the limit."""

    number: int
    text: bytes | None


class LineSplitter:
    """Splits a stream into lines; it buffers at most `limit_bytes` of a line."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._begun: list[bytes] = []
        self._begun_bytes = 0
        self._number = 0

    def feed(self, piece: bytes) -> list[Line]:
        """Return the lines that end in this piece, without blank lines."""
        *ended, rest = piece.split(b"\n")
        lines: list[Line] = []
        if ended:
            self._begin(ended[0])
            lines += self.finish()
            # The other lines are complete within this piece.
            limit_bytes, number = self._limit_bytes, self._number
            for text in ended[1:]:
                number += 1
                if len(text) > limit_bytes:
                    lines.append(Line(number, None))
                elif text and not text.isspace():
                    lines.append(Line(number, text))
            self._number = number
        self._begin(rest)
        return lines

    def _begin(self, text: bytes) -> None:
        self._begun_bytes += len(text)
        if self._begun_bytes > self._limit_bytes:
            self._begun.clear()
        elif text:
            self._begun.append(text)

    def finish(self) -> list[Line]:
        """Return the line that has begun, if it is not blank; at the end no line feed ends it."""
        self._number += 1
        too_long = self._begun_bytes > self._limit_bytes
        text = None if too_long else b"".join(self._begun)
        self._begun.clear()
        self._begun_bytes = 0
        if text is not None and self._number == 1:
            text = text.removeprefix(BOM)
        if text is not None and (not text or text.isspace()):
            return []
        return [Line(self._number, text)]


def batches(lines: Sequence[Line], max_lines: int, max_bytes: int) -> Iterator[Sequence[Line]]:
    """Group lines by at most `max_lines` and `max_bytes`; a longer line is a group of its own."""
    begin = size = 0
    for at, line in enumerate(lines):
        length = len(line.text or b"")
        if at > begin and (at - begin >= max_lines or size + length > max_bytes):
            yield lines[begin:at]
            begin, size = at, 0
        size += length
    if begin < len(lines):
        yield lines[begin:]
