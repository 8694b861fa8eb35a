"""TCP ports before anything is started on them: is one free, and if not, who has it."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Final

from headrace.errors import ConfigError

_WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - compared
_LISTEN: Final = "0A"
_TCP_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))


def reachable(host: str) -> str:
    """Where this machine reaches a server that listens on `host`."""
    return _WILDCARDS.get(host, host)


def http_url(host: str, port: int) -> str:
    """The URL under which this machine reaches a server that listens on host and port."""
    name = reachable(host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen on the port now.

    Raises:
        OSError: it could not, for another reason than that somebody does.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as listener:
        # As servers do, so that a port whose last connections are still fading away counts as free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def require_free(what: str, host: str, port: int, *, change: str) -> None:
    """Refuse to start on a port that cannot be had.

    Args:
        what: the part that wants the port.
        host: the address that it will listen on.
        port: the port.
        change: what to change to use another.

    Raises:
        ConfigError: the port is taken, or the address cannot be listened on.
    """
    try:
        free = is_free(host, port)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"{what}: cannot listen on {host}:{port}: {reason}", hint=change
        ) from error
    if not free:
        owner = holder(port)
        by = f" by {owner}" if owner else ""
        raise ConfigError(f"{what}: port {port} on {host} is already in use{by}", hint=change)


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
