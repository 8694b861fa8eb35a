"""Waiting on a condition, the only waiting that tests do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.02


def wait_until(
    predicate: Callable[[], T], description: str, timeout_s: float = 60, poll_s: float = POLL_S
) -> T:
    """Call `predicate` until it is true, every `poll_s`, and give what it gave.

    Raises:
        AssertionError: it was not true within `timeout_s`; the message holds the description, and
            what the predicate gave or raised last.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        last: object
        try:
            value = predicate()
        except (OSError, ValueError, LookupError) as error:
            last = error
        else:
            if value:
                return value
            last = value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {description}; last: {last!r}")
        time.sleep(poll_s)
