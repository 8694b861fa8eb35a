"""TCP ports: find a free one, listen on one, and name the process that uses one."""

from __future__ import annotations

import contextlib
import errno
import http.client
import socket
import ssl
from collections.abc import Sequence
from email.message import Message
from typing import Any, Final

from headrace.errors import ConfigError

_WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - compared
#: Connections that may wait to be accepted; the kernel's own limit may be lower.
BACKLOG: Final = 4096
#: How long to wait for a connection to this process itself.
_SELF_S: Final = 30.0
#: An address of the host that this machine does not have, such as ::1 in a container without IPv6.
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def reachable(host: str) -> str:
    """Return the address at which this machine reaches a server that listens on `host`."""
    return _WILDCARDS.get(plain(host), plain(host))


def plain(host: str) -> str:
    """Return a host without the brackets that an IPv6 address has in a URL."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def http_url(host: str, port: int, *, tls: bool = False) -> str:
    """Return the URL at which this machine reaches a server that listens on host and port."""
    name, scheme = reachable(host), "https" if tls else "http"
    return f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}"


def http_get(
    host: str, port: int, path: str, *, timeout_s: float, tls: bool = False
) -> tuple[int, bytes, Message]:
    """Return status, body and headers of a local server's answer to a GET, to probe it.

    Its certificate is for the name that clients use, so it is not verified. No secret is sent.

    Raises:
        OSError, http.client.HTTPException: it does not answer.
    """
    name = reachable(host)
    connection = http.client.HTTPConnection(name, port, timeout=timeout_s)
    if tls:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(name, port, timeout=timeout_s, context=context)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers


def free_port(host: str = "127.0.0.1") -> int:
    """Return a free port that the kernel assigns to no other process for a minute.

    Without that, deployments that start at the same time could get the same port. A connection in
    TIME_WAIT keeps the port from processes that want any port; a server can still listen on it.
    """
    with socket.socket() as listener:
        # The connection in TIME_WAIT inherits this option.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, 0))
        listener.listen(1)
        address = listener.getsockname()
        with socket.create_connection(address, _SELF_S) as client:
            ours, _ = listener.accept()
            # The side that closes first enters TIME_WAIT.
            ours.close()
            client.recv(1)
        return int(address[1])


def is_free(host: str, port: int) -> bool:
    """Return whether a server can listen on the port now; raise OSError if that fails otherwise."""
    family, address = _addresses(host, port)[0]
    try:
        _listener(family, address).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    return True


def require_free(what: str, host: str, port: int, *, change: str) -> None:
    """Check that a port can be used; arguments and errors are those of `listen`."""
    close_all(listen(what, host, port, change=change))


def listen(what: str, host: str, port: int, *, change: str) -> list[socket.socket]:
    """Listen on a port, on each local address of a host name; raise ConfigError if that fails."""
    listeners: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, address in _addresses(host, port):
            try:
                listeners.append(_listener(family, address))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                missing = error
        if missing is not None and not listeners:
            raise missing
    except OSError as error:
        close_all(listeners)
        raise _cannot_listen(what, host, port, error, change) from error
    return listeners


def close_all(listeners: Sequence[socket.socket]) -> None:
    """Close sockets."""
    for listener in listeners:
        listener.close()


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
    local = socket.getaddrinfo(plain(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in local))


def _listener(family: socket.AddressFamily, address: Any) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # As servers do: a port whose connections are in TIME_WAIT can be used.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # `::` is every address, as in other servers; asyncio would leave IPv4 out.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _cannot_listen(what: str, host: str, port: int, error: OSError, change: str) -> ConfigError:
    if error.errno != errno.EADDRINUSE:
        reason = error.strerror or str(error)
        return ConfigError(f"{what}: cannot listen on {host}:{port}: {reason}", hint=change)
    owner = holder(port)
    by = f" by {owner}" if owner else ""
    return ConfigError(f"{what}: port {port} on {host} is already in use{by}", hint=change)


def holder(port: int) -> str:
    """Return the process that listens on a port, such as "pid 12 (nginx)".

    It is "" if the process is another user's, or if psutil is not installed.
    """
    try:
        import psutil
    except ImportError:
        return ""
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN
            if listens and connection.laddr[1:] == (port,) and connection.pid:
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    return ""
