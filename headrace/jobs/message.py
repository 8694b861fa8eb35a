"""The one message: a Celery protocol 2 task in kombu's Redis envelope, read.

`headrace.jobs.message_writer` writes it. The input stands in it as the text that the client sent
(`headrace.jobs.encoding`). Knows no Redis and no HTTP.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from headrace.errors import InvalidRequest
from headrace.jobs import compression
from headrace.jobs.encoding import describe_input, loads
from headrace.jobs.ids import PAYLOAD_REFERENCE
from headrace.jobs.options import Backoff
from headrace.jobs.trace_context import Trace, read_trace
from headrace.redis.keys import TASK_NAME

#: A stock client's message may name a model of any length.
SHOWN_MAX_CHARS: Final = 128
#: The end of the year 9999, as far as times go.
LAST_INSTANT_S: Final = 253_402_300_799.0
_encode: Final = msgspec.json.encode


class PayloadRange(msgspec.Struct, frozen=True, array_like=True):
    """A part of a payload.

    Attributes:
        ref: the payload.
        start: where it begins there, in bytes.
        length: its bytes.
        type: its content type; it then stands in the JSON text as base64. "" for JSON text.
    """

    ref: str
    start: int
    length: int
    type: str = ""


class InputSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where the input of a job lies that is not in its message.

    Attributes:
        ref: a reference into the payload store; "" where the input is the operator's own.
        origin: the file or object that the client named as `input_ref`, else "".
        type: its content type; "" for JSON text.
        size: its bytes; -1 where they are not known yet.
        parts: of what it is put together, where it is JSON text out of several places: text as it
            is, and stretches of payloads.
    """

    ref: str = ""
    origin: str = ""
    type: str = ""
    size: int = -1
    parts: tuple[str | PayloadRange, ...] = ()

    @property
    def described(self) -> str:
        """Type and size, for logs, Flower and `inspect`; where it lies is not told."""
        kind = self.type.partition(";")[0] or "json"
        # It stands in JSON and between quotes.
        kind = "".join(char for char in kind if char.isalnum() or char in "/+.-_")
        return f"<{kind}, {self.size} bytes>" if self.size >= 0 else f"<{kind}>"


def arguments_repr(model: str, input_json: bytes, source: InputSource | None = None) -> str:
    """The arguments as Flower and `inspect` show them."""
    described = describe_input(input_json) if source is None else source.described
    return shown_arguments(model, described)


def shown_arguments(model: str, described: str) -> str:
    """The same where it is known what the input is called."""
    return f"{{'model': {model[:SHOWN_MAX_CHARS]!r}, 'input': '{described}'}}"


class _HeadraceHeader(msgspec.Struct, frozen=True):
    """Our own header; only the API writes it, but any client can."""

    max_retries: int | None = None
    retry_backoff: Backoff | None = None
    retry_backoff_max: Backoff | None = None
    ref: str = ""
    origin: str = msgspec.field(default="", name="from")
    type: str = ""
    size: int = -1
    parts: tuple[str | PayloadRange, ...] = ()
    quiet: bool = False

    def source(self) -> InputSource:
        """Where the input lies.

        Raises:
            InvalidRequest: under no name that the API can have given it.
        """
        stretches = [part for part in self.parts if isinstance(part, PayloadRange)]
        for ref in (self.ref, *(part.ref for part in stretches)):
            if ref and not PAYLOAD_REFERENCE.fullmatch(ref):
                raise InvalidRequest(f"the header headrace.ref {ref[:64]!r} is no reference")
        if any(part.start < 0 or part.length < 1 for part in stretches):
            raise InvalidRequest("the header headrace.parts has a stretch that is none")
        if self.parts:
            return InputSource(size=self.size, parts=self.parts)
        origin = "" if self.ref else self.origin
        return InputSource(ref=self.ref, origin=origin, type=self.type, size=self.size)


_STOCK: Final = _HeadraceHeader()


class Headers(msgspec.Struct, frozen=True, gc=False):
    """The headers of a task message that Headrace acts on; the rest pass by."""

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
    # Of any type: what is no trace is passed over.
    traceparent: Any = None
    tracestate: Any = None


class _Properties(msgspec.Struct, frozen=True, gc=False):
    body_encoding: str | None = None


class _Envelope(msgspec.Struct, frozen=True, gc=False):
    body: str
    headers: Headers
    properties: _Properties = _Properties()
    encoding: str | None = msgspec.field(default=None, name="content-encoding")


class Embed(msgspec.Struct, frozen=True, gc=False):
    """What follows the task, in the signatures of Celery's canvas."""

    callbacks: Any = None
    errbacks: Any = None
    chain: Any = None
    chord: Any = None

    @property
    def any(self) -> bool:
        """Whether anything does."""
        return bool(self.callbacks or self.errbacks or self.chain or self.chord)


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)


class _Kwargs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: str
    input: msgspec.Raw


#: The usual body, decoded in one pass; whatever does not fit is read by `_BODY`, which can say why.
_USUAL_BODY: Final = msgspec.json.Decoder(tuple[tuple[()], _Kwargs, Embed | None])
_BODY: Final = msgspec.json.Decoder(tuple[list[msgspec.Raw], dict[str, msgspec.Raw], Embed | None])


class Message(msgspec.Struct, frozen=True, gc=False):
    """A task message as the worker needs it. Times are seconds since 1970.

    Attributes:
        input: the input's JSON text; once it was fetched from its `source`, what lay there.
        ours: the API wrote it, and not a Celery client.
        source: where the input lies; None where it is in the message.
        followed: other tasks follow its end, as workers.jobs.canvas reads them.
        quiet: its result goes into the record, and no Celery result is kept of its success.
        trace: where in a trace it was submitted.
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
    followed: bool = False
    quiet: bool = False
    trace: Trace | None = None


def read_envelope(raw: bytes) -> Message:
    """Read a message that any Celery client may have written.

    Raises:
        InvalidRequest: with a sentence for the job's error; the message's id was read by the claim.
    """
    try:
        envelope_ = _ENVELOPE.decode(raw)
        model, payload, embed = _decode_body(_body_text(envelope_))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise InvalidRequest(f"the task message cannot be read: {error}") from None
    headers = envelope_.headers
    own, limits, eta, expires = headers.headrace, headers.timelimit, headers.eta, headers.expires
    message = Message(
        headers.id,
        model,
        payload,
        # Most have neither, and a call costs as much as the rest of a line.
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
    if embed is not None and embed.any:
        message = msgspec.structs.replace(message, followed=True)
    if headers.traceparent is not None:
        trace = read_trace(headers.traceparent, headers.tracestate)
        message = msgspec.structs.replace(message, trace=trace)
    first, most = own.retry_backoff, own.retry_backoff_max
    if first is None and most is None:
        return message
    # Few ask for it; as two more arguments above they would cost every message a third more.
    return msgspec.structs.replace(message, retry_backoff_s=first, retry_backoff_max_s=most)


def _body_text(envelope_: _Envelope) -> bytes:
    coding, compressed = envelope_.properties.body_encoding, envelope_.headers.compression
    if coding == "utf-8" and envelope_.encoding == "utf-8" and not compressed:
        return envelope_.body.encode()  # as the API writes it
    return body_text(envelope_.body, coding, compressed, envelope_.encoding)


def body_text(text: str, coding: str | None, compressed: str | None, encoding: str | None) -> bytes:
    """The JSON text of a message's body, in UTF-8.

    Args:
        text: the body as it stands in the message.
        coding: its `body_encoding`.
        compressed: its header `compression`.
        encoding: its `content-encoding`.

    Raises:
        ValueError, LookupError: it cannot be read.
        InvalidRequest: as for `compression.decompress`.
    """
    body = text.encode()
    if coding == "base64":
        body = base64.b64decode(body, validate=True)
    if compressed:
        body = compression.decompress(body, compressed)
    encoding = (encoding or "utf-8").lower()
    if encoding in ("utf-8", "utf8", "us-ascii", "binary"):
        return body
    return body.decode(encoding).encode()


def _decode_body(body: bytes) -> tuple[str, bytes, Embed | None]:
    try:
        _, usual, embed = _USUAL_BODY.decode(body)
    except msgspec.DecodeError:
        args, kwargs, embed = decode_body(body)
        return (*_arguments(args, kwargs), embed)
    return usual.model, bytes(usual.input), embed


def decode_body(
    body: bytes,
) -> tuple[list[msgspec.Raw], dict[str, msgspec.Raw], Embed | None]:
    """Arguments by position, arguments by name, and what follows the task.

    Raises:
        ValueError, TypeError: it is no task's body.
    """
    try:
        return _BODY.decode(body)
    except msgspec.DecodeError:
        # Python's json writes NaN and Infinity, which no JSON parser but its own reads.
        args, kwargs, embed = json.loads(body)
        dumps = json.dumps
        return (
            [msgspec.Raw(dumps(value).encode()) for value in args],
            {name: msgspec.Raw(dumps(value).encode()) for name, value in kwargs.items()},
            msgspec.convert(embed, Embed | None),
        )


def _arguments(args: list[msgspec.Raw], kwargs: dict[str, msgspec.Raw]) -> tuple[str, bytes]:
    # In a chain, what the task before gave stands in front: then the model is given by name.
    names = ("input",) if "model" in kwargs else ("model", "input")
    if len(args) > len(names):
        count = len(args) + len(kwargs)
        raise InvalidRequest(f"{TASK_NAME} takes model and input, not {count} arguments")
    given = dict(zip(names, args, strict=False))
    twice = given.keys() & kwargs.keys()
    unknown = kwargs.keys() - {"model", "input"}
    if twice or unknown:
        wrong = "given twice" if twice else "unknown"
        which = ", ".join(sorted(twice or unknown))
        raise InvalidRequest(f"{TASK_NAME} takes model and input; {wrong}: {which[:128]}")
    given.update(kwargs)
    missing = [name for name in ("model", "input") if name not in given]
    if missing:
        raise InvalidRequest(f"{TASK_NAME} wants {' and '.join(missing)}")
    model = loads(given["model"])
    if not isinstance(model, str):
        raise InvalidRequest(f"model is to be a string, not {type(model).__name__}")
    return model, bytes(given["input"])


def _instant(value: str | float, name: str) -> float:
    """Celery writes ISO 8601; a time without a zone is UTC. Numbers are seconds since 1970.

    What lies outside of the years that a time can be written in means "long ago" or "never".
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
