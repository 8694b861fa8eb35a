"""Inputs and results on the wire: JSON as the client wrote it, and binary data inside JSON.

A client's JSON is never decoded and encoded again: it stays the text that the client sent
(`msgspec.Raw`). Independent of Redis and HTTP.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias
from urllib.parse import unquote_to_bytes

import msgspec

from headrace.errors import InvalidRequest
from headrace.jobs.values.media_types import BINARY_TYPE, BOM, JSON_TYPE, is_json

#: Is called with each JSON text before it is parsed, and may raise.
Guard: TypeAlias = Callable[[bytes], None]

_encode: Final = msgspec.json.encode
#: Checks JSON without building values; a decoder that is made once is faster.
_RAW: Final = msgspec.json.Decoder(msgspec.Raw)
#: How a binary input begins, in our form and in kombu's.
_BINARY_HEAD: Final = re.compile(
    rb'\{\s*"(?:content_type"\s*:\s*"(?P<kind>[^"\\]{1,128})"\s*,\s*"base64'
    rb'|__type__"\s*:\s*"(?P<coding>base64|bytes)"\s*,\s*"__value__)"\s*:\s*"'
)

#: The names in a JSON object that is a binary input: in our form, and in kombu's.
BINARY_FORMS: Final = ({"content_type", "base64"}, {"__type__", "__value__"})
_PLAIN_TYPES: Final = frozenset({int, float, str, bool, type(None)})
#: A name that needs no quotes in a path (headrace/config/inputs/json_path.py).
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)

#: JSON up to the first escape for half of a surrogate pair whose other half is missing.
_HALF_PAIR: Final = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB]..\\u[dD][c-fC-F]..)*+(\\u[^\"]{4})",
    re.DOTALL,
)
#: Where msgspec has found an error, and what many libraries write there that is no JSON.
_PLACE: Final = re.compile(r"\(byte (\d+)\)$")
_NO_NUMBER: Final = re.compile(rb"[^N\-]?(NaN|-?Infinity)\b")
_DATA_URL: Final = re.compile(rb"\s*data:[^,]{0,255};base64,", re.IGNORECASE)
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_SPACES: Final = b" \t\n\r\v\f"
_NO_BASE64: Final = re.compile(rb"[^A-Za-z0-9+/]")

_LINE_ENDS: Final = tuple(
    (chr(code).encode(), b"\\u%04x" % code) for code in (0x85, 0x2028, 0x2029)
)

#: A longer input in our form is decoded in one pass, as binascii takes five times as long for its
#: base64. If that fails, the slow way finds the reason.
_ONE_PASS_BYTES: Final = 1000


def without_line_ends(text: bytes) -> bytes:
    """Return JSON text without the characters at which some readers of lines split it.

    Python's `str.splitlines` and JavaScript of before 2019 take U+0085, U+2028 and U+2029 for the
    end of a line. JSON has them only in strings, where an escape is the same character.
    """
    if text.isascii():
        return text
    for raw, escaped in _LINE_ENDS:
        text = text.replace(raw, escaped)
    return text


def why_not_json(error: Exception, body: bytes | msgspec.Raw) -> str:
    """Return why JSON cannot be decoded; the place of a wrong byte is that in the whole body."""
    if isinstance(error, UnicodeDecodeError):
        # The decoder counts from the beginning of the text that has the byte.
        try:
            bytes(body).decode()
        except UnicodeDecodeError as whole:
            return str(whole)
    text = bytes(body)
    if text[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in text[:4]:
        return "it is in UTF-16 or UTF-32, and JSON must be in UTF-8"
    if half := _HALF_PAIR.match(text):
        return (
            f"it has half of a surrogate pair, {half[1].decode()}, which is no character; perhaps "
            "a text was cut in an emoji"
        )
    place = _PLACE.search(str(error))
    if place and (number := _NO_NUMBER.match(text, max(0, int(place[1]) - 1))):
        return f"it has {number[1].decode()}, which JSON does not have; send null in its place"
    return str(error)


# gc=False: no field can lead back to it (CONTRIBUTING.md, Rules).
class _Binary(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    content_type: str
    base64: bytes


_CARRIED: Final = msgspec.json.Decoder(_Binary)


class _KombuBytes(msgspec.Struct):
    value: str = msgspec.field(name="__value__")


_KOMBU_HEAD: Final = b'{"__type__": "base64", "__value__": "'
_KOMBU_TAIL: Final = b'"}'
_KOMBU_BYTES: Final = msgspec.json.Decoder(_KombuBytes)


def kombu_bytes(body: bytes | str) -> bytes:
    """Return bytes, or their base64 text, in kombu's form, which Celery results use."""
    # msgspec writes bytes as a base64 string.
    return b'{"__type__": "base64", "__value__": %s}' % _encode(body)


def kombu_base64(text: bytes) -> str:
    """Return the base64 of bytes in kombu's form; raise MsgspecError for text in another form."""
    return _KOMBU_BYTES.decode(text).value


def kombu_size(text: bytes | memoryview) -> int:
    """Return how many bytes a text of `kombu_bytes` holds, without decoding it."""
    base64_chars = len(text) - len(_KOMBU_HEAD) - len(_KOMBU_TAIL)
    return base64_chars * 3 // 4 - bytes(text[-4:]).count(b"=")


def from_kombu(text: bytes) -> bytes | None:
    """Return the bytes of a text of `kombu_bytes`; None if it is another JSON text."""
    if not text.startswith(_KOMBU_HEAD):
        return None
    return base64.b64decode(memoryview(text)[len(_KOMBU_HEAD) : -len(_KOMBU_TAIL)])


def binary_input(body: bytes, content_type: str) -> bytes:
    """Return the wire form of a binary input."""
    encoded = base64.b64encode(body)
    return b'{"content_type":%s,"base64":"%s"}' % (_encode(content_type), encoded)


def loads(raw: bytes | msgspec.Raw) -> Any:
    """Parse JSON, with Python's NaN and Infinity; raise InvalidRequest if it is not JSON."""
    try:
        return msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        try:
            return json.loads(bytes(raw))
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"the input is not JSON: {error}") from None


def parses(text: bytes) -> bool:
    """Return whether it is JSON in UTF-8 that every parser reads."""
    try:
        # msgspec does not check that the text of a Raw is UTF-8, and is slower for a str.
        if not text.isascii():
            text.decode()
        _RAW.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def strict_json(text: bytes) -> bytes:
    """Return JSON for every parser, null for NaN and Infinity; raise ValueError for other text."""
    if parses(text):
        return text
    try:
        return _encode(json.loads(text))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def decode_payload(body: bytes, content_type: str, guard: Guard | None = None) -> tuple[Any, str]:
    """Decode bytes outside of a message, of type "" for JSON text; or raise InvalidRequest."""
    kind = content_type.partition(";")[0].strip().lower()
    if not kind or is_json(kind):
        return decode_input(body, guard)
    return _typed(body, content_type, guard)


def decode_input(raw: bytes | msgspec.Raw, guard: Guard | None = None) -> tuple[Any, str]:
    """Return the value for the handler, and its content type.

    `{"content_type", "base64"}` and kombu's `{"__type__": "base64" | "bytes", "__value__"}` become
    bytes (str for text/*, parsed for JSON); everything else is the JSON value itself.

    Raises:
        InvalidRequest: not JSON, or bad base64.
    """
    carried = _long_binary(raw)
    if carried is not None:
        return _typed(*carried, guard)
    if guard is not None:
        guard(bytes(raw))
    value = loads(raw)
    return _decoded(value, guard) if isinstance(value, dict) else (value, JSON_TYPE)


def _long_binary(raw: bytes | msgspec.Raw) -> tuple[bytes, str] | None:
    """Return the bytes of a long binary input and their type; None for what the slow way reads."""
    if len(raw) < _ONE_PASS_BYTES or not _BINARY_HEAD.match(raw):
        return None
    try:
        carried = _CARRIED.decode(raw)
    except ValueError:
        return None
    return carried.base64, carried.content_type


def _decoded(value: dict[str, Any], guard: Guard | None) -> tuple[Any, str]:
    """Return the bytes or text of a binary input, or the JSON object itself."""
    binary = _binary(value)
    return (value, JSON_TYPE) if binary is None else _typed(*binary, guard)


def _binary(value: dict[str, Any]) -> tuple[bytes, str] | None:
    """Return the bytes of a binary input and their content type; None for another object."""
    if value.keys() == {"content_type", "base64"}:
        return _unbase64(value["base64"]), str(value["content_type"])
    if value.keys() == {"__type__", "__value__"}:
        kind, text = value["__type__"], value["__value__"]
        if kind == "base64":
            return _unbase64(text), BINARY_TYPE
        if kind == "bytes" and isinstance(text, str):
            return text.encode(), BINARY_TYPE
    return None


def undecoded_input(raw: bytes, content_type: str = "") -> tuple[bytes, str]:
    """Return the bytes of an input as the client sent them, and their content type.

    Args:
        raw: the input's JSON text, or its bytes with a content type.
        content_type: see `raw`; "" for JSON text.

    Raises:
        InvalidRequest: not JSON, or bad base64.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind and not is_json(kind):
        return raw, content_type
    carried = _long_binary(raw)
    if carried is not None:
        return carried
    if b'"base64"' in raw or b'"__value__"' in raw:
        value = loads(raw)
        binary = _binary(value) if isinstance(value, dict) else None
        if binary is not None:
            return binary
    return raw, content_type or JSON_TYPE


def undecoded_form(raw: bytes) -> tuple[dict[str, Any], dict[str, str]] | None:
    """Return the members of a form, and the content type of each that the client sent as bytes.

    Those are bytes; the others are JSON values. None if the input is no JSON object.

    Raises:
        InvalidRequest: not JSON, or bad base64.
    """
    value = loads(raw)
    if not isinstance(value, dict):
        return None
    types: dict[str, str] = {}
    for name, part in value.items():
        binary = _binary(part) if isinstance(part, dict) else None
        if binary is not None:
            value[name], types[name] = binary
    return value, types


def nested_binaries(value: Any, encode: Callable[[Any], bytes | None]) -> Any:
    """Return a value in which each part that is not JSON has the form of a binary input.

    Args:
        value: lists and mappings are searched; it is returned itself if there is nothing to do.
        encode: returns the JSON text of a part; None for one that stays as it is.
    """
    if isinstance(value, dict):
        changed = {
            name: new
            for name, part in value.items()
            if type(part) not in _PLAIN_TYPES and (new := _part(part, encode)) is not part
        }
        return {**value, **changed} if changed else value
    if isinstance(value, (list, tuple)):
        # Most long lists have numbers only, which need no look at each.
        if _PLAIN_TYPES.issuperset(map(type, value)):
            return value
        parts = [_part(part, encode) for part in value]
        same = all(new is part for new, part in zip(parts, value, strict=True))
        return value if same else parts
    return value


def _part(value: Any, encode: Callable[[Any], bytes | None]) -> Any:
    text = encode(value)
    return nested_binaries(value, encode) if text is None else msgspec.Raw(text)


def decode_nested(value: Any) -> tuple[Any, dict[str, str]]:
    """Decode each `{"content_type", "base64"}` inside a JSON value, as `decode_input` does alone.

    Returns:
        The value, and the content type of each of them by its place, such as `images[0].mask`.

    Raises:
        InvalidRequest: one of them cannot be decoded; the message has its place.
    """
    types: dict[str, str] = {}
    try:
        return _nested(value, "", types), types
    except RecursionError:
        raise InvalidRequest("the input is nested too deeply") from None


def _nested(value: Any, at: str, types: dict[str, str]) -> Any:
    if isinstance(value, list):
        if _PLAIN_TYPES.issuperset(map(type, value)):
            return value
        return [_nested(part, f"{at}[{n}]", types) for n, part in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if value.keys() not in BINARY_FORMS:
        return {name: _nested(part, _member(at, name), types) for name, part in value.items()}
    try:
        decoded, kind = _decoded(value, None)
    except InvalidRequest as error:
        raise InvalidRequest(f"{at}: {error.message}") from None
    if kind != JSON_TYPE or decoded is not value:
        types[at] = kind
    return decoded


def _member(at: str, name: str) -> str:
    if not _PLAIN_NAME.fullmatch(name):
        return f"{at}[{_encode(name).decode()}]"
    return f"{at}.{name}" if at else name


def _unbase64(text: object) -> bytes:
    if not isinstance(text, (str, bytes)):
        raise InvalidRequest("the input's base64 cannot be read: it is no text")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return unbase64(text)


def unbase64(text: str | bytes) -> bytes:
    """Return the bytes of base64: a data URL, URL-safe, wrapped or unpadded; or InvalidRequest."""
    plain = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if data_url := _DATA_URL.match(plain):
        plain = unquote_to_bytes(plain[data_url.end() :])
    plain = plain.translate(_URL_SAFE, _SPACES).rstrip(b"=")
    if wrong := _NO_BASE64.search(plain):
        shown = plain[wrong.start() :].decode("utf-8", "replace")[:1]
        raise InvalidRequest(f"the input's base64 cannot be read: it has the character {shown!a}")
    if len(plain) % 4 == 1:
        raise InvalidRequest("the input's base64 cannot be read: it was cut off")
    return base64.b64decode(plain + b"=" * (-len(plain) % 4))


def _typed(body: bytes, content_type: str, guard: Guard | None) -> tuple[Any, str]:
    kind = content_type.partition(";")[0].strip().lower()
    if is_json(kind):
        if guard is not None:
            guard(body)
        return loads(body), content_type
    if kind.startswith("text/"):
        try:
            return body.removeprefix(BOM).decode(), content_type
        except UnicodeDecodeError as error:
            raise InvalidRequest(
                f"the input has the type {kind} but is not UTF-8: {error}"
            ) from None
    return body, content_type


def binary_head(raw: bytes, max_base64_bytes: int) -> tuple[str, bytes] | None:
    """Return content type and beginning of a binary input; None for JSON.

    Args:
        raw: the input, as in the message.
        max_base64_bytes: how much of its base64 is decoded at most.

    Raises:
        InvalidRequest: the base64 cannot be read.
    """
    head = _BINARY_HEAD.match(raw)
    if head is None:
        return None
    kind = (head["kind"] or BINARY_TYPE.encode()).decode("utf-8", "replace")
    end = min(len(raw) - len('"}'), head.end() + max_base64_bytes // 4 * 4)
    text = raw[head.end() : end]
    if head["coding"] == b"bytes":
        return kind, text
    try:
        return kind, base64.b64decode(text, validate=True)
    except ValueError:
        return kind, undecoded_input(raw)[0][: max_base64_bytes * 3 // 4]


def describe_input(raw: bytes) -> str:
    """Return type and size of an input for logs, Flower and `inspect`, never its content."""
    head = _BINARY_HEAD.match(raw)
    if head is None:
        return f"<json, {len(raw)} bytes>"
    kind = head["kind"] or b"bytes"
    return f"<{kind.decode('utf-8', 'replace')}, {_binary_bytes(raw, head)} bytes>"


def input_bytes(raw: bytes) -> int:
    """Return the size of an input: of its JSON text, or of the bytes in it."""
    head = _BINARY_HEAD.match(raw)
    return len(raw) if head is None else _binary_bytes(raw, head)


def _binary_bytes(raw: bytes, head: re.Match[bytes]) -> int:
    size = max(0, len(raw) - head.end() - len('"}'))
    if head["coding"] == b"bytes":
        return size
    return max(0, size * 3 // 4 - raw[-4:].count(b"="))
