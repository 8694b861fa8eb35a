"""The addresses of webhooks and downloads: public ones, and those that the operator allows.

The list follows the IANA registries of special-purpose addresses (RFC 6890). `ipaddress.is_global`
differs between versions of Python.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final, TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_REFUSED: Final = tuple(
    ipaddress.ip_network(text)
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
        "2001::/23",  # Teredo, ORCHID and other protocols' own
        "2001:db8::/32",
        "2002::/16",  # 6to4: an IPv4 address in disguise
        "3fff::/20",
    )
)
#: Global unicast. Others are loopback, link-local, unique local, multicast, NAT64 or reserved.
_PUBLIC_V6: Final = ipaddress.IPv6Network("2000::/3")
#: Where clouds give credentials and secrets to a machine; no setting allows these addresses.
_METADATA: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        "100.100.100.200/32",  # Alibaba Cloud
        "168.63.129.16/32",  # Azure
        "169.254.0.23/32",  # Tencent Cloud
        "169.254.42.42/32",  # Scaleway
        "169.254.169.0/24",  # most clouds
        "169.254.170.0/24",  # Amazon's containers
        "192.0.0.192/32",  # Oracle Cloud
        "192.80.8.124/32",  # Equinix Metal
        "fd00:42::42/128",  # Scaleway
        "fd00:a9fe:a9fe::/48",  # Akamai
        "fd00:c1::a9fe:a9fe/128",  # Oracle Cloud
        "fd00:ec2::/32",  # Amazon
        "fd20:ce::/48",  # Google Cloud
        "fe80::a9fe:a9fe/128",  # OpenStack
    )
)
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


def read_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Parse the networks that an operator allows; raise ValueError, which names it, for others."""
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise ValueError(
                f"{text[:64]!r} is not a network such as 10.2.0.0/16: {error}"
            ) from None
    return tuple(found)


def read_address(text: str) -> Address:
    """Parse a resolver's address, without its zone; raise ValueError for other text."""
    return plain(ipaddress.ip_address(text.partition("%")[0]))


def plain(address: Address) -> Address:
    """Return the IPv4 address of an IPv4-mapped IPv6 address; any other address unchanged."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def may_reach(address: Address, allowed: Sequence[Network]) -> bool:
    """Return whether an address may be connected to; `allowed` networks add to public ones."""
    address = plain(address)
    if _allows(_METADATA, address):
        return False
    if address.version == 6 and address in _NAT64:
        # An allowed translator does not allow the addresses behind it.
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return _allows(allowed, address) and may_reach(inner, allowed)
    is_public = (address.version == 4 or address in _PUBLIC_V6) and not _allows(_REFUSED, address)
    return is_public or _allows(allowed, address)


def _allows(allowed: Sequence[Network], address: Address) -> bool:
    return any(address in network for network in allowed)
