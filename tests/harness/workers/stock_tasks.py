"""The tasks of a stock Celery app, with none of our code, to stand beside our jobs in a canvas."""

from __future__ import annotations

import os
from typing import Any

import redis
from celery import Celery

url = os.environ["STOCK_URL"]
app = Celery("stock", broker=url, backend=url)
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_default_queue="stock",
    worker_cancel_long_running_tasks_on_connection_loss=True,
)


@app.task(name="stock.add")
def add(x: Any, y: Any) -> Any:
    """Both together."""
    return x + y


@app.task(name="stock.total")
def total(values: list[Any]) -> Any:
    """The sum of a list."""
    return sum(values)


@app.task(name="stock.fail")
def fail(*args: Any) -> None:
    """Fails on anything."""
    raise ValueError(f"the stock task fails on {args}")


@app.task(name="stock.note", bind=True)
def note(self: Any, value: Any, where: str) -> Any:
    """Leaves its own id and the value in a list, and gives the value."""
    with redis.Redis.from_url(url, socket_timeout=60) as client:
        client.rpush(where, f"{self.request.id} {value}")
        client.expire(where, 600)
    return value


@app.task(name="stock.same")
def same(value: Any) -> Any:
    """The value itself."""
    return value


@app.task(name="stock.kind")
def kind(value: Any) -> str:
    """What type the value has here, and how long it is."""
    return f"{type(value).__name__} {len(value)}"
