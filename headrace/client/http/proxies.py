"""The proxy that the environment names for a server, by the rules of curl.

httpx2's own rules know no networks in NO_PROXY, take a proxy for this machine's own server, and
fail for each proxy of the environment that cannot be used, also for one that is not needed.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies

from headrace.errors import InvalidRequest

_KINDS: Final = ("http", "https", "socks5", "socks5h")
_NO_PROXY: Final = ("no_proxy", "NO_PROXY")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Proxy(NamedTuple):
    """A proxy of the environment: its URL, perhaps with a password, and the variable."""

    url: str
    variable: str

    @property
    def shown(self) -> str:
        """The proxy for messages."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]} ({self.variable})"


def proxy_for(server: str) -> Proxy | None:
    """Return the proxy for a server, None for none; raise InvalidRequest if it cannot be used."""
    parts = urlsplit(server)
    host = (parts.hostname or "").rstrip(".")
    if _is_here(host) or _is_excepted(host, parts):
        return None
    proxy = _named(parts.scheme)
    if proxy is not None:
        _check(proxy, host)
    return proxy


def _named(scheme: str) -> Proxy | None:
    found = getproxies()  # also those of the system, on macOS and Windows
    for kind in (scheme, "all"):
        if text := found.get(kind, ""):
            names = (f"{kind}_proxy", f"{kind}_proxy".upper())
            variable = next((name for name in names if os.environ.get(name) == text), names[1])
            return Proxy(text if "://" in text else f"http://{text}", variable)
    return None


def _check(proxy: Proxy, host: str) -> None:
    """Raise an InvalidRequest if a proxy cannot be used; no message has its URL."""
    hint = f"Correct or unset {proxy.variable}, or add {host} to NO_PROXY."
    try:
        parts = urlsplit(proxy.url)
        valid = bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or not re.fullmatch(r"[!-~]+", proxy.url):
        raise InvalidRequest(f"{proxy.variable} is not the URL of a proxy", hint=hint)
    if parts.scheme not in _KINDS:
        raise InvalidRequest(
            f"{proxy.variable} names a proxy of the kind {parts.scheme}://, which cannot be used; "
            f"known: {', '.join(_KINDS)}",
            hint=hint,
        )
    if parts.scheme.startswith("socks") and find_spec("socksio") is None:
        raise InvalidRequest(
            f"{proxy.variable} names a SOCKS proxy, and the package socksio is not installed",
            hint=f"Install socksio, unset {proxy.variable}, or add {host} to NO_PROXY.",
        )


def _is_here(host: str) -> bool:
    """Return whether a host is this machine, by its name or its address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = _address(host)
    if address is None:
        return False
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))  # only to an address of this machine
    except OSError:
        return False
    return True


def _is_excepted(host: str, server: SplitResult) -> bool:
    """Return whether NO_PROXY names a host: itself, its domain or its network."""
    address = _address(host)
    for entry in _exceptions():
        if entry == "*":
            return True
        if address is not None and _covers(entry, address):
            return True
        name, port = _split_port(entry)
        default = {"http": 80, "https": 443}.get(server.scheme)
        if port and port != str(server.port or default):
            continue
        if address is not None:
            if _covers(name, address):
                return True
            continue
        name = name.removeprefix("*").strip(".")
        if name and (host == name or host.endswith(f".{name}")):
            return True
    return False


def _exceptions() -> Iterator[str]:
    text = next((os.environ[name] for name in _NO_PROXY if os.environ.get(name)), "")
    for entry in re.split(r"[,\s]+", text.lower()):
        if entry:
            yield entry.rpartition("://")[2].rstrip(".")


def _split_port(entry: str) -> tuple[str, str]:
    """Split an exception at its port; an IPv6 address with one has brackets."""
    parts = re.fullmatch(r"(\[.*\]|[^:]*):([0-9]+)", entry)
    return (entry, "") if parts is None else (parts[1], parts[2])


def _covers(entry: str, address: _Address) -> bool:
    try:
        return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return False


def _address(host: str) -> _Address | None:
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
