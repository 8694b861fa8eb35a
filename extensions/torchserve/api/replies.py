"""Answers as TorchServe writes them: JSON for people, and the headers of every answer."""

from __future__ import annotations

import uuid
from typing import Any, Final

import msgspec

from api.http.messages import Header, Reply
from extensions.torchserve.config.settings import TorchServeConfig

#: The answer has no Content-Type.
NO_TYPE: Final = b""
REQUEST_ID: Final = b"x-request-id"
#: No browser and no proxy may keep an answer.
_NOT_KEPT: Final[tuple[Header, ...]] = (
    (b"pragma", b"no-cache"),
    (b"cache-control", b"no-cache; no-store, must-revalidate, private"),
    (b"expires", b"Thu, 01 Jan 1970 00:00:00 UTC"),
)


def json_reply(document: Any, status: int = 200, headers: tuple[Header, ...] = ()) -> Reply:
    """Return an answer with indented JSON and a newline at its end."""
    body = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    return Reply(status, body, headers=headers)


def status_reply(text: str, status: int = 200) -> Reply:
    """Return an answer that has the member `status` only."""
    return json_reply({"status": text}, status)


def fixed_headers(config: TorchServeConfig) -> tuple[Header, ...]:
    """Return the headers that are the same in every answer."""
    cors = (
        (b"access-control-allow-origin", config.cors_allowed_origin),
        (b"access-control-allow-methods", config.cors_allowed_methods),
        (b"access-control-allow-headers", config.cors_allowed_headers),
    )
    return (*_NOT_KEPT, *((name, value.encode("latin-1")) for name, value in cors if value))


def new_request_id() -> Header:
    """Return the header with the id of a request that has none."""
    return (REQUEST_ID, str(uuid.uuid4()).encode())
