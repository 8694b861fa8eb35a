"""Processes that begin with their imports done: forked from a server that has them.

A worker needs a second of CPU to import Celery, Flower's commands and ours. An API needs nearly as
much for FastAPI. The tests start hundreds of workers, and tens of APIs that they kill. Other tests
start `headrace up` as users do.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.harness.processes import model_forks

_PR_SET_PDEATHSIG = 1
_FORKS = multiprocessing.get_context("forkserver")
# Nothing here starts a thread, or reads the environment when it is imported.
_FORKS.set_forkserver_preload([
    "tests.harness.processes.forked", "celery.bin.celery", "celery.apps.worker",
    "celery.worker.consumer",
    "celery.worker.loops", "celery.backends.redis", "kombu.transport.redis", "workers.celery_app",
    "celery.worker.components", "celery.worker.consumer.delayed_delivery", "celery.worker.strategy",
    "celery.worker.autoscale", "celery.fixups.django", "celery.app.control", "celery.app.events",
    "celery.app.log", "billiard.pool", "kombu.matcher", "kombu.pidbox", "encodings.utf_8_sig",
    "celery.concurrency.thread", "headrace.payloads.stores",
    "headrace.observability.log_format", "api.process", "uvicorn.lifespan.on", "uvloop",
    "tests.harness.processes.model_imports",
])  # fmt: skip


class Forked:
    """`python -m <module> <arguments>` in a session of its own, with what `Popen` has of it.

    Args:
        env: its whole environment.
        cwd: its working directory, first on its path.
        log: both its outputs are appended there; None: they stay those of the tests.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path | None
    ) -> None:
        self.args = command
        arguments = (list(command), dict(env), str(cwd), str(log or ""))
        # A daemon: should a test forget it, it ends with us.
        self._process = _FORKS.Process(target=_run, args=arguments, daemon=True)
        self._process.start()
        pid = self._process.pid
        assert pid is not None
        self.pid = pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            # The server that forked it may have collected it, and not have told us yet.
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(command: list[str], env: dict[str, str], cwd: str, log: str) -> None:
    os.setsid()
    # What was imported is the server's; to look through it for garbage would copy it, too.
    gc.freeze()
    # Closed as an exec would close them. By one of them the server that forks notices that pytest
    # is gone, even if it was killed. This process ends with that server.
    os.closerange(3, 1024)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if log:
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for number in (1, 2):
            os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path.insert(0, cwd)
    sys.argv = command
    if command[0] == "celery":
        model_forks.fork_models()
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)
