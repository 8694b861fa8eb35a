"""The API's processes on one port: who binds it, and each process as a child of a supervisor.

Whoever supervises binds the port once and hands the listening sockets down. So a process may die
and start anew while the others answer, and while none does connections wait and are not refused.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from headrace.config.settings import Settings
from headrace.server.ports import listen
from headrace.server.supervisor.child_process import ChildSpec

_STOP_TIMEOUT_S: Final = 15.0
_READ_BYTES: Final = 64


def listen_for_api(settings: Settings) -> list[socket.socket]:
    """Bind the API's port.

    Raises:
        ConfigError: it is taken, or the address cannot be listened on.
    """
    change = "choose another with --port or HEADRACE_PORT"
    return listen("API", settings.host, settings.port, change=change)


def api_command(listeners: Sequence[socket.socket]) -> list[str]:
    """The command of one API process that serves on sockets which it inherits."""
    command = [sys.executable, "-m", "api"]
    for listener in listeners:
        command += ["--socket", str(listener.fileno())]
    return command


def api_children(
    settings: Settings, environ: Mapping[str, str], listeners: Sequence[socket.socket]
) -> list[ChildSpec]:
    """The API's processes; each comes back by itself when it dies."""
    count = settings.api_processes
    names = ["api"] if count == 1 else [f"api{number}" for number in range(count)]
    return [_child(name, environ, listeners) for name in names]


def _child(name: str, environ: Mapping[str, str], listeners: Sequence[socket.socket]) -> ChildSpec:
    # On a port that several share nobody can be asked alone whether it serves, so that each says
    # it. Both ends stay open here: a process that dies must not end the pipe for the next.
    hears, says = os.pipe()
    os.set_blocking(hears, False)

    def heard() -> bool:
        try:
            return bool(os.read(hears, _READ_BYTES))
        except BlockingIOError:
            return False

    def fresh() -> Mapping[str, str]:
        # What the last process said and nobody heard does not speak for the next.
        heard()
        return environ

    return ChildSpec(
        name=name,
        command=[*api_command(listeners), "--ready", str(says)],
        environment=fresh,
        stage=1,
        stop_rank=0,
        ready=lambda _: heard(),
        stop_timeout_s=_STOP_TIMEOUT_S,
        pass_fds=(*(listener.fileno() for listener in listeners), says),
    )
