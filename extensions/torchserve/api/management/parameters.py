"""The parameters of TorchServe's management requests: read leniently, as its clients expect.

An unknown parameter is ignored. A text that is no integer is as if it were not given.
"""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import parse_qsl

from api.http.bodies import read_body
from api.http.messages import JSON, Request
from extensions.torchserve.api.replies import Kind, TorchServeError
from headrace.config.yaml_file import BoundedLoader

BODY_LIMIT_BYTES: Final = 64 * 1024
#: The largest integer that TorchServe reads.
_INT_MAX: Final = 2**31 - 1
_INT_DIGITS: Final = len(str(_INT_MAX))


class Parameters:
    """The parameters of one request, by TorchServe's names."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def text(self, name: str) -> str | None:
        """Return a parameter; None if it is not given."""
        return self._values.get(name)

    def number(self, name: str) -> int | None:
        """Return a parameter as an integer; None if it is not given or cannot be read."""
        number = self._integer(name)
        return None if number is None or abs(number) > _INT_MAX else number

    def limited(self, name: str, most: int = _INT_MAX) -> int | None:
        """Return a parameter as an integer; None if it is not given, or is no integer.

        Raises:
            TorchServeError: it is larger than `most`, or is less than TorchServe reads.
        """
        number = self._integer(name)
        if number is None or -_INT_MAX <= number <= most:
            return number
        limit = f"{most:,} is the largest number" if number > 0 else f"the least is {-_INT_MAX:,}"
        given = self._values[name].strip()[:40]
        raise TorchServeError(
            Kind.BAD_REQUEST, f"{name} is {given}: {limit} that is accepted here. Send another one"
        )

    def _integer(self, name: str) -> int | None:
        text = self._values.get(name, "").strip()
        sign = text[:1] if text[:1] in ("-", "+") else ""
        digits = text.removeprefix(sign)
        if not (digits.isascii() and digits.isdecimal()):
            return None
        # Python refuses to read thousands of digits. One digit more than fits is too large as well.
        return int(f"{sign}{digits.lstrip('0')[: _INT_DIGITS + 1] or '0'}")

    def flag(self, name: str, default: bool) -> bool:
        """Return whether a parameter is `true`; any other text is false."""
        text = self._values.get(name)
        return default if text is None else text.strip().lower() == "true"


def read_query(request: Request) -> Parameters:
    """Return the parameters in the query; of a name that is given twice the first one."""
    text = request.query_string.decode("latin-1")
    found: dict[str, str] = {}
    for name, value in parse_qsl(text, keep_blank_values=True, errors="replace"):
        found.setdefault(name, value)
    return Parameters(found)


async def read_parameters(request: Request) -> Parameters:
    """Return the parameters in a JSON body; else those in the query.

    Raises:
        TorchServeError: the body is no JSON object.
        PayloadTooLarge: it is too large.
    """
    media_type = request.header(b"content-type").partition(b";")[0].strip().lower()
    if media_type != JSON:
        return read_query(request)
    body = await read_body(request, BODY_LIMIT_BYTES, fixed=True)
    if not body.strip():
        return read_query(request)
    return Parameters(_members(_document(body)))


def _document(body: bytes) -> Any:
    """Return the value of a JSON text, which may have single quotes."""
    try:
        text = body.decode()
        try:
            return json.loads(text)
        except ValueError:
            return BoundedLoader(text).get_single_data()
    except Exception as error:  # noqa: BLE001 - PyYAML raises errors of many kinds
        what = " ".join(str(error).split())[:200] or type(error).__name__
        raise TorchServeError(
            Kind.BAD_REQUEST, f"The body is no JSON object: {what}. Correct it, or use the query"
        ) from None


def _members(document: Any) -> dict[str, str]:
    """Return the members of an object that hold a single value, as a query would have them."""
    if not isinstance(document, dict):
        raise TorchServeError(
            Kind.BAD_REQUEST,
            'The body is no JSON object. Send one such as {"url": "digits.mar"}, or use the query',
        )
    found = {}
    for name, value in document.items():
        if isinstance(value, bool):
            found[str(name)] = str(value).lower()
        elif isinstance(value, float) and value.is_integer():
            found[str(name)] = str(int(value))
        elif isinstance(value, str | int):
            found[str(name)] = str(value)
    return found
