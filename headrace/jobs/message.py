"""Reading the message of a job: a Celery protocol 2 task in kombu's Redis envelope.

`headrace.jobs.message_writer` writes it. It holds the input as the text that the client sent
(`headrace.jobs.values.encoding`). Independent of Redis and HTTP.
"""

from __future__ import annotations

import base64
import bz2
import json
import lzma
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec

from headrace.errors import InvalidRequest
from headrace.jobs.ids import PAYLOAD_REFERENCE, VERSION
from headrace.jobs.options import BackoffSeconds, InputDetails
from headrace.jobs.trace_context import Trace, read_trace
from headrace.jobs.values.encoding import describe_input, loads
from headrace.jobs.values.plain_values import MARK
from headrace.redis.keys import TASK_NAME

#: How many bytes one compressed body may become.
DECOMPRESSED_MAX_BYTES: Final = 256 * 1024 * 1024
#: How much memory an LZMA header may request; its strongest preset needs 65 MiB.
LZMA_MAX_BYTES: Final = 128 * 1024 * 1024
#: What makes a decompressor of each method.
METHODS: Final[dict[str, Callable[[], Any]]] = {
    "application/x-gzip": zlib.decompressobj,  # kombu's name; its bytes are a zlib stream
    "application/x-bz2": bz2.BZ2Decompressor,
    "application/x-lzma": partial(lzma.LZMADecompressor, memlimit=LZMA_MAX_BYTES),
}


def decompress(body: bytes, method: str) -> bytes:
    """Decompress a body by its `compression` header; raise InvalidRequest if it cannot be done."""
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise InvalidRequest(f"compression {method!r} is not supported; use one of {known}")
    stream = METHODS[method]()
    try:
        text: bytes = stream.decompress(body, DECOMPRESSED_MAX_BYTES)
    except (zlib.error, OSError, EOFError, lzma.LZMAError) as error:
        raise InvalidRequest(f"the body is not {method}: {error}") from None
    if not stream.eof:
        raise InvalidRequest(
            f"the compressed body is incomplete, or has more than {DECOMPRESSED_MAX_BYTES} bytes"
        )
    return text


#: A model's name in a stock client's message may have any length; this much is shown.
SHOWN_MAX_CHARS: Final = 128
#: The end of the year 9999, the last time that can be written.
LAST_INSTANT_S: Final = 253_402_300_799.0
_ARGUMENTS: Final = ("model", "input", "parameters")
EnvelopeT = TypeVar("EnvelopeT")
#: The value of an absent member.
_NONE: Final = msgspec.Raw(b"")


class PayloadRange(msgspec.Struct, frozen=True, array_like=True):
    """A part of a payload.

    Attributes:
        start: its first byte in the payload.
        type: its content type, if it goes into the JSON text as base64; "" for JSON text.
    """

    ref: str
    start: int
    length: int
    type: str = ""


class InputSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where the input of a job is stored, if not in its message.

    Attributes:
        ref: a reference into the payload store; "" for an `input_ref`.
        origin: the file or object that the client named as `input_ref`, else "".
        type: its content type; "" for JSON text.
        size: its length in bytes; -1 if it is unknown yet.
        parts: the parts of a JSON text from several places: text, and ranges of payloads.
    """

    ref: str = ""
    origin: str = ""
    type: str = ""
    size: int = -1
    parts: tuple[str | PayloadRange, ...] = ()

    @property
    def described(self) -> str:
        """Type and size for logs, Flower and `inspect`, without the place."""
        kind = self.type.partition(";")[0] or "json"
        # It is put into JSON, between quotes.
        kind = "".join(char for char in kind if char.isalnum() or char in "/+.-_")
        return f"<{kind}, {self.size} bytes>" if self.size >= 0 else f"<{kind}>"


def arguments_repr(model: str, input_json: bytes, source: InputSource | None = None) -> str:
    """Return the arguments as Flower and `inspect` show them."""
    described = describe_input(input_json) if source is None else source.described
    return shown_arguments(model, described)


def shown_arguments(model: str, described: str) -> str:
    """The same for an input with a known description."""
    return f"{{'model': {model[:SHOWN_MAX_CHARS]!r}, 'input': '{described}'}}"


class _HeadraceHeader(msgspec.Struct, frozen=True):
    """Our own header; the API writes it, but any client could."""

    max_retries: int | None = None
    retry_backoff: BackoffSeconds | None = None
    retry_backoff_max: BackoffSeconds | None = None
    ref: str = ""
    origin: str = msgspec.field(default="", name="from")
    type: str = ""
    size: int = -1
    parts: tuple[str | PayloadRange, ...] = ()
    quiet: bool = False
    headers: msgspec.Raw = _NONE
    metadata: msgspec.Raw = _NONE
    nested: bool = False
    typed: bool = False
    version: Annotated[str, msgspec.Meta(pattern=VERSION)] | None = None

    def source(self) -> InputSource:
        """Return where the input is stored; raise InvalidRequest if the API did not write that."""
        ranges = [part for part in self.parts if isinstance(part, PayloadRange)]
        for ref in (self.ref, *(part.ref for part in ranges)):
            if ref and not PAYLOAD_REFERENCE.fullmatch(ref):
                raise InvalidRequest(
                    f"invalid payload reference {ref[:64]!r} in the header headrace.ref"
                )
        if any(part.start < 0 or part.length < 1 for part in ranges):
            raise InvalidRequest("invalid byte range in the header headrace.parts")
        if self.parts:
            return InputSource(size=self.size, parts=self.parts)
        origin = "" if self.ref else self.origin
        return InputSource(ref=self.ref, origin=origin, type=self.type, size=self.size)


_STOCK: Final = _HeadraceHeader()


# gc=False: no field can lead back to it (CONTRIBUTING.md, Rules).
class Headers(msgspec.Struct, frozen=True, gc=False):
    """The headers of a task message that Headrace uses."""

    id: str
    task: str
    eta: str | float | None = None
    expires: str | float | None = None
    timelimit: tuple[float | None, float | None] | None = None
    ignore_result: bool | None = None
    retries: int | None = 0
    root_id: str | None = None
    parent_id: str | None = None
    group: str | None = None
    compression: str | None = None
    headrace: _HeadraceHeader = _STOCK
    # Of any type: an invalid trace context is ignored.
    traceparent: Any = None
    tracestate: Any = None


# gc=False: no field can lead back to it (CONTRIBUTING.md, Rules).
class _Properties(msgspec.Struct, frozen=True, gc=False):
    body_encoding: str | None = None


HeadersT = TypeVar("HeadersT")


class Envelope(msgspec.Struct, Generic[HeadersT], frozen=True):
    """A message of any Celery client, of which these headers are read."""

    body: str
    headers: HeadersT
    properties: _Properties = _Properties()
    encoding: str | None = msgspec.field(default=None, name="content-encoding")


# gc=False: no field can lead back to it (CONTRIBUTING.md, Rules).
class Embed(msgspec.Struct, frozen=True, gc=False):
    """The callbacks of a task, as signatures of Celery's canvas."""

    callbacks: Any = None
    errbacks: Any = None
    chain: Any = None
    chord: Any = None

    @property
    def any(self) -> bool:
        """Whether there are any callbacks."""
        return bool(self.callbacks or self.errbacks or self.chain or self.chord)


_ENVELOPE: Final = msgspec.json.Decoder(Envelope[Headers])


class _Kwargs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: str
    input: msgspec.Raw
    parameters: msgspec.Raw = _NONE


#: The usual body, decoded in one pass. If that fails, `_BODY` finds the reason.
_USUAL_BODY: Final = msgspec.json.Decoder(tuple[tuple[()], _Kwargs, Embed | None])
_BODY: Final = msgspec.json.Decoder(tuple[list[msgspec.Raw], dict[str, msgspec.Raw], Embed | None])


# gc=False: no field can lead back to it (CONTRIBUTING.md, Rules).
class Message(msgspec.Struct, frozen=True, gc=False):
    """A task message, as workers use it. Times are seconds since 1970.

    Attributes:
        input: the input's JSON text; or the payload, once it was fetched from its `source`.
        ours: the API wrote it, not a Celery client.
        source: where the input is stored; None if it is in the message.
        has_callbacks: it has callbacks, which workers.jobs.canvas reads.
        quiet: its result goes into the record, and a success has no Celery result.
        details: what comes with the input; None for most jobs.
        version: the version of the model that it asks for; "" for any.
    """

    id: str
    model: str
    input: bytes
    eta_s: float | None
    expires_s: float | None
    timeout_s: float | None
    ignore_result: bool
    max_retries: int | None
    retries: int
    root_id: str
    parent_id: str | None
    group: str | None
    ours: bool = False
    source: InputSource | None = None
    retry_backoff_s: float | None = None
    retry_backoff_max_s: float | None = None
    has_callbacks: bool = False
    quiet: bool = False
    trace: Trace | None = None
    details: InputDetails | None = None
    version: str = ""


def decode_message(raw: bytes) -> Message:
    """Read a message of any Celery client; raise InvalidRequest, the job's error."""
    try:
        envelope_ = read_envelope(raw, _ENVELOPE)
        model, payload, parameters, embed = _decode_body(_body_text(envelope_))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise InvalidRequest(f"the task message cannot be read: {error}") from None
    headers = envelope_.headers
    own, limits, eta, expires = headers.headrace, headers.timelimit, headers.eta, headers.expires
    message = Message(
        headers.id,
        model,
        payload,
        # Most have neither, and a call costs as much as several other fields.
        None if eta is None else _instant(eta, "eta"),
        None if expires is None else _instant(expires, "expires"),
        None if limits is None else limits[0] or limits[1],
        bool(headers.ignore_result),
        own.max_retries,
        headers.retries or 0,
        headers.root_id or headers.id,
        headers.parent_id,
        headers.group,
        own is not _STOCK,
        own.source() if own.ref or own.origin or own.parts else None,
        quiet=own.quiet,
    )
    # Rare: as more arguments above they would cost every message a third more time.
    rare: dict[str, Any] = {}
    if embed is not None and embed.any:
        rare["has_callbacks"] = True
    if headers.traceparent is not None:
        rare["trace"] = read_trace(headers.traceparent, headers.tracestate)
    typed = own.typed or (own is _STOCK and MARK in payload)
    if parameters or own.headers or own.metadata or own.nested or typed:
        rare["details"] = InputDetails(
            parameters, bytes(own.headers), bytes(own.metadata), own.nested, typed
        )
    if own.version is not None:
        rare["version"] = own.version
    if own.retry_backoff is not None or own.retry_backoff_max is not None:
        rare["retry_backoff_s"] = own.retry_backoff
        rare["retry_backoff_max_s"] = own.retry_backoff_max
    return msgspec.structs.replace(message, **rare) if rare else message


def read_envelope(raw: bytes, decoder: msgspec.json.Decoder[EnvelopeT]) -> EnvelopeT:
    """Decode the JSON of a message, its body staying text; raise ValueError or RecursionError."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError:
        raise
    except ValueError:
        # Python's json writes NaN and half of a surrogate pair in a header, such as `argsrepr`.
        value = json.loads(raw, parse_constant=lambda _: None)
        return decoder.decode(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _body_text(envelope_: Envelope[Headers]) -> bytes:
    coding, compressed = envelope_.properties.body_encoding, envelope_.headers.compression
    if coding == "utf-8" and envelope_.encoding == "utf-8" and not compressed:
        return envelope_.body.encode()  # as the API writes it
    return body_text(envelope_.body, coding, compressed, envelope_.encoding)


def body_text(text: str, coding: str | None, compressed: str | None, encoding: str | None) -> bytes:
    """Return the JSON text of a message's body, in UTF-8.

    Raises:
        ValueError, LookupError: it cannot be read.
        InvalidRequest: as for `decompress`.
    """
    body = text.encode()
    if coding == "base64":
        body = base64.b64decode(body, validate=True)
    if compressed:
        body = decompress(body, compressed)
    encoding = (encoding or "utf-8").lower()
    if encoding in ("utf-8", "utf8", "us-ascii", "binary"):
        return body
    return body.decode(encoding).encode()


def _decode_body(body: bytes) -> tuple[str, bytes, bytes, Embed | None]:
    try:
        _, usual, embed = _USUAL_BODY.decode(body)
    except msgspec.DecodeError:
        args, kwargs, embed = decode_body(body)
        return (*_arguments(args, kwargs), embed)
    return usual.model, bytes(usual.input), bytes(usual.parameters), embed


def decode_body(
    body: bytes,
) -> tuple[list[msgspec.Raw], dict[str, msgspec.Raw], Embed | None]:
    """Return arguments by position and name, and callbacks; raise ValueError or TypeError."""
    try:
        return _BODY.decode(body)
    except msgspec.DecodeError:
        # Python's json writes NaN and Infinity, which only its own parser reads.
        args, kwargs, embed = json.loads(body)
        dumps = json.dumps
        return (
            [msgspec.Raw(dumps(value).encode()) for value in args],
            {name: msgspec.Raw(dumps(value).encode()) for name, value in kwargs.items()},
            msgspec.convert(embed, Embed | None),
        )


def _arguments(args: list[msgspec.Raw], kwargs: dict[str, msgspec.Raw]) -> tuple[str, bytes, bytes]:
    # In a chain, the result of the previous task comes first, and the model is given by name.
    names = ("input",) if "model" in kwargs else ("model", "input")
    if len(args) > len(names):
        count = len(args) + len(kwargs)
        raise InvalidRequest(
            f"{TASK_NAME} takes model and input, and parameters by name, not {count} arguments"
        )
    given = dict(zip(names, args, strict=False))
    twice = given.keys() & kwargs.keys()
    unknown = kwargs.keys() - set(_ARGUMENTS)
    if twice or unknown:
        wrong = "given twice" if twice else "unknown"
        which = ", ".join(sorted(twice or unknown))
        raise InvalidRequest(
            f"{TASK_NAME} takes model, input and parameters; {wrong}: {which[:128]}"
        )
    given.update(kwargs)
    missing = [name for name in ("model", "input") if name not in given]
    if missing:
        raise InvalidRequest(f"{TASK_NAME} requires {' and '.join(missing)}")
    model = loads(given["model"])
    if not isinstance(model, str):
        raise InvalidRequest(f"model must be a string, not {type(model).__name__}")
    return model, bytes(given["input"]), bytes(given.get("parameters", b""))


def _instant(value: str | float, name: str) -> float:
    """Return seconds since 1970. Celery writes ISO 8601; a time without a zone is UTC.

    A time outside of the years 1970 to 9999 becomes the first or the last of them.
    """
    if isinstance(value, (int, float)):
        seconds = value
    else:
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidRequest(f"{name} is not an ISO 8601 time: {value[:64]!r}") from None
        seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    return min(max(seconds, 0.0), LAST_INSTANT_S)
