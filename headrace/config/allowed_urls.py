"""The URLs that the operator allows by their beginnings, such as `https://models.example.com/v2/`.

A URL is compared by its parts, and not as text: `https://models.example.com.evil.net/` does not
begin with `https://models.example.com`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

_PORTS: Final = {"https": 443, "http": 80}
#: An encoded separator or dot, which a server may decode after the comparison.
_HIDDEN: Final = re.compile("%(2e|2f|5c|25|00)", re.IGNORECASE)
_SHOWN_CHARS: Final = 200


class WebUrl(NamedTuple):
    """A URL in the form in which it is compared and requested.

    Attributes:
        host: in lower case; an IPv6 address without brackets.
        path: begins with `/`, and has no `.` or `..`.
        query: without its `?`.
    """

    scheme: str
    host: str
    port: int
    path: str
    query: str

    @property
    def target(self) -> str:
        """Return what is requested from the host."""
        return f"{self.path}?{self.query}" if self.query else self.path


def read_url(text: str) -> WebUrl:
    """Parse a URL; raise ValueError, which names it without its query, if it cannot be used."""
    shown = text.partition("?")[0][:_SHOWN_CHARS]
    if not text.isascii() or any(char <= " " or char in '\\"<>^`{|}\x7f' for char in text):
        raise ValueError(f"{shown!r} has a character that a URL cannot have; encode it as %XX")
    parts = urlsplit(text)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{shown!r} is not a URL such as https://models.example.com/digits.zip")
    if "@" in parts.netloc:
        raise ValueError("a URL with a user or a password is not accepted; use a signed URL")
    if parts.fragment:
        raise ValueError(f"{shown!r} has a fragment (#...); leave it out")
    segments = parts.path.split("/")
    if "." in segments or ".." in segments or _HIDDEN.search(parts.path):
        raise ValueError(f"{shown!r} has `.`, `..` or an encoded one in its path; write it out")
    return WebUrl(parts.scheme, parts.hostname, _port(parts, shown), parts.path or "/", parts.query)


def read_prefix(text: str) -> WebUrl:
    """Parse the beginning of allowed URLs; raise ValueError, which names it, for other text."""
    prefix = read_url(text)
    if prefix.query:
        raise ValueError(f"{text[:_SHOWN_CHARS]!r} has a query (?...); leave it out")
    return prefix


def is_allowed(url: WebUrl, prefixes: Iterable[WebUrl]) -> bool:
    """Return whether a URL begins with one of these. A path is compared by whole segments."""
    return any(
        url[:3] == prefix[:3]
        and (url.path == prefix.path or url.path.startswith(prefix.path.rstrip("/") + "/"))
        for prefix in prefixes
    )


def _port(parts: SplitResult, shown: str) -> int:
    try:
        return parts.port or _PORTS[parts.scheme]
    except ValueError:
        raise ValueError(f"{shown!r} has no valid port") from None
