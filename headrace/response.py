"""The status and the headers that a handler sets for a response, on their way to the client.

They travel in the content type of the result, as its parameter `x-response`. So the record, the
publication of the end and the payload store carry them without a field of their own. The response
of a failed job is in the error of its record.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Final

import msgspec

#: What HTTP allows as the name of a header.
HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_PARAMETER: Final = ";x-response="
#: The limits of what a handler may set. Clients and proxies refuse more in one response: Python's
#: http.client 100 headers, and nginx 8 KiB by default.
HEADERS_MAX: Final = 64
HEADERS_MAX_BYTES: Final = 8 * 1024


class ResponseDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a handler has set for a response, without its body.

    Attributes:
        headers: by name, as the handler wrote them; `content-type` too, if it has set one.
    """

    status: int = 200
    headers: dict[str, str] = {}


class ErrorResponse(ResponseDetails, frozen=True, omit_defaults=True):
    """The response of a failed job.

    Attributes:
        body: its bytes; None for the server's own text of the error.
    """

    body: bytes | None = None


class _Error(msgspec.Struct):
    response: ErrorResponse | None = None


NO_DETAILS: Final = ResponseDetails()
_DETAILS: Final = msgspec.json.Decoder(ResponseDetails)
_ERROR: Final = msgspec.json.Decoder(_Error)


def check_headers(headers: Mapping[str, str]) -> None:
    """Check the number and the length of a handler's headers; raise ValueError if too large."""
    if len(headers) > HEADERS_MAX:
        raise ValueError(
            f"the handler set {len(headers)} headers, and a response may have {HEADERS_MAX}. "
            "Set fewer, or put the values into the result"
        )
    size = sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
    if size > HEADERS_MAX_BYTES:
        raise ValueError(
            f"the handler set headers of {size} bytes, and a response may have "
            f"{HEADERS_MAX_BYTES}. Set shorter ones, or put the values into the result"
        )


def with_details(content_type: str, details: ResponseDetails) -> str:
    """Return the content type of a result with these details; raise ValueError as check_headers."""
    if details == NO_DETAILS:
        return content_type
    check_headers(details.headers)
    text = base64.urlsafe_b64encode(msgspec.json.encode(details)).decode().rstrip("=")
    return f"{content_type}{_PARAMETER}{text}"


def split_details(content_type: str) -> tuple[str, ResponseDetails]:
    """Return the content type of a result for clients, and the details that it carries."""
    plain, separator, text = content_type.partition(_PARAMETER)
    if not separator:
        return content_type, NO_DETAILS
    try:
        return plain, _DETAILS.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (msgspec.MsgspecError, binascii.Error, ValueError):
        return plain, NO_DETAILS


def error_response(error_json: str) -> ErrorResponse | None:
    """Return the response in the error of a record; None if the handler has set none."""
    try:
        return _ERROR.decode(error_json).response if error_json else None
    except msgspec.MsgspecError:
        return None
