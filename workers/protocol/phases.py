"""What a model process and its worker agree on: the phases, in order, a signal and variables.

=========  =====================================================  ==============================
phase      what happens                                           what ends it
=========  =====================================================  ==============================
loading    the handler is imported and `initialize` runs          it returns or raises, or
                                                                  `load_timeout_s` is over
warming    the handler's `example_input` goes through all verbs,  as loading, under the same
           alone and as a batch of `max_batch_size`               time limit
ready      batches run                                            the worker stops, or the process
                                                                  is recycled
draining   dispatched batches end; no more are dispatched         the last batch has ended
stopped    the process was ordered to stop, and exits             it is gone, or is killed
=========  =====================================================  ==============================

Between two processes a replica is `failed` (the load failed, and `error` has the reason) or
`restarting`.
"""

from __future__ import annotations

import faulthandler
import signal
from enum import StrEnum
from typing import Final

#: Set in every model process and inherited by its children; names the worker: its pid, ":", random.
PARENT_VARIABLE: Final = "HEADRACE_MODEL_PARENT"
#: Set likewise; names a start of a model process.
LIFE_VARIABLE: Final = "HEADRACE_MODEL_LIFE"
#: Set in a model process that is pinned to cores: their logical CPUs, separated by commas.
CPUS_VARIABLE: Final = "HEADRACE_MODEL_CPUS"
#: Makes a model process write the stacks of its threads.
TRACE_SIGNAL: Final = signal.SIGUSR2


class Phase(StrEnum):
    """The phase of a model process."""

    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"
    RESTARTING = "restarting"


#: The phases that `load_timeout_s` limits.
STARTING: Final = frozenset({Phase.LOADING, Phase.WARMING})


def write_stacks_to(descriptor: int) -> None:
    """Make this process write the stacks of all threads there at a crash or on `TRACE_SIGNAL`.

    C code writes them, so they are written even while something holds the interpreter.
    """
    faulthandler.enable(descriptor)
    faulthandler.register(TRACE_SIGNAL, descriptor, all_threads=True)
