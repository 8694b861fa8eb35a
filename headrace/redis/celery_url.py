"""The deployment's Redis URL in the form that Celery and kombu read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from headrace.redis.connection import parse_sentinel

_TLS_CHECK: Final = "ssl_cert_reqs"


@dataclass(frozen=True, slots=True)
class CeleryUrl:
    """Where Celery finds Redis, for its broker and for its results.

    Attributes:
        url: the URL in kombu's form.
        transport_options: options that a URL cannot hold.
    """

    url: str = field(repr=False)
    database: int
    transport_options: dict[str, Any] = field(default_factory=dict, repr=False)


def celery_url(url: str) -> CeleryUrl:
    """Translate a redis://, rediss://, unix:// or sentinel:// URL.

    Raises:
        ConfigError: a sentinel:// URL lacks a part.
    """
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    if parts.scheme == "sentinel":
        return _sentinel(url)
    if parts.scheme == "unix":
        database = int(query.get("db", ["0"])[0])
        userinfo, at, _ = parts.netloc.rpartition("@")
        return CeleryUrl(
            f"redis+socket://{userinfo}{at}{parts.path}?virtual_host={database}", database
        )
    path = parts.path.strip("/")
    database = int(query.get("db", [path or "0"])[0])
    if "db" in query:
        # redis-py reads the database there, kombu only in the path.
        rest = {name: values for name, values in query.items() if name != "db"}
        parts = parts._replace(path=f"/{database}", query=urlencode(rest, doseq=True))
    if parts.scheme == "rediss" and _TLS_CHECK not in query:
        # Without this kombu accepts any certificate; redis-py accepts only a valid one.
        parts = parts._replace(
            query="&".join(filter(None, (parts.query, f"{_TLS_CHECK}=required")))
        )
    return CeleryUrl(parts.geturl(), database)


def _sentinel(url: str) -> CeleryUrl:
    address = parse_sentinel(url)
    userinfo = ""
    if address.username or address.password:
        userinfo = f"{quote(address.username, safe='')}:{quote(address.password, safe='')}@"
    urls = [f"sentinel://{userinfo}{host}:{port}/{address.db}" for host, port in address.hosts]
    options: dict[str, Any] = {"master_name": address.master}
    if address.sentinel_password:
        options["sentinel_kwargs"] = {"password": address.sentinel_password}
    return CeleryUrl(";".join(urls), address.db, options)
