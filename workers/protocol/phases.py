"""The life of a model process, in order. The process and its worker both go by this list.

=========  =====================================================  ==============================
phase      what happens                                           what ends it
=========  =====================================================  ==============================
loading    the handler is imported and `initialize` runs          it returns or raises, or
                                                                  `load_timeout_s` is over
warming    the handler's `example_input` goes through all verbs,  as loading, under the same
           alone and as a batch of `max_batch_size`               time limit
ready      batches run                                            the worker stops, or the process
                                                                  is to be recycled
draining   what was handed over ends; nothing more is handed over the last batch has ended
stopped    the process is told to stop, and exits                 it is gone, or is killed
=========  =====================================================  ==============================

Between two lives a replica is `failed` (its load failed, and `error` says why) or `restarting`.
"""

from __future__ import annotations

import faulthandler
import signal
from enum import StrEnum
from typing import Final

#: Makes a model process write the stacks of its threads.
TRACE_SIGNAL: Final = signal.SIGUSR2


class Phase(StrEnum):
    """Where a model process stands in its life."""

    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"
    RESTARTING = "restarting"


#: The phases of one life, in order.
LIFE: Final = (Phase.LOADING, Phase.WARMING, Phase.READY, Phase.DRAINING, Phase.STOPPED)
#: What `load_timeout_s` bounds.
STARTING: Final = frozenset({Phase.LOADING, Phase.WARMING})
#: A model's state is the best of its processes'.
BEST_FIRST: Final = (
    Phase.READY,
    Phase.DRAINING,
    Phase.WARMING,
    Phase.LOADING,
    Phase.RESTARTING,
    Phase.FAILED,
    Phase.STOPPED,
)


def write_stacks_to(descriptor: int) -> None:
    """In a model process: write the stacks of all threads there at a crash, or when asked.

    It is C code that does so, whatever holds the interpreter.
    """
    faulthandler.enable(descriptor)
    faulthandler.register(TRACE_SIGNAL, descriptor, all_threads=True)
