"""The deployment's Redis URL in the form that Celery and kombu read."""

from __future__ import annotations

import dataclasses
from typing import Any
from urllib.parse import quote

from headrace.redis.url import read_url, written_host


@dataclasses.dataclass(frozen=True, slots=True)
class CeleryUrl:
    """Where Celery finds Redis, for its broker and for its results.

    Attributes:
        url: the URL in kombu's form.
        transport_options: options that a URL cannot hold.
    """

    url: str = dataclasses.field(repr=False)
    database: int
    transport_options: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)


def celery_url(url: str) -> CeleryUrl:
    """Translate a redis://, rediss://, unix:// or sentinel:// URL.

    Raises:
        ConfigError: it cannot be read.
    """
    address = read_url(url)
    if address.master:
        hosts = [f"sentinel://{address.userinfo}{written_host(host)}" for host in address.hosts]
        transport: dict[str, Any] = {"master_name": address.master}
        if address.sentinel_password:
            transport["sentinel_kwargs"] = {"password": address.sentinel_password}
        urls = ";".join(f"{host}/{address.db}" for host in hosts)
        return CeleryUrl(urls, address.db, transport)
    if address.path:
        path = quote(address.path)
        return CeleryUrl(
            f"redis+socket://{address.userinfo}{path}?virtual_host={address.db}", address.db
        )
    if address.scheme == "rediss":
        # Without this kombu accepts any certificate; redis-py accepts only a valid one.
        options = {**address.options}
        options.setdefault("ssl_cert_reqs", "required")
        address = dataclasses.replace(address, options=options)
    return CeleryUrl(address.text, address.db)
