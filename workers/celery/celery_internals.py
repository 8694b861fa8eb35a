"""The private parts of Celery that the worker uses, in one place. Read from Celery 5.7.0.

`tests/unit/workers/celery/test_celery_internals.py` fails when one of these names goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Any

from celery.worker import heartbeat
from celery.worker import state as celery_state
from celery.worker.control import Panel

Command = Callable[..., Any]


def stock_commands() -> dict[str, Command]:
    """Return Celery's own remote-control commands, by name."""
    return dict(Panel.data)


def set_commands(commands: Mapping[str, Command]) -> None:
    """Answer these remote-control commands in place of Celery."""
    Panel.data.update(commands)


def count_active(jobs: Sized) -> None:
    """Add our running jobs to the `active` number of Celery's heartbeats, which Flower shows.

    The heartbeat only takes the length of its module's `active_requests`.
    """
    vars(heartbeat)["active_requests"] = _Active(jobs)


class _Active:
    def __init__(self, jobs: Sized) -> None:
        self._jobs = jobs

    def __len__(self) -> int:
        return len(self._jobs) + len(celery_state.active_requests)


def count_started(task: str, count: int) -> None:
    """Add to the number of started tasks that `inspect stats` shows."""
    celery_state.all_total_count[0] += count
    celery_state.total_count[task] += count


def take_ticks(clock: Any, count: int) -> int:
    """Advance Celery's logical clock by `count` at once, and return the first of these ticks."""
    with clock.mutex:
        first: int = clock.value + 1
        clock.value += count
    return first


def event_channel(database: int) -> str:
    """Return the channel on which kombu publishes lists of task events in a database."""
    return f"/{database}.celeryev/task.multi"
