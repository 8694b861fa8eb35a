"""Tasks for a background worker: each notes that it begins, and ends when it is let.

`test.gated` does so in Redis; `test.filed` in a folder, for a Redis that takes no notes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import shared_task
from celery.exceptions import Reject
from redis import Redis

BEGUN = "test:begun"
DONE = "test:done"
GATE = "test:gate"


@shared_task(name="test.gated", bind=True)
def gated(self: Any, name: str) -> None:
    """Note its pid under BEGUN, wait for the gate, and note its name under DONE."""
    with Redis.from_url(os.environ["HEADRACE_REDIS_URL"], socket_timeout=60) as client:
        client.rpush(BEGUN, f"{name} {os.getpid()} {self.request.id}")
        while not client.exists(GATE):
            time.sleep(0.02)
        client.rpush(DONE, name)


@shared_task(name="test.filed", bind=True)
def filed(self: Any, folder: str, *, rejected: bool = False) -> None:
    """Make a file of the folder for each run, and wait for the file `gate` there.

    Args:
        self: the task.
        folder: where.
        rejected: the first run then gives its message back.
    """
    runs = Path(folder)
    number = _claim(runs)
    while not (runs / "gate").exists():
        time.sleep(0.02)
    if rejected and not number:
        (runs / "rejected").touch()
        raise Reject("as after an outage", requeue=True)
    (runs / f"done-{number}").touch()


def _claim(runs: Path) -> int:
    """Return the first number without a file, and make its file; two tasks may run at once."""
    number = 0
    while True:
        try:
            (runs / f"run-{number}").touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return number
