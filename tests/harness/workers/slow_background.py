"""Tasks for a background worker: each notes in Redis that it begins, and ends when it is let."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import shared_task
from redis import Redis

BEGUN = "test:begun"
DONE = "test:done"
GATE = "test:gate"


@shared_task(name="test.gated", bind=True)
def gated(self: Any, name: str) -> None:
    """Note its pid under BEGUN, wait for the gate, and note its name under DONE."""
    with Redis.from_url(os.environ["HEADRACE_REDIS_URL"]) as client:
        client.rpush(BEGUN, f"{name} {os.getpid()} {self.request.id}")
        while not client.exists(GATE):
            time.sleep(0.02)
        client.rpush(DONE, name)
