"""A stock Celery client, with none of our code."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import kombu.pools
from celery import Celery
from celery.result import AsyncResult
from kombu import Connection, Producer

from headrace.redis.keys import TASK_NAME, queue_name
from tests.harness.wait import wait_until

GET_TIMEOUT_S = 60


@contextmanager
def stock_client(url: str) -> Iterator[Celery]:
    """`Celery(broker=url, backend=url)`; its connections are closed afterwards."""
    # kombu keeps its pools per address, not per app: none is to have connections to a server that
    # was restarted.
    kombu.pools.reset()
    app = Celery(broker=url, backend=url, set_as_current=False)
    try:
        yield app
    finally:
        backend: Any = app.backend
        backend.result_consumer.stop()
        # Results unsubscribe when they are collected, and would connect again for it.
        backend.result_consumer._pubsub = None
        backend.client.close()
        app.close()


def wait_until_handed_over(
    url: str, *ids: str, too_late: Callable[[], bool] = lambda: False
) -> None:
    """Wait until the model processes of the one worker have these jobs, begun or not.

    Args:
        url: Redis.
        too_late: says that they never will, as the machine stood still for too long.
    """
    kombu.pools.reset()  # a test before this one may have had the server close its connections
    with Celery("t", broker=url, set_as_current=False) as app:

        def active() -> set[str]:
            told = app.control.inspect(timeout=2, limit=1).active() or {}
            return {job["id"] for jobs in told.values() for job in jobs}

        wait_until(lambda: too_late() or set(ids) <= active(), "they are handed over")


def send(app: Celery, model: str, value: Any = None, **options: Any) -> AsyncResult[Any]:
    """What the documentation tells a Celery client to do."""
    options.setdefault("kwargs", {"model": model, "input": value})
    options.setdefault("queue", queue_name(model))
    sent: AsyncResult[Any] = app.send_task(TASK_NAME, **options)
    return sent


def caught(app: Celery, queue: str, task: str = TASK_NAME, **options: Any) -> bytes:
    """The message that `send_task` would push, as it would lie in Redis."""
    with Connection("memory://") as connection:
        channel: Any = connection.channel()
        channel._purge(queue)
        send: Any = app.send_task
        with Producer(channel) as producer:
            send(task, queue=queue, producer=producer, **options)
        # Redis' transport writes the message as JSON; the memory transport keeps the dictionary.
        return json.dumps(channel._get(queue)).encode()


def state_of(result: AsyncResult[Any]) -> str:
    """Its state, which the stubs take for one that never changes."""
    return str(result.state)


def raw_message(
    job_id: str,
    body: str,
    *,
    headers: dict[str, Any] | None = None,
    content_type: str = "application/json",
    body_encoding: str = "utf-8",
) -> bytes:
    """A protocol 2 message as it lies in Redis, for what Celery's own client would not write."""
    message = {
        "body": body,
        "content-encoding": "utf-8",
        "content-type": content_type,
        "headers": {"id": job_id, "task": TASK_NAME, "lang": "other", **(headers or {})},
        "properties": {
            "correlation_id": job_id,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": ""},
            "priority": 0,
            "body_encoding": body_encoding,
            "delivery_tag": job_id,
        },
    }
    return json.dumps(message).encode()


class Events:
    """What Celery's own receiver hears, as Flower does, while the context lasts."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self.seen: list[dict[str, Any]] = []

    def __enter__(self) -> Events:
        self._connection: Any = self._app.connection()
        self._receiver: Any = self._app.events.Receiver(
            self._connection, handlers={"*": self.seen.append}, app=self._app
        )
        self._thread = threading.Thread(target=self._receiver.capture)
        self._thread.start()
        # Asked to, each worker sends a heartbeat as soon as the receiver listens.
        try:
            wait_until(lambda: bool(self.seen), "a first event")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._receiver.should_stop = True
        self._thread.join(60)
        self._connection.release()

    def of(self, job_id: str) -> list[dict[str, Any]]:
        """The events of one job, in the order in which they came."""
        return [event for event in list(self.seen) if event.get("uuid") == job_id]

    def kinds(self, job_id: str) -> list[str]:
        """Their types, without `task-`."""
        return [event["type"].removeprefix("task-") for event in self.of(job_id)]

    def wait_for(self, kind: str, *job_ids: str) -> None:
        """Wait until the last word on each job is this one."""
        wait_until(
            lambda: all(self.kinds(job_id)[-1:] == [kind] for job_id in job_ids),
            f"task-{kind} of {len(job_ids)} jobs",
        )
