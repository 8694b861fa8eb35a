"""The memory of processes."""

from __future__ import annotations

import logging
from typing import Any

import psutil

logger = logging.getLogger(__name__)


def get_cpu_usage(pid: Any) -> int:
    """Return the resident memory of a process in bytes; 0 if it does not exist."""
    try:
        return int(psutil.Process(int(pid)).memory_info().rss)
    except (psutil.Error, ValueError) as error:
        logger.warning("the memory of process %s cannot be read: %s", pid, error)
        return 0


def check_process_mem_usage(stdin: Any) -> None:
    """Log the memory of the processes whose pids are in the next line, with commas between."""
    for pid in filter(None, stdin.readline().strip().split(",")):
        logger.info("%s:%d", pid, get_cpu_usage(pid))
