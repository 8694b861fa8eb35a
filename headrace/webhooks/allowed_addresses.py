"""Which addresses a webhook may be sent to: public ones, and what the operator allows besides.

By the registries of special-purpose addresses (IANA, RFC 6890), listed here and not taken from
`ipaddress.is_global`, which says different things in different versions of Python.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final, TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_REFUSED_V4: Final = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # behind a carrier's NAT
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local, where clouds serve credentials
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
#: Global unicast. All else is loopback, link-local, unique local, multicast, NAT64 or reserved.
_PUBLIC_V6: Final = ipaddress.IPv6Network("2000::/3")
_REFUSED_V6: Final = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # Teredo, ORCHID and other protocols' own
        "2001:db8::/32",
        "2002::/16",  # 6to4: an IPv4 address in disguise
        "3fff::/20",
    )
)
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


def read_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """The networks that an operator allows.

    Raises:
        ValueError: one is none; it says which.
    """
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise ValueError(f"{text[:64]!r} is no network such as 10.2.0.0/16: {error}") from None
    return tuple(found)


def read_address(text: str) -> Address:
    """An address as a resolver gives it, without a zone.

    Raises:
        ValueError: it is none.
    """
    return plain(ipaddress.ip_address(text.partition("%")[0]))


def plain(address: Address) -> Address:
    """The IPv4 address that an IPv6 one only wraps; any other as it is."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def may_reach(address: Address, allowed: Sequence[Network]) -> bool:
    """Whether a webhook may be sent there."""
    address = plain(address)
    if address.version == 6 and address in _NAT64:
        # Who allows the translator has not allowed all that lies behind it.
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return _allows(allowed, address) and may_reach(inner, allowed)
    return _is_public(address) or _allows(allowed, address)


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _REFUSED_V4)
    return address in _PUBLIC_V6 and not any(address in network for network in _REFUSED_V6)


def _allows(allowed: Sequence[Network], address: Address) -> bool:
    return any(address in network for network in allowed)
