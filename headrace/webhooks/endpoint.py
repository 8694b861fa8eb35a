"""The URL of a webhook, and the checks that need no name lookup."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from headrace.errors import InvalidRequest
from headrace.jobs.options import WEBHOOK_URL_MAX_CHARS, JobOptions
from headrace.webhooks.allowed_addresses import Address, Network, may_reach, plain, read_networks

_PORTS: Final = {"http": 80, "https": 443}
_ABSOLUTE: Final = "Give an absolute URL, such as https://example.com/hook."
#: The characters of a URL, without those that parsers treat differently.
_CHARS = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?\.?")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A parsed URL.

    Attributes:
        host: a name, or an address without brackets, in lower case.
        literal: the address, if the host is one.
        path: the path with its query.
    """

    scheme: str
    host: str
    port: int
    literal: Address | None
    authority: str
    path: str


def read_target(url: str, *, allow_http: bool = False) -> Endpoint:
    """Parse a webhook's URL; raise InvalidRequest, with the reason, if none can be sent there."""
    if len(url) > WEBHOOK_URL_MAX_CHARS:
        raise _wrong(f"the URL has {len(url)} characters, more than {WEBHOOK_URL_MAX_CHARS}")
    if not _CHARS.fullmatch(url):
        raise _wrong("the URL has invalid characters", "Percent-encode them.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _wrong(f"the URL cannot be read: {error}") from None
    scheme = parts.scheme.lower()
    if scheme not in (("https", "http") if allow_http else ("https",)):
        hint = "Give a URL with https://; the setting webhook_allow_http also allows http://."
        raise _wrong(
            f"the scheme {scheme[:16]} is not allowed" if scheme else "the URL has no scheme", hint
        )
    if "@" in parts.netloc:
        raise _wrong("the URL has a user or a password", "Remove it; webhooks are signed.")
    if parts.fragment:
        raise _wrong("the URL has a fragment", "Remove # and what follows; it is never sent.")
    if port == 0 or not parts.hostname:
        raise _wrong("the URL has no host" if port != 0 else "the URL has port 0")
    host = parts.hostname
    literal = _literal(host, bracketed="[" in parts.netloc)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Endpoint(scheme, host, port or _PORTS[scheme], literal, parts.netloc, path)


def _literal(host: str, *, bracketed: bool) -> Address | None:
    """Return the address of a host; None for a name."""
    if "%" in host:
        raise _wrong(f"{host[:64]!r} is not a host")
    try:
        return plain(ipaddress.ip_address(host))
    except ValueError:
        pass
    last = host.rstrip(".").rpartition(".")[2]
    if bracketed or not _HOST.fullmatch(host) or ".." in host:
        raise _wrong(f"{host[:64]!r} is not a host")
    # Resolvers read 127.1 and 0x7f000001 as addresses.
    if last.isdigit() or re.fullmatch(r"0[xX][0-9a-fA-F]*", last):
        raise _wrong(
            f"{host[:64]!r} is not a host", "Write an address as 192.0.2.7 or [2001:db8::7]."
        )
    if last.lower() == "localhost":
        return ipaddress.IPv4Address("127.0.0.1")
    return None


class WebhookPolicy:
    """Checks the webhook of a request."""

    def __init__(self, *, on: bool, allow_http: bool = False, networks: Sequence[str] = ()) -> None:
        self._on = on
        self._allow_http = allow_http
        self._allowed = read_networks(networks)

    def check(self, options: JobOptions) -> None:
        """Check the options of a request; raise InvalidRequest if its webhook cannot be sent."""
        if options.webhook is None:
            if options.webhook_events:
                raise InvalidRequest(
                    "webhook_events needs webhook, which is missing", hint="Give the URL too."
                )
            return
        if not self._on:
            raise InvalidRequest(
                "this server sends no webhooks, because webhook_secrets is not set",
                hint="Ask its operator to set it (docs/webhooks.md), or wait or poll instead.",
            )
        check_address(read_target(options.webhook, allow_http=self._allow_http), self._allowed)


def check_address(target: Endpoint, allowed: Sequence[Network]) -> None:
    """Check an address in the URL, not yet a name; raise InvalidRequest if it is refused."""
    if target.literal is not None and not may_reach(target.literal, allowed):
        raise _wrong(
            f"{target.host[:64]} is an address of a private or reserved network",
            "Give a public address; the setting webhook_allow_networks allows more networks.",
        )


def shown(url: str) -> str:
    """Return a URL for lists and logs, without its query, which may contain a token."""
    before, mark, _ = url.partition("?")
    return before + (f"{mark}…" if mark else "")


def _wrong(what: str, hint: str = _ABSOLUTE) -> InvalidRequest:
    return InvalidRequest(f"webhook: {what}", hint=hint)
