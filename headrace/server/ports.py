"""TCP ports before anything is started on them: is one free, who has it, and listening on one."""

from __future__ import annotations

import errno
import http.client
import os
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from headrace.errors import ConfigError

_WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - compared
_LISTEN: Final = "0A"
#: Connections that may wait to be accepted; the kernel's own limit may be lower.
BACKLOG: Final = 4096
#: How long to wait for a connection to oneself.
_SELF_S: Final = 30.0
#: An address of the host that this machine does not have, such as ::1 in a container without IPv6.
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_TCP_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def reachable(host: str) -> str:
    """Where this machine reaches a server that listens on `host`."""
    return _WILDCARDS.get(host, host)


def http_url(host: str, port: int, *, tls: bool = False) -> str:
    """The URL under which this machine reaches a server that listens on host and port."""
    name, scheme = reachable(host), "https" if tls else "http"
    return f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}"


def http_connection(
    host: str, port: int, *, timeout_s: float, tls: bool = False
) -> http.client.HTTPConnection:
    """A connection to a server of this deployment on this machine, to ask whether it serves.

    Its certificate is for its clients' name of it, and not for this machine's: it is not checked,
    and nothing is told to it.
    """
    name = reachable(host)
    if not tls:
        return http.client.HTTPConnection(name, port, timeout=timeout_s)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(name, port, timeout=timeout_s, context=context)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free, and that the kernel gives to nobody else for a minute.

    Where several look for one at the same time, as at the start of some deployments, each would
    else be told a port that another is about to listen on. A connection is left fading away on
    it, which keeps it from whoever wants any port, but not from a server that asks for this one.
    """
    with socket.socket() as listener:
        # What is left of the connection inherits it.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, 0))
        listener.listen(1)
        address = listener.getsockname()
        with socket.create_connection(address, _SELF_S) as client:
            ours, _ = listener.accept()
            # Whoever closes first keeps the end that fades away.
            ours.close()
            client.recv(1)
        return int(address[1])


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen on the port now.

    Raises:
        OSError: it could not, for another reason than that somebody does.
    """
    family, address = _addresses(host, port)[0]
    try:
        _listener(family, address).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    return True


def require_free(what: str, host: str, port: int, *, change: str) -> None:
    """Refuse to start on a port that cannot be had; arguments and errors are those of `listen`."""
    close_all(listen(what, host, port, change=change))


def listen(what: str, host: str, port: int, *, change: str) -> list[socket.socket]:
    """Listen on a port, on each address that the host's name has here.

    Args:
        what: the part that wants the port.
        host: the address or name to listen on.
        port: the port.
        change: what to change to use another.

    Raises:
        ConfigError: the port is taken, or the address cannot be listened on.
    """
    found: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, address in _addresses(host, port):
            try:
                found.append(_listener(family, address))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                missing = error
        if missing is not None and not found:
            raise missing
    except OSError as error:
        close_all(found)
        raise _cannot_listen(what, host, port, error, change) from error
    return found


def close_all(listeners: Sequence[socket.socket]) -> None:
    """Close sockets."""
    for listener in listeners:
        listener.close()


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _listener(family: socket.AddressFamily, address: Any) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # As servers do, so that a port whose last connections are still fading away can be had.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # As asyncio does: `::` is every address of IPv6, and leaves IPv4 to who asks for it.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
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
    """Who listens on a port, as "pid 12 (nginx)"; empty where we may not see it."""
    inodes = _listening_inodes(port)
    if not inodes:
        return ""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and _holds(entry, inodes):
            return f"pid {entry.name} ({_command(entry)})"
    return ""


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for table in _TCP_TABLES:
        try:
            rows = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            local, state, inode = fields[1], fields[3], fields[9]
            if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                found.add(f"socket:[{inode}]")
    return found


def _holds(process: Path, inodes: set[str]) -> bool:
    try:
        return any(os.readlink(fd) in inodes for fd in (process / "fd").iterdir())
    except OSError:
        return False


def _command(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return "?"
