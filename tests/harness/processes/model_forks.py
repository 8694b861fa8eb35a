"""Model processes of a forked worker, forked too: starting Python anew is most of their start.

Beside the worker waits a process with the imports of `model_imports`, in which nothing has run. It
forks each model process, which becomes a child of the worker. A process with packages of its own,
or of `headrace up`, starts as for users.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_LAUNCH: Final = "headrace._server.launch"
_MODEL: Final = "workers.model_process"
#: A model process has other packages of these names; and it is a main process.
_IMPORTED_AGAIN: Final = {
    "api", "extensions", "handlers", "tests", "workers", "concurrent", "multiprocessing",
}  # fmt: skip
_REQUEST_MAX_BYTES: Final = 1 << 18
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def fork_models() -> None:
    """Let the worker that this process becomes start its model processes so."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    worker = os.getpid()
    if os.fork() == 0:
        ours.close()
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        _serve(theirs, worker)
    theirs.close()
    replica: Any = importlib.import_module("workers.replicas.replica")
    starter = _Starter(ours)
    replica.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": starter.start})


class _Starter:
    """Starts the model processes of a worker."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def start(
        self, args: Sequence[str], *, pass_fds: Sequence[int], env: Mapping[str, str], **more: Any
    ) -> subprocess.Popen[bytes]:
        """Start a process as `subprocess.Popen` does."""
        launched = list(args[args.index(_LAUNCH) + 1 :])
        if launched[0] != _MODEL:
            return subprocess.Popen(args, pass_fds=pass_fds, env=env, **more)
        request = json.dumps(dict(env)).encode()
        with self._lock:
            # A process whose parent ends becomes a child of the nearest of its ancestors that
            # asks for it.
            _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            socket.send_fds(self._connection, [request], pass_fds)
            pid = int(self._connection.recv(64))
            _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        return _Child(args, pid)


class _Child(subprocess.Popen[bytes]):
    """A child of this process that it has not started itself."""

    def __init__(self, args: Sequence[str], pid: int) -> None:
        self.args = args
        self.pid = pid
        self.returncode = None
        self.stdin = self.stdout = self.stderr = None
        self._child_created = True
        self._waitpid_lock = threading.Lock()


def _serve(requests: socket.socket, worker: int) -> None:
    """Fork a model process for each request, until the worker ends."""
    with suppress(BaseException):
        while True:
            request, fds, _, _ = socket.recv_fds(requests, _REQUEST_MAX_BYTES, 8)
            if not request:
                break
            reading, writing = os.pipe()
            between = os.fork()
            if between == 0:
                if os.fork():
                    os._exit(0)
                # Whoever has its pid may kill its process group at once, and wait for its end.
                os.setsid()
                os.write(writing, str(os.getpid()).encode())
                requests.close()
                os.close(reading)
                os.close(writing)
                _become_model(json.loads(request), fds, worker)
            os.close(writing)
            os.waitpid(between, 0)
            requests.send(os.read(reading, 64))
            for number in (reading, *fds):
                os.close(number)
    os._exit(0)


def _become_model(environ: dict[str, str], fds: Sequence[int], worker: int) -> None:
    """Run a model process in this one, as Python runs one that was just started."""
    while (parent := os.getppid()) != worker:
        if parent == 1:
            os._exit(0)
        time.sleep(0.0005)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr] # PYTHONUNBUFFERED
    os.environ.clear()
    os.environ.update(environ)
    installed = tuple(f"{prefix}/lib" for prefix in (sys.prefix, sys.base_prefix))
    given = environ["PYTHONPATH"].split(os.pathsep)
    sys.path[:] = [*given, *(entry for entry in sys.path if entry.startswith(installed))]
    sys.argv = [_LAUNCH, _MODEL, *map(str, fds)]
    for name in list(sys.modules):
        if name.partition(".")[0] in _IMPORTED_AGAIN:
            del sys.modules[name]
    status = 0
    try:
        runpy.run_module(_LAUNCH, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as Python ends
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined] # so does any Python process
    atexit._run_exitfuncs()
    os._exit(status)
