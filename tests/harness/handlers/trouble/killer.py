"""A handler whose inputs can end processes.

An input is an object. `do` is `answer`, `worker`, `host`, `self`, `segfault`, `exit` or
`exit-when-asked`. `worker` kills the worker, as a container's memory limit can. `host` kills all
processes whose pids are in the file that the option `host` names. `self` kills the model process.
`exit-when-asked` hangs, and exits when the stacks are requested. `same` is the result. `takes_s` is
how long it takes. `gate` names a file that it waits for. The option `log` names a file that gets
one line for each batch, with the ids of its jobs. The option `forks` is `pool` or `c`: children
that are forked by Python or by C code, whose pids are the result.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from headrace.handler import Context, Handler
from workers.protocol.frames import TRACE_SIGNAL

POLL_S = 0.01
#: PyDLL keeps the GIL, so a child of its `fork` has it.
LIBC = ctypes.PyDLL(None)


class Killer(Handler):
    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.log = os.open(context.options["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.host = Path(context.options.get("host", os.devnull))
        self.forks: list[int] = []
        forks = context.options.get("forks")
        if forks == "pool":
            fork = multiprocessing.get_context("fork")
            self.pool = ProcessPoolExecutor(1, mp_context=fork)
            self.forks = [self.pool.submit(os.getpid).result()]
        if forks == "c":
            pid = LIBC.fork()
            while not pid:
                LIBC.pause()
            self.forks = [pid]

    def preprocess(self, inputs: list[Any]) -> list[Any]:
        os.write(self.log, f"{' '.join(self.context.request_ids)}\n".encode())
        return inputs

    def inference(self, items: list[Any]) -> list[Any]:
        for item in items:
            time.sleep(item.get("takes_s", 0))
            while "gate" in item and not Path(item["gate"]).exists():
                time.sleep(POLL_S)
            self.end(item.get("do", "answer"))
        return [item.get("same", self.forks) for item in items]

    def end(self, what: str) -> None:
        doomed = [os.getppid()] if what == "worker" else []
        if what == "host":
            doomed = [int(pid) for pid in self.host.read_text().split()]
        for pid in doomed:
            # The list may be older than the end of one of them.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if doomed:
            time.sleep(600)  # the kernel ends this process with its worker
        if what == "self":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "segfault":
            ctypes.string_at(0)
        if what == "exit-when-asked":
            signal.signal(TRACE_SIGNAL, lambda *_: os._exit(9))
            threading.Event().wait()
        if what == "exit":
            os._exit(9)
