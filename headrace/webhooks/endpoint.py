"""Where a webhook goes: what of an address can be told before anybody is asked for it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from headrace.errors import InvalidRequest
from headrace.jobs.options import DEFAULT_OPTIONS, JobOptions
from headrace.webhooks.allowed_addresses import Address, Network, may_reach, plain, read_networks

if TYPE_CHECKING:
    from headrace.config.settings import Settings

URL_MAX_CHARS: Final = 2048
_PORTS: Final = {"http": 80, "https": 443}
#: What a URL is made of; neither blanks, nor what parsers disagree about.
_CHARS = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?\.?")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A webhook's address, taken apart.

    Attributes:
        host: a name, or an address without brackets; in small letters.
        literal: the address, where the host is one.
        authority: what the header Host says.
        path: with its query.
    """

    scheme: str
    host: str
    port: int
    literal: Address | None
    authority: str
    path: str


def read_target(url: str, *, allow_http: bool = False) -> Endpoint:
    """Take a webhook's URL apart.

    Raises:
        InvalidRequest: no webhook is sent there, whoever answers; the sentence says why.
    """
    if len(url) > URL_MAX_CHARS:
        raise _wrong(f"the URL has {len(url)} characters, more than {URL_MAX_CHARS}")
    if not _CHARS.fullmatch(url):
        raise _wrong("the URL has characters that none has", "Percent-encode them.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _wrong(f"the URL cannot be read: {error}") from None
    scheme = parts.scheme.lower()
    if scheme not in (("https", "http") if allow_http else ("https",)):
        hint = "Send webhooks over HTTPS; the setting webhook_allow_http allows http:// too."
        raise _wrong(f"{scheme[:16] or 'no scheme'} is not served", hint)
    if "@" in parts.netloc:
        raise _wrong("the URL has a user or a password", "What is sent is signed instead.")
    if parts.fragment:
        raise _wrong("the URL has a fragment, which nobody is sent", "Leave out # and the rest.")
    if port == 0 or not parts.hostname:
        raise _wrong("the URL has no host" if port != 0 else "there is no port 0")
    host = parts.hostname
    literal = _literal(host, bracketed="[" in parts.netloc)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Endpoint(scheme, host, port or _PORTS[scheme], literal, parts.netloc, path)


def _literal(host: str, *, bracketed: bool) -> Address | None:
    """The address that a host is; None for a name."""
    if "%" in host:
        raise _wrong(f"{host[:64]!r} is no host")
    try:
        return plain(ipaddress.ip_address(host))
    except ValueError:
        pass
    last = host.rstrip(".").rpartition(".")[2]
    if bracketed or not _HOST.fullmatch(host) or ".." in host:
        raise _wrong(f"{host[:64]!r} is no host")
    # Resolvers take 127.1 and 0x7f000001 for addresses; nobody means them.
    if last.isdigit() or re.fullmatch(r"0[xX][0-9a-fA-F]*", last):
        raise _wrong(f"{host[:64]!r} is no host", "Write an address as 192.0.2.7 or [2001:db8::7].")
    if last.lower() == "localhost":
        return ipaddress.IPv4Address("127.0.0.1")
    return None


class WebhookPolicy:
    """Whether what a client asks for can be done here.

    Args:
        settings: the deployment's.
    """

    def __init__(self, settings: Settings) -> None:
        self._on = bool(settings.webhook_secrets)
        self._allow_http = settings.webhook_allow_http
        self._allowed = read_networks(settings.webhook_allow_networks)

    def check(self, options: JobOptions) -> None:
        """Look at the options of a job that is to be submitted.

        Raises:
            InvalidRequest: its webhook cannot be.
        """
        if options is DEFAULT_OPTIONS:
            return
        if not options.webhook:
            if options.webhook_events:
                raise InvalidRequest(
                    "webhook_events is given and webhook is not", hint="Give the URL too."
                )
            return
        if not self._on:
            raise InvalidRequest(
                "this server sends no webhooks: it has no secret to sign them with",
                hint="Its operator sets webhook_secrets (docs/webhooks.md); else wait or poll.",
            )
        check_address(read_target(options.webhook, allow_http=self._allow_http), self._allowed)


def check_address(target: Endpoint, allowed: Sequence[Network]) -> None:
    """Look at an address that stands in the URL itself; a name is looked up when it is sent.

    Raises:
        InvalidRequest: nothing is sent there.
    """
    if target.literal is not None and not may_reach(target.literal, allowed):
        raise _wrong(
            f"{target.host[:64]} is an address of a private or reserved network",
            "Give one that the Internet reaches; the setting webhook_allow_networks allows more.",
        )


def shown(url: str) -> str:
    """A URL for lists and logs: without its query, which may hold a token."""
    before, mark, _ = url.partition("?")
    return before + (f"{mark}…" if mark else "")


def _wrong(what: str, hint: str = "Give an absolute URL, such as https://example.com/hook.") -> (
    InvalidRequest
):  # fmt: skip
    return InvalidRequest(f"webhook: {what}", hint=hint)
