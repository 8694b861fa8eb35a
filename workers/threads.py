"""Threads without which their process is of no use."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

#: EX_SOFTWARE of sysexits.h: a thread of ours has ended, which is as bad as a crash.
SOFTWARE_ERROR_STATUS: Final = 70


def run_critical(run: Callable[[], object], what: str) -> None:
    """The body of such a thread: an error ends the process, loudly.

    A worker that heartbeats and does nothing is worse than none: whoever supervises it starts
    another, and what it holds is given back.

    Args:
        run: what the thread does.
        what: whose thread it is, for the log.
    """
    try:
        run()
    except BaseException:
        logger.critical("%s thread ended by an error", what, exc_info=True)
        os._exit(SOFTWARE_ERROR_STATUS)
