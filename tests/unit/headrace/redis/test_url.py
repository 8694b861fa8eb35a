"""A Redis URL: what is refused, and that all who read it find the same server."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from kombu import Connection

from headrace.config.settings import load_settings
from headrace.errors import ConfigError
from headrace.redis.connection import connect
from headrace.redis.url import celery_url, read_url

SECRET = ("hunter", "cret")


@pytest.mark.parametrize(
    ("url", "problem", "remedy"),
    [
        ("redis://:hunter#cret@h:1/0", "a #", "# is %23"),
        ("redis://:hunter/cret@h:1/0", "a /, ? or @", "/ is %2F"),
        ("redis://:hunter?cret@h:1/0", "a /, ? or @", "? is %3F"),
        ("redis://hunter/cret@h", "a /, ? or @", "percent-encode"),
        ("unix://:hunter/cret@/run/r.sock", "a /, ? or @", "percent-encode"),
        ("sentinel://:hunter/cret@a,b/0?master=m", "a /, ? or @", "percent-encode"),
        ("sentinel://a/0?master=m&sentinel_password=hunter@cret", "a /, ? or @", "@ is %40"),
        ("redis://:hunter cret@h", "a space", "a space is %20"),
        ("redis://:hunter\ncret@h", "control character", "percent-encode"),
        ("redis://:hunter[cret@h:port", "a host or its port", "percent-encode"),
        ("redis://:hunter@h:0", "a host or its port", "write redis://"),
        ("redis://:hunter@h:99999", "a host or its port", "write redis://"),
        ("redis://hunter:cret", "a host or its port", "percent-encode"),
        ("redis://:hunter@a..b:1", "a host or its port", "write redis://"),
        ("redis://h/abc", "the database is no number", "write it as /0"),
        ("redis://h/1/2", "the database is no number", "write it as /0"),
        ("redis://h/-1", "the database is no number", "write it as /0"),
        ("redis://h?db=x", "the database is no number", "write it as /0"),
        ("redis://h?socket_timeout=3", "sets the option socket_timeout itself", "leave it out"),
        ("rediss://h?health_check_interval=9", "sets the option health_check_interval", "leave"),
        ("redis://h?protocol=3", "sets the option protocol", "leave it out"),
        ("redis://h?ssl_cert_reqs=none", "ssl_cert_reqs is for TLS", "rediss://"),
        ("rediss://h?ssl_cert_reqs=maybe", "value of ssl_cert_reqs", "none, optional or required"),
        ("rediss://h?ssl_cert_req=none", "unknown option 'ssl_cert_req'", "known: db,"),
        ("rediss://h?hunter/cret=1", "unknown option '...'", "known: db,"),
        ("rediss://h?ssl_ca_certs=", "ssl_ca_certs has no value", "leave it out"),
        ("redis://h?db=1&db=2", "db is given twice", "once"),
        ("redis://hunter,cret:6379/0", "a host or its port", "sentinel://"),
        ("redis://hunter;cret:6379/0", "a host or its port", "sentinel://"),
        ("unix://h/run/r.sock", "a socket has no host", "unix:///path"),
        ("unix://", "no path of a socket", "unix:///path"),
        ("sentinel://one,two/0", "the name of the master is missing", "?master=name"),
        ("sentinel://?master=m", "a host or its port", "sentinel://"),
        ("hunter@cret", "no known scheme", "write redis://"),
        ("http://hunter:cret@h", "no known scheme", "write redis://"),
    ],
)
def test_what_would_be_read_in_different_ways_is_refused(
    url: str, problem: str, remedy: str
) -> None:
    messages = []
    for read in (connect, celery_url):
        with pytest.raises(ConfigError) as caught:
            read(url)
        messages.append(f"{caught.value.message} {caught.value.hint}")
    with pytest.raises(ConfigError) as caught:
        load_settings(None, {"HEADRACE_REDIS_URL": url}, {})
    assert not any(part in f"{messages} {caught.value}" for part in SECRET)
    assert all(problem in message and remedy in message for message in messages)


PASSWORD = "p#w/?@:%+ é"
ENCODED = "p%23w%2F%3F%40%3A%25%2B%20%C3%A9"


@pytest.mark.parametrize(
    "url",
    [
        f"redis://u:{ENCODED}@h:1/3",
        "redis://u:p@w@h:1/3",
        "redis://:100%@h:1/3",
        "redis://h:1?db=3",
        "redis://h:1/0?db=3",
        "redis://h:1/3/",
        "redis://h:1/?db=3",
        f"redis://h:1/3?username=u&password={ENCODED}",
        "redis://[::1]:1/3",
        "rediss://:p@h:1/3?ssl_cert_reqs=CERT_NONE",
        "rediss://:p@h:1/3?ssl_cert_reqs=Optional&ssl_ca_certs=/etc/ca%20of%20us.pem",
        "rediss://:p@h:1/3?ssl_check_hostname=no",
        f"unix://u:{ENCODED}@/run/my%20r%401.sock?db=3",
        "unix:///run/a@b.sock?db=3",
        "redis://h:1/3\n",
    ],
)
def test_redis_py_celery_and_kombu_find_the_same(url: str) -> None:
    translated = celery_url(url)
    ours = connect(url).connection_pool
    ours.connection_class(**ours.connection_kwargs)
    app = Celery(broker=translated.url, backend=translated.url, set_as_current=False)
    backend: Any = app.backend
    with Connection(translated.url) as broker:
        parameters = _broker_parameters(broker)
    assert ours.connection_kwargs["db"] == backend.connparams["db"] == translated.database == 3
    for name in ("host", "port", "db", "username", "password", "path"):
        values = [
            where.get(name) or None
            for where in (ours.connection_kwargs, backend.connparams, parameters)
        ]
        assert len(set(values)) == 1, (name, values)
    for name in ("ssl_ca_certs", "ssl_check_hostname"):
        values = [
            where.get(name) for where in (ours.connection_kwargs, backend.connparams, parameters)
        ]
        assert len({str(value) for value in values}) == 1, (name, values)
    app.close()


def _broker_parameters(broker: Connection) -> dict[str, Any]:
    """What kombu would connect with."""
    from kombu.transport.redis import Channel

    channel: Any = object.__new__(Channel)
    transport: Any = broker.transport
    transport.client = broker
    channel.connection = transport
    found: dict[str, Any] = channel._connparams()
    return found


def test_a_password_is_what_it_was() -> None:
    for url in (f"redis://u:{ENCODED}@h", f"sentinel://u:{ENCODED}@h?master=m"):
        assert read_url(url).password == PASSWORD
    assert (
        connect(f"redis://u:{ENCODED}@h").connection_pool.connection_kwargs["password"] == PASSWORD
    )
    assert PASSWORD not in repr(read_url(f"redis://u:{ENCODED}@h"))


def test_sentinels() -> None:
    address = read_url("sentinel://u:p%40w@a:1,b,[::1]:3/4?master=m&sentinel_password=s+%2B")
    assert address.hosts == (("a", 1), ("b", 26379), ("::1", 3))
    assert (address.username, address.password, address.db) == ("u", "p@w", 4)
    assert (address.master, address.sentinel_password) == ("m", "s++")
    hosts = celery_url("sentinel://a,[::1]:3/4?master=m").url
    assert hosts == "sentinel://a:26379/4;sentinel://[::1]:3/4"
