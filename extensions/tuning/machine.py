"""The load of this machine, and the warning of every measurement that it spoils."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any, Final

#: From this part of the cores on, other programs change the figures of a measurement.
_BUSY: Final = 0.5


def load_average() -> float | None:
    """Return the load average of the last minute; None where the system has none."""
    with contextlib.suppress(OSError):
        return round(os.getloadavg()[0], 2)
    return None


def load_facts() -> dict[str, Any]:
    """Return what `busy_warning` needs, for the environment of a measurement that begins now."""
    # The load average is that of the whole host, whatever cores this process may use.
    return {"load_before": load_average(), "host_cores": os.cpu_count() or 1}


def busy_warning(environment: Mapping[str, Any]) -> str:
    """Return the warning with which a report begins; "" if the machine was quiet.

    Args:
        environment: that of the measurement, with `load_facts`.
    """
    load, cores = environment.get("load_before"), environment.get("host_cores")
    # Files that were written elsewhere may have anything.
    if not isinstance(load, int | float) or not isinstance(cores, int) or load < cores * _BUSY:
        return ""
    noun = "core" if cores == 1 else "cores"
    return (
        f"The machine was busy before the measurement: load average {load:.1f} on {cores} {noun}. "
        "So times are too long, rates are too low, and both vary. Measure again when the load "
        f"average is below {cores * _BUSY:g}; it falls within minutes after other work has ended."
    )
