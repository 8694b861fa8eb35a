"""The URL of Redis, read once for all: redis-py, Celery and kombu each read it in their own way.

They disagree about what a password may contain, about databases and about options, and some take
the rest of an unencoded password for a host. So what they read differently is refused or written
in the one form that all of them read alike. No error has a part of the URL but names of options.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from headrace.errors import ConfigError

SCHEMES: Final = ("redis", "rediss", "unix", "sentinel")
SENTINEL_PORT: Final = 26379

_FORMS: Final = (
    "write redis://[[user]:password@]host:6379/0, rediss://..., unix:///path/to/redis.sock or "
    "sentinel://[[user]:password@]host:26379,host2:26379/0?master=name"
)
_ENCODE: Final = (
    "percent-encode these characters in the user, the password and the options: "
    "# is %23, / is %2F, ? is %3F, @ is %40, a space is %20"
)
_SECRET_IN_QUERY: Final = re.compile(r"([?&](?:sentinel_)?password=)[^&#]*")
_TLS_CHECK: Final = "ssl_cert_reqs"
_TLS: Final = (
    _TLS_CHECK, "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname",
)  # fmt: skip
_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "redis": ("db", "username", "password"),
    "rediss": ("db", "username", "password", *_TLS),
    "unix": ("db", "username", "password"),
    "sentinel": ("db", "username", "password", "master", "sentinel_password"),
}
#: Options of redis-py that Headrace sets itself, some in another way for each connection.
_OWN: Final = (
    "client_name", "decode_responses", "encoding", "health_check_interval", "max_connections",
    "protocol", "retry_on_error", "retry_on_timeout", "socket_connect_timeout", "socket_keepalive",
    "socket_read_size", "socket_timeout", "timeout",
)  # fmt: skip
_BOOLEANS: Final = {
    **dict.fromkeys(("true", "1", "yes", "y", "t"), "true"),
    **dict.fromkeys(("false", "0", "no", "n", "f"), "false"),
}


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """The parts of a URL, decoded.

    Attributes:
        scheme: one of SCHEMES.
        hosts: one host, or those of the Sentinels; empty for a socket.
        path: the socket; "" for a host.
        username: "" for the default user.
        password: "" for none.
        options: for TLS, as all parsers spell them.
        master: the name under which the Sentinels know the Redis server; "" without Sentinels.
        sentinel_password: the Sentinels' own password; "" for none.
    """

    scheme: str
    hosts: tuple[tuple[str, int | None], ...]
    path: str
    db: int
    username: str
    password: str = field(repr=False)
    options: Mapping[str, str]
    master: str = ""
    sentinel_password: str = field(default="", repr=False)

    @property
    def userinfo(self) -> str:
        """The encoded user and password with their `@`; "" without both."""
        if not (self.username or self.password):
            return ""
        password = f":{quote(self.password, safe='')}" if self.password else ""
        return f"{quote(self.username, safe='')}{password}@"

    @property
    def text(self) -> str:
        """The URL of one server or socket, as redis-py, Celery and kombu read it alike."""
        place = self.path or "".join(map(written_host, self.hosts))
        options = dict(self.options)
        if self.path:
            place = quote(place)
            if self.db:
                options["db"] = str(self.db)
        elif self.db:
            place += f"/{self.db}"
        query = "&".join(f"{name}={quote(value, safe='/')}" for name, value in options.items())
        return f"{self.scheme}://{self.userinfo}{place}{query and '?'}{query}"


def read_url(url: str) -> RedisUrl:
    """Read a redis://, rediss://, unix:// or sentinel:// URL.

    Raises:
        ConfigError: it cannot be read, or its parsers would read it in different ways.
    """
    # A secret that was read from a file often ends with a line break.
    scheme, separator, rest = url.strip().partition("://")
    if not separator or scheme not in SCHEMES:
        raise _wrong("it has no known scheme", _FORMS)
    if "#" in rest or re.search(r"[\s\x00-\x1f\x7f]", rest):
        raise _wrong("it has a #, a space or a control character", _ENCODE)
    userinfo, located = _authority(scheme, rest)
    place, _, query = located.partition("?")
    user, _, password = userinfo.partition(":")
    options = _read_options(scheme, query)
    username = options.pop("username", unquote(user))
    password = options.pop("password", unquote(password))
    db, path = options.pop("db", ""), ""
    hosts: tuple[tuple[str, int | None], ...] = ()
    if scheme == "unix":
        path = unquote(place)
        if not path.strip("/"):
            raise _wrong("it has no path of a socket", _FORMS)
    else:
        names, _, number = place.partition("/")
        hosts = _hosts(scheme, names)
        db = db or number.strip("/")
    return RedisUrl(
        scheme, hosts, path, _number(db), username, password, _checked(options),
        options.pop("master", ""), options.pop("sentinel_password", ""),
    )  # fmt: skip


def written_host(address: tuple[str, int | None]) -> str:
    """Return a host and its port as a URL has them."""
    host, port = address
    name = f"[{host}]" if ":" in host else quote(host)
    return name if port is None else f"{name}:{port}"


def _authority(scheme: str, rest: str) -> tuple[str, str]:
    """Split what is behind the scheme at the `@` after the password; or raise ConfigError."""
    end = next((at for at, character in enumerate(rest) if character in "/?"), len(rest))
    userinfo, _, host = rest[:end].rpartition("@")
    behind = rest[end:]
    # The path of a socket may have one if nothing is before it.
    if "@" in (behind.partition("?")[2] if scheme == "unix" and not rest[:end] else behind):
        raise _wrong("a /, ? or @ is not where a URL has it", _ENCODE)
    if scheme == "unix" and host:
        raise _wrong("a socket has no host", _FORMS)
    return userinfo, host + behind


def _read_options(scheme: str, query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        known = _OPTIONS[scheme]
        if name in _OWN:
            raise _wrong(f"Headrace sets the option {name} itself", "leave it out")
        if name in _TLS and name not in known:
            raise _wrong(f"the option {name} is for TLS", "use rediss://, or leave it out")
        if name not in known:
            shown = name if re.fullmatch(r"[a-z_]{1,32}", name) else "..."
            raise _wrong(f"unknown option {shown!r}", f"known: {', '.join(known)}")
        if name in found:
            raise _wrong(f"the option {name} is given twice", "give it once")
        if not value:
            raise _wrong(f"the option {name} has no value", "give it one, or leave it out")
        found[name] = unquote(value)
    if scheme == "sentinel" and "master" not in found:
        raise _wrong(
            "the name of the master is missing",
            "write sentinel://host:26379,host2:26379/0?master=name",
        )
    return found


def _checked(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options for TLS as all parsers spell them; or raise ConfigError."""
    found = {name: options[name] for name in _TLS if name in options}
    if (given := found.get(_TLS_CHECK)) is not None:
        found[_TLS_CHECK] = given.lower().removeprefix("cert_")
        if found[_TLS_CHECK] not in ("none", "optional", "required"):
            raise _wrong(f"the value of {_TLS_CHECK} is unknown", "use none, optional or required")
    if (given := found.get("ssl_check_hostname")) is not None:
        if given.lower() not in _BOOLEANS:
            raise _wrong("the value of ssl_check_hostname is unknown", "use true or false")
        found["ssl_check_hostname"] = _BOOLEANS[given.lower()]
    return found


def _hosts(scheme: str, names: str) -> tuple[tuple[str, int | None], ...]:
    if scheme != "sentinel":
        return (_host_port(names or "localhost", None),)
    return tuple(_host_port(name, SENTINEL_PORT) for name in names.split(","))


def _host_port(text: str, default: int | None) -> tuple[str, int | None]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
        unquote(host or "").encode("idna")  # as for every connection
    except ValueError:
        host = port = None
    # kombu takes a semicolon for the end of a URL.
    if not host or port == 0 or re.search(r"[,;]", host):
        raise _wrong("a host or its port is wrong", f"{_FORMS}; {_ENCODE}")
    return unquote(host), port or default


def _number(db: str) -> int:
    if db and not re.fullmatch(r"[0-9]{1,9}", db):
        raise _wrong("the database is no number", "write it as /0 behind the host, or as ?db=0")
    return int(db or 0)


def _wrong(what: str, hint: str) -> ConfigError:
    return ConfigError(f"the Redis URL cannot be used: {what}", hint=hint)


def redact_url(url: str) -> str:
    """Return the URL with `***` for its password, for messages and logs.

    A password that was not percent-encoded may hold `/` or `@`, so everything up to the last `@`
    counts as user and password.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        # Not a URL: it may be a bare password or a host.
        return "***" if "@" in url else url
    address, mark, query = rest.partition("?")
    userinfo, at, host = address.rpartition("@")
    if not at and "@" in query:
        # An unencoded `?` in the password.
        query = query.rpartition("@")[2]
        return f"{scheme}://***@{query}"
    user, colon, _ = userinfo.partition(":")
    secret = f"{user}{colon}***" if colon else user
    return _SECRET_IN_QUERY.sub(r"\1***", f"{scheme}://{secret}{at}{host}{mark}{query}")


@dataclasses.dataclass(frozen=True, slots=True)
class CeleryUrl:
    """Where Celery finds Redis: the URL in kombu's form, and options that it cannot hold."""

    url: str = dataclasses.field(repr=False)
    database: int
    transport_options: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)


def celery_url(url: str) -> CeleryUrl:
    """Translate a redis://, rediss://, unix:// or sentinel:// URL; raise ConfigError for others."""
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
