"""What an archive's handler returned for one request, as a result of Headrace.

docs/architecture/torchserve.md has the table.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from headrace.errors import HandlerError
from headrace.handler import Response
from headrace.jobs.values.encoding import BINARY_FORMS, binary_input
from headrace.jobs.values.media_types import BINARY_TYPE, JSON_TYPE
from headrace.response import HEADER_NAME, ErrorResponse, ResponseDetails, check_headers

_SHOWN_CHARS: Final = 500
_OK: Final = 200
#: What a handler may set as a status.
STATUSES: Final = range(200, 1000)
#: The header by which TorchServe marks a reply in pieces.
STREAM_NEXT: Final = "ts_stream_next"
#: A piece without content, as `piece_of` returns it.
EMPTY_PIECE: Final = b'""'
#: What HTTP allows as the value of a header.
_VALUE: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")


class Kind(StrEnum):
    """The form of a body; its value is the media type for native clients."""

    TEXT = "text/plain; charset=utf-8"
    BYTES = BINARY_TYPE
    JSON = JSON_TYPE


class Body(NamedTuple):
    """The bytes of a reply on TorchServe's URLs."""

    data: bytes
    kind: Kind


@dataclass(slots=True)
class Reply:
    """What a handler has set for one request; its `pieces` were sent before the result."""

    status: int = _OK
    phrase: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    pieces: Sequence[Any] = ()


def result_of(value: Any, reply: Reply) -> Any:
    """Return a value as a result: a JSON value, bytes, a `Response` or a `HandlerError`."""
    try:
        if reply.status == _OK and not reply.headers and not reply.pieces:
            return _plain(value)
        headers = _checked(reply.headers)
        if reply.status not in STATUSES:
            return HandlerError(
                f"the handler set {reply.status!a}, which is no status of a response"
            )
        body = _joined([*map(body_of, reply.pieces), body_of(value)])
    except HandlerError as error:
        return error
    except (TypeError, ValueError, RecursionError) as error:
        return HandlerError(f"the handler's result cannot be sent: {error}")
    if reply.status >= 400:
        return _failed(body, reply, headers)
    if reply.status == _OK and not headers:
        return body.data.decode() if body.kind is Kind.TEXT else body.data
    kind = next((one for name, one in headers.items() if name.lower() == "content-type"), body.kind)
    return Response(body.data, str(kind), reply.status, headers)


def piece_of(value: Any) -> bytes:
    """Return a piece of a reply as JSON for the log of its job.

    Text and JSON are as they are; bytes, a tensor, and what JSON cannot express have the form of a
    binary input. `extensions/torchserve/api` makes the bytes of TorchServe's URLs of it.

    Raises:
        HandlerError: it cannot be sent.
    """
    try:
        body = body_of(value)
        if body.kind is Kind.TEXT:
            return msgspec.json.encode(str(value))
        # A value that has the form of a binary input would be read as one.
        read_as_bytes = isinstance(value, dict) and value.keys() in BINARY_FORMS
        if body.kind is Kind.JSON and not read_as_bytes:
            with contextlib.suppress(ValueError):
                return json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise HandlerError(f"a piece of the handler's reply cannot be sent: {error}") from error
    return binary_input(body.data, body.kind)


def head_of(reply: Reply) -> bytes:
    """Return the status and the headers of a reply as JSON, for the log of its job.

    Raises:
        HandlerError: a header cannot be sent.
    """
    details = ResponseDetails(reply.status, _checked(reply.headers))
    return msgspec.json.encode(details)


def body_of(value: Any) -> Body:
    """Return the bytes of a value on TorchServe's URLs.

    Raises:
        TypeError: it holds what JSON cannot express, such as an array.
    """
    if isinstance(value, str):
        return Body(value.encode(), Kind.TEXT)
    if isinstance(value, (bytes, bytearray)):
        return Body(bytes(value), Kind.BYTES)
    saved = _saved(value)
    if saved is not None:
        return Body(saved, Kind.BYTES)
    return Body(json.dumps(value, indent=2).encode(), Kind.JSON)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        value.encode()  # a lone surrogate has no UTF-8
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    saved = _saved(value)
    if saved is not None:
        return saved
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:  # NaN, unless the value contains itself
        return Response(json.dumps(value, indent=2).encode(), JSON_TYPE)
    return msgspec.Raw(text.encode())


def _saved(value: Any) -> bytes | None:
    """Return a tensor as `torch.save` writes it; None for another value."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _joined(bodies: list[Body]) -> Body:
    if len(bodies) == 1:
        return bodies[0]
    text = all(one.kind is Kind.TEXT for one in bodies)
    return Body(b"".join(one.data for one in bodies), Kind.TEXT if text else Kind.BYTES)


def _failed(body: Body, reply: Reply, headers: dict[str, str]) -> HandlerError:
    shown = body.data[: 4 * _SHOWN_CHARS].decode("utf-8", "replace")[:_SHOWN_CHARS]
    status = f"{reply.status} {reply.phrase or ''}".strip()
    return HandlerError(
        f"the handler set the status {status}: {shown}",
        response=ErrorResponse(status=reply.status, headers=headers, body=body.data),
    )


def _checked(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers as text."""
    found = {str(name): str(value) for name, value in headers.items()}
    for name, value in found.items():
        if not HEADER_NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise HandlerError(
                f"the handler set a header that cannot be sent: {name[:_SHOWN_CHARS]!a}: "
                f"{value[:_SHOWN_CHARS]!a}"
            )
    try:
        check_headers(found)
    except ValueError as error:
        raise HandlerError(str(error)) from None
    return found
