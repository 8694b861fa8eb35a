"""The deployment's URL as Celery reads it: the same server, database and password."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from headrace.errors import ConfigError
from headrace.redis.connection import connect
from headrace.redis.url import celery_url


@pytest.mark.parametrize(
    ("url", "celery", "database"),
    [
        ("redis://h:1/3", "redis://h:1/3", 3),
        ("redis://h", "redis://h", 0),
        ("redis://u:p%2Fw@h:1/3", "redis://u:p%2Fw@h:1/3", 3),
        ("redis://h:1/0?db=4", "redis://h:1/4", 4),
        ("rediss://:p@h:1/2", "rediss://:p@h:1/2?ssl_cert_reqs=required", 2),
        ("rediss://h/2?ssl_cert_reqs=none", "rediss://h/2?ssl_cert_reqs=none", 2),
        (
            "rediss://h/2?ssl_ca_certs=/ca.pem",
            "rediss://h/2?ssl_ca_certs=/ca.pem&ssl_cert_reqs=required",
            2,
        ),
        ("unix:///run/r.sock", "redis+socket:///run/r.sock?virtual_host=0", 0),
        ("unix://:p@/run/r.sock?db=5", "redis+socket://:p@/run/r.sock?virtual_host=5", 5),
    ],
)
def test_urls(url: str, celery: str, database: int) -> None:
    translated = celery_url(url)
    assert (translated.url, translated.database) == (celery, database)
    assert translated.transport_options == {}


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:p%2Fw@h:1/3",
        "redis://h:1?db=4",
        "rediss://:p@h:1/2",
        "unix://:p@/run/r.sock?db=5",
    ],
)
def test_celery_and_redis_py_read_the_same_from_it(url: str) -> None:
    app = Celery(backend=celery_url(url).url, set_as_current=False)
    backend: Any = app.backend
    ours = connect(url).connection_pool.connection_kwargs
    for name in ("host", "port", "db", "username", "password", "path"):
        assert backend.connparams.get(name) == ours.get(name), name
    app.close()


def test_sentinel() -> None:
    translated = celery_url("sentinel://u:p%40w@one:1,two/3?master=primary&sentinel_password=other")
    assert translated.url == "sentinel://u:p%40w@one:1/3;sentinel://u:p%40w@two:26379/3"
    assert translated.transport_options == {
        "master_name": "primary",
        "sentinel_kwargs": {"password": "other"},
    }
    assert translated.database == 3


def test_sentinel_without_passwords() -> None:
    translated = celery_url("sentinel://one/0?master=primary")
    assert translated.url == "sentinel://one:26379/0"
    assert translated.transport_options == {"master_name": "primary"}


def test_a_sentinel_url_without_its_master() -> None:
    with pytest.raises(ConfigError, match="name of the master"):
        celery_url("sentinel://one/0")


def test_its_repr_shows_no_password() -> None:
    translated = celery_url("sentinel://:secret@one/0?master=m&sentinel_password=secret")
    assert "secret" not in repr(translated)
